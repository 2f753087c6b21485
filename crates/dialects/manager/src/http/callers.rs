//! `/api/v1/caller`: who the server takes the caller for.

use axum::{Json, extract::State};
use ostler_protocol::{callers::CallerView, failures::Problem};

use ostler_server::{
    app::App,
    net::{extract::Caller, problem::Refusal},
    service,
};

/// Get who the caller is: whose token it sent, for which tenants, which of them new work is for, and what it may do.
#[utoipa::path(get, path = "/api/v1/caller", tag = "callers", security(("token" = ["identify"])),
    responses((status = 200, body = CallerView), (status = "4XX", body = Problem)))]
pub(crate) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<CallerView>, Refusal> {
    Ok(Json(service::callers::get(&app, &caller)))
}
