//! Events: pages, appends, and following a run live.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderValue, Method};
use ostler_protocol::{
    Failure,
    cursors::EventsQuery,
    kernel::events::{AppendEvents, Appended, EventPage, EventView},
};

use crate::{
    client::Client,
    path::Path,
    streaming::{EVENT_STREAM, LAST_EVENT_ID},
};

/// Events of a run in order, each once. Ends when the run has ended or the server shuts down. A broken connection is an
/// error, after which the caller may follow again from the last sequence number it has received.
pub type EventStream = BoxStream<'static, Result<EventView, Failure>>;

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
        let mut request = self.request(Method::GET, path, Bytes::new(), EVENT_STREAM)?;
        request.headers_mut().insert(LAST_EVENT_ID, HeaderValue::from(after_seq));
        self.open_stream(request).await
    }
}
