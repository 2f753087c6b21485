//! What the rules need to know of a payload, read once when the event arrives. A runner's event is refused when a field
//! that a rule looks at is missing or of another type; every other field is the runner's own. Events in the log are
//! read field by field: a field that makes no sense there counts as absent, and never hides another.

mod delegated_use;
mod terminal;
pub use delegated_use::DelegatedUse;
pub use terminal::TerminalFacts;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    Failure, FailureKind, RawJson, Rule, Timestamp,
    kernel::{
        events::{EventType, PHASE_RUNS_CHARGED, PHASE_WORKSPACE_CHANGED},
        permissions::{AskPermission, ParsedPermission},
    },
    limits::{BLOCKER_CHARS_MAX, NAME_BYTES_MAX, TOOL_COMMAND_CHARS_MAX},
    text::clip,
    tools::calls::{CallState, TOOLKIT},
};

#[derive(Clone, Debug, PartialEq)]
pub enum Facts {
    None,
    Assistant(AssistantFacts),
    Tool(ToolFacts),
    Output {
        bytes: i64,
        truncated: bool,
    },
    Usage {
        tokens: i64,
        cost_usd: f64,
    },
    Phase {
        phase: String,
        resume_at: Option<Timestamp>,
    },
    Changes(ChangeFacts),
    /// What all runs that the command started have used so far.
    DelegatedTotal(DelegatedUse),
    Error {
        failure_kind: Option<FailureKind>,
        message: String,
    },
    Terminal(TerminalFacts),
    Permission(ParsedPermission),
    Thread {
        thread_id: Option<String>,
    },
}

/// What a turn changed in its workspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeFacts {
    pub files_changed: i64,
    pub bytes_added: i64,
    pub bytes_removed: i64,
    /// Left out where there are none, as `unknown` is.
    #[serde(skip_serializing_if = "is_zero")]
    pub lines_added: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub lines_removed: i64,
    pub truncated: bool,
    /// The changes could not be determined. Left out where it is false, so that older folds read and write the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}

