//! `/workspace/hooks`.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{agent_status::WorkspaceHooks, failures::DaemonProblem};
use ostler_server::{
    app::App,
    net::{extract::Caller, problem::Refusal},
};

use crate::service;

/// The hooks of the workspace. Empty while no process of the agent runs.
#[utoipa::path(get, path = "/workspace/hooks", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = WorkspaceHooks), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<WorkspaceHooks>, Refusal> {
    Ok(Json(service::agent_status::workspace_hooks(&app, &caller).await?))
}
