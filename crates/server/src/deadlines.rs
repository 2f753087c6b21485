//! Deadlines that the sweeper waits for, so that what is due ends at its time and not with the next interval. They are hints:
//! the store is the truth, and the sweeper reads it in every interval anyway.

use std::{collections::BTreeSet, future::pending, time::Duration};

use ostler_protocol::{
    Timestamp,
    kernel::events::{Event, EventType},
};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{sync::Notify, time::sleep};

use crate::clock::Clock;

/// Announced deadlines that are kept. The latest ones are dropped first: the sweeper finds them in the store before they pass.
const ANNOUNCED_MAX: usize = 1_024;

#[derive(Default)]
pub(crate) struct Deadlines {
    announced: Mutex<BTreeSet<Timestamp>>,
    /// A deadline was announced that is before all others.
    earlier: Notify,
}

impl Deadlines {
    /// Something may be due at this time. If nothing is, one look at the store was unnecessary.
    pub(crate) fn announce(&self, at: Timestamp) {
        let is_first = {
            let mut announced = self.announced.lock();
            let is_first = announced.first().is_none_or(|first| at < *first);
            announced.insert(at);
            if announced.len() > ANNOUNCED_MAX {
                announced.pop_last();
            }
            is_first
        };
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Announces the deadlines of permission requests among these events.
    pub(crate) fn announce_requests(&self, events: &[Event]) {
        #[derive(Deserialize)]
        struct Request {
            deadline: Timestamp,
        }
        for event in events.iter().filter(|event| event.event_type == EventType::PermissionRequest) {
            let payload = event.payload.as_deref();
            if let Some(request) = payload.and_then(|payload| serde_json::from_str::<Request>(payload).ok()) {
                self.announce(request.deadline);
            }
        }
    }

    /// Forgets deadlines that are not before `horizon`.
    pub(crate) fn forget_from(&self, horizon: Timestamp) {
        drop(self.announced.lock().split_off(&horizon));
    }

    /// Waits until an announced deadline has passed, and forgets those that have.
    pub(crate) async fn passed(&self, clock: &dyn Clock) {
        loop {
            let now = clock.now();
            let next = {
                let mut announced = self.announced.lock();
                if announced.first().is_some_and(|first| *first <= now) {
                    announced.retain(|at| *at > now);
                    return;
                }
                announced.first().copied()
            };
            let next_passes = async {
                match next {
                    Some(at) => sleep(rounded_up(now, at)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = next_passes => {}
                () = self.earlier.notified() => {}
            }
        }
    }
}

/// The time from `now` to `at`, at least a millisecond: a clock that tests move by hand does not move while this waits.
fn rounded_up(now: Timestamp, at: Timestamp) -> Duration {
    let ms = u64::try_from(at.duration_since(now).as_millis()).unwrap_or_default();
    Duration::from_millis(ms.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    struct Stopped(Mutex<Timestamp>);

    impl Clock for Stopped {
        fn now(&self) -> Timestamp {
            *self.0.lock()
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_once_and_not_before_its_time_on_the_clock() {
        let (deadlines, clock) = (Deadlines::default(), Stopped(Mutex::new(at(0))));
        deadlines.announce(at(700));
        tokio::time::timeout(Duration::from_secs(10), deadlines.passed(&clock)).await.unwrap_err();
        *clock.0.lock() = at(700);
        assert!(deadlines.passed(&clock).now_or_never().is_some());
        assert!(deadlines.passed(&clock).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_deadline_wakes_the_task_that_waits_for_a_later_one() {
        let (deadlines, clock) = (Deadlines::default(), Stopped(Mutex::new(at(0))));
        deadlines.announce(at(60_000));
        let waited = async {
            let started = tokio::time::Instant::now();
            deadlines.passed(&clock).await;
            started.elapsed()
        };
        let announced = async {
            tokio::task::yield_now().await;
            *clock.0.lock() = at(5);
            deadlines.announce(at(5));
        };
        assert!(tokio::join!(waited, announced).0 < Duration::from_millis(10));
    }

    #[test]
    fn the_latest_deadlines_are_dropped_first() {
        let deadlines = Deadlines::default();
        (0..2_000).for_each(|ms| deadlines.announce(at(ms)));
        let kept = deadlines.announced.lock().clone();
        assert_eq!((kept.len(), kept.last().copied()), (ANNOUNCED_MAX, Some(at(1_023))));
        deadlines.forget_from(at(10));
        assert_eq!(deadlines.announced.lock().len(), 10);
    }
}
