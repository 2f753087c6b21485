//! Long replays take turns. A follower that starts far behind reads the log page by page; hundreds of them at once would
//! take the store's readers and the processor from all other work, above all from the writer.
//!
//! A bounded number of pages is read at a time, first come, first served. While something is being written, each turn begins
//! with a pause that is a multiple of what the last page cost, so that most of the time belongs to the writer.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread::available_parallelism,
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

/// A follower that is behind by no more than this reads at once: its page is short, and it may be all that it lacks.
pub const SHORT_EVENTS_MAX: i64 = 64;
const TURNS_MAX: usize = 4;
/// Reading a page is about half of what it costs; encoding and sending it is the rest.
const PAUSE_PER_PAGE: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(25);

pub struct ReplayThrottle {
    turns: Semaphore,
    /// What the last page took to read.
    page_us: AtomicU64,
}

impl Default for ReplayThrottle {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::new((processors / 2).clamp(1, TURNS_MAX))
    }
}

impl ReplayThrottle {
    fn new(turns: usize) -> Self {
        Self { turns: Semaphore::new(turns), page_us: AtomicU64::new(0) }
    }

    /// Reads a page when its turn has come.
    pub async fn take_turn<T>(&self, is_writing: impl Fn() -> bool, read: impl Future<Output = T>) -> T {
        // The semaphore is never closed; reading without a turn would only be less fair.
        let _turn = self.turns.acquire().await;
        if is_writing() {
            let page = Duration::from_micros(self.page_us.load(Relaxed));
            sleep((page * PAUSE_PER_PAGE).min(PAUSE_MAX)).await;
        }
        let began = Instant::now();
        let page = read.await;
        self.page_us.store(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX), Relaxed);
        page
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use futures_util::future::join_all;

    use super::*;

    const PAGE: Duration = Duration::from_millis(5);

    /// How many pages were read at once at most, and how long all of them took.
    async fn storm(turns: usize, followers: usize, is_writing: bool) -> (usize, Duration) {
        let (replays, reading, most) = (ReplayThrottle::new(turns), AtomicUsize::new(0), AtomicUsize::new(0));
        let began = Instant::now();
        join_all((0..followers).map(|_| {
            replays.take_turn(|| is_writing, async {
                most.fetch_max(reading.fetch_add(1, SeqCst) + 1, SeqCst);
                sleep(PAGE).await;
                reading.fetch_sub(1, SeqCst);
            })
        }))
        .await;
        (most.into_inner(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_pages_than_turns_are_read_at_once() {
        assert_eq!(storm(2, 300, false).await, (2, PAGE * 150));
    }

    #[tokio::test(start_paused = true)]
    async fn most_of_the_time_belongs_to_the_writer_while_it_writes() {
        let (most, took) = storm(1, 300, true).await;
        assert_eq!(most, 1);
        // The first page has no earlier one to measure its pause by.
        assert_eq!(took, PAGE * 300 + PAGE * PAUSE_PER_PAGE * 299);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_goes_away_gives_its_turn_back() {
        let replays = Arc::new(ReplayThrottle::new(1));
        let stuck = tokio::spawn({
            let replays = replays.clone();
            async move { replays.take_turn(|| false, std::future::pending::<()>()).await }
        });
        tokio::task::yield_now().await;
        stuck.abort();
        replays.take_turn(|| false, async {}).await;
    }
}
