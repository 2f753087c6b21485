//! `/api/v1/sessions…`.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ostler_protocol::{
    failures::Problem,
    kernel::{
        events::EventPage,
        sessions::{
            ControlSession, CreateSession, ListSessions, ReadSession, SessionEventsQuery, SessionPage, SessionQuery,
            SessionView, UpdateSession,
        },
    },
};

use super::events::{event_stream, last_event_id};
use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params, idempotency_key},
        problem::Refusal,
        responses::created,
        sse::wants_stream,
    },
    service,
};

/// Create a session before its first run.
#[utoipa::path(post, path = "/api/v1/sessions", tag = "sessions", security(("token" = ["submit"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    request_body = CreateSession,
    responses((status = 201, body = SessionView), (status = 200, body = SessionView, description = "it was there"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    headers: HeaderMap,
    Body(mut request): Body<CreateSession>,
) -> Result<(StatusCode, Json<SessionView>), Refusal> {
    request.idempotency_key = idempotency_key(&headers, request.idempotency_key)?;
    Ok(created(service::sessions::create(&app, &caller, request).await?))
}

/// List sessions, newest first: those that are running or that the reader has not read, or all.
#[utoipa::path(get, path = "/api/v1/sessions", tag = "sessions", security(("token" = ["browse"])), params(ListSessions),
    responses((status = 200, body = SessionPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListSessions>,
) -> Result<Json<SessionPage>, Refusal> {
    Ok(Json(service::sessions::list(&app, &caller, request).await?))
}

/// Get a session, with the state of its active or last run.
#[utoipa::path(get, path = "/api/v1/sessions/{sessionId}", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), SessionQuery),
    responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(request): Params<SessionQuery>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::get(&app, &caller, &id, request).await?))
}

/// Rename a session.
#[utoipa::path(patch, path = "/api/v1/sessions/{sessionId}", tag = "sessions", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = UpdateSession,
    responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Body(request): Body<UpdateSession>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::update(&app, &caller, &id, request).await?))
}

/// Read all of a session's events.
///
/// A page of JSON; with `Accept: text/event-stream` a stream that continues as long as the session exists. The ids of the
/// stream are the session's event numbers: reconnect with `Last-Event-ID` (or `afterSeq`) and no event is missed or
/// repeated. With `runId` it is that run's stream, by that run's numbers, and ends when the run ends.
#[utoipa::path(get, path = "/api/v1/sessions/{sessionId}/trace", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), SessionEventsQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "On a stream: only events numbered above this; wins over `afterSeq`")),
    responses((status = 200, content((EventPage = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = Problem)))]
pub(crate) async fn trace(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(mut request): Params<SessionEventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if wants_stream(&headers) {
        request.after_seq = last_event_id(&headers)?.unwrap_or(request.after_seq);
        let follower = service::sessions::follow(&app, &caller, &id, request).await?;
        return Ok(event_stream(&app, caller, &headers, follower));
    }
    Ok(json_text(service::sessions::trace(&app, &caller, &id, request).await?))
}

/// Read the part of a session that is meant for people: messages and output.
#[utoipa::path(get, path = "/api/v1/sessions/{sessionId}/output", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), SessionEventsQuery),
    responses((status = 200, body = EventPage), (status = "4XX", body = Problem)))]
pub(crate) async fn output(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(request): Params<SessionEventsQuery>,
) -> Result<Response, Refusal> {
    Ok(json_text(service::sessions::output(&app, &caller, &id, request).await?))
}

/// Mark a session as read by a reader.
#[utoipa::path(post, path = "/api/v1/sessions/{sessionId}/read", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    request_body = Option<ReadSession>, responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub(crate) async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    OptionalBody(request): OptionalBody<ReadSession>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::read(&app, &caller, &id, request).await?))
}

/// Control a session: cancel what is active in it, or close it.
#[utoipa::path(post, path = "/api/v1/sessions/{sessionId}/control", tag = "sessions", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)),
    request_body = ControlSession, responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub(crate) async fn control(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Body(request): Body<ControlSession>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::control(&app, &caller, &id, request).await?))
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}
