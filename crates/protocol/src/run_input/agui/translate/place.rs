//! The ids of a stream's events.

use std::{fmt, str::FromStr};

/// An event's place in a stream: the session's number of the kernel event, and which of the events made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPlace {
    pub session_seq: i64,
    pub n: u32,
}

impl fmt::Display for EventPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.session_seq, self.n)
    }
}

impl FromStr for EventPlace {
    type Err = ();

    /// Only as we write it.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (session_seq, n) = text.split_once('-').ok_or(())?;
        let place = Self { session_seq: session_seq.parse().map_err(|_| ())?, n: n.parse().map_err(|_| ())? };
        if place.to_string() == text { Ok(place) } else { Err(()) }
    }
}
