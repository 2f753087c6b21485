//! Time and randomness, which the caller provides.

use jiff::Timestamp;

/// The caller's clock and source of randomness.
#[derive(Clone, Copy)]
pub struct Ambient {
    pub now: fn() -> Timestamp,
    pub fill: fn(&mut [u8]),
}

impl Ambient {
    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// A random, unique id.
    pub fn id(&self) -> String {
        let mut bytes = [0; 16];
        (self.fill)(&mut bytes);
        ostler_protocol::json::hex(&bytes)
    }
}
