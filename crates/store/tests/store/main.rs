//! The store, tested on both engines through its real lanes.

#![allow(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

mod agents;
mod build;
mod equivalence;
mod flushes;
mod history;
mod host;
mod identities;
mod interleavings;
mod invariants;
mod ledger;
mod mesh_limits;
mod mesh_messages;
mod mesh_queue;
mod model;
mod place;
mod player;
mod processes;
mod readers;
mod relations;
mod rows;
mod runner_jobs;
mod script;
mod workshop;
