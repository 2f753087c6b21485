//! What a task of the load shares with its round.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::api::Api;

/// How long after the last fault everything must have ended and be readable.
pub(crate) const SETTLE_WITHIN: Duration = Duration::from_secs(30);

/// What a task of the load shares with the round.
#[derive(Clone)]
pub(crate) struct Beat {
    pub api: Api,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
}

impl Beat {
    pub(crate) fn new(api: Api) -> Self {
        Self { api, stop: Arc::default(), acknowledged: Arc::default() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Counts facts that the server acknowledged.
    pub(crate) fn acknowledge(&self, facts: usize) {
        self.acknowledged.fetch_add(facts as u64, Ordering::Relaxed);
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }
}
