//! What tests, benchmarks, `xtask` and the torturer share: the two engines, scratch directories and databases, a private
//! Postgres cluster that can be restarted, killed and paused, a proxy that breaks connections on demand, a Kubernetes API
//! server and a kubelet, file systems in image files that can be filled up, and processes that can be frozen. It contains
//! no product code, and the product does not depend on it.

#![expect(clippy::expect_used, reason = "a test whose servers and directories cannot be made has failed")]

#[cfg(feature = "databases")]
pub mod database;
pub mod disk;
pub mod engine;
#[cfg(feature = "kubernetes")]
pub mod kube;
pub mod loop_mount;
pub mod manifests;
pub mod mcp_server;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod scratch;
pub mod server;
#[cfg(feature = "engines")]
pub mod sqlite_template;
