//! `/metrics`, as Prometheus reads it.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header;
use ostler_protocol::failures::Problem;

use crate::{app::App, service};

pub(super) const PATH: &str = "/metrics";
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What this server counts. `docs/generated/metrics.md` names everything in it.
#[utoipa::path(get, path = "/metrics", tag = "health", security(("token" = ["scrape"])),
    responses((status = 200, body = String, content_type = "text/plain"), (status = "4XX", body = Problem)))]
pub(super) async fn metrics(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], service::metrics::page(&app).await).into_response()
}
