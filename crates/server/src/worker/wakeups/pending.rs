//! Wake-ups that wait to be sent or passed on, merged into one.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ostler_store::{
    lane::Committed,
    wakeups::{Frame as StoredFrame, Wakeups},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// Pending wake-ups. Taking them returns all of them, merged into one.
#[derive(Default)]
pub struct Pending {
    wakeups: Mutex<Wakeups>,
    added: Notify,
}

impl Pending {
    /// Adds what a flush of this server has committed.
    pub fn add_committed(&self, committed: &Committed) {
        let mut wakeups = self.lock();
        committed.events.iter().for_each(|event| wakeups.add_event(event));
        wakeups.jobs |= committed.jobs_waiting;
        if !wakeups.is_empty() {
            self.added.notify_one();
        }
    }

    /// Adds a change for a key of this topic.
    pub fn add_key(&self, topic: &str, is_urgent: bool, key: String) {
        self.lock().add_key(topic, is_urgent, key);
        self.added.notify_one();
    }

    /// Adds a frame for the connections of this key to other servers.
    pub fn add_frame(&self, topic: &str, key: String, frame: &str) {
        let frame = StoredFrame { topic: topic.to_owned(), key, frame: BASE64.encode(frame) };
        self.lock().add_frame(frame);
        self.added.notify_one();
    }

    pub(super) fn add(&self, more: Wakeups) {
        self.lock().merge(more);
        self.added.notify_one();
    }

    pub(super) async fn take(&self) -> Wakeups {
        loop {
            let wakeups = std::mem::take(&mut *self.lock());
            if !wakeups.is_empty() {
                return wakeups;
            }
            self.added.notified().await;
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Wakeups> {
        self.wakeups.lock()
    }
}
