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
        responses::created_status,
        sse::wants_stream,
    },
    service,
};

/// Make a session before its first run.
#[utoipa::path(post, path = "/api/v1/sessions", tag = "sessions", security(("token" = ["submit"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    request_body = CreateSession,
    responses((status = 201, body = SessionView), (status = 200, body = SessionView, description = "it was there"),
        (status = "4XX", body = Problem)))]
pub async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    headers: HeaderMap,
    Body(mut asked): Body<CreateSession>,
) -> Result<(StatusCode, Json<SessionView>), Refusal> {
    asked.idempotency_key = idempotency_key(&headers, asked.idempotency_key)?;
    let (session, created) = service::sessions::create(&app, &caller, asked).await?;
    Ok((created_status(created), Json(session)))
}

/// List sessions, newest first: those that run or that the reader has not read, or all.
#[utoipa::path(get, path = "/api/v1/sessions", tag = "sessions", security(("token" = ["browse"])), params(ListSessions),
    responses((status = 200, body = SessionPage), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(asked): Params<ListSessions>,
) -> Result<Json<SessionPage>, Refusal> {
    Ok(Json(service::sessions::list(&app, &caller, asked).await?))
}

/// Get a session, with where its active or last run stands.
#[utoipa::path(get, path = "/api/v1/sessions/{sessionId}", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), SessionQuery),
    responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(asked): Params<SessionQuery>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::get(&app, &caller, &id, asked).await?))
}

/// Rename a session.
#[utoipa::path(patch, path = "/api/v1/sessions/{sessionId}", tag = "sessions", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)), request_body = UpdateSession,
    responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub async fn update(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Body(asked): Body<UpdateSession>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::update(&app, &caller, &id, asked).await?))
}

/// Read all of a session's events.
///
/// A page of JSON; with `Accept: text/event-stream` a stream that goes on while the session does. The stream's ids are
/// the session's numbers: reconnect with `Last-Event-ID` (or `afterSeq`) and nothing is missed or repeated. With `runId`
/// it is that run's stream, by that run's numbers, and ends with it.
#[utoipa::path(get, path = "/api/v1/sessions/{sessionId}/trace", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), SessionEventsQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "On a stream: only events numbered above this; wins over `afterSeq`")),
    responses((status = 200, content((EventPage = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = Problem)))]
pub async fn trace(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(mut asked): Params<SessionEventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if wants_stream(&headers) {
        asked.after_seq = last_event_id(&headers)?.unwrap_or(asked.after_seq);
        let follower = service::sessions::follow(&app, &caller, &id, asked).await?;
        return Ok(event_stream(&app, caller, &headers, follower));
    }
    Ok(json_text(service::sessions::trace(&app, &caller, &id, asked).await?))
}

/// Read what people read of a session: messages and output.
#[utoipa::path(get, path = "/api/v1/sessions/{sessionId}/output", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), SessionEventsQuery),
    responses((status = 200, body = EventPage), (status = "4XX", body = Problem)))]
pub async fn output(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Params(asked): Params<SessionEventsQuery>,
) -> Result<Response, Refusal> {
    Ok(json_text(service::sessions::output(&app, &caller, &id, asked).await?))
}

/// Mark a session as read by a reader.
#[utoipa::path(post, path = "/api/v1/sessions/{sessionId}/read", tag = "sessions", security(("token" = ["browse"])),
    params(("sessionId" = String, Path)),
    request_body = Option<ReadSession>, responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    OptionalBody(asked): OptionalBody<ReadSession>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::read(&app, &caller, &id, asked).await?))
}

/// Control a session: cancel what is active in it, or close it.
#[utoipa::path(post, path = "/api/v1/sessions/{sessionId}/control", tag = "sessions", security(("token" = ["submit"])),
    params(("sessionId" = String, Path)),
    request_body = ControlSession, responses((status = 200, body = SessionView), (status = "4XX", body = Problem)))]
pub async fn control(
    State(app): State<App>,
    Caller(caller): Caller,
    At(id): At<String>,
    Body(asked): Body<ControlSession>,
) -> Result<Json<SessionView>, Refusal> {
    Ok(Json(service::sessions::control(&app, &caller, &id, asked).await?))
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}
