//! Typed client: one method per operation, one folder per dialect, one file per noun, every error a
//! [`Failure`](ostler_protocol::Failure).
//!
//! It speaks HTTP to a remote server, or calls a server in the same process directly; callers cannot tell the difference.
//! It stores no state about runs, never retries and never reconnects by itself: the caller knows what may be repeated.

mod client;
pub mod daemon;
mod failures;
mod manager;
pub mod mesh;
pub mod outgoing;
mod path;
mod pinned;
mod raw;
mod response;
mod run_input;
pub mod sse;
mod streaming;
mod transport;
pub mod trust;

pub use client::Client;
pub use failures::{CAUSES, connection_cause, is_transient, is_unreachable, was_not_begun};
pub use manager::events::EventStream;
pub use response::problem;
pub use transport::{InProcess, ReplyBody, restricted_web_client, web_client};
