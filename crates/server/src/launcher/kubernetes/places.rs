//! How many starts a server works on. A start that waits for something of its own gives back its place, so that it does not delay
//! starts that can continue.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::{app::App, launcher::ref_lookups::RefLookups};

/// A server that has this many starts under way claims no further jobs. Starts that it takes over from other servers come on top.
pub(super) const STARTS_MAX: usize = 32;
/// Starts that wait for the host of a repository are not counted above, up to this many.
const LOOKUPS_MAX: usize = 64;
/// Nor are starts that wait for the cluster, up to this many: each of them calls it at intervals, and one that waits for a quota
/// fails in the end. Further jobs stay pending, where waiting costs nothing.
const WAITING_MAX: usize = 64;

/// The places of a server for starts.
#[derive(Clone, Default)]
pub(super) struct StartPlaces {
    waiting: Arc<AtomicUsize>,
}

impl StartPlaces {
    /// How many more starts the server takes on, while this many have not ended.
    pub(super) fn count_free(&self, app: &App, starting: usize) -> usize {
        let lookups = app.state::<RefLookups>().waiting().min(LOOKUPS_MAX);
        let waiting = self.waiting.load(Ordering::Relaxed).min(WAITING_MAX);
        STARTS_MAX.saturating_sub(starting.saturating_sub(lookups + waiting))
    }

    /// Gives back the place of a start until the returned value is dropped.
    pub(super) fn give_back(&self) -> ReturnedPlace<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        ReturnedPlace(&self.waiting)
    }
}

/// The place of a start that waits.
pub(super) struct ReturnedPlace<'a>(&'a AtomicUsize);

impl Drop for ReturnedPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
