//! `/api/v1/runs…`.

use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode};
use ostler_protocol::{
    failures::Problem,
    ids::RunId,
    kernel::{
        commands::PatchStatus,
        results::RunResult,
        run_views::{RunPage, RunView},
        runs::{Cancel, CreateRun, CreatedRun, ListRuns, Run, UpdateRun},
    },
};
use serde::Deserialize;
use utoipa::IntoParams;

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params, idempotency_key},
        problem::Refusal,
        responses::created,
    },
    service,
};

/// Create a run, with its first command if one is given.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs", security(("token" = ["submit"])), request_body = CreateRun,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    responses((status = 201, body = CreatedRun), (status = 200, body = CreatedRun, description = "the same key again"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    headers: HeaderMap,
    Body(mut request): Body<CreateRun>,
) -> Result<(StatusCode, Json<CreatedRun>), Refusal> {
    request.idempotency_key = idempotency_key(&headers, request.idempotency_key)?;
    Ok(created(service::runs::create(&app, &caller, request).await?))
}

/// List runs, newest first unless another order is requested.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", security(("token" = ["browse"])), params(ListRuns),
    responses((status = 200, body = RunPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListRuns>,
) -> Result<Json<RunPage>, Refusal> {
    Ok(Json(service::runs::list(&app, &caller, request).await?))
}

/// Get a run.
#[utoipa::path(get, path = "/api/v1/runs/{runId}", tag = "runs", security(("token" = ["read"])),
    params(("runId" = RunId, Path)),
    responses((status = 200, body = RunView), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
) -> Result<Json<RunView>, Refusal> {
    Ok(Json(service::runs::get_view(&app, &caller, run_id).await?))
}

/// Change the labels of a run, also of one that has ended.
#[utoipa::path(patch, path = "/api/v1/runs/{runId}", tag = "runs", security(("token" = ["submit"])),
    params(("runId" = RunId, Path)),
    request_body = UpdateRun, responses((status = 200, body = Run), (status = "4XX", body = Problem)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Body(request): Body<UpdateRun>,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(service::runs::update(&app, &caller, run_id, request).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ResultQuery {
    /// The run's latest turn if omitted.
    command_id: Option<String>,
}

/// Get the result of a command: of the run's latest turn unless the request names one.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/result", tag = "runs", security(("token" = ["read"])),
    params(("runId" = RunId, Path), ResultQuery),
    responses((status = 200, body = RunResult), (status = "4XX", body = Problem)))]
pub(crate) async fn result(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Params(query): Params<ResultQuery>,
) -> Result<Json<RunResult>, Refusal> {
    let unknown = |_| ostler_protocol::Failure::not_found("command");
    let command_id = query.command_id.as_deref().map(str::parse).transpose().map_err(unknown)?;
    Ok(Json(service::results::get(&app, &caller, run_id, command_id).await?))
}

/// Cancel a run. Idempotent: cancelling a finished run returns how it ended.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/cancel", tag = "runs", security(("token" = ["submit"])),
    params(("runId" = RunId, Path)),
    request_body = Option<Cancel>, responses((status = 200, body = Run), (status = "4XX", body = Problem)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    OptionalBody(request): OptionalBody<Cancel>,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(service::runs::cancel(&app, &caller, run_id, request).await?))
}

/// Report a run's status, as its runner.
#[utoipa::path(patch, path = "/api/v1/runs/{runId}/status", tag = "runner", security(("token" = ["run"])),
    params(("runId" = RunId, Path)),
    request_body = PatchStatus, responses((status = 200, body = Run), (status = "4XX", body = Problem)))]
pub(crate) async fn patch_status(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Body(request): Body<PatchStatus>,
) -> Result<Json<Run>, Refusal> {
    Ok(Json(service::runs::patch_status(&app, &caller, run_id, request).await?))
}
