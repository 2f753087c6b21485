//! Permission requests: the agent asks, and a person with the right answers once. The digest names exactly what will
//! run.

mod details;
mod edits;
mod votes;

pub use details::{CallDetails, CallLocation, FileDiff};
pub use edits::{CheckedEdits, EditableArguments, EditedArguments};
pub use votes::{Ballot, Choice, EligibleVoter, PermissionStrategy, Vote, VoteRefusal, Voter, VotingRules};

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    RawJson, Timestamp,
    ids::{CommandId, PermissionId, RunId, SessionId},
    limits::{
        NAME_BYTES_MAX, PERMISSION_BYTES_MAX, PERMISSION_OPTIONS_MAX, PERMISSION_TITLE_BYTES_MAX,
        PERMISSION_WAIT_MS_DEFAULT, PERMISSION_WAIT_MS_MAX,
    },
    text::{is_plain, is_plain_lines},
    tools::calls::call_digest,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PermissionStatus {
    Pending,
    Allowed,
    Denied,
    Cancelled,
}

enum_words!(PermissionStatus {
    Pending => "pending",
    Allowed => "allowed",
    Denied => "denied",
    Cancelled => "cancelled",
});

/// What an option means for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
}

impl OptionKind {
    pub fn allows(self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    pub option_id: String,
    pub name: String,
    pub kind: OptionKind,
}

/// The field of a `permission_request` event that names the tool of this server about whose call a person is asked.
pub const ASKED_TOOL: &str = "toolName";

/// The payload of a `permission_request` event, as a runner appends it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskPermission {
    pub permission_id: PermissionId,
    pub title: String,
    /// What will run, as a person should see it before allowing it.
    #[serde(default)]
    pub command: Option<String>,
    #[serde(default)]
    pub tool_call_id: Option<String>,
    pub options: Vec<PermissionOption>,
    /// SHA-256, in hex, of exactly what will run.
    pub digest: String,
    /// SHA-256, in hex, of the MCP server whose tool will be called and of the command. It is the same in all attempts of the command, as
    /// long as the server is configured the same. `None` if no such tool is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_digest: Option<String>,
    /// The arguments of what will run, if an answer may replace them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub editable: Option<EditableArguments>,
    /// The call, as editors show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_details: Option<CallDetails>,
    /// The next event of the same append is a request of the same command, which people are asked together with this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_next: bool,
    /// How long an answer is waited for; or until when, in `deadline`.
    #[serde(default)]
    pub wait_ms: Option<i64>,
    /// In the log: when the request expires, as the server decided. `None` if an earlier version wrote the event.
    #[serde(default)]
    pub deadline: Option<Timestamp>,
}

/// A `permission_request` event, as parsed.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedPermission {
    Valid(Box<AskPermission>),
    /// It cannot be parsed or is over-long, and so counts as denied. The agent finds the denial under its id, if the id
    /// can be read.
    Invalid(Option<PermissionId>),
}

