//! Creating a run, and the status that follows from its lease and commands.

use super::{
    admission::{self, session_busy},
    command::{self, CreateCommandOp},
    desk::{Desk, RunDesk, Tracked},
    job::{self, CreateJobOp},
};
use crate::{
    Failure, Rule, Timestamp,
    kernel::{
        commands::CommandType,
        events::NewEvent,
        runs::{CreatedRun, Run},
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

pub(super) fn create(desk: &mut Desk, op: CreateRunOp, now: Timestamp) -> Result<CreatedRun, Failure> {
    admission::check_takes_work(&desk.session)?;
    if let Some(active) = desk.session.busy_with_other(None, now) {
        return Err(session_busy(active));
    }
    // Past this point nothing can be refused: a new run takes a turn, and a pending turn takes a job.
    if op.start.as_ref().is_some_and(|(first, _)| first.command.command_type != CommandType::Turn) {
        return Err(Failure::invalid(Rule::FirstCommand, "a run's first command must be a turn"));
    }
    let run_id = op.run.run_id;
    desk.session.last_run_id = Some(run_id);
    desk.session.backend_profile = op.run.backend_profile.clone();
    desk.runs.insert(run_id, RunDesk::new(Tracked::new(op.run)));
    desk.count_run(run_id, now);
    desk.append(run_id, op.audit, now);
    let (command, runner_job) = match op.start {
        None => (None, None),
        Some((first, order)) => {
            let command = command::create(desk, run_id, *first, now)?.value;
            let order = CreateJobOp { command_id: Some(command.command_id), ..*order };
            let job = job::create(desk, run_id, order, now)?.value;
            (Some(command), Some(job))
        }
    };
    desk.settle(run_id, now);
    let run = (*desk.run(run_id)?.run).clone();
    Ok(CreatedRun { run, command, runner_job })
}
