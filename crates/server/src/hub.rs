//! The hub: publishes newly durable events, of this server or another one, to the followers in this process. A follower that
//! lags reads the store again; no follower can slow down a writer.

use std::{collections::HashMap, sync::Arc};

use ostler_protocol::{
    ids::{RunId, SessionId},
    kernel::events::{Event, EventType},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};

use crate::deadlines::Deadlines;

/// How many flushes a follower may lag before it has to read the store.
const FLUSHES_KEPT: usize = 32;

/// A larger group is not buffered for followers that lag; they read it from the store.
const GROUP_BYTES_MAX: usize = 128 * 1024;

/// How many runs a subscriber of [`Hub::subscribe_runs`] may lag before it misses some.
const RUNS_KEPT: usize = 1_024;

type HubTopic = broadcast::Sender<Arc<[Event]>>;

/// Runs with an event that workers wait for.
struct RunTopic(broadcast::Sender<RunId>);

impl Default for RunTopic {
    fn default() -> Self {
        Self(broadcast::channel(RUNS_KEPT).0)
    }
}

impl RunTopic {
    fn publish(&self, events: &[Event]) {
        if self.0.receiver_count() == 0 {
            return;
        }
        let is_awaited =
            |event: &&Event| matches!(event.event_type, EventType::PermissionRequest | EventType::TerminalStatus);
        for (run_id, _) in events.iter().filter(is_awaited).filter_map(|event| event.run) {
            let _ = self.0.send(run_id);
        }
    }
}

#[derive(Default)]
pub struct Hub {
    topics: Mutex<HashMap<SessionId, HubTopic>>,
    runs: RunTopic,
    /// Deadlines that the sweeper wakes up for.
    pub(crate) deadlines: Deadlines,
    /// A runner job waits for a launcher.
    pub jobs: Notify,
    /// … or for a runner elsewhere.
    pub external_jobs: watch::Sender<()>,
}

impl Hub {
    pub fn publish(&self, events: Vec<Event>) {
        self.runs.publish(&events);
        self.deadlines.announce_requests(&events);
        let topics = self.topics.lock();
        if topics.is_empty() {
            return;
        }
        // Events of one session are adjacent.
        for group in events.chunk_by(|a, b| a.session == b.session) {
            if let Some(topic) = topics.get(&group[0].session) {
                let bytes: usize = group.iter().map(|event| event.payload.as_deref().map_or(0, str::len)).sum();
                let kept = if bytes <= GROUP_BYTES_MAX { group } else { &[] };
                let _ = topic.send(kept.into());
            }
        }
    }

    /// A runner job waits.
    pub fn wake_for_jobs(&self) {
        self.jobs.notify_one();
        self.external_jobs.send_replace(());
    }

    /// Makes the followers of this session read the store.
    pub fn reread(&self, session: SessionId) {
        if let Some(topic) = self.topics.lock().get(&session) {
            let _ = topic.send([].into());
        }
    }

    pub fn reread_all(&self) {
        for topic in self.topics.lock().values() {
            let _ = topic.send([].into());
        }
    }

    /// Runs that asked for permission or of which something has ended, as this is published. A hint: the store is the truth,
    /// and a subscriber that lags misses some.
    pub fn subscribe_runs(&self) -> broadcast::Receiver<RunId> {
        self.runs.0.subscribe()
    }

    pub fn is_followed(&self, session: SessionId) -> bool {
        self.topics.lock().contains_key(&session)
    }

    pub fn subscribe(self: &Arc<Self>, session: SessionId) -> Subscription {
        let mut topics = self.topics.lock();
        let topic = topics.entry(session).or_insert_with(|| broadcast::channel(FLUSHES_KEPT).0);
        Subscription { receiver: Some(topic.subscribe()), session, hub: self.clone() }
    }
}

pub struct Subscription {
    receiver: Option<broadcast::Receiver<Arc<[Event]>>>,
    session: SessionId,
    hub: Arc<Hub>,
}

impl Subscription {
    /// The events published since the last call. `None` if there were too many; read the store.
    #[expect(clippy::expect_used, reason = "there until dropped")]
    pub async fn next(&mut self) -> Option<Arc<[Event]>> {
        let received = self.receiver.as_mut().expect("there until dropped").recv().await.ok();
        received.filter(|events| !events.is_empty())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.receiver.take();
        let mut topics = self.hub.topics.lock();
        if topics.get(&self.session).is_some_and(|topic| topic.receiver_count() == 0) {
            topics.remove(&self.session);
        }
    }
}
