//! The trust dialect: agents, what people grant them, webhooks and WebSockets.

pub(crate) mod agents;
mod manifest_examples;
mod reauth;
mod relations;
pub(crate) mod sockets;
mod webhooks;

pub(crate) use webhooks::runs::UNDO_RUN_WEBHOOKS;
