//! Optimistic writes: read rows, decide, and write only if the rows have not changed. If they have, decide again.

use ostler_protocol::Failure;

use crate::{app::App, metrics::Metrics};

/// How often one decision is made before its caller is refused. An attempt fails only because another write succeeded.
const ATTEMPTS_MAX: usize = 64;

/// The attempts at one decision.
pub struct Attempts<'a, F> {
    metrics: &'a Metrics,
    made: usize,
    refuse: F,
}

impl App {
    /// Counts the attempts at one decision. `refuse` is the failure of the caller if none of them succeeds.
    pub fn attempts<F: Fn() -> Failure>(&self, refuse: F) -> Attempts<'_, F> {
        Attempts { metrics: &self.metrics, made: 0, refuse }
    }
}

impl<F: Fn() -> Failure> Attempts<'_, F> {
    /// Call it before each attempt.
    pub fn start_next(&mut self) -> Result<(), Failure> {
        if self.made == ATTEMPTS_MAX {
            return Err((self.refuse)());
        }
        if self.made > 0 {
            self.metrics.decided_again();
        }
        self.made += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::FailureKind;

    use super::*;
    use crate::metrics::{Gauges, page};

    #[test]
    fn a_decision_is_made_a_limited_number_of_times_and_repetitions_are_counted() {
        let metrics = Metrics::default();
        let refuse = || Failure::new(FailureKind::Overloaded, "try again");
        let mut attempts = Attempts { metrics: &metrics, made: 0, refuse };
        for _ in 0..ATTEMPTS_MAX {
            attempts.start_next().unwrap();
        }
        assert_eq!(attempts.start_next().unwrap_err().kind, FailureKind::Overloaded);
        let counted = format!("ostler_decisions_repeated_total {}\n", ATTEMPTS_MAX - 1);
        assert!(page(&metrics, &Gauges::default()).contains(&counted), "the first attempt is not a repetition");
    }
}
