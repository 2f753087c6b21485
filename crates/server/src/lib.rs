//! The server: verbs (`service`), their HTTP face (`http`), background work (`worker`) and starting runners
//! (`launcher`), on top of the store. It decides nothing about state itself; `protocol::kernel` does.

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
