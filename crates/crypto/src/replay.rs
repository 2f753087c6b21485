//! The replay guard: a pushed message is opened once. It remembers who sent which message for as long as its time would
//! let it in again, and no longer; when there are too many to remember, it narrows that time instead of forgetting.

use std::collections::{BTreeSet, HashSet};

use crate::envelope::{Envelope, Unopened};

/// How far a message's own time may be from ours.
pub const WINDOW_MS: i64 = 300_000;
pub const REMEMBERED_MAX: usize = 50_000;

#[derive(Debug, Default)]
pub struct ReplayGuard {
    seen: HashSet<(String, String)>,
    by_time: BTreeSet<(i64, String, String)>,
    /// Messages up to this time are not let in, for we may have forgotten them.
    floor_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its time is too far from ours.
    OutsideWindow,
    /// We opened it before.
    Replayed,
    Unopened(Unopened),
}

impl ReplayGuard {
    /// Opens a pushed message if it is new. The time that counts is the one its sender signed, not the one that a server
    /// wrote on it. What does not open is not remembered: a forgery cannot keep the true message out.
    pub fn admit<T>(
        &mut self,
        envelope: &Envelope,
        now_ms: i64,
        open: impl FnOnce() -> Result<T, Unopened>,
    ) -> Result<T, Refused> {
        let bound = &envelope.aad;
        let age = now_ms.saturating_sub(bound.timestamp);
        let forgotten = self.floor_ms.is_some_and(|floor| bound.timestamp <= floor);
        if !(-WINDOW_MS..=WINDOW_MS).contains(&age) || forgotten {
            return Err(Refused::OutsideWindow);
        }
        let name = (bound.from.clone(), bound.message_id.clone());
        if self.seen.contains(&name) {
            return Err(Refused::Replayed);
        }
        let opened = open().map_err(Refused::Unopened)?;
        self.by_time.insert((bound.timestamp, name.0.clone(), name.1.clone()));
        self.seen.insert(name);
        self.forget(now_ms);
        Ok(opened)
    }

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
