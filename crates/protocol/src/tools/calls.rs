//! The states of a call. Each is a fact of the log, except that a call was requested: a call that was never started has no effect.

use serde_json::{Map, Value, json};

use crate::{json::canonical_hash, text::clip};

/// The `type` of `tool_call` events that record calls of these tools.
pub const TOOLKIT: &str = "toolkit";
/// Most bytes of a call's id, which its runner chooses.
pub const CALL_ID_BYTES_MAX: usize = 128;
/// Most calls that a request names as made at once.
pub const REPLY_CALLS_MAX: usize = 64;

/// `requested → waiting → started → completed, failed, outcome-unknown`, or `declined` before it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    Requested,
    /// A person is asked for permission.
    Waiting,
    Started,
    Completed,
    Failed,
    Declined,
    /// The process that executed it ended.
    OutcomeUnknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAction {
    Ask,
    /// Allowed by the policy, or by a person.
    Start,
    Decline,
    Complete,
    /// It had no result: invalid arguments, an error of the tool, its deadline.
    Fail,
    /// It was found started by a process that does not execute it.
    Lose,
}

impl CallState {
    pub const ALL: [Self; 7] = [
        Self::Requested,
        Self::Waiting,
        Self::Started,
        Self::Completed,
        Self::Failed,
        Self::Declined,
        Self::OutcomeUnknown,
    ];

    /// The state after an action. `None` if the action is not possible in this state.
    pub fn after(self, action: CallAction) -> Option<Self> {
        match (self, action) {
            (Self::Requested, CallAction::Ask) => Some(Self::Waiting),
            (Self::Requested | Self::Waiting, CallAction::Start) => Some(Self::Started),
            (Self::Requested | Self::Waiting, CallAction::Decline) => Some(Self::Declined),
            (Self::Started, CallAction::Complete) => Some(Self::Completed),
            // Arguments are checked before anything is started.
            (Self::Requested | Self::Started, CallAction::Fail) => Some(Self::Failed),
            (Self::Started, CallAction::Lose) => Some(Self::OutcomeUnknown),
            _ => None,
        }
    }

    pub fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Declined | Self::OutcomeUnknown)
    }

    /// The `status` of its `tool_call` event. `None` if it is no fact of the log.
    pub fn status(self) -> Option<&'static str> {
        match self {
            Self::Requested | Self::Waiting => None,
            Self::Started => Some("started"),
            Self::Completed => Some("completed"),
            Self::Failed => Some("failed"),
            Self::Declined => Some("declined"),
            Self::OutcomeUnknown => Some("outcome-unknown"),
        }
    }

    /// The state of a call whose last event has this `status`. `None` if no call of ours has it.
    pub fn of_status(status: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.status() == Some(status))
    }

    /// Whether a call in this state may be executed (again) by a process that does not execute it now.
    pub fn may_execute(self, is_idempotent: bool) -> bool {
        match self {
            Self::Requested | Self::Waiting => true,
            Self::Started | Self::OutcomeUnknown => is_idempotent,
            Self::Completed | Self::Failed | Self::Declined => false,
        }
    }
}

/// The digest of exactly what will be executed. Permission is given for a digest.
pub fn call_digest(name: &str, arguments: &Map<String, Value>) -> String {
    canonical_hash(&json!({"name": name, "arguments": arguments}))
}

/// Recorded arguments, as text, for a model that gets the call again. Always a JSON object: arguments that are longer, or that were
/// recorded as a text, are its only member `truncated`.
pub fn replayed_arguments(arguments: &Value, chars_max: usize) -> String {
    let text = match arguments {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let is_whole = matches!(arguments, Value::Null | Value::Object(_)) && text.chars().count() <= chars_max;
    if is_whole { text } else { json!({"truncated": clip(&text, chars_max)}).to_string() }
}

/// Whether a runner may use this as the id of a call.
pub fn is_call_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    (1..=CALL_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ACTIONS: [CallAction; 6] = [
        CallAction::Ask,
        CallAction::Start,
        CallAction::Decline,
        CallAction::Complete,
        CallAction::Fail,
        CallAction::Lose,
    ];

    #[test]
    fn digests_differ_by_name_and_arguments_and_not_by_order() {
        let arguments = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap();
        let digest = call_digest("a", &arguments(r#"{"x": 1, "y": "z"}"#));
        assert_eq!(digest, call_digest("a", &arguments(r#"{"y":"z","x":1}"#)));
        assert_ne!(digest, call_digest("b", &arguments(r#"{"x": 1, "y": "z"}"#)));
        assert_ne!(digest, call_digest("a", &arguments(r#"{"x": 1, "y": "Z"}"#)));
        assert_eq!(digest.len(), 64);
    }

    #[test]
    fn statuses_of_the_log_are_read_back() {
        for state in CallState::ALL.into_iter().filter(|state| state.status().is_some()) {
            assert_eq!(state.status().and_then(CallState::of_status), Some(state));
        }
        assert_eq!(CallState::of_status("requested"), None);
        assert!(is_call_id("tool_0a_1_2") && !is_call_id("") && !is_call_id("a b") && !is_call_id("a%"));
    }

    #[test]
    fn replayed_arguments_are_always_an_object() {
        let long = json!({"text": "ü".repeat(50)});
        for (arguments, expected) in [
            (Value::Null, "{}"),
            (json!({"a": 1}), r#"{"a":1}"#),
            (json!("{\"a\": 1, \"b"), r#"{"truncated":"{\"a\": 1, \"b"}"#),
            (long, r#"{"truncated":"{\"text\":\"üüüüüüüüüüü…"}"#),
        ] {
            let replayed = replayed_arguments(&arguments, 20);
            assert_eq!(replayed, expected);
            assert!(serde_json::from_str::<Map<String, Value>>(&replayed).is_ok());
        }
    }

    proptest! {
        #[test]
        fn a_call_ends_once_and_is_started_at_most_once(choices in prop::collection::vec(0..ACTIONS.len(), 0..20)) {
            let (mut state, mut starts) = (CallState::Requested, 0);
            for action in choices.into_iter().map(|choice| ACTIONS[choice]) {
                let next = state.after(action);
                prop_assert!(!state.has_ended() || next.is_none());
                prop_assert!(!(next == Some(CallState::Completed) && starts == 0));
                prop_assert!(!(next == Some(CallState::Declined) && starts > 0));
                starts += usize::from(next == Some(CallState::Started));
                state = next.unwrap_or(state);
            }
            prop_assert!(starts <= 1);
            prop_assert!(!(state.has_ended() && state != CallState::OutcomeUnknown && state.may_execute(true)));
        }
    }
}
