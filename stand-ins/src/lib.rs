//! Stand-ins for model and speech providers, an identity provider and a bucket: endpoints on loopback that speak the real wire
//! protocol over a real socket. For tests and measurements only: what passes with them is a self-test with a real agent, not
//! acceptance with a real provider.
//!
//! A marker in the last user text selects what a provider does: `[[name]]` or `[[name:argument]]`. Without a marker it sends
//! a plain reply.

mod bucket;
mod chat;
mod endpoint;
mod identity;
pub mod marker;
mod responses;
mod speech;

pub use bucket::Bucket;
pub use chat::{chat, chat_with_key};
pub use endpoint::{Endpoint, RecordedRequest};
pub use identity::{IdentityProvider, IdentityReply, IdentityRequest};
pub use responses::responses;
pub use speech::speech;
