//! Real time: the torturer runs real processes, so there is no clock to inject.

use std::time::{Duration, Instant};

use jiff::Timestamp;

#[expect(clippy::disallowed_methods, reason = "real processes take real time")]
pub fn now() -> Instant {
    Instant::now()
}

pub fn since(started: Instant) -> Duration {
    now() - started
}

#[expect(clippy::disallowed_methods, reason = "certificates are checked against the real time")]
pub fn timestamp() -> Timestamp {
    Timestamp::now()
}

#[expect(clippy::disallowed_methods, reason = "keys of the mesh must not be guessable from the seed of a round")]
pub fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system has randomness");
}
