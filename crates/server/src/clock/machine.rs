//! The two clocks of the machine.
//!
//! Builds with the feature `fault-injection` can move the wall clock from outside the process: the environment variable
//! `OSTLER_FAULT_CLOCK_OFFSET_FILE` names a file, and the number of milliseconds in it is added to every reading. The
//! file is read again on each reading; a file that is missing or does not hold a number counts as 0. Other builds do not
//! contain any of this.

use std::time::{Duration, Instant};

use ostler_protocol::Timestamp;

/// What a [`super::ServerClock`] is made from. Tests have a machine whose clocks they set.
pub trait Machine: Send + Sync + 'static {
    /// The wall clock. It can be set, forwards and backwards.
    fn wall(&self) -> Timestamp;
    /// Time since an arbitrary moment. It follows no change of the wall clock and never goes back.
    fn monotonic(&self) -> Duration;
}

pub struct SystemMachine {
    started: Instant,
    #[cfg(feature = "fault-injection")]
    offset_file: Option<std::path::PathBuf>,
}

impl Default for SystemMachine {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is given")]
    fn default() -> Self {
        Self {
            started: Instant::now(),
            #[cfg(feature = "fault-injection")]
            offset_file: std::env::var_os("OSTLER_FAULT_CLOCK_OFFSET_FILE").map(Into::into),
        }
    }
}

impl Machine for SystemMachine {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is given")]
    fn wall(&self) -> Timestamp {
        // Stored times are whole microseconds; a finer one would not read back equal.
        let now = Timestamp::now();
        Timestamp::from_microsecond(now.as_microsecond().saturating_add(self.injected_us())).unwrap_or(now)
    }

    /// `CLOCK_MONOTONIC`: it is slewed by NTP together with the wall clock, and stops while the machine sleeps.
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is given")]
    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

impl SystemMachine {
    #[cfg(feature = "fault-injection")]
    fn injected_us(&self) -> i64 {
        let text = self.offset_file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        text.trim().parse::<i64>().unwrap_or(0).saturating_mul(1_000)
    }

    #[cfg(not(feature = "fault-injection"))]
    #[expect(clippy::unused_self, reason = "the other build reads a file that it names")]
    fn injected_us(&self) -> i64 {
        0
    }
}

#[cfg(all(test, feature = "fault-injection"))]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_follows_the_injected_offset_and_the_monotonic_clock_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("offset");
        let machine = SystemMachine { offset_file: Some(file.clone()), ..SystemMachine::default() };
        let (wall, monotonic) = (machine.wall(), machine.monotonic());
        std::fs::write(&file, "3600000\n").unwrap();
        assert!(machine.wall().duration_since(wall).as_secs() >= 3_600);
        assert!(machine.monotonic() - monotonic < Duration::from_secs(3_000));
        std::fs::write(&file, "-3600000").unwrap();
        assert!(machine.wall() < wall);
        std::fs::write(&file, "not a number").unwrap();
        assert!(machine.wall().duration_since(wall).as_secs() < 3_000);
    }
}
