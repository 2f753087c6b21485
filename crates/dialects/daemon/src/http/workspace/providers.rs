//! `/workspace/providers`: the models that sessions can use.

use axum::{Json, extract::State};
use ostler_protocol::daemon::{failures::DaemonProblem, workspace::ProvidersStatus};
use ostler_server::{
    app::App,
    net::{extract::Caller, problem::Refusal},
};

use crate::service;

/// List the backend profiles that sessions of the workspace can use, by their kind of backend.
#[utoipa::path(get, path = "/workspace/providers", tag = "daemon", security(("token" = ["browse"])),
    responses((status = 200, body = ProvidersStatus), (status = "4XX", body = DaemonProblem)))]
pub(super) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<ProvidersStatus>, Refusal> {
    Ok(Json(service::providers::get(&app, &caller).await?))
}
