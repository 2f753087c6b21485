//! Pauses between lists of a server that reports changes of its tools again and again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

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

    /// Waits before the next report is answered.
    pub(super) async fn wait(&mut self) {
        sleep(self.pause).await;
        self.ended_at = Some(Instant::now());
    }
}

/// The pause after a list, twice as long as the one before it if a change was reported less than that pause after it.
fn pause_after(previous: Duration, quiet_for: Duration) -> Duration {
    if quiet_for < previous { (2 * previous).min(PAUSE_MAX) } else { PAUSE_MIN }
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
}
