//! Watches: the objects that exist, or the changes since a version, then every change as it happens, with bookmarks.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::failures::ApiFailure;
use super::resources::ApiResource;
use super::selectors::ObjectSelector;
use super::shared::KubeShared;
use super::store::{KubeStore, ObjectChange, at_revision};

/// Clients that name no timeout are disconnected after half an hour at the earliest.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1800);

/// What a client watches.
#[derive(Clone)]
pub(super) struct WatchRequest {
    pub resource: &'static ApiResource,
    pub namespace: Option<String>,
    pub selector: ObjectSelector,
    /// `None`: start with the objects that exist.
    pub from: Option<u64>,
    pub wants_bookmarks: bool,
    pub timeout: Option<Duration>,
    /// The first event reports that the version is too old, whatever it is.
    pub expires_at_once: bool,
}

struct WatchStream {
    shared: Arc<KubeShared>,
    request: WatchRequest,
    /// Changes up to this revision were sent.
    sent: u64,
    queue: VecDeque<Value>,
    changes: watch::Receiver<u64>,
    /// How often watches were ended or expired when this one started.
    epochs: (u64, u64),
    deadline: Instant,
    bookmark_at: Instant,
    has_ended: bool,
}

pub(super) fn response(shared: Arc<KubeShared>, request: WatchRequest) -> Response {
    let now = Instant::now();
    let changes = shared.changes.subscribe();
    let (mut queue, mut has_ended) = (VecDeque::new(), false);
    let (sent, epochs) = {
        let state = shared.lock();
        let store = &state.store;
        let sent = match request.from {
            Some(from) if from < store.compacted() || request.expires_at_once => {
                queue.push_back(error_event(&ApiFailure::too_old(from, store.compacted() + 1)));
                has_ended = true;
                from
            }
            Some(from) => from,
            None => {
                let objects = store.list(request.resource, request.namespace.as_deref());
                let objects = objects.filter(|(_, object)| request.selector.matches(object));
                queue.extend(objects.map(|(_, object)| event("ADDED", object)));
                store.revision()
            }
        };
        (sent, (state.watches_ended, state.watches_expired))
    };
    let deadline = now + request.timeout.unwrap_or(TIMEOUT_DEFAULT);
    let bookmark_at = now + shared.bookmark_interval();
    let stream = WatchStream { shared, request, sent, queue, changes, epochs, deadline, bookmark_at, has_ended };
    let lines = stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        let line = Bytes::from(format!("{event}\n"));
        Some((Ok::<_, Infallible>(line), stream))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl WatchStream {
    /// The next event. `None` at the end of the watch.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            // Marked before the store is read, so that a change in between is not missed.
            self.changes.borrow_and_update();
            self.read_changes();
            if !self.queue.is_empty() || self.has_ended {
                continue;
            }
            tokio::select! {
                changed = self.changes.changed() => self.has_ended = changed.is_err(),
                () = sleep_until(self.deadline) => self.has_ended = true,
                () = sleep_until(self.bookmark_at), if self.request.wants_bookmarks => {
                    self.read_changes();
                    let revision = self.sent;
                    self.queue.push_back(bookmark(self.request.resource, revision));
                    self.bookmark_at += self.shared.bookmark_interval();
                }
            }
        }
    }

    fn read_changes(&mut self) {
        let shared = self.shared.clone();
        let state = shared.lock();
        if state.watches_ended != self.epochs.0 {
            self.has_ended = true;
        } else if state.watches_expired != self.epochs.1 || self.sent < state.store.compacted() {
            let oldest = state.store.compacted() + 1;
            self.queue.push_back(error_event(&ApiFailure::too_old(self.sent, oldest)));
            self.has_ended = true;
        } else {
            let events = self.events(&state.store);
            self.queue.extend(events);
            self.sent = self.sent.max(state.store.revision());
        }
    }

    fn events(&self, store: &KubeStore) -> Vec<Value> {
        let request = &self.request;
        let is_watched = |change: &&ObjectChange| {
            change.key.plural == request.resource.plural
                && request.namespace.as_ref().is_none_or(|only| change.key.namespace == *only)
        };
        let changes = store.changes_after(self.sent).filter(is_watched);
        changes.filter_map(|change| change_event(change, &request.selector)).collect()
    }
}

/// An object that begins to match the selector was added for this watch, one that no longer does was deleted.
fn change_event(change: &ObjectChange, selector: &ObjectSelector) -> Option<Value> {
    let before = change.before.as_ref().filter(|object| selector.matches(object));
    let after = change.after.as_ref().filter(|object| selector.matches(object));
    match (before, after) {
        (None, Some(after)) => Some(event("ADDED", after)),
        (Some(_), Some(after)) => Some(event("MODIFIED", after)),
        (Some(before), None) => Some(event("DELETED", &at_revision(before, change.revision))),
        (None, None) => None,
    }
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

fn error_event(failure: &ApiFailure) -> Value {
    event("ERROR", &failure.to_json())
}

fn bookmark(resource: &ApiResource, revision: u64) -> Value {
    let metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    event("BOOKMARK", &json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata}))
}
