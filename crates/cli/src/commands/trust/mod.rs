//! The commands of the trust dialect: agents, what people grant them, and the webhooks of their owners.

pub(crate) mod agents;
pub(crate) mod consent;
pub(crate) mod manifests;
pub(crate) mod webhooks;
