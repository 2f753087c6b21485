//! `GET /session/{sessionId}/events`: the frames of a session as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{extract::State, response::Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, header};
use ostler_protocol::daemon::{failures::DaemonProblem, streams::EventStreamQuery};
use ostler_server::{
    app::App,
    net::{
        api_router::ApiRouter,
        extract::{At, Caller, Params},
        problem::Refusal,
        sse::{next_within, streamed},
    },
    routes,
};

use super::callers::ClientId;
use crate::service::stream::{self as service, EventStream, StreamRequest};

/// What a stream begins with: how long a client waits before it reconnects.
const RETRY: Bytes = Bytes::from_static(b"retry: 3000\n\n");
const HEARTBEAT: Bytes = Bytes::from_static(b": heartbeat\n\n");

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().routes(routes!(events))
}

/// Follow a session: one frame for each of its events, whichever client caused it.
///
/// With `Last-Event-ID` the frames after that id come first, then `replay_complete`; without it, or with one that is not a decimal
/// number, only new frames are sent. A client
/// that does not read fast enough is warned, then evicted, which concerns no other client. The stream ends with the session.
#[utoipa::path(get, path = "/session/{sessionId}/events", tag = "daemon", security(("token" = ["browse"])),
    params(("sessionId" = String, Path), EventStreamQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Replay the frames after this one")),
    responses((status = 200, content((String = "text/event-stream"))), (status = "4XX", body = DaemonProblem)))]
async fn events(
    State(app): State<App>,
    Caller(caller): Caller,
    At(session_id): At<String>,
    ClientId(client): ClientId,
    Params(query): Params<EventStreamQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let request = StreamRequest {
        last_event_id: last_event_id(&headers),
        max_queued: query.max_queued()?,
        wants_snapshot: query.wants_snapshot(),
    };
    let events = service::open(&app, &caller, &session_id, client.as_deref(), request).await?;
    let heartbeat = Duration::from_millis(app.config.limits.heartbeat_ms);
    let mut response = streamed(&app, caller, &headers, stream_frames(events, heartbeat));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    Ok(response)
}

/// The id after which frames are replayed. One that is no number is ignored, as clients expect.
fn last_event_id(headers: &HeaderMap) -> Option<i64> {
    let value = headers.get("last-event-id")?;
    let text = value.to_str().ok().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    if text.is_none() {
        tracing::info!("a Last-Event-ID that is no number was ignored");
    }
    // A number that is too large for any log is beyond the end of this one.
    text.map(|text| text.parse().unwrap_or(i64::MAX))
}

/// The bytes of the response.
fn stream_frames(
    events: EventStream,
    heartbeat: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let mark_written = events.write_mark();
    let frames = stream::unfold(events, |mut events| async move {
        let bytes = events.next().await?;
        Some((bytes, events))
    });
    with_heartbeats(frames, mark_written, heartbeat)
}

/// The frames, and a heartbeat when nothing else was sent for a while. `mark_written` is called whenever the connection has taken
/// what was sent before.
fn with_heartbeats(
    frames: impl Stream<Item = Bytes> + Send + 'static,
    mark_written: impl Fn() + Send + Sync + 'static,
    heartbeat: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let rest = stream::unfold((Box::pin(frames), mark_written), move |(mut frames, mark_written)| async move {
        // The next bytes are only asked for when the connection has taken those before.
        mark_written();
        match next_within(&mut frames, heartbeat).await {
            None => Some((Ok(HEARTBEAT), (frames, mark_written))),
            Some(bytes) => bytes.map(|bytes| (Ok(bytes), (frames, mark_written))),
        }
    });
    stream::once(async { Ok(RETRY) }).chain(rest)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::time::{Instant, sleep};

    use super::*;

    const EVERY: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_follows_every_interval_without_frames() {
        let frames = stream::iter([5, 40]).then(|second| async move {
            sleep(Duration::from_secs(second)).await;
            Bytes::from_static(b"frame")
        });
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = taken.clone();
        let mark_written = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let (started, mut sent) = (Instant::now(), vec![]);
        let mut bytes = Box::pin(with_heartbeats(frames, mark_written, EVERY));
        while let Some(Ok(bytes)) = bytes.next().await {
            sent.push((started.elapsed().as_secs(), String::from_utf8_lossy(&bytes).trim().to_owned()));
        }
        let expected = [(0, "retry: 3000"), (5, "frame"), (20, ": heartbeat"), (35, ": heartbeat"), (45, "frame")];
        assert_eq!(sent, expected.map(|(second, text)| (second, text.to_owned())));
        assert_eq!(taken.load(Ordering::Relaxed), expected.len(), "all that was sent was taken");
    }
}
