//! The store, tested on both engines through its real lanes.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "tests of interleavings print what they reached")]

mod attached_rows;
mod build;
mod columns;
mod daemon;
mod equivalence;
mod flushes;
mod holds;
mod host;
mod interleavings;
mod invariants;
mod ledger;
mod mesh;
mod model;
mod processes;
mod readers;
mod rows;
mod run_input;
mod runner_jobs;
mod script;
mod script_runner;
mod starts;
mod states;
mod store_process;
mod test_store;
mod trust;
