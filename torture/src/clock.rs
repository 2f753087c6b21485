//! Real time: the torturer runs real processes, so there is no clock to inject.

use std::time::{Duration, Instant};

use jiff::Timestamp;

#[expect(clippy::disallowed_methods, reason = "real processes take real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn since(started: Instant) -> Duration {
    now() - started
}

#[expect(clippy::disallowed_methods, reason = "certificates are checked against the real time")]
pub(crate) fn timestamp() -> Timestamp {
    Timestamp::now()
}

#[expect(clippy::disallowed_methods, reason = "keys of the mesh must not be guessable from the seed of a round")]
#[expect(clippy::expect_used, reason = "the system has randomness")]
pub(crate) fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system has randomness");
}
