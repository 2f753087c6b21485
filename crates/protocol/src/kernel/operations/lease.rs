//! Leases: who may write to a run, and how a lease ends.

use serde_json::json;

use crate::{
    Failure, Rule, Timestamp,
    ids::{AttemptId, RunId},
    kernel::{
        events::{EventType, NewEvent},
        leases::Lease,
        operations::{
            cancel,
            desk::{Desk, RunDesk},
        },
    },
};

/// Ends the lease of a dismissed runner, once it has nothing left to do.
pub(super) fn release_if_dismissed(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    let rows = desk.run_mut(run_id);
    if is_idle(rows) && rows.lease.as_deref().is_some_and(|lease| lease.dismissed && !lease.ended) {
        release(desk, run_id, now);
    }
}

pub(super) fn is_idle(rows: &RunDesk) -> bool {
    rows.unfinished().next().is_none()
}

/// Ends the lease of a runner that goes.
pub(super) fn release(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    let lease = desk.run_mut(run_id).lease.as_mut().expect("the fence found it");
    lease.ended = true;
    let fact = json!({"state": "released", "runnerId": lease.runner_id, "leaseEpoch": lease.epoch});
    desk.append(run_id, NewEvent::written(EventType::Lease, None, &fact), now);
    cancel::end_waiting(desk, run_id, now);
}

/// Refuses every writer but the holder of the live lease, in its current epoch.
pub(super) fn fence(
    rows: &RunDesk,
    runner_id: &str,
    epoch: i64,
    attempt: Option<AttemptId>,
    now: Timestamp,
) -> Result<(), Failure> {
    let Some(lease) = rows.lease.as_deref() else {
        return Err(Failure::rule(Rule::LeaseAbsent, "the run has no lease; claim it first"));
    };
    if epoch > rows.run.lease_epoch {
        return Err(conflict(Rule::LeaseEpochUnknown, "no claim of the run was given this epoch", lease, now));
    }
    if lease.epoch != epoch || rows.run.lease_epoch != epoch {
        return Err(conflict(Rule::LeaseEpochStale, "a later claim of the run is in force", lease, now));
    }
    if lease.runner_id != runner_id {
        return Err(conflict(Rule::LeaseOwner, "another runner holds the run", lease, now));
    }
    if lease.ended && !lease.expired {
        return Err(conflict(Rule::LeaseReleased, "the lease was given back; claim the run again", lease, now));
    }
    if !lease.is_live(now) {
        return Err(conflict(Rule::LeaseExpired, "the lease has run out; claim the run again", lease, now));
    }
    if attempt.is_some_and(|attempt| attempt != lease.attempt_id) {
        return Err(conflict(Rule::AttemptStale, "another attempt holds the run", lease, now));
    }
    Ok(())
}

pub(super) fn conflict(rule: Rule, message: &str, lease: &Lease, now: Timestamp) -> Failure {
    let wait_ms = (lease.expires_at.as_millisecond() - now.as_millisecond()).max(0);
    Failure::rule(rule, message)
        .detail("ownerRunnerId", lease.runner_id.clone())
        .detail("leaseEpoch", lease.epoch)
        .detail("leaseExpiresAt", lease.expires_at.to_string())
        .detail("retryAfterMs", if lease.ended { 0 } else { wait_ms })
}

pub(super) fn after(now: Timestamp, ms: i64) -> Timestamp {
    now.checked_add(jiff::SignedDuration::from_millis(ms)).unwrap_or(Timestamp::MAX)
}

/// Ends the lease of a runner that is gone, or `orphaned`: known to be gone before its time ran out.
pub(super) fn expire(desk: &mut Desk, run_id: RunId, orphaned: bool, now: Timestamp) {
    let Some(lease) = desk.run_mut(run_id).lease.as_mut() else { return };
    lease.ended = true;
    lease.expired = true;
    let fact = json!({"state": "expired", "runnerId": lease.runner_id, "leaseEpoch": lease.epoch,
        "leaseExpiresAt": lease.expires_at, "orphaned": orphaned});
    desk.append(run_id, NewEvent::written(EventType::Lease, None, &fact), now);
    cancel::end_waiting(desk, run_id, now);
}
