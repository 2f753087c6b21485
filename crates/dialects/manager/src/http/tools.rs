//! `/api/v1/tools`, and the tools of a run.

use axum::{Json, extract::State};
use ostler_protocol::{
    failures::Problem,
    ids::RunId,
    tools::wire::{CallTool, CalledTool, RunTools, RunToolsQuery, ToolList, TryTool},
};
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, Params},
        problem::Refusal,
    },
    service,
};

/// List the tools that this server offers to agents.
#[utoipa::path(get, path = "/api/v1/tools", tag = "tools", security(("token" = ["browse"])),
    responses((status = 200, body = ToolList), (status = "4XX", body = Problem)))]
pub(crate) async fn list(State(app): State<App>, Caller(caller): Caller) -> Result<Json<ToolList>, Refusal> {
    Ok(Json(service::tools::list(&app, &caller).await?))
}

/// Call a tool outside of any run, to try it.
#[utoipa::path(post, path = "/api/v1/tools/{tool}/calls", tag = "tools", security(("token" = ["operate"])),
    params(("tool" = String, Path, description = "The tool's name")), request_body = TryTool,
    responses((status = 200, body = CalledTool), (status = "4XX", body = Problem)))]
pub(crate) async fn try_out(
    State(app): State<App>,
    Caller(caller): Caller,
    At(tool): At<String>,
    Body(request): Body<TryTool>,
) -> Result<Json<CalledTool>, Refusal> {
    Ok(Json(service::tools::try_out(&app, &caller, &tool, request).await?))
}

/// List the tools that a run is offered, as its runner.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/tools", tag = "runner", security(("token" = ["run"])),
    params(("runId" = RunId, Path), RunToolsQuery),
    responses((status = 200, body = RunTools), (status = "4XX", body = Problem)))]
pub(crate) async fn of_run(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Params(query): Params<RunToolsQuery>,
) -> Result<Json<RunTools>, Refusal> {
    Ok(Json(service::tools::of_run(&app, &caller, run_id, query).await?))
}

/// Call a tool in a run, as the holder of its lease.
///
/// The call is executed once, however often and through whichever server it is requested under the same `callId`, as long as it is
/// among the newest 50 000 events of its session. While it is executed or waits for permission the status is `running`: send the
/// same request again, with `repeated`.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/tools/calls", tag = "runner", security(("token" = ["run"])),
    params(("runId" = RunId, Path)), request_body = CallTool,
    responses((status = 200, body = CalledTool), (status = "4XX", body = Problem)))]
pub(crate) async fn call(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Body(request): Body<CallTool>,
) -> Result<Json<CalledTool>, Refusal> {
    Ok(Json(service::tools::call(&app, &caller, run_id, request).await?))
}
