//! The servers and switches that calls of tools depend on, remembered: each call would otherwise read them several times.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::registered::RegisteredServer;

/// How long another server of the same store may still call a tool that was switched off.
const REMEMBERED: Duration = Duration::from_secs(1);

/// What calls of tools depend on, as it was read.
pub(crate) struct CallableServers {
    /// Those that agents get, in order.
    pub servers: Vec<RegisteredServer>,
    pub disabled_tools: BTreeSet<String>,
}

/// The latest that was read.
#[derive(Default)]
pub(super) struct CallableCache {
    latest: Mutex<Option<ReadServers>>,
    /// How often this process has changed a server or a switch. What was read before a change is not used after it.
    changes: AtomicU64,
}

struct ReadServers {
    found: Arc<CallableServers>,
    read_at: Instant,
    changes: u64,
}

/// A read that has begun.
pub(super) struct CallableRead {
    began_at: Instant,
    changes: u64,
}

impl CallableCache {
    /// Call it after a change.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// `has_others`: other servers may change the switches, too.
    pub(super) fn get(&self, has_others: bool) -> Option<Arc<CallableServers>> {
        let latest = self.latest.lock();
        let is_current = |read: &&ReadServers| {
            read.changes == self.changes.load(SeqCst) && (!has_others || read.read_at.elapsed() <= REMEMBERED)
        };
        latest.as_ref().filter(is_current).map(|read| read.found.clone())
    }

    pub(super) fn begin_read(&self) -> CallableRead {
        CallableRead { began_at: Instant::now(), changes: self.changes.load(SeqCst) }
    }

    pub(super) fn put(&self, read: &CallableRead, found: Arc<CallableServers>) {
        *self.latest.lock() = Some(ReadServers { found, read_at: read.began_at, changes: read.changes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Arc<CallableServers> {
        Arc::new(CallableServers { servers: vec![], disabled_tools: BTreeSet::new() })
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_is_used_until_this_server_changes_it_or_others_may_have() {
        let cache = CallableCache::default();
        assert!(cache.get(false).is_none());
        let read = cache.begin_read();
        cache.put(&read, nothing());
        assert!(cache.get(false).is_some() && cache.get(true).is_some());
        tokio::time::advance(2 * REMEMBERED).await;
        assert!(cache.get(false).is_some() && cache.get(true).is_none());
        let read = cache.begin_read();
        cache.changed();
        assert!(cache.get(false).is_none());
        cache.put(&read, nothing());
        assert!(cache.get(false).is_none(), "it was read before the change");
    }
}
