//! What operations return.

use crate::kernel::{
    aliases::CommandAlias,
    commands::Command,
    events::Appended,
    leases::{Claimed, LeaseState},
    permissions::PermissionRequest,
    runner_jobs::RunnerJob,
    runs::{CreatedRun, Run},
    sessions::Session,
};

#[derive(Clone, Debug)]
pub enum Reply {
    Session(Box<Session>),
    Run(Box<CreatedRun>),
    /// Created, or found under the same idempotency key (`false`).
    Command(Box<Command>, bool),
    Job(Box<RunnerJob>, bool),
    /// Whether this request has recorded the end. False if the end was recorded before, or is not the end of the current start.
    FinishedJob(bool),
    Claimed(Box<Claimed>),
    Lease(LeaseState),
    Appended(Appended),
    CancelledRun(Box<Run>),
    LabelledRun(Box<Run>),
    Permission(Box<PermissionRequest>),
    Submitted(Box<Submitted>),
    Done,
}

#[derive(Clone, Debug)]
pub struct Submitted {
    pub alias: CommandAlias,
    /// The session was created for it.
    pub is_new_session: bool,
    /// The run, if one was created for it.
    pub started: Option<Run>,
}
