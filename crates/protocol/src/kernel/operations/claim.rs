//! Claims, heartbeats and acknowledgements: one owner at a time, fenced by the lease epoch.

use serde_json::json;

use super::{
    Reply,
    admission::{check_open, session_busy},
    budget,
    desk::{Desk, RunDesk, Tracked},
    lease::{self, after, conflict, fence, is_idle},
    permission,
};
use crate::{
    Failure, Rule, Timestamp,
    ids::{AttemptId, CommandId, RunId},
    kernel::{
        commands::{CommandState, CommandType},
        events::{EventType, NewEvent, PHASE_ATTEMPT_RESTARTED, PHASE_RUN_CLAIMED},
        leases::{Claimed, Lease, LeaseState},
        permissions::resolved_by,
    },
    limits::LEASE_WAITERS_MAX,
};

#[derive(Clone, Debug)]
pub struct ClaimOp {
    pub runner_id: String,
    pub lease_ms: i64,
    /// Used unless a job has offered one.
    pub attempt_id: AttemptId,
    /// Acknowledge the next turn too.
    pub take_up: bool,
}

#[derive(Clone, Debug)]
pub struct PatchLeaseOp {
    pub runner_id: String,
    pub lease_epoch: i64,
    pub lease_ms: Option<i64>,
    pub release: bool,
    /// Keep the lease if a command is unfinished.
    pub only_if_idle: bool,
}

/// The server dismisses the runner: its place, its credential or its storage is needed for something else.
#[derive(Clone, Copy, Debug)]
pub struct DismissOp {
    /// Leave a runner alone that has something to do.
    pub only_if_idle: bool,
}

#[derive(Clone, Debug)]
pub struct AckOp {
    pub command_id: CommandId,
    pub runner_id: String,
    pub lease_epoch: i64,
    pub attempt_id: Option<AttemptId>,
}

/// Takes the run's lease if it is free, already the caller's, or expired. A refused claim writes `claim-waiting` once
/// per waiter and lease: the one failure that leaves a trace on purpose.
pub(super) fn claim(desk: &mut Desk, run_id: RunId, op: ClaimOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    check_open(&rows.run)?;
    if let Some(active) = desk.session.busy_with_other(Some(run_id), now) {
        return Err(session_busy(active));
    }
    if let Some(held) = rows.live_lease(now).filter(|lease| lease.runner_id != op.runner_id).cloned() {
        note_waiter(desk, run_id, &op.runner_id, &held, now);
        return Err(conflict(Rule::LeaseHeld, "another runner holds the run", &held, now));
    }
    Ok(Reply::Claimed(Box::new(grant(desk, run_id, op, now))))
}

/// Gives the lease of an open run that no other runner holds.
pub(super) fn grant(desk: &mut Desk, run_id: RunId, op: ClaimOp, now: Timestamp) -> Claimed {
    let rows = desk.run_mut(run_id);
    let taken_over = rows.lease.as_deref().filter(|lease| lease.expired || !lease.ended).map(|l| l.runner_id.clone());
    rows.run.lease_epoch += 1;
    let attempt_id = rows.run.offered_attempt_id.take().unwrap_or(op.attempt_id);
    rows.run.attempt_id = Some(attempt_id);
    let epoch = rows.run.lease_epoch;
    let lease = Lease {
        run_id,
        session: rows.run.session,
        runner_id: op.runner_id.clone(),
        epoch,
        attempt_id,
        duration_ms: op.lease_ms,
        acquired_at: now,
        heartbeat_at: now,
        expires_at: after(now, op.lease_ms),
        ended: false,
        expired: false,
        dismissed: false,
        waiters: vec![],
    };
    let expires_at = lease.expires_at;
    rows.lease = Some(Tracked::new(lease));
    rows.batches.clear();
    rows.batch_high = Some((epoch, i64::MIN));
    rows.forget_batches_before = (epoch > 1).then_some(epoch);
    let state = if taken_over.is_some() { "recovered" } else { "claimed" };
    let fact = json!({"state": state, "phase": PHASE_RUN_CLAIMED, "runnerId": op.runner_id, "leaseEpoch": epoch,
        "attemptId": attempt_id, "leaseExpiresAt": expires_at, "previousRunnerId": taken_over});
    desk.append(run_id, NewEvent::written(EventType::Lease, None, &fact), now);
    // The attempt that sent these requests is gone and cannot receive the answer; the next attempt sends its own.
    permission::cancel_open(desk, run_id, None, resolved_by::NEW_ATTEMPT, now);
    if op.take_up {
        take_up(desk.run_mut(run_id), attempt_id, now);
    }
    desk.settle(run_id, now);
    let thread_id = desk.session.thread_id.clone();
    let rows = desk.run_mut(run_id);
    let commands = rows.unfinished_ids().iter().map(|id| (*rows.commands[id]).clone()).collect();
    let run = (*rows.run).clone();
    Claimed { lease_epoch: epoch, lease_expires_at: expires_at, attempt_id, run, commands, thread_id }
}

