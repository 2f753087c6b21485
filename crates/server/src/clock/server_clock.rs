//! The clock of a running server: the monotonic clock, offset to show the time of day.
//!
//! The offset is taken once, from the wall clock or from the database, and then changes only as `worker::clock` decides.
//! A jump of the wall clock therefore moves no lease, budget or deadline.

use std::{
    sync::atomic::{AtomicI64, Ordering::SeqCst},
    time::Duration,
};

use ostler_protocol::Timestamp;

use super::{Clock, Machine, SystemMachine};

/// Differences up to this are adopted at once: small steps of NTP, and the error of a sample.
pub const TOLERANCE_US: i64 = 500_000;
/// Two readings of one machine count as simultaneous when they are at most this far apart.
const TOGETHER_US: i64 = 10_000;
const READINGS_MAX: usize = 8;
const CHECK_EVERY: Duration = Duration::from_secs(2);

pub struct ServerClock {
    machine: Box<dyn Machine>,
    /// Server time minus monotonic time.
    offset_us: AtomicI64,
    /// The latest time that was returned: times never go back.
    latest_us: AtomicI64,
    /// Wall time minus monotonic time at the last call of [`ServerClock::take_wall_jump_us`].
    wall_offset_us: AtomicI64,
    check_every: Duration,
}

/// What another clock showed, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockReading {
    pub raw_us: i64,
    /// What is added to the other clock to give server time, because that clock has jumped.
    pub correction_us: i64,
    /// The monotonic clock at the same moment.
    pub monotonic_us: i64,
}

impl ClockReading {
    fn offset_us(&self) -> i64 {
        self.raw_us + self.correction_us - self.monotonic_us
    }
}

impl Default for ServerClock {
    fn default() -> Self {
        Self::new(Box::<SystemMachine>::default())
    }
}

impl ServerClock {
    /// A clock that shows the wall time of this machine until it is anchored to another one.
    pub fn new(machine: Box<dyn Machine>) -> Self {
        let clock = Self {
            machine,
            offset_us: AtomicI64::new(0),
            latest_us: AtomicI64::new(i64::MIN),
            wall_offset_us: AtomicI64::new(0),
            check_every: CHECK_EVERY,
        };
        let reading = clock.read_wall(0);
        clock.anchor(&reading);
        clock.wall_offset_us.store(reading.offset_us(), SeqCst);
        clock
    }

    /// As this clock, checked for jumps this often.
    pub fn checked_every(self, check_every: Duration) -> Self {
        Self { check_every, ..self }
    }

    pub fn check_every(&self) -> Duration {
        self.check_every
    }

    pub fn monotonic_us(&self) -> i64 {
        i64::try_from(self.machine.monotonic().as_micros()).unwrap_or(i64::MAX)
    }

    /// Reads the wall clock and the monotonic clock together. A thread that was descheduled in between reads again: the
    /// pause would look like a jump.
    pub fn read_wall(&self, correction_us: i64) -> ClockReading {
        let mut reading = ClockReading { raw_us: 0, correction_us, monotonic_us: 0 };
        for _ in 0..READINGS_MAX {
            let before = self.monotonic_us();
            reading.raw_us = self.machine.wall().as_microsecond();
            let after = self.monotonic_us();
            reading.monotonic_us = before + (after - before) / 2;
            if after - before <= TOGETHER_US {
                break;
            }
        }
        reading
    }

    /// By how much the wall clock has jumped since the last call. `None` if it moved with the monotonic clock.
    pub fn take_wall_jump_us(&self) -> Option<i64> {
        let offset_us = self.read_wall(0).offset_us();
        let jump_us = offset_us - self.wall_offset_us.swap(offset_us, SeqCst);
        (jump_us.abs() > TOLERANCE_US).then_some(jump_us)
    }

    /// How far the reading is ahead of server time.
    pub fn difference_us(&self, reading: &ClockReading) -> i64 {
        reading.offset_us() - self.offset_us.load(SeqCst)
    }

    /// Adopts the reading as server time. If it is behind, time stops until the reading has caught up.
    pub fn adopt(&self, reading: &ClockReading) {
        self.offset_us.store(reading.offset_us(), SeqCst);
    }

    /// As [`ServerClock::adopt`], also backwards: for the start, before any time was read from this clock.
    pub fn anchor(&self, reading: &ClockReading) {
        self.adopt(reading);
        self.latest_us.store(i64::MIN, SeqCst);
    }

    /// How far server time is ahead of the wall clock of this machine.
    pub fn lead_us(&self) -> i64 {
        -self.difference_us(&self.read_wall(0))
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        let us = self.monotonic_us() + self.offset_us.load(SeqCst);
        let us = self.latest_us.fetch_max(us, SeqCst).max(us);
        Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX)
    }

    fn wall(&self) -> Timestamp {
        self.machine.wall()
    }

    fn adjustable(&self) -> Option<&ServerClock> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const HOUR_US: i64 = 3_600_000_000;

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<(i64, i64)>>);

    impl Fake {
        fn pass(&self, us: i64) {
            let mut times = self.0.lock().unwrap();
            *times = (times.0 + us, times.1 + us);
        }

        fn set_wall(&self, by_us: i64) {
            self.0.lock().unwrap().0 += by_us;
        }
    }

    impl Machine for Fake {
        fn wall(&self) -> Timestamp {
            Timestamp::from_microsecond(self.0.lock().unwrap().0).unwrap()
        }

        fn monotonic(&self) -> Duration {
            Duration::from_micros(self.0.lock().unwrap().1.unsigned_abs())
        }
    }

    #[test]
    fn a_jump_of_the_wall_clock_is_reported_once_and_moves_nothing() {
        for jump_us in [HOUR_US, -HOUR_US] {
            let machine = Fake::default();
            let clock = ServerClock::new(Box::new(machine.clone()));
            let before = clock.now();
            machine.set_wall(jump_us);
            machine.pass(1_000_000);
            assert_eq!(clock.now().duration_since(before).as_micros(), 1_000_000);
            assert_eq!(clock.wall().as_microsecond(), jump_us + 1_000_000);
            assert_eq!(clock.take_wall_jump_us(), Some(jump_us));
            assert_eq!(clock.take_wall_jump_us(), None);
            assert_eq!(clock.lead_us(), -jump_us);
        }
    }

    #[test]
    fn time_stops_rather_than_going_back() {
        let machine = Fake::default();
        let clock = ServerClock::new(Box::new(machine.clone()));
        machine.pass(5_000_000);
        let before = clock.now();
        clock.adopt(&ClockReading { raw_us: 4_000_000, correction_us: 0, monotonic_us: clock.monotonic_us() });
        assert_eq!(clock.now(), before);
        machine.pass(400_000);
        assert_eq!(clock.now(), before);
        machine.pass(1_000_000);
        assert_eq!(clock.now().as_microsecond(), 5_400_000);
    }
}
