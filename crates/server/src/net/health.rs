//! `/health`, `/health/live`, `/health/readiness`.

use axum::{Json, extract::State, response::IntoResponse};
use http::StatusCode;
use ostler_protocol::health::{Health, Readiness};

use crate::{app::App, service};

/// Who this is.
#[utoipa::path(get, path = "/health", tag = "health", security(()), responses((status = 200, body = Health)))]
pub(super) async fn health() -> Json<Health> {
    Json(service::health::health())
}

/// The process is alive.
#[utoipa::path(get, path = "/health/live", tag = "health", security(()), responses((status = 200, body = Health)))]
pub(super) async fn live() -> Json<Health> {
    Json(service::health::health())
}

/// The server can be trusted with work: store reachable and writable, migrations applied, durability strong enough.
#[utoipa::path(get, path = "/health/readiness", tag = "health", security(()),
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub(super) async fn readiness(State(app): State<App>) -> impl IntoResponse {
    let readiness = service::health::readiness(&app).await;
    let status = if readiness.status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness))
}
