//! `/api/v1/runs/{runId}/events`: append, page, and follow by server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, header};
use ostler_protocol::{
    Failure, Rule,
    cursors::EventsQuery,
    failures::Problem,
    ids::RunId,
    kernel::events::{AppendEvents, Appended, Event, EventPage},
};
use ostler_server::{
    app::App,
    auth::Principal,
    net::{
        extract::{At, Body, Caller, Params},
        problem::Refusal,
        sse::{KEEP_ALIVE, next_within, streamed, wants_stream},
    },
    service::{self, follow::Follower},
};

/// Read a run's events.
///
/// A page of JSON; with `Accept: text/event-stream` a stream that continues until the run ends. The ids of the stream are
/// the event numbers of the run: reconnect with `Last-Event-ID` (or `afterSeq`) and no event is missed or repeated.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/events", tag = "events", security(("token" = ["read"])),
    params(("runId" = RunId, Path), EventsQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "On a stream: only events numbered above this; wins over `afterSeq`")),
    responses((status = 200, content((EventPage = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = Problem)))]
pub(crate) async fn page(
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
pub(crate) async fn append(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Body(request): Body<AppendEvents>,
) -> Result<Json<Appended>, Refusal> {
    Ok(Json(service::events::append(&app, &caller, run_id, request).await?))
}

pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, Failure> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let seq = value.to_str().ok().and_then(|text| text.trim().parse::<i64>().ok()).filter(|seq| *seq >= 0);
    seq.map(Some).ok_or_else(|| Failure::invalid(Rule::LastEventId, "Last-Event-ID must be an event's number"))
}

pub(crate) fn event_stream(app: &App, caller: Principal, headers: &HeaderMap, follower: Follower) -> Response {
    let heartbeat = Duration::from_millis(app.config.limits.heartbeat_ms);
    let events = stream::unfold(follower, |mut follower| async move {
        match follower.next().await {
            Ok(event) => event.map(|event| (Bytes::from(frame(follower.number(&event), &event)), follower)),
            Err(failure) => {
                // A reader that reconnects with its last id misses nothing.
                tracing::warn!(%failure, "an event stream ended early");
                None
            }
        }
    });
    let with_keep_alives = stream::unfold(Box::pin(events), move |mut events| async move {
        let next = next_within(&mut events, heartbeat).await.unwrap_or(Some(KEEP_ALIVE));
        next.map(|frame| (frame, events))
    });
    // Send the first bytes at once, so that the client knows that the stream is open.
    let open = stream::iter([Bytes::from_static(b": open\n\n")]);
    let frames = open.chain(with_keep_alives).map(Ok::<_, Infallible>);
    streamed(app, caller, headers, frames)
}

fn frame(number: i64, event: &Event) -> String {
    let mut out = format!("id: {number}\nevent: {}\ndata: ", event.event_type.as_str());
    let start = out.len();
    event.write_json(&mut out);
    // Line breaks in JSON text are only between tokens; in a frame they would end the data.
    if out[start..].contains(['\n', '\r']) {
        let clean = out[start..].replace(['\n', '\r'], " ");
        out.replace_range(start.., &clean);
    }
    out.push_str("\n\n");
    out
}
