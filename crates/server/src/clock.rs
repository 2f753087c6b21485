//! Time and randomness, injected: the only places that read them from the machine.

use std::sync::Arc;

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
}

impl Ids {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock }
    }

    pub fn body(&self) -> Uuid {
        let millis = self.clock.now().as_millisecond().max(0) as u64;
        let mut random = [0; 10];
        fill(&mut random);
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

/// Fills a buffer with randomness fit for secrets.
#[expect(clippy::disallowed_methods, reason = "this is the randomness that everything else is given")]
pub fn fill(buffer: &mut [u8]) {
    getrandom::fill(buffer).expect("the system has randomness");
}
