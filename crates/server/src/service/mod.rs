//! The verbs. Each authorises, submits one operation or reads once, and returns wire types.

pub mod agent_runs;
pub mod agents;
pub mod attachments;
pub mod backends;
pub mod capabilities;
pub mod commands;
pub mod conversation;
pub mod events;
pub mod follow;
pub mod health;
pub mod history;
pub mod leases;
pub mod metrics;
pub mod permissions;
pub mod provider_profiles;
pub mod receipts;
pub mod relations;
pub mod results;
pub mod runner_jobs;
pub mod runners;
pub mod runs;
pub mod session_storage;
pub mod sessions;
pub mod threads;
pub mod tokens;
pub mod users;
