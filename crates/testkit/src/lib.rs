//! What tests, benchmarks and `xtask` share: a private Postgres cluster that can be restarted, killed and paused. It
//! contains no product code, and the product does not depend on it.

pub mod postgres;
