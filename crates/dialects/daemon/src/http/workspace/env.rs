//! `/workspace/env`: the environment of the server.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{failures::DaemonProblem, workspace::EnvironmentStatus};
use ostler_server::{
    app::App,
    net::{extract::Caller, problem::Refusal},
};

use crate::service;

/// Describe the server's environment. Variables are reported by their presence only.
#[utoipa::path(get, path = "/workspace/env", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = EnvironmentStatus), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<EnvironmentStatus>, Refusal> {
    Ok(Json(service::environment::get(&app, &caller).await?))
}
