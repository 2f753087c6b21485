//! How the latest writes of the store went.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    error::{StoreError, StoreFault},
    lane::desks::Decided,
};

/// How the latest writes went, whichever way they took.
#[derive(Default)]
pub struct WriteHealth {
    latest: Mutex<Latest>,
    failures: [AtomicU64; StoreFault::ALL.len()],
}

#[derive(Clone, Copy, Default)]
struct Latest {
    written_at: Option<Instant>,
    fault: Option<StoreFault>,
    /// A write failed for lack of room and none has succeeded since, whatever else has failed in the meantime.
    lacks_room: bool,
}

impl WriteHealth {
    /// Something was written. A write that may have changed no row does not count: it succeeds on a full disk, too.
    pub(crate) fn wrote(&self) {
        *self.latest() = Latest { written_at: Some(Instant::now()), ..Latest::default() };
    }

    /// Remembers why a write failed. One that was refused is not evidence about the store.
    pub(crate) fn record_failure<T>(&self, outcome: &Result<T, StoreError>) {
        outcome.as_ref().err().and_then(StoreFault::of).into_iter().for_each(|fault| self.failed(fault));
    }

    /// Remembers how a flush of the lane went.
    pub(crate) fn record_flush(&self, outcome: &Result<Decided<'_>, StoreError>) {
        match outcome {
            Ok(decided) if decided.desks.values().any(|desk| !desk.events.is_empty()) => self.wrote(),
            outcome => self.record_failure(outcome),
        }
    }

    pub(crate) fn failed(&self, fault: StoreFault) {
        let mut latest = self.latest();
        latest.fault = Some(fault);
        latest.lacks_room |= fault == StoreFault::DiskFull;
        drop(latest);
        self.failures[fault as usize].fetch_add(1, Relaxed);
    }

    /// Why the last write failed. `None` if it was written.
    pub fn fault(&self) -> Option<StoreFault> {
        self.latest().fault
    }

    pub(crate) fn lacks_room(&self) -> bool {
        self.latest().lacks_room
    }

    /// Whether nothing was written for this long, or the last write failed.
    pub fn is_in_doubt(&self, quiet: Duration) -> bool {
        let latest = *self.latest();
        latest.fault.is_some() || latest.written_at.is_none_or(|at| at.elapsed() > quiet)
    }

    /// Whether something was written in the last so many.
    pub fn wrote_within(&self, span: Duration) -> bool {
        self.latest().written_at.is_some_and(|at| at.elapsed() <= span)
    }

    /// How many writes have failed, by why.
    pub fn failures(&self) -> impl Iterator<Item = (StoreFault, u64)> {
        StoreFault::ALL.into_iter().zip(&self.failures).map(|(fault, count)| (fault, count.load(Relaxed)))
    }

    fn latest(&self) -> parking_lot::MutexGuard<'_, Latest> {
        self.latest.lock()
    }
}

/// A fault that lasts is logged at its first failed flush, and then once in this time.
const FAULT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Logs the failures of a lane's flushes. A full disk fails each of them, and must not fill the log's disk as well.
#[derive(Default)]
pub(crate) struct FlushLog {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl FlushLog {
    /// Logs why a flush of so many requests failed, unless that is a fault of the whole store and one was logged just before.
    pub(crate) fn failed(&mut self, error: &StoreError, requests: usize) {
        let is_fault = StoreFault::of(error).is_some();
        if is_fault && self.logged_at.is_some_and(|at| at.elapsed() < FAULT_LOG_INTERVAL) {
            self.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        tracing::error!(%error, requests, unlogged, "a flush failed; its requests were refused");
        if is_fault {
            self.logged_at = Some(Instant::now());
        }
    }

    /// Notes that a flush succeeded.
    pub(crate) fn succeeded(&mut self) {
        if self.unlogged > 0 {
            let unlogged = std::mem::take(&mut self.unlogged);
            tracing::info!(unlogged, "flushes succeed again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_room_lasts_until_something_is_written() {
        let health = WriteHealth::default();
        health.failed(StoreFault::DiskFull);
        // A full disk can stop Postgres itself; that it has started again is no sign of room.
        health.failed(StoreFault::Starting);
        assert!(health.lacks_room() && health.fault() == Some(StoreFault::Starting));
        health.wrote();
        assert!(!health.lacks_room() && health.fault().is_none());
    }

    #[test]
    fn a_fault_that_lasts_is_logged_once_in_a_while() {
        let mut log = FlushLog::default();
        let full = StoreError::Fault(StoreFault::DiskFull);
        for _ in 0..1_000 {
            log.failed(&full, 1);
        }
        assert_eq!(log.unlogged, 999);
        log.logged_at = Instant::now().checked_sub(FAULT_LOG_INTERVAL);
        log.failed(&full, 1);
        assert_eq!(log.unlogged, 0, "it was logged with their number");
        log.failed(&full, 1);
        log.failed(&StoreError::corrupt("one row"), 1);
        assert_eq!(log.unlogged, 0, "what is no fault of the store is always logged");
        log.failed(&full, 1);
        log.succeeded();
        assert_eq!(log.unlogged, 0);
    }
}
