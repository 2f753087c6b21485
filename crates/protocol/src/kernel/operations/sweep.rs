//! The sweeper's verb: what time alone changes. Run for a run of which a lease, a permission request or a command is due.

use serde_json::json;

use super::{Reply, budget, cancel, desk::Desk, permission};
use crate::{
    Failure, Timestamp,
    ids::RunId,
    kernel::{
        events::{EventType, NewEvent},
        permissions::PermissionStatus,
    },
};

#[derive(Clone, Copy, Debug, Default)]
pub struct SweepOp {
    /// The process that held this lease is known to be gone: do not wait for the clock.
    pub orphaned: bool,
}

pub fn sweep(desk: &mut Desk, run_id: RunId, op: SweepOp, now: Timestamp) -> Result<Reply, Failure> {
    expire_permissions(desk, run_id, now);
    budget::end_overdue(desk, run_id, now);
    let rows = desk.run(run_id)?;
    let over = rows.lease.as_deref().is_some_and(|lease| !lease.ended && (op.orphaned || !lease.is_live(now)));
    if over {
        end_lease(desk, run_id, op.orphaned, now);
    }
    desk.settle(run_id, now);
    Ok(Reply::Done)
}

/// Ends the lease of a runner that is gone, or `orphaned`: known to be gone before its time ran out.
pub fn end_lease(desk: &mut Desk, run_id: RunId, orphaned: bool, now: Timestamp) {
    let Some(lease) = desk.run_mut(run_id).lease.as_mut() else { return };
    lease.ended = true;
    lease.expired = true;
    let fact = json!({"state": "expired", "runnerId": lease.runner_id, "leaseEpoch": lease.epoch,
        "leaseExpiresAt": lease.expires_at, "orphaned": orphaned});
    desk.append(run_id, NewEvent::written(EventType::Lease, None, &fact), now);
    cancel::end_waiting(desk, run_id, now);
}

fn expire_permissions(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    let Ok(rows) = desk.run(run_id) else { return };
    let late: Vec<_> = rows
        .permissions
        .values()
        .filter(|p| p.status == PermissionStatus::Pending && p.deadline <= now)
        .map(|p| p.permission_id)
        .collect();
    for permission_id in late {
        permission::resolve(desk, run_id, permission_id, PermissionStatus::Cancelled, None, "deadline", now);
    }
}
