//! The runner: claims one run, drives a backend through the run's commands, and reports what happens.
//!
//! It reaches the server only through `client`, so it can run in the server's process, in a process beside it, or on
//! another machine. It decides nothing about states: it reports facts, and the server decides whether to accept them.
//! Silence, text or an exit of the backend never ends a command. Only an end that the backend states does, or the
//! runner's own reason to stop it.

pub mod backend;
mod budgets;
mod changes;
mod environment;
mod front_end;
mod git;
pub mod guard;
mod launch;
mod lease_session;
mod leave_order;
mod log_tail;
mod outbox;
mod outcome;
mod pending_commands;
mod place_bundle;
mod resource_bundle;
mod retries;
mod rules;
mod runner;
mod session_storage;
mod shell;
mod side_queries;
mod text;
mod text_cutter;
mod tool_gateway;
mod tool_port;
mod tools;
mod turn_driver;
mod turn_sink;

pub use backend::{
    answers_side_queries,
    process::{ENVIRONMENT, guarded_command},
    side_query,
};
pub use changes::{Snapshots, TreeChange, TreeEntry};
pub use environment::{BackendEnvironment, RetryPolicy, Unavailable};
pub use git::{Git, git_missing};
pub use launch::{CERTIFICATE_BYTES_MAX, LAUNCH_BYTES_MAX, Launch};
pub use log_tail::LogTail;
pub use outcome::{RunnerOutcome, RunnerStatus};
pub use resource_bundle::{BundleCredential, BundleOrder};
pub use runner::{RunnerOrder, StorageClaim, run, run_claimed, run_until, run_with, run_with_until};
pub use shell::{ShellOrder, ShellOutcome, run_shell};
pub use side_queries::{SideQuery, SideQueryLimits};
pub use tools::{NamedSecret, OfferedMcpServer, OfferedTransport};
pub use turn_sink::{PendingPermission, PermissionDecision, Steer, TurnSink};
