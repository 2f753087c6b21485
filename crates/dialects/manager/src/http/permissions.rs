//! `/api/v1/runs/{runId}/permissions…`.

use axum::{Json, extract::State};
use ostler_protocol::{
    failures::Problem,
    ids::{PermissionId, RunId},
    kernel::permissions::{AnswerPermission, PermissionList, PermissionRequest},
};

use ostler_server::{
    app::App,
    net::{
        Locality,
        extract::{At, Body, Caller},
        problem::Refusal,
    },
    service,
};

/// List the permission requests of the run's agent, open and resolved.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/permissions", tag = "permissions", security(("token" = ["read"])),
    params(("runId" = RunId, Path)),
    responses((status = 200, body = PermissionList), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
) -> Result<Json<PermissionList>, Refusal> {
    Ok(Json(service::permissions::list(&app, &caller, run_id).await?))
}

/// Answer a permission request, once, naming the digest of what will run.
///
/// The server's strategy decides whose answer counts. If more votes are needed, the request that is returned is still pending.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/permissions/{permissionId}/answer", tag = "permissions",
    security(("token" = ["submit"])),
    params(("runId" = RunId, Path), ("permissionId" = PermissionId, Path)), request_body = AnswerPermission,
    responses((status = 200, body = PermissionRequest), (status = "4XX", body = Problem)))]
pub(crate) async fn answer(
    State(app): State<App>,
    Caller(caller): Caller,
    locality: Locality,
    At((run_id, permission_id)): At<(RunId, PermissionId)>,
    Body(request): Body<AnswerPermission>,
) -> Result<Json<PermissionRequest>, Refusal> {
    Ok(Json(service::permissions::answer(&app, &caller, locality, run_id, permission_id, request).await?))
}
