//! What the connections, the controllers and the test share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::access::SecretNames;
use super::faults::FaultPlan;
use super::store::KubeStore;

const BOOKMARK_INTERVAL: Duration = Duration::from_secs(1);

/// Which credentials a request has. Faults and counts concern all but the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KubeUser {
    Client,
    /// The account of a server, which has a role.
    Server,
    Kubelet,
}

#[derive(Default)]
pub(super) struct KubeState {
    pub store: KubeStore,
    pub faults: FaultPlan,
    pub secret_names: SecretNames,
    /// How often all open watches were ended.
    pub watches_ended: u64,
    /// How often all open watches were expired.
    pub watches_expired: u64,
}

pub(super) struct KubeShared {
    state: Mutex<KubeState>,
    /// Changes whenever the store or what concerns watches has changed.
    pub changes: watch::Sender<u64>,
    /// Changes whenever all connections are to be cut.
    pub cuts: watch::Sender<u64>,
    pub is_cut_off: AtomicBool,
    bookmark_us: AtomicU64,
}

impl KubeShared {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            cuts: watch::Sender::new(0),
            is_cut_off: AtomicBool::new(false),
            bookmark_us: AtomicU64::new(micros(BOOKMARK_INTERVAL)),
        }
    }

    /// For reading, or for changes that concern no watch.
    pub(super) fn lock(&self) -> MutexGuard<'_, KubeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes watches and controllers.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut KubeState) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changes.send_modify(|count| *count += 1);
        changed
    }

    pub(super) fn cut_connections(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    pub(super) fn bookmark_interval(&self) -> Duration {
        Duration::from_micros(self.bookmark_us.load(Ordering::SeqCst))
    }

    pub(super) fn set_bookmark_interval(&self, interval: Duration) {
        self.bookmark_us.store(micros(interval), Ordering::SeqCst);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
