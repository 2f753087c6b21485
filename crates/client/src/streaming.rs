//! Responses that are streams of server-sent events, each with one JSON value as its data.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::{HeaderName, HeaderValue, Request};
use http_body_util::BodyExt;
use ostler_protocol::{Failure, Rule};
use serde::de::DeserializeOwned;
use tokio::time::{Duration, timeout};

use crate::{client::Client, failures, response, sse::Parser, transport::ReplyBody};

pub(crate) const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// The last event that the client has received.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A server sends at least a comment every 15 s. A connection that is silent for four times as long is lost.
const SILENCE_MS_MAX: u64 = 60_000;

impl Client {
    /// Makes a call whose response is a stream of events. Fails if the response is anything else.
    pub(crate) async fn open_stream<T>(
        &self,
        request: Request<Bytes>,
    ) -> Result<BoxStream<'static, Result<T, Failure>>, Failure>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let response = self.open(request).await?;
        let content_type = response.headers().get(http::header::CONTENT_TYPE);
        let streams = content_type.is_some_and(|t| t.as_bytes().starts_with(EVENT_STREAM.as_bytes()));
        if !streams || !response.status().is_success() {
            let (status, bytes) = response::collect(response).await?;
            response::success(status, bytes)?;
            let message = "the server's response is not an event stream";
            return Err(Failure::rule(Rule::AnswerUnknown, message));
        }
        let state = StreamState {
            body: response.into_body(),
            parser: Parser::default(),
            ready: VecDeque::new(),
            has_ended: false,
        };
        Ok(stream::unfold(state, |mut state| async move { state.next().await.map(|item| (item, state)) }).boxed())
    }
}

struct StreamState<T> {
    body: ReplyBody,
    parser: Parser,
    ready: VecDeque<T>,
    has_ended: bool,
}

impl<T: DeserializeOwned> StreamState<T> {
    /// The next event. Nothing follows a failure.
    async fn next(&mut self) -> Option<Result<T, Failure>> {
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
