//! `/api/v1/retention…`: limits, sweeps and legal holds, for the operator.

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::{
    failures::Problem,
    ids::HoldId,
    retention::{Hold, HoldPage, ListHolds, PlaceHold, RetentionSweep, RetentionView, SweepRetention},
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params},
        problem::Refusal,
    },
    service,
};

/// Get the limits in force, and what a sweep would remove now: counts and bytes for each noun and tenant.
#[utoipa::path(get, path = "/api/v1/retention", tag = "retention", security(("token" = ["operate"])),
    responses((status = 200, body = RetentionView), (status = "4XX", body = Problem)))]
pub(crate) async fn get(State(app): State<App>, Caller(caller): Caller) -> Result<Json<RetentionView>, Refusal> {
    Ok(Json(service::retention::get(&app, &caller).await?))
}

/// Remove what is older than its limit, without waiting for the next sweep. Repeat the request while `hasMore` is true.
#[utoipa::path(post, path = "/api/v1/retention/sweeps", tag = "retention", security(("token" = ["operate"])),
    request_body = Option<SweepRetention>,
    responses((status = 200, body = RetentionSweep), (status = "4XX", body = Problem)))]
pub(crate) async fn sweep(
    State(app): State<App>,
    Caller(caller): Caller,
    OptionalBody(request): OptionalBody<SweepRetention>,
) -> Result<Json<RetentionSweep>, Refusal> {
    Ok(Json(service::retention::sweep(&app, &caller, request).await?))
}

/// Place a legal hold on a tenant, a session or an identity. It wins over every limit until it is released.
#[utoipa::path(post, path = "/api/v1/retention/holds", tag = "retention", security(("token" = ["operate"])),
    request_body = PlaceHold,
    responses((status = 201, body = Hold), (status = "4XX", body = Problem)))]
pub(crate) async fn place_hold(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<PlaceHold>,
) -> Result<(StatusCode, Json<Hold>), Refusal> {
    Ok((StatusCode::CREATED, Json(service::retention::place_hold(&app, &caller, request).await?)))
}

/// List legal holds, newest first, also those that were released.
#[utoipa::path(get, path = "/api/v1/retention/holds", tag = "retention", security(("token" = ["operate"])),
    params(ListHolds), responses((status = 200, body = HoldPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list_holds(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListHolds>,
) -> Result<Json<HoldPage>, Refusal> {
    Ok(Json(service::retention::list_holds(&app, &caller, request).await?))
}

/// Release a legal hold. The record of it stays.
#[utoipa::path(delete, path = "/api/v1/retention/holds/{holdId}", tag = "retention",
    security(("token" = ["operate"])), params(("holdId" = HoldId, Path)),
    responses((status = 200, body = Hold), (status = "4XX", body = Problem)))]
pub(crate) async fn release_hold(
    State(app): State<App>,
    Caller(caller): Caller,
    At(hold_id): At<HoldId>,
) -> Result<Json<Hold>, Refusal> {
    Ok(Json(service::retention::release_hold(&app, &caller, hold_id).await?))
}
