//! What a client may choose when it opens an event stream.

use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::{Failure, Rule};

pub const MAX_QUEUED_MIN: usize = 16;
pub const MAX_QUEUED_MAX: usize = 2_048;
pub const MAX_QUEUED_DEFAULT: usize = 256;

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct EventStreamQuery {
    /// Frames that may wait for the client before it is evicted: 16 to 2048, 256 when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    max_queued: Option<String>,
    /// `1`: send the session's current settings after the replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    /// Why the client connects, as published clients state it. It changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_reason: Option<String>,
    /// The stream that the client had before, as published clients state it. It changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_stream_id: Option<String>,
}

impl EventStreamQuery {
    /// How many frames may be queued.
    pub fn max_queued(&self) -> Result<usize, Failure> {
        let Some(text) = &self.max_queued else { return Ok(MAX_QUEUED_DEFAULT) };
        let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        number.filter(|number| (MAX_QUEUED_MIN..=MAX_QUEUED_MAX).contains(number)).ok_or_else(|| {
            let message = format!("maxQueued must be a number from {MAX_QUEUED_MIN} to {MAX_QUEUED_MAX}");
            Failure::invalid(Rule::InvalidMaxQueued, message)
        })
    }

    pub fn wants_snapshot(&self) -> bool {
        matches!(self.snapshot.as_deref(), Some("1" | "true"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_size_is_bounded() {
        let max_queued =
            |text: &str| EventStreamQuery { max_queued: Some(text.into()), ..EventStreamQuery::default() }.max_queued();
        assert_eq!((max_queued("16").ok(), max_queued("2048").ok()), (Some(16), Some(2_048)));
        for bad in ["15", "2049", "", "-16", "+16", "1e3", "x", "99999999999999999999999"] {
            assert!(max_queued(bad).is_err(), "{bad}");
        }
        assert_eq!(EventStreamQuery::default().max_queued().ok(), Some(256));
    }
}
