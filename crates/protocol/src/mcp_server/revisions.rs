//! The revisions of the Model Context Protocol that this server speaks.

use crate::{Failure, Rule};

/// The header in which a client names the revision that `initialize` has chosen.
pub const REVISION_HEADER: &str = "mcp-protocol-version";
/// A longer name of a revision is not repeated in a failure.
const REVISION_CHARS_MAX: usize = 40;

/// A revision, from old to new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum McpRevision {
    March2025,
    June2025,
    November2025,
}

impl McpRevision {
    pub const ALL: [Self; 3] = [Self::March2025, Self::June2025, Self::November2025];
    pub const LATEST: Self = Self::November2025;
    /// The revision of a request that names none, as the specification prescribes.
    pub const UNNAMED: Self = Self::March2025;

    pub fn as_str(self) -> &'static str {
        match self {
            Self::March2025 => "2025-03-26",
            Self::June2025 => "2025-06-18",
            Self::November2025 => "2025-11-25",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == text)
    }

    /// The reply to a client that proposes a revision: the same, or the latest one if this server does not speak it.
    pub fn negotiate(proposed: &str) -> Self {
        Self::parse(proposed).unwrap_or(Self::LATEST)
    }

    /// The revision of a request. Fails if the header names one that this server does not speak.
    pub fn of_header(value: Option<&[u8]>) -> Result<Self, Failure> {
        let Some(value) = value else { return Ok(Self::UNNAMED) };
        let text = std::str::from_utf8(value).unwrap_or_default();
        Self::parse(text).ok_or_else(|| {
            let shown: String = text.chars().filter(char::is_ascii_graphic).take(REVISION_CHARS_MAX).collect();
            let spoken = Self::ALL.map(Self::as_str).join(", ");
            let message = format!("MCP-Protocol-Version {shown:?} is not supported; these are: {spoken}");
            Failure::invalid(Rule::McpRevision, message)
        })
    }

    /// Whether a body may be an array of messages. Later revisions removed that.
    pub fn takes_batches(self) -> bool {
        self == Self::March2025
    }

    /// Whether a stream may begin with an event that has an id and no message. Clients of earlier revisions take an empty message
    /// for a malformed one.
    pub fn primes_streams(self) -> bool {
        self >= Self::November2025
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_revision_that_it_proposes_or_the_latest() {
        for revision in McpRevision::ALL {
            assert_eq!(McpRevision::negotiate(revision.as_str()), revision);
        }
        for other in ["2024-11-05", "2099-01-01", "", "latest"] {
            assert_eq!(McpRevision::negotiate(other), McpRevision::LATEST, "{other}");
        }
    }

    #[test]
    fn a_request_without_a_revision_is_of_the_first_one() {
        assert_eq!(McpRevision::of_header(None).unwrap(), McpRevision::March2025);
        assert_eq!(McpRevision::of_header(Some(b"2025-06-18")).unwrap(), McpRevision::June2025);
        for unknown in [&b"2026-07-28"[..], b"", b"\xff", b"1", &[b'x'; 10_000]] {
            let failure = McpRevision::of_header(Some(unknown)).unwrap_err();
            assert_eq!(failure.broken_rule(), Some(Rule::McpRevision));
            assert!(failure.message.len() < 200, "{}", failure.message);
        }
    }
}
