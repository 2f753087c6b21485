//! The engine that dialects are built on: HTTP and WebSockets (`net`), authentication (`auth`), verbs on the kernel's nouns
//! (`service`), background work (`worker`), starting runners (`launcher`), and `dialect`, the descriptor with which a dialect
//! registers. It knows no dialect. State of sessions, runs and commands is decided by `protocol::kernel::operations`.

pub mod app;
pub mod auth;
pub mod backup;
mod bound_workspace;
pub mod clock;
mod compact;
pub mod config;
mod deadlines;
pub mod dialect;
pub mod directories;
mod holdings;
pub mod hub;
mod job_queues;
mod job_redactors;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod launcher;
pub mod mcp;
pub mod metrics;
pub mod migrate;
pub mod net;
pub mod recheck;
mod restore_marker;
pub mod secrets;
pub mod server;
pub mod service;
pub mod startup;
pub mod tools;
pub mod traces;
pub mod verify;
mod worker;

pub use crate::net::openapi;
pub use compact::compact;
pub use config::Config;
pub use server::{RunningServer, Server};
pub use verify::verify;