/// Acknowledges the next turn, unless an earlier attempt has had it: what that left behind must be seen to first.
fn take_up(rows: &mut RunDesk, attempt_id: AttemptId, now: Timestamp) {
    let turns = rows.commands.values_mut().filter(|c| c.is_unfinished() && c.command_type == CommandType::Turn);
    if let Some(next) = turns.min_by_key(|c| c.seq).filter(|c| c.state == CommandState::Pending) {
        next.state = CommandState::Acked;
        next.acked_at = Some(now);
        next.deadline_at = budget::deadline(&rows.run, next, now);
        next.attempt_id = Some(attempt_id);
        next.updated_at = now;
    }
}

fn note_waiter(desk: &mut Desk, run_id: RunId, runner_id: &str, held: &Lease, now: Timestamp) {
    if held.waiters.iter().any(|w| w == runner_id) || held.waiters.len() >= LEASE_WAITERS_MAX {
        return;
    }
    if let Some(lease) = desk.run_mut(run_id).lease.as_mut() {
        lease.waiters.push(runner_id.to_owned());
    }
    let fact = json!({"state": "claim-waiting", "runnerId": runner_id, "ownerRunnerId": held.runner_id,
        "leaseEpoch": held.epoch, "leaseExpiresAt": held.expires_at});
    desk.append(run_id, NewEvent::written(EventType::Lease, None, &fact), now);
}

pub(super) fn patch_lease(desk: &mut Desk, run_id: RunId, op: PatchLeaseOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    if op.release && has_given_back(rows, &op) {
        return lease_state(rows);
    }
    check_open(&rows.run)?;
    fence(rows, &op.runner_id, op.lease_epoch, None, now)?;
    let release = op.release && (!op.only_if_idle || is_idle(rows));
    let rows = desk.run_mut(run_id);
    let lease = rows.lease.as_mut().expect("the fence found it");
    lease.heartbeat_at = now;
    if let Some(ms) = op.lease_ms {
        lease.duration_ms = ms;
    }
    if release {
        lease::release(desk, run_id, now);
    } else {
        lease.expires_at = after(now, lease.duration_ms);
    }
    desk.settle(run_id, now);
    lease_state(desk.run(run_id)?)
}

/// Whether this very lease was released before: releasing it again succeeds.
fn has_given_back(rows: &RunDesk, op: &PatchLeaseOp) -> bool {
    let same = |lease: &&Lease| lease.runner_id == op.runner_id && lease.epoch == op.lease_epoch;
    rows.lease.as_deref().filter(same).is_some_and(|lease| lease.ended && !lease.expired)
}

fn lease_state(rows: &RunDesk) -> Result<Reply, Failure> {
    let lease = rows.lease.as_deref().expect("found before");
    Ok(Reply::Lease(LeaseState {
        run_id: lease.run_id,
        runner_id: lease.runner_id.clone(),
        lease_epoch: lease.epoch,
        attempt_id: lease.attempt_id,
        lease_expires_at: lease.expires_at,
        released: lease.ended,
        run_cancel_requested: rows.run.cancel_requested_at.is_some(),
    }))
}

/// Dismisses a runner that only waits for work at once, and one that works as soon as nothing is left for it to do.
/// Work in hand is never revoked.
pub(super) fn dismiss(desk: &mut Desk, run_id: RunId, op: DismissOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    let wanted = rows.live_lease(now).is_some() && (!op.only_if_idle || is_idle(rows));
    if wanted && let Some(lease) = desk.run_mut(run_id).lease.as_mut() {
        lease.dismissed = true;
    }
    desk.settle(run_id, now);
    Ok(Reply::Done)
}

/// Takes a command up. A later attempt may take up what an earlier one left; the fold then restarts its reply.
pub(super) fn ack(desk: &mut Desk, run_id: RunId, op: AckOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    check_open(&rows.run)?;
    fence(rows, &op.runner_id, op.lease_epoch, op.attempt_id, now)?;
    let attempt_id = rows.lease.as_deref().map(|lease| lease.attempt_id);
    let command = rows.commands.get(&op.command_id).ok_or_else(|| Failure::not_found("command"))?;
    if command.state == CommandState::Cancelled {
        return Err(Failure::rule(Rule::CommandCancelled, "the command was cancelled"));
    }
    if command.state.is_terminal() {
        let message = format!("the command has ended: {}", command.state.as_str());
        return Err(Failure::rule(Rule::CommandTerminal, message));
    }
    let taken_over = command.state != CommandState::Pending && command.attempt_id != attempt_id;
    if taken_over {
        let fact =
            json!({"phase": PHASE_ATTEMPT_RESTARTED, "attemptId": attempt_id, "previousAttemptId": command.attempt_id});
        desk.append(run_id, NewEvent::written(EventType::BackendStatus, Some(op.command_id), &fact), now);
    }
    let rows = desk.run_mut(run_id);
    let command = rows.commands.get_mut(&op.command_id).expect("found above");
    if taken_over || command.state == CommandState::Pending {
        command.state = CommandState::Acked;
        command.acked_at = Some(now);
        command.deadline_at = budget::deadline(&rows.run, command, now);
        command.attempt_id = attempt_id;
        command.updated_at = now;
    }
    desk.settle(run_id, now);
    let command = (*desk.run(run_id)?.commands[&op.command_id]).clone();
    Ok(Reply::Command(Box::new(command), false))
}
