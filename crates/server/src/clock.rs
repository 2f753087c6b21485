//! Time and randomness, injected: the only places that read them from the machine.
//!
//! A [`Clock`] has two times. Durations (leases, heartbeats, budgets, deadlines, rate limits) and the times of events are
//! taken from [`Clock::now`], which a change of the machine's wall clock does not move. Absolute expiries (tokens,
//! certificates, signed URLs, grants) are compared with [`Clock::wall`].

mod machine;
mod server_clock;

use std::sync::Arc;

use ostler_protocol::Timestamp;
use parking_lot::Mutex;
use uuid::Uuid;

pub use machine::{Machine, SystemMachine};
pub use server_clock::{ClockReading, ServerClock, TOLERANCE_US};

pub trait Clock: Send + Sync + 'static {
    /// The server's time. It never goes back within a process, and a jump of the wall clock does not move it.
    fn now(&self) -> Timestamp;

    /// The machine's wall clock, for expiries that are dates which other systems see.
    fn wall(&self) -> Timestamp {
        self.now()
    }

    /// The clock that `worker::clock` adjusts. `None` for a clock that tests move by hand.
    fn adjustable(&self) -> Option<&ServerClock> {
        None
    }
}

/// The wall clock alone, for programs that run once and hold no leases.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemMachine::default().wall()
    }
}

/// Mints ids: time-sortable, the rest random.
#[derive(Clone)]
pub struct Ids {
    clock: Arc<dyn Clock>,
    random: Arc<Mutex<Pool>>,
}

impl Ids {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, random: Arc::default() }
    }

    pub fn body(&self) -> Uuid {
        let millis = self.clock.now().as_millisecond().max(0) as u64;
        let random = self.random.lock().take();
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

/// Randomness for ids, fetched from the system for many at a time. Secrets are never made from it.
#[derive(Default)]
struct Pool {
    bytes: Vec<u8>,
}

impl Pool {
    #[expect(clippy::expect_used, reason = "a slice of ten bytes has ten bytes")]
    fn take(&mut self) -> [u8; 10] {
        if self.bytes.len() < 10 {
            self.bytes.resize(1_000, 0);
            fill(&mut self.bytes);
        }
        let rest = self.bytes.len() - 10;
        let taken = self.bytes[rest..].try_into().expect("ten of them");
        self.bytes.truncate(rest);
        taken
    }
}

/// Fills a buffer with randomness fit for secrets.
#[expect(clippy::disallowed_methods, reason = "the source of all other randomness")]
#[expect(clippy::expect_used, reason = "the system has randomness")]
pub fn fill(buffer: &mut [u8]) {
    getrandom::fill(buffer).expect("the system has randomness");
}
