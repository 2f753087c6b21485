//! Decides which failures are logged one by one. A client that is rejected thousands of times a second must not fill the disk:
//! of each kind, rule and address the first few in a window are logged, and the others are counted.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use ostler_protocol::{Failure, FailureKind};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::net::rates::RateOwner;

/// Failures are counted over this window, then the counts are logged.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines for one kind, rule and address in that time.
const LINES_PER_KEY_MAX: u32 = 5;
/// Lines for all of them: addresses are cheap to change.
const LINES_MAX: u32 = 200;
/// Combinations that are counted apart; the others are counted together.
const KEYS_MAX: usize = 1_024;
/// Counts that are logged by themselves after a window, the largest first.
const SUMMARIES_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RefusalKey {
    kind: FailureKind,
    rule: Option<Box<str>>,
    /// `None` for a request made inside this process.
    whose: Option<RateOwner>,
}

#[derive(Default)]
pub struct Refusals {
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    began_at: Option<Instant>,
    lines: u32,
    counts: HashMap<RefusalKey, Count>,
    /// Failures that were not logged, of keys that did not fit into the table.
    others: u64,
    /// A summary is due at the end of the window.
    is_summed_up: bool,
}

#[derive(Default)]
struct Count {
    logged: u32,
    held_back: u32,
}

/// What happens to one failure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LogVerdict {
    Log,
    Count,
    /// Counted, as the first of its window: the caller must schedule the summary.
    CountFirst,
}

impl Refusals {
    /// Whether this failure is logged by itself. Those that are not are logged as a count within [`WINDOW`].
    pub fn should_log(self: &Arc<Self>, failure: &Failure, peer: Option<IpAddr>) -> bool {
        let (rule, whose) = (failure.rule_name().map(Box::from), peer.map(RateOwner::peer));
        let verdict = self.window().take(RefusalKey { kind: failure.kind, rule, whose }, Instant::now());
        if verdict == LogVerdict::CountFirst {
            let refusals = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(WINDOW).await;
                refusals.sum_up();
            });
        }
        verdict == LogVerdict::Log
    }

    fn sum_up(&self) {
        let window = std::mem::take(&mut *self.window());
        let (summaries, others) = window.summaries();
        for (RefusalKey { kind, rule, whose }, count) in summaries {
            let peer = match whose {
                Some(RateOwner::Peer(address)) => address.to_string(),
                _ => String::new(),
            };
            tracing::warn!(%kind, rule = rule.as_deref(), peer, count, "failures that were not logged by themselves");
        }
        if others > 0 {
            tracing::warn!(count = others, "failures of other kinds and addresses that were not logged by themselves");
        }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock()
    }
}

impl Window {
    fn take(&mut self, key: RefusalKey, now: Instant) -> LogVerdict {
        // A window with a summary due ends with it; one without is over when its time is.
        let is_over = self.began_at.is_none_or(|began_at| now.duration_since(began_at) >= WINDOW);
        if is_over && !self.is_summed_up {
            *self = Self { began_at: Some(now), ..Self::default() };
        }
        let has_place = self.counts.len() < KEYS_MAX || self.counts.contains_key(&key);
        if has_place {
            let count = self.counts.entry(key).or_default();
            if count.logged < LINES_PER_KEY_MAX && self.lines < LINES_MAX {
                count.logged += 1;
                self.lines += 1;
                return LogVerdict::Log;
            }
            count.held_back += 1;
        } else {
            self.others += 1;
        }
        match std::mem::replace(&mut self.is_summed_up, true) {
            true => LogVerdict::Count,
            false => LogVerdict::CountFirst,
        }
    }

    /// The largest counts of failures that were not logged, and the sum of the others.
    fn summaries(self) -> (Vec<(RefusalKey, u32)>, u64) {
        let held_back = self.counts.into_iter().map(|(key, count)| (key, count.held_back));
        let mut counts: Vec<_> = held_back.filter(|(_, count)| *count > 0).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let rest: u64 = counts.iter().skip(SUMMARIES_MAX).map(|(_, count)| u64::from(*count)).sum();
        counts.truncate(SUMMARIES_MAX);
        (counts, self.others + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: u32) -> RefusalKey {
        let whose = Some(RateOwner::peer(IpAddr::V4(address.into())));
        RefusalKey { kind: FailureKind::Unauthenticated, rule: None, whose }
    }

    fn logged(window: &mut Window, count: u32, key: impl Fn(u32) -> RefusalKey) -> usize {
        let now = Instant::now();
        (0..count).filter(|n| window.take(key(*n), now) == LogVerdict::Log).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_kind_from_one_address_makes_a_few_lines_and_a_count() {
        let mut window = Window::default();
        assert_eq!(logged(&mut window, 80_000, |_| key(1)), LINES_PER_KEY_MAX as usize);
        assert_eq!(logged(&mut window, 1, |_| key(2)), 1, "another address is still logged");
        assert_eq!(window.summaries(), (vec![(key(1), 80_000 - LINES_PER_KEY_MAX)], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_make_no_more_lines_and_take_no_more_memory() {
        let mut window = Window::default();
        assert_eq!(logged(&mut window, 80_000, key), LINES_MAX as usize);
        assert_eq!(window.counts.len(), KEYS_MAX);
        assert!(window.others >= 80_000 - KEYS_MAX as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_window_logs_again() {
        let refusals = Arc::new(Refusals::default());
        let failure = Failure::new(FailureKind::Unauthenticated, "no token");
        let log = || refusals.should_log(&failure, Some([192, 0, 2, 1].into()));
        assert_eq!((0..100).filter(|_| log()).count(), LINES_PER_KEY_MAX as usize);
        tokio::time::sleep(WINDOW + Duration::from_millis(1)).await;
        assert!(log(), "the counts were logged, and a new window began");
        tokio::time::sleep(WINDOW + Duration::from_millis(1)).await;
        assert!(log(), "a new window also begins if nothing was held back");
    }
}
