//! Agents and the scopes that people grant them.

mod agents;
mod relations;
mod webhooks;
