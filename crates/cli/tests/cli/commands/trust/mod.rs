//! The commands of the trust dialect.

mod agents;
pub(crate) mod consent;
mod webhooks;
