//! Stand-ins for model providers and for a bucket: endpoints on loopback that speak the real wire protocol over a real socket;
//! a provider does what the prompt says. For tests and measurements only; what passes with them is a self-test with a real agent, not
//! acceptance with a real provider.
//!
//! A marker in the last user text chooses what happens: `[[name]]` or `[[name:argument]]`. Without one there is a plain
//! answer.

mod bucket;
mod chat;
mod endpoint;
pub mod marker;
mod responses;

pub use bucket::Bucket;
pub use chat::{chat, chat_with_key};
pub use endpoint::{Endpoint, Seen};
pub use responses::responses;
