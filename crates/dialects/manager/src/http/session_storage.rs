//! `/api/v1/sessions/{sessionId}/storage…` and the sweep over all of them.

use axum::{Json, extract::State};
use ostler_protocol::{
    failures::Problem,
    kernel::session_storage::{RefreshStorage, SessionStorageView, StorageQuery, SweepStorage, SweptStorage},
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params},
        problem::Refusal,
    },
    service,
};

/// Get the state of a session's storage, never its contents.
#[utoipa::path(get, path = "/api/v1/sessions/{sessionId}/storage", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), StorageQuery),
    responses((status = 200, body = SessionStorageView), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(request): Params<StorageQuery>,
) -> Result<Json<SessionStorageView>, Refusal> {
    Ok(Json(service::session_storage::get(&app, &caller, &id, request).await?))
}

/// Evict a session's storage permanently: the session can still be read, and accepts no more runs.
#[utoipa::path(delete, path = "/api/v1/sessions/{sessionId}/storage", tag = "sessions",
    security(("token" = ["submit"])), params(("sessionId" = String, Path), StorageQuery),
    responses((status = 200, body = SessionStorageView), (status = "4XX", body = Problem)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(request): Params<StorageQuery>,
) -> Result<Json<SessionStorageView>, Refusal> {
    Ok(Json(service::session_storage::delete(&app, &caller, &id, request).await?))
}

/// Report the size of a session's storage, as the runner of one of its runs.
#[utoipa::path(post, path = "/api/v1/sessions/{sessionId}/storage/refresh", tag = "runner",
    security(("token" = ["run"])), params(("sessionId" = String, Path)), request_body = RefreshStorage,
    responses((status = 200, body = SessionStorageView), (status = "4XX", body = Problem)))]
pub(crate) async fn refresh(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Body(found): Body<RefreshStorage>,
) -> Result<Json<SessionStorageView>, Refusal> {
    Ok(Json(service::session_storage::refresh(&app, &caller, &id, found).await?))
}

/// Evict all storage that has expired, without waiting for the next sweep. `now` and `limit` are in the body or the query.
#[utoipa::path(post, path = "/api/v1/sessions/storage/gc", tag = "sessions", security(("token" = ["operate"])),
    params(SweepStorage), request_body = Option<SweepStorage>,
    responses((status = 200, body = SweptStorage), (status = "4XX", body = Problem)))]
pub(crate) async fn sweep(
    State(app): State<App>,
    Params(query): Params<SweepStorage>,
    OptionalBody(request): OptionalBody<SweepStorage>,
) -> Result<Json<SweptStorage>, Refusal> {
    Ok(Json(service::session_storage::sweep(&app, request.or(query)?).await?))
}
