//! Every wire type and every pure rule of Ostler.
//!
//! Nothing here does I/O, waits, or reads a clock: state and action go in, state or failure comes out. `kernel` holds
//! the state machines; the store persists what they return.

pub mod addresses;
pub mod agent_runs;
pub mod agents;
pub mod agui;
pub mod attachments;
pub mod backends;
pub mod bodies;
pub mod budgets;
pub mod capabilities;
pub mod chain;
pub mod commands;
pub mod context;
pub mod conversation;
pub mod cursors;
pub mod events;
pub mod facts;
pub mod failures;
pub mod fold;
pub mod health;
pub mod history;
pub mod i18n;
pub mod identities;
pub mod ids;
pub mod json;
pub mod kernel;
pub mod launching;
pub mod leases;
pub mod limits;
pub mod liveness;
pub mod manifest;
pub mod mesh;
pub mod outgoing;
pub mod permissions;
pub mod policy;
pub mod provider_profiles;
pub mod receipts;
pub mod redaction;
pub mod relations;
pub mod results;
pub mod rpc;
pub mod runner_jobs;
pub mod runners;
pub mod runs;
pub mod session_storage;
pub mod sessions;
pub mod text;
pub mod tokens;
pub mod ui;
pub mod users;
pub mod webhooks;
pub mod workspaces;

pub use failures::{Failure, FailureKind};
pub use jiff::Timestamp;
pub use json::RawJson;
