//! Pauses between lists of a server that reports changes of its tools again and again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A pause is at least this many times as long as the list before it took: checking schemas is the server's own work.
const PAUSE_PER_WORK: u32 = 10;

/// The pauses after lists of one connection.
pub(super) struct ListPauses {
    pause: Duration,
    /// When the last pause ended.
    ended_at: Option<Instant>,
}

impl ListPauses {
    pub(super) fn new() -> Self {
        Self { pause: PAUSE_MIN, ended_at: None }
    }

    /// Notes that a change is reported.
    pub(super) fn reported(&mut self) {
        self.pause = match self.ended_at {
            Some(ended_at) => pause_after(self.pause, ended_at.elapsed()),
            None => PAUSE_MIN,
        };
    }

    /// Waits before the next report is answered, after a list that took this long.
    pub(super) async fn wait(&mut self, took: Duration) {
        self.pause = pause_for_work(self.pause, took);
        sleep(self.pause).await;
        self.ended_at = Some(Instant::now());
    }
}

/// The pause after a list, twice as long as the one before it if a change was reported less than that pause after it.
fn pause_after(previous: Duration, quiet_for: Duration) -> Duration {
    if quiet_for < previous { (2 * previous).min(PAUSE_MAX) } else { PAUSE_MIN }
}

fn pause_for_work(pause: Duration, took: Duration) -> Duration {
    pause.max(took.saturating_mul(PAUSE_PER_WORK)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_always_reports_changes_is_listed_less_and_less_often() {
        let pauses = std::iter::successors(Some(PAUSE_MIN), |pause| Some(pause_after(*pause, Duration::ZERO)));
        let seconds: Vec<_> = pauses.take(8).map(|pause| pause.as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pause_after(PAUSE_MAX, PAUSE_MAX), PAUSE_MIN, "it was quiet for as long as the pause");
    }

    #[test]
    fn a_list_that_takes_long_is_followed_by_a_longer_pause() {
        assert_eq!(pause_for_work(PAUSE_MIN, Duration::from_millis(20)), PAUSE_MIN);
        assert_eq!(pause_for_work(PAUSE_MIN, Duration::from_secs(3)), Duration::from_secs(30));
        assert_eq!(pause_for_work(PAUSE_MIN, Duration::MAX), PAUSE_MAX);
    }
}
