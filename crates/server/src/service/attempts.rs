//! Optimistic writes: read rows, decide, and write only if the rows have not changed. If they have, decide again.

use ostler_protocol::Failure;

use crate::app::App;

/// How often one decision is made before its caller is refused. Each attempt that fails means that another one succeeded.
const ATTEMPTS_MAX: usize = 64;

/// The attempts at one decision.
pub struct Attempts<'a, F> {
    app: &'a App,
    made: usize,
    refuse: F,
}

impl App {
    /// Counts the attempts at one decision. `refuse` is the failure of the caller if none of them succeeds.
    pub fn attempts<F: Fn() -> Failure>(&self, refuse: F) -> Attempts<'_, F> {
        Attempts { app: self, made: 0, refuse }
    }
}

impl<F: Fn() -> Failure> Attempts<'_, F> {
    /// Call it before each attempt.
    pub fn start_next(&mut self) -> Result<(), Failure> {
        if self.made == ATTEMPTS_MAX {
            return Err((self.refuse)());
        }
        if self.made > 0 {
            self.app.metrics.decided_again();
        }
        self.made += 1;
        Ok(())
    }
}
