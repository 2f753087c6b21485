//! The kernel's state machines, pure: a [`Desk`] holds the rows of one session that a set of operations touches, an
//! [`Op`] is decided against it, and the store writes back what changed. Each operation either applies whole or
//! changes nothing; the one exception is stated where it is made (`claim-waiting`).

mod append;
mod budget;
mod cancel;
mod claim;
mod command;
mod desk;
mod ending;
mod job;
mod permission;
mod replay;
mod reply;
mod run;
mod session;
mod submit;
mod sweep;

pub use append::AppendOp;
pub use cancel::{CancelCommandOp, CancelRunOp};
pub use claim::{AckOp, ClaimOp, DismissOp, PatchLeaseOp};
pub use command::CreateCommandOp;
pub use desk::{Batch, Change, Desk, RunDesk, Tracked};
pub use job::{CreateJobOp, FinishJobOp};
pub use permission::AnswerPermissionOp;
pub use replay::{Replay, Rows, RowsBeside};
pub use reply::Operation;
pub use run::CreateRunOp;
pub use session::{ChangeSessionOp, CreateSessionOp, SessionChange};
pub use submit::{
    ACTIVE_COMMAND, Choice, OPEN_PERMISSIONS, PERMISSION_EXPIRED, PERMISSION_OPTION, PERMISSION_RESOLVED,
    PERMISSION_TWICE, PERMISSION_UNKNOWN, PERMISSIONS_OPEN, PermissionAnswer, SESSION_MOVED_ON, Submission, SubmitOp,
    Submitted,
};
pub use sweep::SweepOp;

use crate::{
    Failure, Timestamp,
    ids::{CommandId, PermissionId, RunId, RunnerJobId, SessionId},
    kernel::{
        commands::Command,
        events::{Appended, NewEvent},
        leases::{Claimed, LeaseState},
        permissions::PermissionRequest,
        runner_jobs::RunnerJob,
        runs::{CreatedRun, Run},
        sessions::Session,
    },
};

/// One request to the kernel.
#[derive(Clone, Debug)]
pub enum Op {
    CreateSession(Box<CreateSessionOp>),
    ChangeSession(ChangeSessionOp),
    CreateRun(Box<CreateRunOp>),
    CreateCommand(Box<CreateCommandOp>),
    CreateJob(Box<CreateJobOp>),
    FinishJob(FinishJobOp),
    Claim(ClaimOp),
    PatchLease(PatchLeaseOp),
    Dismiss(DismissOp),
    Ack(AckOp),
    Append(AppendOp),
    CancelRun(CancelRunOp),
    CancelCommand(CancelCommandOp),
    AnswerPermission(AnswerPermissionOp),
    Submit(Box<SubmitOp>),
    Sweep(SweepOp),
}

#[derive(Clone, Debug)]
pub enum Reply {
    Session(Box<Session>),
    Run(Box<CreatedRun>),
    /// Created, or found under the same idempotency key (`false`).
    Command(Box<Command>, bool),
    Job(Box<RunnerJob>, bool),
    Claimed(Box<Claimed>),
    Lease(LeaseState),
    Appended(Appended),
    CancelledRun(Box<Run>),
    Permission(Box<PermissionRequest>),
    Submitted(Box<Submitted>),
    Done,
}

/// An operation with the rows it needs on the desk beside the run and its unfinished commands.
#[derive(Clone, Debug)]
pub struct Request {
    pub session: SessionId,
    /// `None`: it is about the session itself, or creates its own run.
    pub run_id: Option<RunId>,
    pub op: Op,
}

/// Rows to load by key, each `None` when the operation does not name one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs<'a> {
    pub command_key: Option<&'a str>,
    pub job_key: Option<&'a str>,
    pub job_id: Option<RunnerJobId>,
    pub latest_command: bool,
    pub batch: Option<(i64, i64)>,
    /// Of the session.
    pub alias: Option<&'a str>,
}

impl Request {
    /// The session that the operation creates.
    pub fn new_session(&self) -> Option<&Session> {
        match &self.op {
            Op::CreateSession(op) => Some(&op.session),
            Op::CreateRun(op) => op.session.as_ref(),
            Op::Submit(op) => op.fresh_run().and_then(|fresh| fresh.session.as_ref()),
            _ => None,
        }
    }

