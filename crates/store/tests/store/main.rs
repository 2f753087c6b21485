//! The store, tested on both engines through its real lanes.

#![allow(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

mod attached_rows;
mod build;
mod columns;
mod equivalence;
mod flushes;
mod holds;
mod host;
mod interleavings;
mod invariants;
mod ledger;
mod mesh;
mod model;
mod place;
mod player;
mod processes;
mod readers;
mod restores;
mod rows;
mod run_input;
mod runner_jobs;
mod script;
mod starts;
mod states;
mod trust;
mod workshop;
