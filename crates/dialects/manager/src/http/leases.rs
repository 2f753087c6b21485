//! `/api/v1/runs/{runId}/claim` and `…/lease`.

use axum::{Json, extract::State};
use ostler_protocol::{
    failures::Problem,
    ids::RunId,
    kernel::leases::{ClaimRun, Claimed, LeaseState, PatchLease},
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller},
        problem::Refusal,
    },
    service,
};

/// Claim a run. While another runner holds the lease, the claim is rejected with the lease's owner and expiry.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/claim", tag = "runner", security(("token" = ["run"])),
    params(("runId" = RunId, Path)),
    request_body = ClaimRun, responses((status = 200, body = Claimed), (status = "4XX", body = Problem)))]
pub(crate) async fn claim(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Body(request): Body<ClaimRun>,
) -> Result<Json<Claimed>, Refusal> {
    Ok(Json(service::claims::claim(&app, &caller, run_id, request).await?))
}

/// Keep a lease alive, or release it.
#[utoipa::path(patch, path = "/api/v1/runs/{runId}/lease", tag = "runner", security(("token" = ["run"])),
    params(("runId" = RunId, Path)),
    request_body = PatchLease, responses((status = 200, body = LeaseState), (status = "4XX", body = Problem)))]
pub(crate) async fn patch(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Body(request): Body<PatchLease>,
) -> Result<Json<LeaseState>, Refusal> {
    Ok(Json(service::leases::patch(&app, &caller, run_id, request).await?))
}
