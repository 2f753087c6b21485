//! `/api/v1/usage`.

use axum::{Json, extract::State};
use ostler_protocol::{
    failures::Problem,
    kernel::usage::{UsageQuery, UsageReport},
};

use ostler_server::{
    app::App,
    net::{
        extract::{Caller, Params},
        problem::Refusal,
    },
    service,
};

/// Get what runs have used in a period: by profile, tenant, user, agent or day.
#[utoipa::path(get, path = "/api/v1/usage", tag = "runs", security(("token" = ["browse"])), params(UsageQuery),
    responses((status = 200, body = UsageReport), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<UsageQuery>,
) -> Result<Json<UsageReport>, Refusal> {
    Ok(Json(service::usage::report(&app, &caller, request).await?))
}