impl ParsedPermission {
    pub fn permission_id(&self) -> Option<PermissionId> {
        match self {
            Self::Valid(ask) => Some(ask.permission_id),
            Self::Invalid(id) => *id,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    permission_id: PermissionId,
}

impl AskPermission {
    pub fn read(payload: &RawJson) -> ParsedPermission {
        match Self::well_formed(payload) {
            Some(ask) => ParsedPermission::Valid(Box::new(ask)),
            None => ParsedPermission::Invalid(payload.view::<Named>().map(|named| named.permission_id)),
        }
    }

    fn well_formed(payload: &RawJson) -> Option<Self> {
        if payload.size() > PERMISSION_BYTES_MAX {
            return None;
        }
        let ask: Self = payload.view()?;
        let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let digests_fit = is_digest(&ask.digest) && ask.server_digest.as_deref().is_none_or(is_digest);
        let options_fit = (1..=PERMISSION_OPTIONS_MAX).contains(&ask.options.len())
            && ask.options.iter().all(|o| !o.option_id.is_empty() && o.option_id.len() <= NAME_BYTES_MAX);
        let words_fit = (1..=PERMISSION_TITLE_BYTES_MAX).contains(&ask.title.len())
            && ask.tool_call_id.as_ref().is_none_or(|id| id.len() <= NAME_BYTES_MAX);
        // A text that reads in another order than it is written, or that hides a part of itself, could show a person something
        // else than what will run. An option may be without a name; a command may have several lines.
        let is_name = |text: &str| text.is_empty() || is_plain(text);
        let words_fit = words_fit
            && is_plain(&ask.title)
            && ask.command.as_deref().is_none_or(is_plain_lines)
            && ask.options.iter().all(|o| is_name(&o.name));
        let edits_fit = ask.editable.as_ref().is_none_or(EditableArguments::is_well_formed);
        (digests_fit && options_fit && words_fit && edits_fit).then_some(ask)
    }

    /// Whether it names what will run, in full and within the limits: a person must not agree to a truncated command.
    pub fn can_be_asked(&self) -> bool {
        self.command.is_some() && Self::well_formed(&RawJson::of(self)).is_some()
    }

    /// Until when an answer is waited for, but no longer than `ms_max` if there is such a limit.
    pub fn waits_until(&self, now: Timestamp, ms_max: Option<i64>) -> Timestamp {
        let after = |ms: i64| now.checked_add(SignedDuration::from_millis(ms)).unwrap_or(Timestamp::MAX);
        let deadline = self.deadline.map(|deadline| deadline.min(after(PERMISSION_WAIT_MS_MAX)));
        let until = deadline.unwrap_or_else(|| after(self.wait_ms()));
        ms_max.map_or(until, |ms| until.min(after(ms)))
    }

    pub fn wait_ms(&self) -> i64 {
        self.wait_ms.unwrap_or(PERMISSION_WAIT_MS_DEFAULT).clamp(0, PERMISSION_WAIT_MS_MAX)
    }
}

/// A permission request as stored and as sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    pub permission_id: PermissionId,
    pub run_id: RunId,
    #[serde(skip, default = "SessionId::unset")]
    pub session: SessionId,
    pub command_id: CommandId,
    pub title: String,
    /// What will run, as the agent wrote it.
    pub command: Option<String>,
    pub tool_call_id: Option<String>,
    pub options: Vec<PermissionOption>,
    pub digest: String,
    /// As in [`AskPermission`]. An answer counts for no request that has another one.
    #[serde(skip)]
    pub server_digest: Option<String>,
    /// The arguments that an answer may replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub editable: Option<EditableArguments>,
    /// The arguments with which the request was allowed, if an answer replaced them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub edited: Option<EditedArguments>,
    #[schema(value_type = String, format = DateTime)]
    pub deadline: Timestamp,
    /// Requests of one command that are put to people together: those of the lowest round that is open.
    #[serde(skip)]
    pub round: i64,
    pub status: PermissionStatus,
    pub option_id: Option<String>,
    /// Who answered, or why there was no answer.
    pub resolved_by: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub resolved_at: Option<Timestamp>,
    /// The session's sequence number of the event that resolved it.
    #[serde(skip)]
    pub resolved_seq: Option<i64>,
    /// Whose answer counts, captured when the request was issued.
    #[serde(flatten)]
    pub ballot: Ballot,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

impl PermissionRequest {
    /// The tool of this server that the request is about, whose arguments may be edited: the digest is that of a call of this tool.
    /// `None` if the request is about something else.
    pub fn called_tool(&self) -> Option<&str> {
        let arguments = self.editable.as_ref()?.arguments.as_object()?;
        let (tool, _) = self.command.as_deref()?.split_once(' ')?;
        call_digest(tool, arguments).eq_ignore_ascii_case(&self.digest).then_some(tool)
    }
}

/// The values of `resolvedBy` that name no caller.
pub mod resolved_by {
    /// The request was malformed.
    pub const SERVER: &str = "manager";
    /// The command was cancelled.
    pub const CANCEL: &str = "cancelled on request";
    pub const DEADLINE: &str = "deadline";
    pub const COMMAND_END: &str = "the command ended";
    /// Another runner took the run over.
    pub const NEW_ATTEMPT: &str = "another attempt";
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerPermission {
    pub option_id: String,
    /// The digest the answerer saw. Another one than the request's is refused.
    pub digest: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionList {
    pub permissions: Vec<PermissionRequest>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_that_turns_the_reading_direction_or_hides_something_counts_as_denied() {
        let ask_for = |title: &str, command: &str, option: &str| {
            let payload = json!({"permissionId": "prm_00000000000000000000000000000001", "title": title,
                "command": command, "digest": "0".repeat(64),
                "options": [{"optionId": "a", "name": option, "kind": "allow_once"}]});
            AskPermission::read(&RawJson::of(&payload))
        };
        let ask = |title: &str, option: &str| ask_for(title, "rm -rf /", option);
        assert!(
            matches!(ask("Remove everything", "Allow"), ParsedPermission::Valid(_)),
            "{:?}",
            ask("Remove everything", "Allow")
        );
        assert!(
            matches!(ask("حذف كل شيء", "اسمح"), ParsedPermission::Valid(_)),
            "text that is read from the right is no trick"
        );
        let script = "cat <<EOF >a\r\n\tone\n\nEOF\n";
        assert!(matches!(ask_for("Write a", script, ""), ParsedPermission::Valid(_)), "a command has lines");
        assert!(matches!(ask("Read\nall", "Allow"), ParsedPermission::Invalid(Some(_))), "a title has none");
        let turns = ['\u{202e}', '\u{202a}', '\u{2066}', '\u{2069}', '\u{200f}', '\u{061c}'];
        let hides = ['\u{1b}', '\u{85}', '\u{200b}', '\u{2028}', '\u{2029}', '\u{8}', '\r', '\u{feff}', '\u{e0041}'];
        for trick in turns.into_iter().chain(hides) {
            let text = format!("Read {trick}evil");
            assert!(matches!(ask(&text, "Allow"), ParsedPermission::Invalid(Some(_))), "{trick:?} in a title");
            assert!(matches!(ask("Read", &text), ParsedPermission::Invalid(Some(_))), "{trick:?} in an option");
            assert!(
                matches!(ask_for("Read", &text, "Allow"), ParsedPermission::Invalid(Some(_))),
                "{trick:?} in a command"
            );
        }
    }
}