    fn erases(&self) -> bool {
        matches!(&self.op, Op::ChangeSession(op) if op.change == SessionChange::Erase)
    }

    pub fn needs(&self) -> Needs<'_> {
        let none = Needs::default();
        match &self.op {
            Op::CreateCommand(op) => Needs { command_key: op.command.idempotency_key.as_deref(), ..none },
            Op::CreateJob(op) => {
                Needs { job_key: op.job.idempotency_key.as_deref(), latest_command: op.command_id.is_none(), ..none }
            }
            Op::Submit(op) => Needs { alias: Some(&op.alias), ..none },
            Op::FinishJob(op) => Needs { job_id: Some(op.runner_job_id), ..none },
            Op::Append(op) => Needs { batch: op.batch_no.map(|no| (op.lease_epoch, no)), ..none },
            _ => none,
        }
    }

    /// Roughly what the request weighs in memory and on the wire to the store.
    pub fn bytes(&self) -> usize {
        const ROW: usize = 512;
        match &self.op {
            Op::Append(op) => op.events.iter().map(|event| event.payload.len() + ROW).sum(),
            Op::CreateCommand(op) => op.command.payload.as_str().len() * 2 + ROW,
            Op::Submit(op) => op.bytes() + 4 * ROW,
            _ => ROW,
        }
    }

    /// Permission requests the operation names, open or not.
    pub fn permissions(&self) -> Vec<PermissionId> {
        match &self.op {
            Op::AnswerPermission(op) => vec![op.permission_id],
            Op::Submit(op) => op.permissions(),
            Op::Append(op) => op.events.iter().filter_map(NewEvent::asks).collect(),
            _ => vec![],
        }
    }

    /// Commands the operation names, finished or not.
    pub fn commands(&self) -> Vec<CommandId> {
        match &self.op {
            Op::CreateJob(op) => op.command_id.into_iter().collect(),
            Op::Ack(op) => vec![op.command_id],
            Op::CancelCommand(op) => vec![op.command_id],
            Op::Append(op) => {
                let mut ids: Vec<_> = op.events.iter().filter_map(|e| e.command_id).collect();
                ids.dedup();
                ids
            }
            _ => vec![],
        }
    }
}

/// Decides one operation against the desk.
pub fn apply(desk: &mut Desk, request: Request, now: Timestamp) -> Result<Reply, Failure> {
    if desk.session.erased_at.is_some() && !request.erases() {
        return Err(Failure::not_found("session"));
    }
    let run_id = request.run_id.ok_or_else(|| Failure::not_found("run"));
    match request.op {
        Op::CreateSession(op) => Ok(session::create(desk, &op.by, now)),
        Op::ChangeSession(op) => session::change(desk, op, now),
        Op::CreateRun(op) => run::create(desk, *op, now).map(|created| Reply::Run(Box::new(created))),
        Op::Submit(op) => submit::submit(desk, request.run_id, *op, now),
        Op::CreateCommand(op) => {
            command::create(desk, run_id?, *op, now).map(|(command, is_new)| Reply::Command(Box::new(command), is_new))
        }
        Op::CreateJob(op) => {
            job::create(desk, run_id?, *op, now).map(|(job, is_new)| Reply::Job(Box::new(job), is_new))
        }
        Op::FinishJob(op) => job::finish(desk, run_id?, op, now),
        Op::Claim(op) => claim::claim(desk, run_id?, op, now),
        Op::PatchLease(op) => claim::patch_lease(desk, run_id?, op, now),
        Op::Dismiss(op) => claim::dismiss(desk, run_id?, op, now),
        Op::Ack(op) => claim::ack(desk, run_id?, op, now),
        Op::Append(op) => append::append(desk, run_id?, op, now),
        Op::CancelRun(op) => cancel::run(desk, run_id?, op, now),
        Op::CancelCommand(op) => cancel::command(desk, run_id?, op, now),
        Op::AnswerPermission(op) => permission::answer(desk, run_id?, op, now),
        Op::Sweep(op) => sweep::sweep(desk, run_id?, op, now),
    }
}

#[cfg(test)]
mod tests;
