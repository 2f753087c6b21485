//! Claiming runs.

use ostler_protocol::{
    Failure,
    ids::{AttemptId, RunId},
    kernel::{
        leases::{ClaimRun, Claimed},
        operations::ClaimOp,
    },
};

use super::leases::check_lease;
use crate::{app::App, auth::Principal, tools::settle_lost_runs};

pub async fn claim(app: &App, caller: &Principal, run_id: RunId, request: ClaimRun) -> Result<Claimed, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_run(&run)?;
    // A runner that was started for a job takes up work that was accepted earlier.
    if !matches!(caller, Principal::Runner { .. }) {
        app.accepting()?;
    }
    app.name("runnerId", &request.runner_id)?;
    let lease_ms = check_lease(request.lease_ms.unwrap_or(app.config.runner.lease_ms))?;
    let attempt_id = AttemptId::new(app.ids.body());
    let op = ClaimOp { runner_id: request.runner_id, lease_ms, attempt_id, take_up: request.take_up };
    let claimed = app.submit(&run, op).await?;
    settle_lost_runs(app, &claimed);
    Ok(claimed)
}
