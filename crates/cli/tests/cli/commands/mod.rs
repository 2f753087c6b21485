//! Each command against a real server, or against a server of canned responses.

mod apply;
mod can_i;
mod canned_server;
mod daemon;
mod dist;
#[cfg(feature = "kubernetes")]
mod doctor_kubernetes;
mod explain;
mod idle_runs;
mod jq;
mod mesh;
mod messages;
mod migrate;
mod preflight;
mod profiles;
mod readme;
mod reads;
pub(crate) mod resource_bundles;
mod run_input;
mod runner;
mod serve;
mod serve_log;
mod serve_settings;
mod tools;
pub(crate) mod trust;
mod usage;
mod verify;
mod without_git;
mod workspaces;
