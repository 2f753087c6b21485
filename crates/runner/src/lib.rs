//! The runner: claims one run, drives an agent through its commands, and writes down what happens.
//!
//! It reaches the server only through `client`, so it can live in the server's process, beside it or far away. It decides
//! nothing about states: it reports facts, and the server judges whether they may still be written. An agent's silence,
//! text or exit never ends a command here; only the end the agent states does, or the runner's own reason to stop it.

pub mod agent;
mod backlog;
mod budgets;
mod changes;
mod git;
pub mod guard;
mod holdback;
mod launch;
mod link;
mod outbox;
mod outfit;
mod runner;
mod storage;
mod tail;
mod tenure;
mod turn;

pub use agent::process::ENVIRONMENT;
pub use git::git_missing;
pub use launch::{LAUNCH_BYTES_MAX, Launch};
pub use link::{Answer, Asked, Link, Steer};
pub use outfit::{Lack, Outfit, Patience};
pub use runner::{RunnerOrder, RunnerOutcome, RunnerStatus, run, run_with};
pub use tail::Tail;
