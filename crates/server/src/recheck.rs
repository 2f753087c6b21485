//! Waiting for a wake-up, or for the time at which the store is read again in any case. A wake-up is a hint that may be lost;
//! the store is the truth. This file alone applies `limits.recheck_ms`.

use std::{sync::Arc, time::Duration};

use ostler_protocol::{ids::SessionId, kernel::events::Event};
use tokio::time::{Instant, sleep_until};

use crate::{app::App, hub::Subscription};

/// When a waiting task reads the store although nothing has woken it.
pub struct Recheck {
    interval: Duration,
    /// Kept across cancelled waits: a caller that always waits for less than the interval must not postpone it for ever.
    due_at: Option<Instant>,
}

impl Recheck {
    pub fn new(app: &App) -> Self {
        Self { interval: Duration::from_millis(app.config.limits.recheck_ms.max(1)), due_at: None }
    }

    /// Waits for `wake_up`. `None` if the store must be read first: the interval is over, or it is `until`.
    pub async fn or_woken<T>(&mut self, until: Option<Instant>, wake_up: impl Future<Output = T>) -> Option<T> {
        let due_at = *self.due_at.get_or_insert_with(|| Instant::now() + self.interval);
        tokio::select! {
            woken = wake_up => Some(woken),
            () = sleep_until(until.map_or(due_at, |until| until.min(due_at))) => {
                self.restart();
                None
            }
        }
    }

    /// The task has the current state. The interval begins again with its next wait.
    pub fn restart(&mut self) {
        self.due_at = None;
    }
}

/// The events of one session as they are published. Created before the first read of the store, so that no event falls
/// between the two.
pub struct SessionWatch {
    subscription: Subscription,
    pub recheck: Recheck,
}

impl SessionWatch {
    pub fn new(app: &App, session: SessionId) -> Self {
        Self { subscription: app.hub.subscribe(session), recheck: Recheck::new(app) }
    }

    /// The events published since the last call. `None` if the store must be read: there were too many, the interval is over,
    /// or it is `until`.
    pub async fn next(&mut self, until: Option<Instant>) -> Option<Arc<[Event]>> {
        let published = self.recheck.or_woken(until, self.subscription.next()).await.flatten();
        if published.is_none() {
            self.recheck.restart();
        }
        published
    }

    /// Waits until the store must be read: a relevant event was published, or [`SessionWatch::next`] returns `None`.
    pub async fn changed(&mut self, until: Instant, is_relevant: impl Fn(&Event) -> bool) {
        while let Some(events) = self.next(Some(until)).await {
            if events.iter().any(&is_relevant) {
                break;
            }
        }
        self.recheck.restart();
    }
}
