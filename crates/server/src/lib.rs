//! The server: verbs (`service`), their routes (`http`), the mesh's gateway (`gateway`), background work (`worker`) and
//! starting runners (`launcher`), on top of the store. State of sessions, runs and commands is decided by
//! `protocol::kernel::operations`; services of other nouns apply the pure rules of `protocol` to rows that they read, and
//! write if the rows have not changed.

mod app;
mod attachments;
mod auth;
pub mod clock;
pub mod config;
mod directories;
mod gateway;
mod http;
mod hub;
mod isolation;
mod launcher;
mod listener;
mod live;
mod manifests;
mod mesh;
mod metrics;
pub mod pki;
mod places;
pub mod rates;
mod refusals;
mod secrets;
mod server;
mod service;
pub mod settings;
mod tls;
mod traces;
pub mod verify;
mod waiting;
mod work;
mod worker;

pub use config::Config;
pub use http::openapi;
pub use server::Server;
pub use verify::verify;
