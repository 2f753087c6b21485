//! `/health`, `/health/live`, `/health/readiness`.

use axum::{Json, extract::State, response::IntoResponse};
use http::StatusCode;
use ostler_protocol::health::{Health, Readiness};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::Params;
use crate::{app::App, service};

/// Parameters of `GET /health`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct HealthQuery {
    /// `1` adds counts of what the server has to do. The response is `degraded`, with the status 503, if they cannot be read.
    deep: Option<String>,
}

/// Who this is.
#[utoipa::path(get, path = "/health", tag = "health", security(()), params(HealthQuery),
    responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(super) async fn health(State(app): State<App>, Params(query): Params<HealthQuery>) -> impl IntoResponse {
    let health = match query.deep.as_deref() {
        Some("1" | "true" | "") => service::health::deep_health(&app).await,
        _ => service::health::health(&app),
    };
    let status = if health.status == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}

/// The process is alive.
#[utoipa::path(get, path = "/health/live", tag = "health", security(()), responses((status = 200, body = Health)))]
pub(super) async fn live(State(app): State<App>) -> Json<Health> {
    Json(service::health::health(&app))
}

/// The server can be trusted with work: store reachable and writable, migrations applied, durability strong enough.
#[utoipa::path(get, path = "/health/readiness", tag = "health", security(()),
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub(super) async fn readiness(State(app): State<App>) -> impl IntoResponse {
    let readiness = service::health::readiness(&app).await;
    let status = if readiness.status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness))
}
