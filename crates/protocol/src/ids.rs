//! Typed ids: a prefix and a time-sortable body (`run_…`), stored and sent as text.
//!
//! An id that does not parse is simply unknown; callers turn that into "not found". Ids that callers choose are checked
//! by [`name`] and live in plain strings.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::{Failure, Rule, limits::NAME_BYTES_MAX};

/// The text is not an id of this kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownId;

impl fmt::Display for UnknownId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id of this kind")
    }
}

impl std::error::Error for UnknownId {}

/// Bytes of an id's text behind its prefix.
const BODY_BYTES: usize = 32;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            pub const fn new(body: Uuid) -> Self {
                Self(body)
            }

            /// The bytes of its text.
            pub fn ascii(&self) -> [u8; $prefix.len() + BODY_BYTES] {
                let mut text = [0; $prefix.len() + BODY_BYTES];
                text[..$prefix.len()].copy_from_slice($prefix.as_bytes());
                self.0.simple().encode_lower(&mut text[$prefix.len()..]);
                text
            }
        }

        impl fmt::Display for $name {
            /// In one piece, so that a string grows once.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(std::str::from_utf8(&self.ascii()).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = UnknownId;

            fn from_str(text: &str) -> Result<Self, UnknownId> {
                let body = text.strip_prefix($prefix).ok_or(UnknownId)?;
                if body.len() != 32 || body.bytes().any(|b| b.is_ascii_uppercase()) {
                    return Err(UnknownId);
                }
                Uuid::try_parse(body).map(Self).map_err(|_| UnknownId)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(input)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some(concat!("^", $prefix, "[0-9a-f]{32}$")))
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {}
    )*};
}

ids! {
    /// A conversation that outlives runs.
    SessionId "ses_";
    /// A runner's tenure over a session's work.
    RunId "run_";
    /// One request to the agent.
    CommandId "cmd_";
    /// One claim of a run by a runner.
    AttemptId "att_";
    /// The order to start a runner.
    RunnerJobId "job_";
    /// A question of the agent that a person with the right answers.
    PermissionId "prm_";
    /// A service token's row; never the token itself.
    TokenId "tok_";
    /// A person.
    UserId "usr_";
    /// An agent with a manifest.
    AgentId "agt_";
    /// What a person has granted an agent.
    RelationId "rel_";
    /// One entry of a person's consent ledger.
    ReceiptId "rcp_";
    /// A trial of a provider profile. It is the run that tries it, under another name.
    ValidationId "val_";
    /// The record of one change of a provider profile.
    ProfileChangeId "chg_";
    /// A legal hold.
    HoldId "hld_";
    /// A job that starts runs on a schedule.
    AutomationId "aut_";
    /// One start of an automation.
    AutomationStartId "ast_";
    /// An event of a calendar.
    CalendarEventId "cal_";
    /// A client's session with the MCP server. It has no state: it only tells the calls of one client from those of others.
    McpSessionId "mcp_";
    /// Correlates one request with the log.
    TraceId "trc_";
}

impl ValidationId {
    pub const fn of(run_id: RunId) -> Self {
        Self(run_id.0)
    }
}

impl SessionId {
    /// For records read from the wire, where the session's own id is not shown.
    pub const fn unset() -> Self {
        Self(Uuid::nil())
    }
}

/// The ids of one kind that begin like this, as a range of texts: from the first one to before the second. `run_` itself
/// may be left out. Our ids are hexadecimal, so that the bounds hold in every collation. `None`: no id begins so.
pub fn prefix_range(kind: &str, text: &str) -> Option<(String, String)> {
    let body = text.strip_prefix(kind).unwrap_or(text);
    let hexadecimal = body.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (hexadecimal && body.len() <= 32).then(|| (format!("{kind}{body}"), format!("{kind}{body}g")))
}

/// Checks an id that a caller chose: printable, no spaces at the ends, bounded.
pub fn name<'a>(field: &str, text: &'a str) -> Result<&'a str, Failure> {
    let fits = !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.trim() == text;
    if fits && !text.chars().any(char::is_control) {
        return Ok(text);
    }
    let message = format!("{field} must be 1 to {NAME_BYTES_MAX} printable bytes without spaces at its ends");
    Err(Failure::rule(Rule::NameShape, message).detail("field", field))
}

/// Checks a lower-case slug such as a backend profile.
pub fn slug<'a>(field: &str, text: &'a str) -> Result<&'a str, Failure> {
    let letters = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = (1..=63).contains(&text.len())
        && text.bytes().all(|c| letters(c) || c == b'-')
        && letters(text.as_bytes()[0])
        && letters(text.as_bytes()[text.len() - 1]);
    if fits {
        return Ok(text);
    }
    let message = format!("{field} must be a lower-case slug: letters, digits and inner dashes, 1 to 63 bytes");
    Err(Failure::rule(Rule::SlugShape, message).detail("field", field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_from_its_text() {
        let id = RunId::new(Uuid::from_u128(7));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), 36);
    }

    #[test]
    fn an_id_of_another_kind_is_unknown() {
        let text = RunId::new(Uuid::from_u128(7)).to_string();
        assert_eq!(text.parse::<CommandId>(), Err(UnknownId));
        assert_eq!("run_7".parse::<RunId>(), Err(UnknownId));
        assert_eq!(text.to_uppercase().parse::<RunId>(), Err(UnknownId));
    }

    #[test]
    fn a_prefix_is_a_range_of_ids() {
        let range = |text| prefix_range("run_", text).map(|(first, end)| format!("{first} {end}"));
        assert_eq!(range("run_01a").as_deref(), Some("run_01a run_01ag"));
        assert_eq!(range("01a").as_deref(), Some("run_01a run_01ag"));
        assert_eq!(range("run_").as_deref(), Some("run_ run_g"));
        assert_eq!((range("ses_01"), range("01A"), range(&"0".repeat(33))), (None, None, None));
    }

    #[test]
    fn slugs_are_lower_case_and_bounded() {
        for good in ["codex", "minimax-m3", "a"] {
            assert!(slug("backendProfile", good).is_ok());
        }
        for bad in ["", "Codex", "-a", "a-", "a_b", "ü", &"a".repeat(64)] {
            assert!(slug("backendProfile", bad).is_err(), "{bad}");
        }
    }
}
