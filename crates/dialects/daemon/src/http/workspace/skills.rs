//! `/workspace/skills`.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{agent_status::WorkspaceSkills, failures::DaemonProblem};
use ostler_server::{
    app::App,
    net::{extract::Caller, problem::Refusal},
};

use crate::service;

/// The skills of the agent. Empty while no process of it runs.
#[utoipa::path(get, path = "/workspace/skills", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = WorkspaceSkills), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<WorkspaceSkills>, Refusal> {
    Ok(Json(service::agent_status::skills(&app, &caller).await?))
}
