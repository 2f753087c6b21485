//! The kernel's state machines, pure: a [`Desk`] holds the rows of one session that a set of operations touches, an
//! [`Op`] is decided against it, and the store writes back what changed. Each operation either applies whole or
//! changes nothing; the exceptions are stated where they are made (`claim-waiting`, and votes that are rejected).

#![expect(clippy::expect_used, reason = "each operation has found the rows that it changes before it changes any")]

mod admission;
mod append;
mod budget;
mod cancel;
mod claim;
mod command;
mod desk;
mod ending;
mod job;
mod label;
mod lease;
mod permission;
mod replay;
mod reply;
mod request;
mod run;
mod session;
mod settle;
mod start;
mod submit;
mod sweep;
mod usage;

pub use append::AppendOp;
pub use cancel::{CancelCommandOp, CancelRunOp};
pub use claim::{AckOp, ClaimOp, DismissOp, PatchLeaseOp};
pub use command::CreateCommandOp;
pub use desk::{Batch, Desk, RowChange, RunDesk, Tracked};
pub use job::{CreateJobOp, FinishJobOp};
pub use label::LabelRunOp;
pub use permission::{ACTION_FORBIDDEN, ACTION_STRATEGY, ACTION_VOTED, AnswerPermissionOp};
pub use replay::{DerivedRows, Replay, Rows};
pub use reply::{Reply, Submitted};
pub use request::{Needs, Op, Operation, Request};
pub use run::CreateRunOp;
pub use session::{ChangeSessionOp, CreateSessionOp, SessionChange};
pub use start::{JobPlace, StartedJob};
pub use submit::{ACTIVE_COMMAND, OPEN_PERMISSIONS, PermissionAnswer, Submission, SubmitOp, UNFINISHED_TURNS};
pub use sweep::SweepOp;

pub use crate::kernel::permissions::Choice;

use crate::{Failure, Timestamp};

/// Decides one operation against the desk.
pub fn apply(desk: &mut Desk, request: Request, now: Timestamp) -> Result<Reply, Failure> {
    if desk.session.erased_at.is_some() && !request.erases() {
        return Err(Failure::not_found("session"));
    }
    let run_id = request.run_id.ok_or_else(|| Failure::not_found("run"));
    match request.op {
        Op::CreateSession(op) => session::create(desk, *op, now),
        Op::ChangeSession(op) => session::change(desk, op, now),
        Op::CreateRun(op) => run::create(desk, *op, now).map(|created| Reply::Run(Box::new(created))),
        Op::Submit(op) => submit::submit(desk, request.run_id, *op, now),
        Op::CreateCommand(op) => {
            command::create(desk, run_id?, *op, now).map(|made| Reply::Command(Box::new(made.value), made.is_new))
        }
        Op::CreateJob(op) => {
            job::create(desk, run_id?, *op, now).map(|made| Reply::Job(Box::new(made.value), made.is_new))
        }
        Op::FinishJob(op) => job::finish(desk, run_id?, op, now),
        Op::Claim(op) => claim::claim(desk, run_id?, op, now),
        Op::PatchLease(op) => claim::patch_lease(desk, run_id?, op, now),
        Op::Dismiss(op) => claim::dismiss(desk, run_id?, op, now),
        Op::Ack(op) => claim::ack(desk, run_id?, op, now),
        Op::Append(op) => append::append(desk, run_id?, op, now),
        Op::CancelRun(op) => cancel::cancel_run(desk, run_id?, op, now),
        Op::CancelCommand(op) => cancel::cancel_command(desk, run_id?, op, now),
        Op::LabelRun(op) => label::label_run(desk, run_id?, &op, now),
        Op::AnswerPermission(op) => permission::answer(desk, run_id?, *op, now),
        Op::Sweep(op) => sweep::sweep(desk, run_id?, op, now),
    }
}

#[cfg(test)]
mod tests;
