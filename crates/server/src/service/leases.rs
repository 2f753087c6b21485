//! Leases: claim, heartbeat, release; and the server's own verb, which lets runners go.

use futures_util::future::join_all;
use ostler_protocol::{
    Failure,
    ids::{AttemptId, RunId, SessionId},
    kernel::{
        launching::is_worth_repeating,
        leases::{ClaimRun, Claimed, LeaseState, PatchLease},
        operations::{ClaimOp, DismissOp, PatchLeaseOp},
    },
    limits::{LEASE_MS_MAX, LEASE_MS_MIN},
};

use crate::{app::App, auth::Principal};

/// Lets these runs' runners go, each at once or as soon as nothing is left for it to do. Every one is tried. An error means
/// that the store did not answer for one of them, and the caller must try again; a run that is gone has no runner.
pub async fn dismiss(app: &App, runs: Vec<(SessionId, RunId)>, op: DismissOp) -> Result<(), Failure> {
    let dismissed = runs.into_iter().map(|(session, run_id)| async move {
        let failure = app.try_submit(session, run_id, op).await.err()?;
        tracing::warn!(%failure, %run_id, "a runner could not be let go");
        is_worth_repeating(&failure).then_some(failure)
    });
    join_all(dismissed).await.into_iter().flatten().next().map_or(Ok(()), Err)
}

pub async fn claim(app: &App, caller: &Principal, run_id: RunId, asked: ClaimRun) -> Result<Claimed, Failure> {
    let known = app.visible_run(caller, run_id).await?;
    caller.may_run(&known)?;
    // A runner that was started for a job comes for work that was taken before.
    if !matches!(caller, Principal::Runner { .. }) {
        app.accepting()?;
    }
    app.name("runnerId", &asked.runner_id)?;
    let lease_ms = check_lease(asked.lease_ms.unwrap_or(app.config.runner.lease_ms))?;
    let attempt_id = AttemptId::new(app.ids.body());
    let op = ClaimOp { runner_id: asked.runner_id, lease_ms, attempt_id, take_up: asked.take_up };
    app.submit(&known, op).await
}

pub async fn patch(app: &App, caller: &Principal, run_id: RunId, asked: PatchLease) -> Result<LeaseState, Failure> {
    let known = app.visible_run(caller, run_id).await?;
    caller.may_run(&known)?;
    let lease_ms = asked.lease_ms.map(check_lease).transpose()?;
    let PatchLease { runner_id, lease_epoch, release, only_if_idle, .. } = asked;
    let op = PatchLeaseOp { runner_id, lease_epoch, lease_ms, release, only_if_idle };
    app.submit(&known, op).await
}

fn check_lease(ms: i64) -> Result<i64, Failure> {
    if (LEASE_MS_MIN..=LEASE_MS_MAX).contains(&ms) {
        return Ok(ms);
    }
    Err(Failure::invalid("lease-ms", format!("leaseMs must be {LEASE_MS_MIN} to {LEASE_MS_MAX}")))
}
