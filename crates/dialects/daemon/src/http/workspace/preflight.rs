//! `/workspace/preflight`: checks before the first prompt.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{failures::DaemonProblem, workspace::PreflightStatus};
use ostler_server::{
    app::App,
    net::{extract::Caller, problem::Refusal},
};

use crate::service;

/// Check the server's machine, and the backend of new sessions. Results of the machine are up to 10 seconds old.
#[utoipa::path(get, path = "/workspace/preflight", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = PreflightStatus), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<PreflightStatus>, Refusal> {
    Ok(Json(service::preflight::get(&app, &caller).await?))
}
