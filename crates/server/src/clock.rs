//! Time and randomness, injected: the only places that read them from the machine.

use std::sync::{Arc, Mutex};

use ostler_protocol::Timestamp;
use uuid::Uuid;

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is given")]
    fn now(&self) -> Timestamp {
        // Stored times are whole microseconds; a finer one would not read back equal.
        let now = Timestamp::now();
        Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
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
        let random = self.random.lock().expect("never poisoned").take();
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

/// Randomness for ids, fetched from the system for many at a time. Secrets are never made from it.
#[derive(Default)]
struct Pool {
    bytes: Vec<u8>,
}

impl Pool {
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
#[expect(clippy::disallowed_methods, reason = "this is the randomness that everything else is given")]
pub fn fill(buffer: &mut [u8]) {
    getrandom::fill(buffer).expect("the system has randomness");
}
