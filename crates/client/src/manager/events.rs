//! Events: pages, appends, and following a run live.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::{HeaderName, HeaderValue, Method};
use http_body_util::BodyExt;
use ostler_protocol::{
    Failure, Rule,
    cursors::EventsQuery,
    kernel::events::{AppendEvents, Appended, EventPage, EventView},
};
use tokio::time::{Duration, timeout};

use crate::{client::Client, failures, path::Path, response, sse::Parser, transport::ReplyBody};

/// Events of a run in order, each once. Ends when the run has ended or the server shuts down. A broken connection is an
/// error, after which the caller may follow again from the last sequence number it has received.
pub type EventStream = BoxStream<'static, Result<EventView, Failure>>;

/// A server sends at least a comment every 15 s. A connection that is silent for four times as long is lost.
const SILENCE_MS_MAX: u64 = 60_000;

impl Client {
    pub async fn run_events(&self, run_id: &str, query: &EventsQuery) -> Result<EventPage, Failure> {
        self.get(Path::api(&["runs", run_id, "events"]).query(query)?).await
    }

    /// Appends a batch. Idempotent by `batchNo`: a repeated batch returns the first response and appends nothing.
    pub async fn append_events(&self, run_id: &str, batch: &AppendEvents) -> Result<Appended, Failure> {
        self.post(Path::api(&["runs", run_id, "events"]), batch).await
    }

    /// Follows a run from the event after `after_seq`.
    pub async fn follow_run(&self, run_id: &str, after_seq: i64) -> Result<EventStream, Failure> {
        self.follow(Path::api(&["runs", run_id, "events"]), after_seq).await
    }

    pub(crate) async fn follow(&self, path: Path, after_seq: i64) -> Result<EventStream, Failure> {
        let accept = HeaderValue::from_static("text/event-stream");
        let mut request = self.request(Method::GET, path, Bytes::new(), accept)?;
        request.headers_mut().insert(HeaderName::from_static("last-event-id"), HeaderValue::from(after_seq));
        let response = self.open(request).await?;
        let content_type = response.headers().get(http::header::CONTENT_TYPE);
        let streams = content_type.is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
        if !streams || !response.status().is_success() {
            let (status, bytes) = response::collect(response).await?;
            response::success(status, bytes)?;
            let message = "the server's response is not an event stream";
            return Err(Failure::rule(Rule::AnswerUnknown, message));
        }
        let state = FollowState {
            body: response.into_body(),
            parser: Parser::default(),
            ready: VecDeque::new(),
            has_ended: false,
        };
        Ok(stream::unfold(state, |mut state| async move { state.next().await.map(|item| (item, state)) }).boxed())
    }
}

struct FollowState {
    body: ReplyBody,
    parser: Parser,
    ready: VecDeque<EventView>,
    has_ended: bool,
}

impl FollowState {
    /// The next event. Nothing follows a failure.
    async fn next(&mut self) -> Option<Result<EventView, Failure>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.has_ended {
                return None;
            }
            if let Err(failure) = self.read().await {
                self.has_ended = true;
                return Some(Err(failure));
            }
        }
    }

    async fn read(&mut self) -> Result<(), Failure> {
        let frame = timeout(Duration::from_millis(SILENCE_MS_MAX), self.body.frame());
        let frame = frame.await.map_err(|_| failures::timed_out(SILENCE_MS_MAX))?;
        let Some(frame) = frame else {
            self.has_ended = true;
            return Ok(());
        };
        let Ok(data) = frame.map_err(|e| failures::interrupted(&*e))?.into_data() else { return Ok(()) };
        for frame in self.parser.feed(&data)? {
            self.ready.push_back(response::parse(&Bytes::from(frame.data))?);
        }
        Ok(())
    }
}
