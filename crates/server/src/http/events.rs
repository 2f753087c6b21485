//! `/api/v1/runs/{runId}/events`: append, page, and follow by server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    BoxError, Json,
    body::{Body as AxumBody, Bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, header};
use ostler_protocol::{
    Failure, FailureKind,
    cursors::EventsQuery,
    failures::Problem,
    ids::RunId,
    kernel::events::{AppendEvents, Appended, Event, EventPage},
};
use secrecy::{ExposeSecret, SecretString};

use super::{
    extract::{At, Body, Caller, Params},
    gate::bearer,
    problem::Refusal,
};
use crate::{
    app::App,
    auth::Principal,
    service::{self, follow::Follower},
};

/// Read a run's events.
///
/// A page of JSON; with `Accept: text/event-stream` a stream that goes on until the run ends. The stream's ids are the
/// run's numbers: reconnect with `Last-Event-ID` (or `afterSeq`) and nothing is missed or repeated.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/events", tag = "events", security(("token" = ["read"])),
    params(("runId" = RunId, Path), EventsQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "On a stream: only events numbered above this; wins over `afterSeq`")),
    responses((status = 200, content((EventPage = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = Problem)))]
pub async fn page(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Params(query): Params<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    if wants_stream(&headers) {
        let after = last_event_id(&headers)?.unwrap_or(query.after_seq);
        let follower = service::follow::run(&app, &caller, run_id, after).await?;
        return Ok(event_stream(&app, caller, &headers, follower));
    }
    let text = service::events::page(&app, &caller, run_id, query).await?;
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response())
}

/// Append events to a run, as the holder of its lease.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/events", tag = "runner", security(("token" = ["run"])),
    params(("runId" = RunId, Path)),
    request_body = AppendEvents, responses((status = 200, body = Appended), (status = "4XX", body = Problem)))]
pub async fn append(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Body(asked): Body<AppendEvents>,
) -> Result<Json<Appended>, Refusal> {
    Ok(Json(service::events::append(&app, &caller, run_id, asked).await?))
}

pub fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept
        .split(',')
        .any(|range| range.split(';').next().is_some_and(|t| t.trim().eq_ignore_ascii_case("text/event-stream")))
}

pub fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, Failure> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let seq = value.to_str().ok().and_then(|text| text.trim().parse::<i64>().ok()).filter(|seq| *seq >= 0);
    seq.map(Some).ok_or_else(|| Failure::invalid("last-event-id", "Last-Event-ID must be an event's number"))
}

pub fn event_stream(app: &App, caller: Principal, headers: &HeaderMap, follower: Follower) -> Response {
    let heartbeat = Duration::from_millis(app.config.limits.heartbeat_ms);
    // The first bytes go out at once, so that a client knows the stream is open.
    let frames = stream::unfold((Some(follower), true), move |(follower, first)| async move {
        let mut follower = follower?;
        if first {
            return Some((frame_bytes(": open\n\n".into()), (Some(follower), false)));
        }
        match tokio::time::timeout(heartbeat, follower.next()).await {
            Err(_) => Some((frame_bytes(": keep-alive\n\n".into()), (Some(follower), false))),
            Ok(Ok(Some(event))) => Some((frame_bytes(frame(follower.number(&event), &event)), (Some(follower), false))),
            Ok(Ok(None)) => None,
            Ok(Err(failure)) => {
                // A reader that reconnects with its last id misses nothing.
                tracing::warn!(%failure, "an event stream ended early");
                None
            }
        }
    });
    streamed(app, caller, headers, frames)
}

/// An answer of frames, for as long as the caller would be let in.
pub fn streamed<E: Into<BoxError> + Send + 'static>(
    app: &App,
    caller: Principal,
    headers: &HeaderMap,
    frames: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> Response {
    as_events(AxumBody::from_stream(frames.take_until(turned_away(app, caller, headers))))
}

pub fn as_events(frames: AxumBody) -> Response {
    let mut response = Response::new(frames);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Resolves once the caller would not be let in any more: the token was revoked, has expired, or means something else.
pub fn turned_away(app: &App, caller: Principal, headers: &HeaderMap) -> impl Future<Output = ()> + Send + use<> {
    let token = bearer(headers).ok().flatten().map(SecretString::from);
    until_turned_away(app.clone(), caller, token)
}

async fn until_turned_away(app: App, caller: Principal, token: Option<SecretString>) {
    // Whoever came in without a token has none to lose.
    let Some(token) = token else { return std::future::pending().await };
    loop {
        tokio::time::sleep(Duration::from_millis(app.config.limits.readmit_ms.max(1))).await;
        // Boxed, because thousands of streams carry this future, and few of them ask at the same time.
        match Box::pin(app.auth.authenticate(&app.db, token.expose_secret(), app.wall())).await {
            Ok(principal) if principal == caller => {}
            // A store that does not answer says nothing about the caller.
            Err(failure) if failure.kind == FailureKind::InfraFailed => {}
            _ => {
                tracing::info!(caller = caller.name(), "an event stream ended: its caller is not let in any more");
                return;
            }
        }
    }
}

fn frame_bytes(text: String) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(text))
}

fn frame(number: i64, event: &Event) -> String {
    let mut out = format!("id: {number}\nevent: {}\ndata: ", event.event_type.as_str());
    let start = out.len();
    event.write_json(&mut out);
    // Line breaks in JSON text stand between tokens only; in a frame they would end the data.
    if out[start..].contains(['\n', '\r']) {
        let clean = out[start..].replace(['\n', '\r'], " ");
        out.replace_range(start.., &clean);
    }
    out.push_str("\n\n");
    out
}
