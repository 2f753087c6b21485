//! Creating a run, and the status that follows from its lease and commands.

use super::{
    command::{self, CreateCommandOp},
    desk::{Desk, RunDesk, Tracked},
    job::{self, CreateJobOp},
    session,
};
use crate::{
    Failure, FailureKind, Timestamp,
    ids::RunId,
    kernel::{
        commands::{CommandState, CommandType},
        events::NewEvent,
        runs::{CreatedRun, Run, RunStatus},
        sessions::Session,
    },
};

#[derive(Clone, Debug)]
pub struct CreateRunOp {
    pub run: Run,
    /// The session, if the run creates a new one.
    pub session: Option<Session>,
    /// The policy decision, as an audit event.
    pub audit: NewEvent,
    /// A first command and its standing job, created in the same transaction.
    pub start: Option<(Box<CreateCommandOp>, Box<CreateJobOp>)>,
}

pub fn create(desk: &mut Desk, op: CreateRunOp, now: Timestamp) -> Result<CreatedRun, Failure> {
    session::check_takes_work(&desk.session)?;
    if let Some(active) = desk.session.busy_with_other(None, now) {
        return Err(session_busy(active));
    }
    // Past this point nothing can be refused: a new run takes a turn, and a pending turn takes a job.
    if op.start.as_ref().is_some_and(|(first, _)| first.command.command_type != CommandType::Turn) {
        return Err(Failure::invalid("first-command", "a run's first command must be a turn"));
    }
    let run_id = op.run.run_id;
    desk.session.last_run_id = Some(run_id);
    desk.session.backend_profile = op.run.backend_profile.clone();
    desk.runs.insert(run_id, RunDesk::new(Tracked::new(op.run)));
    desk.append(run_id, op.audit, now);
    let (command, runner_job) = match op.start {
        None => (None, None),
        Some((first, order)) => {
            let (command, _) = command::create(desk, run_id, *first, now)?;
            let order = CreateJobOp { command_id: Some(command.command_id), ..*order };
            let (job, _) = job::create(desk, run_id, order, now)?;
            (Some(command), Some(job))
        }
    };
    desk.settle(run_id, now);
    let run = (*desk.run(run_id)?.run).clone();
    Ok(CreatedRun { run, command, runner_job })
}

pub fn session_busy(active: RunId) -> Failure {
    Failure::new(FailureKind::SessionBusy, "the session has another active run")
        .detail("activeRunId", active.to_string())
}

/// A run that has ended takes nothing more.
pub fn check_open(run: &Run) -> Result<(), Failure> {
    match run.status {
        RunStatus::Cancelled => Err(Failure::rule(FailureKind::Cancelled, "run-cancelled", "the run was cancelled")),
        status if status.is_terminal() => {
            let message = format!("the run has ended: {}", status.as_str());
            Err(Failure::rule(FailureKind::StateConflict, "run-terminal", message).detail("status", status.as_str()))
        }
        _ => Ok(()),
    }
}

/// As [`check_open`], for what must not be added once a cancel was requested.
pub fn check_accepting(run: &Run) -> Result<(), Failure> {
    check_open(run)?;
    match run.cancel_requested_at {
        Some(_) => Err(Failure::rule(FailureKind::Cancelled, "run-cancelling", "the run is being cancelled")),
        None => Ok(()),
    }
}

pub fn set_status(desk: &mut RunDesk, leased: bool) {
    if desk.run.status.is_terminal() {
        return;
    }
    let working = desk.unfinished().any(|c| c.state == CommandState::Running);
    let status = match (leased, working) {
        (true, true) => RunStatus::Running,
        (true, false) => RunStatus::Claimed,
        (false, _) => RunStatus::Pending,
    };
    if desk.run.status != status {
        desk.run.status = status;
    }
}
