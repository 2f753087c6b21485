//! Pauses between attempts to connect a server that could not be connected. Lists of tools skip such a server until its pause is
//! over, so that it delays no run and is not started again and again.

use std::{collections::BTreeMap, time::Duration};

use ostler_protocol::{Timestamp, mcp::states::retry_pause_ms};
use parking_lot::Mutex;

/// Most servers that are remembered. Callers can add servers with any number of names.
const REMEMBERED_MAX: usize = 1_024;

/// What the attempts to connect servers have come to, by the names of the servers.
#[derive(Default)]
pub(super) struct Backoffs {
    servers: Mutex<BTreeMap<String, Attempts>>,
}

#[derive(Default)]
struct Attempts {
    /// Of the configuration. Another configuration starts without a pause.
    fingerprint: String,
    /// Attempts in a row that failed.
    failures: u32,
    /// In milliseconds since the epoch, by the server's clock.
    retry_at_ms: i64,
    has_connected: bool,
}

impl Backoffs {
    fn change(&self, name: &str, fingerprint: &str, change: impl FnOnce(&mut Attempts)) {
        let mut servers = self.servers.lock();
        if servers.len() >= REMEMBERED_MAX && !servers.contains_key(name) {
            servers.retain(|_, attempts| attempts.has_connected);
            if servers.len() >= REMEMBERED_MAX {
                return;
            }
        }
        let attempts = servers.entry(name.to_owned()).or_default();
        if attempts.fingerprint != fingerprint {
            *attempts = Attempts { fingerprint: fingerprint.to_owned(), ..Attempts::default() };
        }
        change(attempts);
    }

    /// Notes that the server could not be connected, or was lost and could not be connected again.
    pub(super) fn failed(&self, name: &str, fingerprint: &str, now: Timestamp) {
        self.change(name, fingerprint, |attempts| {
            attempts.failures = attempts.failures.saturating_add(1);
            let pause_ms = i64::try_from(retry_pause_ms(attempts.failures)).unwrap_or(i64::MAX);
            attempts.retry_at_ms = now.as_millisecond().saturating_add(pause_ms);
        });
    }

    pub(super) fn connected(&self, name: &str, fingerprint: &str) {
        self.change(name, fingerprint, |attempts| attempts.has_connected = true);
    }

    /// Notes that a connection has lasted. A server that connects and ends at once keeps its failures.
    pub(super) fn lasted(&self, name: &str, fingerprint: &str) {
        self.change(name, fingerprint, |attempts| (attempts.failures, attempts.retry_at_ms) = (0, 0));
    }

    /// Forgets the failures of a server, because a caller requested another attempt.
    pub(super) fn reset(&self, name: &str) {
        self.servers.lock().remove(name);
    }

    /// How long the server is not connected again by lists of tools. `None` if it may be connected now.
    pub(super) fn pause_left(&self, name: &str, fingerprint: &str, now: Timestamp) -> Option<Duration> {
        let servers = self.servers.lock();
        let attempts = servers.get(name).filter(|attempts| attempts.fingerprint == fingerprint)?;
        let left_ms = attempts.retry_at_ms.saturating_sub(now.as_millisecond());
        u64::try_from(left_ms).ok().filter(|left_ms| *left_ms > 0).map(Duration::from_millis)
    }

    /// Whether the server has been connected before and has not failed since.
    pub(super) fn is_reliable(&self, name: &str, fingerprint: &str) -> bool {
        let servers = self.servers.lock();
        let attempts = servers.get(name).filter(|attempts| attempts.fingerprint == fingerprint);
        attempts.is_some_and(|attempts| attempts.has_connected && attempts.failures == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    #[test]
    fn the_pause_grows_until_a_connection_lasts_or_another_attempt_is_requested() {
        let backoffs = Backoffs::default();
        let left = |ms: i64| backoffs.pause_left("a", "1", at(ms)).map(|left| left.as_millis());
        assert_eq!(left(0), None);
        backoffs.failed("a", "1", at(0));
        assert_eq!((left(0), left(999), left(1_000)), (Some(1_000), Some(1), None));
        backoffs.failed("a", "1", at(1_000));
        backoffs.connected("a", "1");
        assert_eq!(left(1_000), Some(2_000));
        assert!(!backoffs.is_reliable("a", "1"));
        backoffs.lasted("a", "1");
        assert!(left(1_000).is_none() && backoffs.is_reliable("a", "1"));
        backoffs.failed("a", "1", at(0));
        assert_eq!(backoffs.pause_left("a", "2", at(0)), None, "another configuration");
        backoffs.reset("a");
        assert_eq!(left(0), None);
    }

    #[test]
    fn names_of_callers_are_not_remembered_without_a_limit() {
        let backoffs = Backoffs::default();
        for number in 0..3 * REMEMBERED_MAX {
            backoffs.failed(&number.to_string(), "1", at(0));
        }
        assert!(backoffs.servers.lock().len() <= REMEMBERED_MAX);
    }
}