fn is_zero(count: &i64) -> bool {
    *count == 0
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssistantFacts {
    /// Whether there is any text.
    pub text: bool,
    pub is_final: bool,
    pub reply_authority: bool,
    pub text_truncated: bool,
    pub output_truncated: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolFacts {
    pub tool_call_id: Option<String>,
    pub name: Option<String>,
    pub method: Option<String>,
    pub tool_type: Option<String>,
    pub status: Option<String>,
    pub exit_code: Option<i64>,
    pub command: Option<String>,
    /// A call of this server's tools whose first execution was lost, and which is executed again on purpose.
    pub is_executed_again: bool,
    /// The lease of a call of this server's tools that gave no answer, so that its outcome is not known.
    pub unanswered_epoch: Option<i64>,
    /// What runs that a call of this server's tools started have used.
    pub delegated: DelegatedUse,
}

/// Every field a rule looks at, as text still.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PayloadFields<'a> {
    #[serde(borrow)]
    command: Option<&'a RawValue>,
    #[serde(borrow)]
    cost_usd: Option<&'a RawValue>,
    #[serde(borrow)]
    executed_again: Option<&'a RawValue>,
    #[serde(borrow)]
    exit_code: Option<&'a RawValue>,
    #[serde(borrow)]
    failure_kind: Option<&'a RawValue>,
    #[serde(borrow, rename = "final")]
    is_final: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    lease_epoch: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_truncated: Option<&'a RawValue>,
    #[serde(borrow)]
    phase: Option<&'a RawValue>,
    #[serde(borrow)]
    reply_authority: Option<&'a RawValue>,
    #[serde(borrow)]
    resume_at: Option<&'a RawValue>,
    #[serde(borrow)]
    rule: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    text_truncated: Option<&'a RawValue>,
    #[serde(borrow)]
    thread_id: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_name: Option<&'a RawValue>,
    #[serde(borrow)]
    total_tokens: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    tool_type: Option<&'a RawValue>,
}

fn read<'a, T: Deserialize<'a>>(field: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(field?.get()).ok()
}

fn flag(field: Option<&RawValue>) -> bool {
    read(field).unwrap_or(false)
}

fn words(field: Option<&RawValue>, max: usize) -> Option<String> {
    read::<Cow<str>>(field).map(|text| clip(&text, max))
}

/// A cost that can be added: 0 if it is not a positive number.
fn cost(field: Option<&RawValue>) -> f64 {
    read::<f64>(field).filter(|cost| cost.is_finite() && *cost > 0.0).unwrap_or(0.0)
}

/// Whole numbers, however they are written.
fn whole(field: Option<&RawValue>) -> Option<i64> {
    read::<i64>(field).or_else(|| read::<f64>(field).filter(|n| n.fract() == 0.0).map(|n| n as i64))
}

/// The type that a field must have if it is present. JSON reveals most of it in the first byte.
#[derive(Clone, Copy)]
enum Holds {
    Text,
    Flag,
    Whole,
    /// A whole number that is not negative.
    Count,
    /// A number that is not negative.
    Amount,
    Time,
    Kind,
}

impl Holds {
    fn fits(self, field: &RawValue) -> bool {
        let (first, field) = (field.get().as_bytes()[0], Some(field));
        match self {
            Self::Text => first == b'"',
            Self::Flag => matches!(first, b't' | b'f'),
            Self::Whole => whole(field).is_some(),
            Self::Count => whole(field).is_some_and(|count| count >= 0),
            Self::Amount => read::<f64>(field).is_some_and(|amount| amount >= 0.0),
            Self::Time => read::<Timestamp>(field).is_some(),
            Self::Kind => read::<Cow<str>>(field).is_some_and(|kind| FailureKind::parse(&kind).is_some()),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Flag => "true or false",
            Self::Whole => "a whole number",
            Self::Count => "a whole number, and not negative",
            Self::Amount => "a number, and not negative",
            Self::Time => "a time such as 2026-01-01T00:00:00Z",
            Self::Kind => "one of the known failure kinds",
        }
    }
}

type KnownFields<'a> = (&'static str, Option<&'a RawValue>, Holds);

/// Refuses a payload in which one of the needed fields is missing, or a known one does not hold what it must.
fn check(event_type: EventType, needed: &[&str], known: &[KnownFields<'_>]) -> Result<(), Failure> {
    let wrong = known.iter().find(|(name, field, holds)| match field {
        Some(field) => !holds.fits(field),
        None => needed.contains(name),
    });
    let Some((name, _, holds)) = wrong else { return Ok(()) };
    let message = format!("{}.{name} must be {}", event_type.as_str(), holds.words());
    Err(Failure::invalid(Rule::EventField, message).detail("field", *name))
}

impl PayloadFields<'_> {
    /// What runs that a command has started have used.
    fn delegated(&self) -> DelegatedUse {
        let count = |field| whole(field).unwrap_or(0).max(0);
        let (tokens, tool_calls) = (count(self.total_tokens), count(self.tool_calls));
        DelegatedUse { tokens, cost_usd: cost(self.cost_usd), tool_calls }
    }

    fn check(&self, event_type: EventType) -> Result<(), Failure> {
        use Holds::{Amount, Count, Flag, Kind, Text, Time, Whole};
        let truncated =
            [("textTruncated", self.text_truncated, Flag), ("outputTruncated", self.output_truncated, Flag)];
        let needs = |needed: &[&str], known: &[KnownFields<'_>]| check(event_type, needed, known);
        match event_type {
            EventType::AssistantMessage => {
                needs(&["text"], &[("text", self.text, Text), ("final", self.is_final, Flag)])?;
                needs(&[], &[("replyAuthority", self.reply_authority, Flag)])?;
                needs(&[], &truncated)
            }
            EventType::ToolCall => {
                needs(
                    &["toolCallId"],
                    &[("toolCallId", self.tool_call_id, Text), ("exitCode", self.exit_code, Whole)],
                )?;
                needs(
                    &[],
                    &[("name", self.name, Text), ("toolName", self.tool_name, Text), ("type", self.tool_type, Text)],
                )?;
                needs(
                    &[],
                    &[("method", self.method, Text), ("status", self.status, Text), ("command", self.command, Text)],
                )
            }
            EventType::CommandOutput => {
                needs(&["text"], &[("text", self.text, Text)])?;
                needs(&[], &truncated)
            }
            EventType::Usage => {
                needs(&[], &[("inputTokens", self.input_tokens, Count), ("outputTokens", self.output_tokens, Count)])?;
                needs(&[], &[("totalTokens", self.total_tokens, Count), ("costUsd", self.cost_usd, Amount)])
            }
            EventType::BackendStatus => {
                needs(&["phase"], &[("phase", self.phase, Text), ("resumeAt", self.resume_at, Time)])
            }
            EventType::Error => {
                needs(&[], &[("message", self.message, Text), ("failureKind", self.failure_kind, Kind)])
            }
            EventType::TerminalStatus => {
                needs(&[], &[("message", self.message, Text), ("failureKind", self.failure_kind, Text)])
            }
            EventType::Session => needs(&[], &[("threadId", self.thread_id, Text)]),
            _ => Ok(()),
        }
    }
}

impl Facts {
    /// Reads what the rules need of a runner's event, and refuses one that does not hold it.
    pub fn receive(event_type: EventType, payload: &RawJson) -> Result<Self, Failure> {
        let fields = Self::fields(event_type, payload);
        fields.check(event_type)?;
        Self::of(event_type, &fields, payload)
    }

    /// Reads what the rules need. Only a `terminal_status` can be refused: ends must be explicit.
    pub fn read(event_type: EventType, payload: &RawJson) -> Result<Self, Failure> {
        Self::of(event_type, &Self::fields(event_type, payload), payload)
    }

    /// Nothing is read of an event that no rule looks into.
    fn fields(event_type: EventType, payload: &RawJson) -> PayloadFields<'_> {
        use EventType::{
            AssistantMessage, BackendStatus, CommandOutput, Error, Session, TerminalStatus, ToolCall, Usage,
        };
        match event_type {
            AssistantMessage | ToolCall | CommandOutput | Usage | BackendStatus | Error | TerminalStatus | Session => {
                payload.view().unwrap_or_default()
            }
            _ => PayloadFields::default(),
        }
    }

    fn of(event_type: EventType, fields: &PayloadFields<'_>, payload: &RawJson) -> Result<Self, Failure> {
        Ok(match event_type {
            EventType::AssistantMessage => Self::Assistant(AssistantFacts::read(fields)),
            EventType::ToolCall => Self::Tool(ToolFacts::read(fields)),
            EventType::CommandOutput => {
                let bytes = read::<Cow<str>>(fields.text).map_or(0, |text| text.len() as i64);
                Self::Output { bytes, truncated: flag(fields.text_truncated) || flag(fields.output_truncated) }
            }
            EventType::Usage => {
                let sum =
                    || whole(fields.input_tokens).unwrap_or(0).saturating_add(whole(fields.output_tokens).unwrap_or(0));
                let tokens = whole(fields.total_tokens).unwrap_or_else(sum).max(0);
                Self::Usage { tokens, cost_usd: cost(fields.cost_usd) }
            }
            EventType::BackendStatus => {
                let phase = words(fields.phase, TOOL_COMMAND_CHARS_MAX).unwrap_or_default();
                if phase == PHASE_WORKSPACE_CHANGED {
                    return Ok(Self::Changes(payload.view().unwrap_or_default()));
                }
                if phase == PHASE_RUNS_CHARGED {
                    return Ok(Self::DelegatedTotal(fields.delegated()));
                }
                Self::Phase { phase, resume_at: read(fields.resume_at) }
            }
            EventType::Error => {
                let failure_kind = read::<Cow<str>>(fields.failure_kind).and_then(|kind| FailureKind::parse(&kind));
                Self::Error { failure_kind, message: words(fields.message, BLOCKER_CHARS_MAX).unwrap_or_default() }
            }
            EventType::TerminalStatus => {
                let (status, kind) = (read::<Cow<str>>(fields.status), read::<Cow<str>>(fields.failure_kind));
                let message = words(fields.message, BLOCKER_CHARS_MAX);
                let rule = read::<Cow<str>>(fields.rule).and_then(|rule| Rule::parse(&rule));
                let facts = TerminalFacts::checked(status.as_deref(), kind.as_deref(), message)?;
                Self::Terminal(facts.with_rule(rule))
            }
            EventType::PermissionRequest => Self::Permission(AskPermission::read(payload)),
            EventType::Session => {
                let thread_id: Option<String> = read(fields.thread_id);
                Self::Thread { thread_id: thread_id.filter(|id| (1..=NAME_BYTES_MAX).contains(&id.len())) }
            }
            _ => Self::None,
        })
    }
}

impl AssistantFacts {
    fn read(fields: &PayloadFields<'_>) -> Self {
        Self {
            text: read::<Cow<str>>(fields.text).is_some_and(|text| !text.trim().is_empty()),
            is_final: flag(fields.is_final),
            reply_authority: flag(fields.reply_authority),
            text_truncated: flag(fields.text_truncated),
            output_truncated: flag(fields.output_truncated),
        }
    }
}

impl ToolFacts {
    fn read(fields: &PayloadFields<'_>) -> Self {
        let bounded = |field| words(field, TOOL_COMMAND_CHARS_MAX);
        let tool_type = bounded(fields.tool_type);
        // Tools of the agents' own may report use that is already counted.
        let is_own = tool_type.as_deref() == Some(TOOLKIT);
        let status = words(fields.status, 40);
        let is_unknown = is_own && status.as_deref() == CallState::OutcomeUnknown.status();
        Self {
            tool_call_id: bounded(fields.tool_call_id),
            name: bounded(fields.name).or_else(|| bounded(fields.tool_name)),
            method: bounded(fields.method),
            tool_type,
            status,
            exit_code: whole(fields.exit_code),
            command: bounded(fields.command),
            is_executed_again: is_own && flag(fields.executed_again),
            unanswered_epoch: whole(fields.lease_epoch).filter(|_| is_unknown),
            delegated: if is_own { fields.delegated() } else { DelegatedUse::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(event_type: EventType, payload: &str) -> Facts {
        Facts::read(event_type, &serde_json::from_str(payload).expect("JSON")).expect("readable")
    }

    #[test]
    fn a_field_that_makes_no_sense_hides_no_other() {
        let phase =
            facts(EventType::BackendStatus, r#"{"phase": "waiting-provider", "status": {"a": 1}, "resumeAt": 7}"#);
        assert_eq!(phase, Facts::Phase { phase: "waiting-provider".into(), resume_at: None });
        let Facts::Tool(tool) = facts(EventType::ToolCall, r#"{"status": "completed", "exitCode": 1.0, "name": 3}"#)
        else {
            panic!("a tool call")
        };
        assert_eq!((tool.status.as_deref(), tool.exit_code, tool.name), (Some("completed"), Some(1), None));
    }

    #[test]
    fn a_refused_event_names_the_invalid_field() {
        use EventType::*;
        for (event_type, payload, field) in [
            (AssistantMessage, r#"{"messageId": "m"}"#, "text"),
            (AssistantMessage, r#"{"text": ["a"]}"#, "text"),
            (AssistantMessage, r#"{"text": "a", "final": "yes"}"#, "final"),
            (AssistantMessage, r#"{"text": "a", "replyAuthority": 1}"#, "replyAuthority"),
            (ToolCall, r#"{"name": "shell", "status": "started"}"#, "toolCallId"),
            (ToolCall, r#"{"toolCallId": 7}"#, "toolCallId"),
            (ToolCall, r#"{"toolCallId": "t", "name": 3}"#, "name"),
            (ToolCall, r#"{"toolCallId": "t", "exitCode": 0.5}"#, "exitCode"),
            (CommandOutput, r#"{"stream": "stdout"}"#, "text"),
            (Usage, r#"{"totalTokens": -1}"#, "totalTokens"),
            (Usage, r#"{"inputTokens": "9"}"#, "inputTokens"),
            (Usage, r#"{"costUsd": -0.1}"#, "costUsd"),
            (BackendStatus, "{}", "phase"),
            (BackendStatus, r#"{"phase": "waiting-provider", "resumeAt": 7}"#, "resumeAt"),
            (Error, r#"{"message": {}}"#, "message"),
            (Error, r#"{"failureKind": "bad luck"}"#, "failureKind"),
            (TerminalStatus, r#"{"status": "failed", "message": 1}"#, "message"),
            (Session, r#"{"threadId": 1}"#, "threadId"),
        ] {
            let refused = Facts::receive(event_type, &serde_json::from_str(payload).expect("JSON")).expect_err(payload);
            assert_eq!(refused.details.expect("details")["field"], field, "{payload}");
            assert!(refused.message.contains(&format!("{}.{field}", event_type.as_str())), "{}", refused.message);
        }
        for (event_type, payload) in [
            (AssistantMessage, r#"{"text": "", "final": null, "whatever": [1]}"#),
            (ToolCall, r#"{"toolCallId": "t", "exitCode": 1.0}"#),
            (Usage, r#"{"totalTokens": 0, "costUsd": 0}"#),
            (Custom, r#"{"text": 7}"#),
        ] {
            let facts = Facts::receive(event_type, &serde_json::from_str(payload).expect("JSON"));
            assert!(facts.is_ok(), "{payload}");
        }
    }

    #[test]
    fn an_end_must_be_explicit() {
        let read =
            |payload: &str| Facts::read(EventType::TerminalStatus, &serde_json::from_str(payload).expect("JSON"));
        for bad in
            ["{}", r#"{"status": "done"}"#, r#"{"status": 1}"#, r#"{"status": "failed", "failureKind": "bad luck"}"#]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read(r#"{"status": "failed"}"#).is_ok());
    }

    #[test]
    fn a_failed_end_may_name_a_rule_and_an_unknown_rule_is_ignored() {
        let rule = |payload: &str| {
            let facts = facts(EventType::TerminalStatus, payload);
            let Facts::Terminal(end) = facts else { panic!("an end: {facts:?}") };
            end.rule
        };
        assert_eq!(rule(r#"{"status": "failed", "rule": "agent-program"}"#), Some(Rule::AgentProgram));
        for unnamed in [
            r#"{"status": "failed"}"#,
            r#"{"status": "failed", "rule": null}"#,
            r#"{"status": "failed", "rule": 7}"#,
            r#"{"status": "failed", "rule": "a-rule-of-a-newer-runner"}"#,
            r#"{"status": "completed", "rule": "agent-program"}"#,
            r#"{"status": "cancelled", "rule": "agent-program"}"#,
        ] {
            assert_eq!(rule(unnamed), None, "{unnamed}");
        }
    }
}
