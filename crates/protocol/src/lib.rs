//! Every wire type and every pure rule of Ostler.
//!
//! Nothing here does I/O, waits, or reads a clock: state and action go in, state or failure comes out. `kernel` holds
//! the state machines; the store persists what they return.

#[macro_use]
mod enum_words;

pub mod addresses;
pub mod bodies;
pub mod callers;
pub mod capabilities;
pub mod created;
pub mod cursors;
pub mod daemon;
pub mod failures;
pub mod health;
pub mod ids;
pub mod json;
pub mod kernel;
pub mod limits;
pub mod mcp;
pub mod mcp_server;
pub mod mesh;
pub mod outgoing;
pub mod problems;
pub mod redaction;
pub mod retention;
pub mod rpc;
pub mod rules;
pub mod run_input;
pub mod schema_documents;
pub mod sha256;
pub mod text;
pub mod tokens;
pub mod tools;
pub mod trust;
pub mod users;

pub use failures::{Failure, FailureKind};
pub use jiff::Timestamp;
pub use json::RawJson;
pub use rules::Rule;
