//! Background work: what time alone brings about.

pub mod sweeper;
