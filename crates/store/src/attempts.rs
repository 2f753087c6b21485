//! Optimistic writes: read, decide, and write only if nothing has changed in between. If it has, decide again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::db::Db;

/// How often one decision is made before its caller is refused. An attempt fails only because another write succeeded.
const ATTEMPTS_MAX: usize = 64;

/// The attempts at one decision.
pub struct Attempts<'a, F> {
    repeated: Option<&'a AtomicU64>,
    made: usize,
    max: usize,
    refuse: F,
}

impl Db {
    /// Counts the attempts at one decision on rows. `refuse` is the failure of the caller if none of them succeeds.
    pub fn attempts<F>(&self, refuse: F) -> Attempts<'_, F> {
        Attempts { repeated: Some(&self.repeated), made: 0, max: ATTEMPTS_MAX, refuse }
    }

    /// How many decisions were made again because rows had changed before the write.
    pub fn repeated_decisions(&self) -> u64 {
        self.repeated.load(Relaxed)
    }
}

impl<F> Attempts<'static, F> {
    /// Counts the attempts at one decision on something other than rows.
    pub fn at_most(max: usize, refuse: F) -> Self {
        Self { repeated: None, made: 0, max, refuse }
    }
}

impl<F> Attempts<'_, F> {
    /// Call it before each attempt.
    pub fn start_next<E>(&mut self) -> Result<(), E>
    where
        F: Fn() -> E,
    {
        if self.made == self.max {
            return Err((self.refuse)());
        }
        if let Some(repeated) = self.repeated.filter(|_| self.made > 0) {
            repeated.fetch_add(1, Relaxed);
        }
        self.made += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_made_a_limited_number_of_times_and_repetitions_are_counted() {
        let repeated = AtomicU64::new(0);
        let refuse = || "try again";
        let mut attempts = Attempts { repeated: Some(&repeated), ..Attempts::at_most(ATTEMPTS_MAX, refuse) };
        for _ in 0..ATTEMPTS_MAX {
            attempts.start_next().unwrap();
        }
        assert_eq!(attempts.start_next(), Err("try again"));
        assert_eq!(repeated.into_inner(), ATTEMPTS_MAX as u64 - 1, "the first attempt is not a repetition");
    }
}
