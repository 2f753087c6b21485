//! Cancelling: idempotent in every state. What no runner has touched ends at once; what a live runner works on is
//! flagged, and ends when the runner has stopped it or its lease has run out.

use serde_json::json;

use super::{
    Reply,
    desk::{Desk, RunDesk},
    ending::{End, end_command},
    permission,
};
use crate::{
    Failure, FailureKind, RawJson, Timestamp,
    ids::{CommandId, RunId},
    kernel::{
        commands::CommandState,
        events::{EventType, NewEvent},
        permissions::resolved_by,
        runner_jobs::{JobExtras, JobPhase},
        runs::TerminalStatus,
    },
};

#[derive(Clone, Debug)]
pub struct CancelRunOp {
    pub by: String,
    pub reason: Option<String>,
}

#[derive(Clone, Debug)]
pub struct CancelCommandOp {
    pub command_id: CommandId,
    pub by: String,
    pub reason: Option<String>,
    /// The dialect's name for the client that requested it, for other clients to see.
    pub origin: Option<String>,
    /// Also cancel the run's jobs that no runner has claimed, if no command is left for them.
    pub with_jobs: bool,
}

pub(super) fn cancel_run(desk: &mut Desk, run_id: RunId, op: CancelRunOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    if !rows.run.status.is_terminal() && rows.run.cancel_requested_at.is_none() {
        let run = &mut desk.run_mut(run_id).run;
        run.cancel_requested_at = Some(now);
        run.cancel_reason = op.reason.clone();
        desk.append(run_id, audit("run.cancel", None, &op.by, op.reason.as_deref()), now);
        for command_id in desk.run(run_id)?.unfinished_ids() {
            stop(desk, run_id, command_id, op.reason.as_deref(), now);
        }
        cancel_pending_jobs(desk.run_mut(run_id), "the run was cancelled before a runner claimed the job", now);
        desk.settle(run_id, now);
    }
    Ok(Reply::CancelledRun(Box::new((*desk.run(run_id)?.run).clone())))
}

pub(super) fn cancel_command(
    desk: &mut Desk,
    run_id: RunId,
    op: CancelCommandOp,
    now: Timestamp,
) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    let command = rows.commands.get(&op.command_id).ok_or_else(|| Failure::not_found("command"))?;
    if command.is_unfinished() && command.cancel_requested_at.is_none() {
        request_cancel(desk, run_id, op.command_id, &op.by, op.reason.as_deref(), op.origin.as_deref(), now);
        if op.with_jobs && desk.run(run_id)?.unfinished().next().is_none() {
            cancel_pending_jobs(desk.run_mut(run_id), "the turn was cancelled before a runner claimed the job", now);
        }
        desk.settle(run_id, now);
    }
    let command = (*desk.run(run_id)?.commands[&op.command_id]).clone();
    Ok(Reply::Command(Box::new(command), false))
}

/// Asks for an unfinished command's end, once.
pub(super) fn request_cancel(
    desk: &mut Desk,
    run_id: RunId,
    command_id: CommandId,
    by: &str,
    reason: Option<&str>,
    origin: Option<&str>,
    now: Timestamp,
) {
    if desk.run_mut(run_id).commands[&command_id].cancel_requested_at.is_none() {
        let mut fact = json!({"action": "command.cancel", "by": by, "reason": reason});
        if let Some(origin) = origin {
            fact["origin"] = origin.into();
        }
        desk.append(run_id, NewEvent::written(EventType::Audit, Some(command_id), &fact), now);
        stop(desk, run_id, command_id, reason, now);
    }
}

/// Ends the command if no runner can be working on it; otherwise requests that its runner end it.
fn stop(desk: &mut Desk, run_id: RunId, command_id: CommandId, reason: Option<&str>, now: Timestamp) {
    let rows = desk.run_mut(run_id);
    let leased = rows.live_lease(now).is_some();
    let command = rows.commands.get_mut(&command_id).expect("named by the operation");
    if !command.is_unfinished() {
        return;
    }
    if command.cancel_requested_at.is_none() {
        command.cancel_requested_at = Some(now);
        command.cancel_reason = reason.map(str::to_owned);
    }
    if command.state == CommandState::Pending || !leased {
        end_command(desk, run_id, command_id, cancelled(), now);
    } else {
        // A turn that is to stop must not be granted any permission.
        permission::cancel_open(desk, run_id, Some(command_id), resolved_by::CANCEL, now);
    }
}

/// Cancels the jobs of the run that no runner has claimed, so that no runner is started for them. The next turn of a run that goes
/// on makes its standing job pending again. Launchers claim jobs outside of the lanes, so only an operation that has requested
/// [`Needs::pending_jobs`] may call this.
///
/// [`Needs::pending_jobs`]: super::request::Needs::pending_jobs
fn cancel_pending_jobs(desk: &mut RunDesk, message: &str, now: Timestamp) {
    let summary = json!({"status": "cancelled", "message": message});
    for job in desk.jobs.values_mut().filter(|job| job.phase == JobPhase::Pending) {
        job.phase = JobPhase::Cancelled;
        job.extras = JobExtras::without_values(&job.extras);
        job.terminal_summary = RawJson::of(&summary);
        job.updated_at = now;
    }
}

/// The lease is over: no runner will stop the commands that were to be cancelled, so they end here.
pub(super) fn end_waiting(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    for command_id in desk.run_mut(run_id).unfinished_ids() {
        let command = &desk.run_mut(run_id).commands[&command_id];
        if command.is_unfinished() && command.cancel_requested_at.is_some() {
            end_command(desk, run_id, command_id, cancelled(), now);
        }
    }
}

pub(super) fn cancelled() -> End {
    End::manager(TerminalStatus::Cancelled, FailureKind::Cancelled, resolved_by::CANCEL)
}

fn audit(action: &str, command_id: Option<CommandId>, by: &str, reason: Option<&str>) -> NewEvent {
    NewEvent::written(EventType::Audit, command_id, &json!({"action": action, "by": by, "reason": reason}))
}
