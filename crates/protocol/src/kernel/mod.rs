//! The kernel: its nouns, each with its wire form and its pure rules, and in `operations` the decisions on them.
//! It knows no dialect.

pub mod aliases;
pub mod backends;
pub mod budgets;
pub mod chain;
pub mod cluster_launching;
pub mod commands;
pub mod context;
pub mod conversation;
pub mod events;
pub mod facts;
pub mod fold;
pub mod front_end;
pub mod labels;
pub mod launching;
pub mod leases;
pub mod liveness;
pub mod modes;
pub mod operations;
pub mod permissions;
pub mod policy;
pub mod provider_profiles;
pub mod resource_bundles;
pub mod results;
pub mod run_views;
pub mod runner_jobs;
pub mod runners;
pub mod runs;
pub mod session_storage;
pub mod sessions;
pub mod stages;
pub mod turns;
pub mod usage;
pub mod whole_payloads;
pub mod workspaces;
