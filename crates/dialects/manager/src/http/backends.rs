//! `/api/v1/backends`.

use axum::{Json, extract::State};
use ostler_protocol::{failures::Problem, kernel::backends::BackendList};

use ostler_server::{
    app::App,
    net::{extract::Caller, problem::Refusal},
    service,
};

/// List the backend profiles of this server, and whether a run of each can start.
#[utoipa::path(get, path = "/api/v1/backends", tag = "backends", security(("token" = ["browse"])),
    responses((status = 200, body = BackendList), (status = "4XX", body = Problem)))]
pub(crate) async fn list(State(app): State<App>, Caller(caller): Caller) -> Result<Json<BackendList>, Refusal> {
    Ok(Json(service::backends::list(&app, &caller).await?))
}
