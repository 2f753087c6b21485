//! `/api/v1/runners…`.

use axum::{Json, extract::State};
use ostler_protocol::{
    failures::Problem,
    kernel::runners::{RegisterRunner, Runner},
};

use ostler_server::{
    app::App,
    net::{
        extract::{Body, Caller},
        problem::Refusal,
    },
    service,
};

/// Register a runner, or register it again.
#[utoipa::path(post, path = "/api/v1/runners/register", tag = "runner", security(("token" = ["run"])),
    request_body = RegisterRunner,
    responses((status = 200, body = Runner), (status = "4XX", body = Problem)))]
pub(crate) async fn register(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<RegisterRunner>,
) -> Result<Json<Runner>, Refusal> {
    Ok(Json(service::runners::register(&app, &caller, request).await?))
}
