//! The sweeper's verb: what time alone changes. Run for a run of which a lease, a permission request or a command is due.

use super::{Reply, budget, desk::Desk, lease::expire, permission};
use crate::{
    Failure, Timestamp,
    ids::RunId,
    kernel::permissions::{PermissionStatus, resolved_by},
};

#[derive(Clone, Copy, Debug, Default)]
pub struct SweepOp {
    /// The process that held this lease is known to be gone: do not wait for the clock.
    pub orphaned: bool,
}

pub(super) fn sweep(desk: &mut Desk, run_id: RunId, op: SweepOp, now: Timestamp) -> Result<Reply, Failure> {
    expire_permissions(desk, run_id, now);
    budget::end_overdue(desk, run_id, now);
    let rows = desk.run(run_id)?;
    let over = rows.lease.as_deref().is_some_and(|lease| !lease.ended && (op.orphaned || !lease.is_live(now)));
    if over {
        expire(desk, run_id, op.orphaned, now);
    }
    desk.settle(run_id, now);
    Ok(Reply::Done)
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
        permission::resolve(desk, run_id, permission_id, permission::Verdict::cancelled(resolved_by::DEADLINE), now);
    }
}
