//! The trust dialect: agents, the scopes that people grant them, and webhooks.

mod agents;
pub mod receiver;
mod relations;
mod webhooks;
