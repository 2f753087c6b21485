//! What the translation of an event needs beside the event, and the parts of it that several frames share.

use serde_json::{Map, Value, json};

use crate::{
    daemon::frames::SESSION_UPDATE,
    kernel::{budgets::DEADLINE_EXCEEDED, events::EventType},
    limits::NAME_BYTES_MAX,
    text::clip,
};

/// Characters of a text in a notice.
const NOTICE_CHARS_MAX: usize = 2_000;

/// The command that an event belongs to, as clients of the daemon know it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptRef {
    pub prompt_id: String,
    /// The client that submitted it.
    pub client_id: Option<String>,
    /// Whether it is a turn. Steers and interrupts end without ending a turn.
    pub is_turn: bool,
    /// Its number among the commands of its run.
    pub number: i64,
}

/// What a translation needs beside the event.
#[derive(Clone, Copy, Debug, Default)]
pub struct TranslationContext<'a> {
    pub session_id: &'a str,
    pub prompt: Option<&'a PromptRef>,
    /// For an event that holds a whole message: its pieces were sent before.
    pub is_streamed: bool,
    /// For the end of a cancelled command: the reason of the cancel.
    pub cancel_reason: Option<&'a str>,
    /// For the end of a turn: it ran out of time before, and the frames of its end were sent then.
    pub is_end_sent: bool,
    /// For the message of a turn: an earlier turn of the session had not ended when it was submitted.
    pub waits: bool,
    /// For the first event of a turn that has waited: the payload of its message, whose echo comes before the event.
    pub queued_message: Option<&'a str>,
}

impl TranslationContext<'_> {
    pub(super) fn update(&self, update: Value) -> (&'static str, Value) {
        (SESSION_UPDATE, json!({"sessionId": self.session_id, "update": update}))
    }

    /// An event that has no frame or update of its own: what it is, and the parts of it that clients can use.
    pub(super) fn notice(&self, event_type: EventType, facts: Map<String, Value>) -> (&'static str, Value) {
        let mut facts = facts;
        facts.insert("type".into(), event_type.as_str().into());
        self.update(json!({"sessionUpdate": "notice", "_meta": {"ostler": facts}}))
    }
}

/// Whether a command was cancelled because it ran out of time.
pub fn is_deadline(reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| reason.starts_with(DEADLINE_EXCEEDED))
}

/// The fields of these names that are present, with their texts shortened.
pub(super) fn picked(payload: &Value, names: &[&str]) -> Map<String, Value> {
    let pick = |name: &&str| {
        let value = match payload.get(*name)? {
            Value::Null => return None,
            Value::String(text) if *name == "text" => text.as_str().into(),
            Value::String(text) => clip(text, NOTICE_CHARS_MAX).into(),
            other => other.clone(),
        };
        Some(((*name).to_owned(), value))
    };
    names.iter().filter_map(pick).collect()
}

/// A name that an agent gave to something.
pub(super) fn named(text: &str) -> String {
    clip(text, NAME_BYTES_MAX)
}
