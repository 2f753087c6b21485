//! Agents with their manifests, the relations that grant them scopes, receipts and webhooks.

pub mod agents;
pub mod decisions;
mod guards;
pub mod manifests;
pub mod receipts;
pub mod relations;
pub mod run_webhooks;
pub mod webhooks;
