//! The trust dialect: agents, what people grant them, webhooks and WebSockets.

pub mod agents;
mod manifest_examples;
mod reauth;
mod relations;
pub mod sockets;
mod webhooks;

pub use webhooks::runs::UNDO_RUN_WEBHOOKS;
