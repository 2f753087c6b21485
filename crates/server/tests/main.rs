//! The server's tests: a whole server in this process, spoken to over HTTP, on both engines, with a clock that only the
//! tests move. Each file is a noun of the kernel or a promise of the server; each test is a sentence.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "the seed of a test repeats it")]

mod harness;

mod backends;
mod budgets;
mod callers;
mod cancel;
mod clock;
mod commands;
mod conversation;
mod daemon;
mod deployment;
mod docs;
mod edge;
mod events;
mod external_runners;
mod follow;
mod health;
mod heartbeats;
mod holdings;
mod input;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod labels;
mod leases;
mod limits;
mod listing;
mod liveness;
mod matrix;
mod mcp;
mod mcp_server;
mod mesh;
mod metrics;
mod operations;
mod pager;
mod pages;
mod patience;
mod permissions;
mod plans;
mod profile_owners;
mod provider_profiles;
mod rates;
mod read_replica;
mod replicas;
mod resident;
mod resource_bundles;
mod results;
mod retention;
mod run_input;
mod runner_jobs;
mod runs;
mod session_storage;
mod sessions;
mod several_problems;
mod store_faults;
mod store_recovery;
mod surface;
mod tokens;
mod tools;
mod traces;
mod trust;
mod unreadable_rows;
mod usage;
mod users;
mod verify;
mod votes;
mod workspaces;
