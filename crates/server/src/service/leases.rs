//! Leases: heartbeat and release; and dismissing runners, which only the server does. How they are claimed is in `claims`.

use futures_util::future::join_all;
use ostler_protocol::{
    Failure, Rule,
    ids::{RunId, SessionId},
    kernel::{
        launching::is_worth_repeating,
        leases::{LeaseState, PatchLease},
        operations::{DismissOp, PatchLeaseOp},
    },
    limits::{LEASE_MS_MAX, LEASE_MS_MIN},
};

use crate::{app::App, auth::Principal};

/// Dismisses the runners of these runs, each at once or as soon as it has no work left. Tries every one. An error means that
/// the store did not respond for one of them, and the caller must try again; a run that no longer exists has no runner.
pub async fn dismiss(app: &App, runs: Vec<(SessionId, RunId)>, op: DismissOp) -> Result<(), Failure> {
    let dismissed = runs.into_iter().map(|(session, run_id)| async move {
        let failure = app.try_submit(session, run_id, op).await.err()?;
        tracing::warn!(%failure, %run_id, "a runner could not be dismissed");
        is_worth_repeating(&failure).then_some(failure)
    });
    join_all(dismissed).await.into_iter().flatten().next().map_or(Ok(()), Err)
}

pub async fn patch(app: &App, caller: &Principal, run_id: RunId, request: PatchLease) -> Result<LeaseState, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_run(&run)?;
    let lease_ms = request.lease_ms.map(check_lease).transpose()?;
    let PatchLease { runner_id, lease_epoch, release, only_if_idle, .. } = request;
    let op = PatchLeaseOp { runner_id, lease_epoch, lease_ms, release, only_if_idle };
    app.submit(&run, op).await
}

pub(super) fn check_lease(ms: i64) -> Result<i64, Failure> {
    if (LEASE_MS_MIN..=LEASE_MS_MAX).contains(&ms) {
        return Ok(ms);
    }
    Err(Failure::invalid(Rule::LeaseMs, format!("leaseMs must be {LEASE_MS_MIN} to {LEASE_MS_MAX}")))
}
