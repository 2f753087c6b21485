//! The commands of the trust dialect.

mod agents;
mod consent;
mod webhooks;
