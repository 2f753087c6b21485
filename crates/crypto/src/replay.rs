//! The replay guard: a pushed message is opened once. It remembers sender and id of each message for as long as the time
//! window would admit it again. When there are too many to remember, it narrows the window instead of forgetting.

use std::collections::{BTreeSet, HashSet};

use crate::envelope::{Envelope, Unopened};

/// How far a message's own time may differ from ours.
pub const WINDOW_MS: i64 = 300_000;
pub const REMEMBERED_MAX: usize = 50_000;

#[derive(Debug, Default)]
pub struct ReplayGuard {
    seen: HashSet<(String, String)>,
    by_time: BTreeSet<(i64, String, String)>,
    /// Messages up to this time are rejected, because they may have been forgotten.
    floor_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// The message's time differs too much from ours.
    OutsideWindow,
    /// The message was opened before.
    Replayed,
    Unopened(Unopened),
}

impl ReplayGuard {
    /// Opens a pushed message if it is new. The time that counts is the one that its sender signed, not the server's. A
    /// message that cannot be opened is not remembered, so that a forgery cannot block the real one.
    pub fn admit<T>(
        &mut self,
        envelope: &Envelope,
        now_ms: i64,
        open: impl FnOnce() -> Result<T, Unopened>,
    ) -> Result<T, ReplayError> {
        let bound = &envelope.aad;
        let age = now_ms.saturating_sub(bound.timestamp);
        let forgotten = self.floor_ms.is_some_and(|floor| bound.timestamp <= floor);
        if !(-WINDOW_MS..=WINDOW_MS).contains(&age) || forgotten {
            return Err(ReplayError::OutsideWindow);
        }
        let name = (bound.from.clone(), bound.message_id.clone());
        if self.seen.contains(&name) {
            return Err(ReplayError::Replayed);
        }
        let opened = open().map_err(ReplayError::Unopened)?;
        self.by_time.insert((bound.timestamp, name.0.clone(), name.1.clone()));
        self.seen.insert(name);
        self.forget(now_ms);
        Ok(opened)
    }

    #[expect(clippy::expect_used, reason = "the loop runs only while there are entries")]
    fn forget(&mut self, now_ms: i64) {
        while let Some(oldest) = self.by_time.first() {
            let expired = now_ms.saturating_sub(oldest.0) > WINDOW_MS;
            if !expired && self.by_time.len() <= REMEMBERED_MAX {
                return;
            }
            let (time, from, message_id) = self.by_time.pop_first().expect("there is a first");
            self.floor_ms = self.floor_ms.max(Some(time));
            self.seen.remove(&(from, message_id));
        }
    }
}
