//! Requests to the kernel: the operations, the rows each needs, and the type of its reply.

use super::{
    append::AppendOp,
    cancel::{CancelCommandOp, CancelRunOp},
    claim::{AckOp, ClaimOp, DismissOp, PatchLeaseOp},
    command::CreateCommandOp,
    job::{CreateJobOp, FinishJobOp},
    label::LabelRunOp,
    permission::AnswerPermissionOp,
    reply::{Reply, Submitted},
    run::CreateRunOp,
    session::{ChangeSessionOp, CreateSessionOp, SessionChange},
    submit::SubmitOp,
    sweep::SweepOp,
};
use crate::{
    created::Created,
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
    LabelRun(LabelRunOp),
    AnswerPermission(Box<AnswerPermissionOp>),
    Submit(Box<SubmitOp>),
    Sweep(SweepOp),
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
    /// A job whose row may be one of an earlier flush.
    pub warm_job_id: Option<RunnerJobId>,
    /// Every job of the run that no runner has claimed, held so that none can be claimed before the operation is stored.
    pub pending_jobs: bool,
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

    pub(super) fn erases(&self) -> bool {
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
            Op::CancelRun(_) => Needs { pending_jobs: true, ..none },
            Op::CancelCommand(op) => Needs { pending_jobs: op.with_jobs, ..none },
            Op::FinishJob(op) => Needs { job_id: Some(op.runner_job_id), ..none },
            Op::Append(op) => Needs {
                batch: op.batch_no.map(|no| (op.lease_epoch, no)),
                warm_job_id: op.ends_job.as_ref().map(|(job_id, _)| *job_id),
                ..none
            },
            _ => none,
        }
    }

    /// Approximate bytes of the request in memory and on the wire to the store.
    pub fn bytes(&self) -> usize {
        const ROW: usize = 512;
        match &self.op {
            Op::Append(op) => {
                let summary = op.ends_job.as_ref().map_or(0, |(_, summary)| summary.as_str().len());
                op.events.iter().map(|event| event.payload.len() + ROW).sum::<usize>() + summary
            }
            Op::CreateCommand(op) => op.command.payload.as_str().len() * 2 + ROW,
            Op::Submit(op) => op.bytes() + 4 * ROW,
            Op::ChangeSession(ChangeSessionOp { change: SessionChange::AddMessage { text }, .. }) => text.len() + ROW,
            Op::ChangeSession(ChangeSessionOp { change: SessionChange::Note { data, .. }, .. }) => {
                data.to_string().len() + ROW
            }
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

/// An operation that can be submitted, with the type of its reply.
pub trait Operation {
    type Reply;

    fn into_op(self) -> Op;

    /// `None` if this is the reply of another operation.
    fn read(reply: Reply) -> Option<Self::Reply>;
}

macro_rules! operations {
    ($($type:ident as $op:expr => $pattern:pat => $reply:ty: $value:expr;)*) => {
        $(impl Operation for $type {
            type Reply = $reply;

            fn into_op(self) -> Op {
                $op(self.into())
            }

            fn read(reply: Reply) -> Option<$reply> {
                match reply {
                    $pattern => Some($value),
                    _ => None,
                }
            }
        })*
    };
}

operations! {
    CreateSessionOp as Op::CreateSession => Reply::Session(session) => Session: *session;
    ChangeSessionOp as Op::ChangeSession => Reply::Session(session) => Session: *session;
    CreateRunOp as Op::CreateRun => Reply::Run(created) => CreatedRun: *created;
    CreateCommandOp as Op::CreateCommand => Reply::Command(command, is_new) => Created<Command>: Created { value: *command, is_new };
    CreateJobOp as Op::CreateJob => Reply::Job(job, is_new) => Created<RunnerJob>: Created { value: *job, is_new };
    FinishJobOp as Op::FinishJob => Reply::FinishedJob(is_recorded) => bool: is_recorded;
    ClaimOp as Op::Claim => Reply::Claimed(claimed) => Claimed: *claimed;
    PatchLeaseOp as Op::PatchLease => Reply::Lease(state) => LeaseState: state;
    DismissOp as Op::Dismiss => Reply::Done => (): ();
    AckOp as Op::Ack => Reply::Command(command, _) => Command: *command;
    AppendOp as Op::Append => Reply::Appended(appended) => Appended: appended;
    CancelRunOp as Op::CancelRun => Reply::CancelledRun(run) => Run: *run;
    CancelCommandOp as Op::CancelCommand => Reply::Command(command, _) => Command: *command;
    LabelRunOp as Op::LabelRun => Reply::LabelledRun(run) => Run: *run;
    AnswerPermissionOp as Op::AnswerPermission => Reply::Permission(request) => PermissionRequest: *request;
    SubmitOp as Op::Submit => Reply::Submitted(submitted) => Submitted: *submitted;
    SweepOp as Op::Sweep => Reply::Done => (): ();
}
