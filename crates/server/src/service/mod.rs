//! The verbs. Each authorises its caller and returns wire types. Verbs on the kernel's nouns submit one operation to the
//! lane. The others read, decide by a pure rule and write if nothing has changed, with a bounded number of retries.

pub mod backends;
pub mod callers;
pub mod capabilities;
pub mod claims;
pub(crate) mod codex_program;
pub mod commands;
pub mod companions;
pub mod conversation;
pub mod events;
pub mod follow;
pub mod health;
pub(crate) mod job_extras;
pub mod leases;
pub mod lookup;
pub mod metrics;
pub mod permissions;
pub mod provider_profiles;
pub mod replay_throttle;
pub mod requests;
pub mod results;
pub mod retention;
pub mod runner_jobs;
pub mod runner_logs;
pub mod runners;
pub mod runs;
pub mod session_storage;
pub mod sessions;
pub mod shell;
pub mod side_queries;
pub mod snapshots;
pub mod tokens;
pub mod tools;
pub mod usage;
pub mod users;
