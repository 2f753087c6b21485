//! The prompts of a session that have not ended, as far as its frames and the responses to this client tell.

use std::collections::{BTreeSet, VecDeque};

use ostler_client::daemon::ReceivedFrame;
use serde_json::Value;

use crate::exit_codes;

/// How many ended prompts are remembered: the frame with the end may arrive before the response to the prompt.
const ENDED_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Turns {
    open: BTreeSet<String>,
    /// The prompts of this client among them.
    own: BTreeSet<String>,
    /// The last ended prompts, with their exit codes.
    ended: VecDeque<(String, u8)>,
    /// How the last prompt of this client ended.
    last: Option<u8>,
    /// The number of the frame with which the prompts that are open began.
    began: Option<i64>,
}

impl Turns {
    /// The server has accepted a prompt of this client.
    pub(crate) fn submitted(&mut self, prompt_id: String) {
        if let Some((_, code)) = self.ended.iter().find(|(ended, _)| *ended == prompt_id) {
            self.last = Some(*code);
            return;
        }
        self.open.insert(prompt_id.clone());
        self.own.insert(prompt_id);
    }

    pub(crate) fn apply(&mut self, frame: &ReceivedFrame) {
        let end = match frame.frame_type.as_str() {
            "session_update" if is_end_of_steer(frame) => return self.end_steer(frame),
            "session_update" | "pending_prompt_added" => return self.begin(frame),
            "turn_complete" => stop_code(frame.data.get("stopReason").and_then(Value::as_str)),
            "turn_error" => exit_codes::FAILED,
            _ => return,
        };
        let id = frame.data.get("promptId").and_then(Value::as_str).or(frame.prompt_id.as_deref()).unwrap_or_default();
        self.open.remove(id);
        if self.own.remove(id) {
            self.last = Some(end);
        }
        if self.open.is_empty() {
            self.began = None;
        }
        self.ended.push_back((id.to_owned(), end));
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    /// Everything but the end of a turn shows that its prompt is open.
    fn begin(&mut self, frame: &ReceivedFrame) {
        let Some(id) = &frame.prompt_id else { return };
        if self.ended.iter().any(|(ended, _)| ended == id) {
            return;
        }
        if self.open.is_empty() {
            self.began = frame.id;
        }
        self.open.insert(id.clone());
    }

    /// A steer is a prompt that ends without ending a turn.
    fn end_steer(&mut self, frame: &ReceivedFrame) {
        self.open.remove(frame.prompt_id.as_deref().unwrap_or_default());
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether a prompt of this client has not ended.
    pub(crate) fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// The number of the first frame of the turn that runs. `None` if none does.
    pub(crate) fn began(&self) -> Option<i64> {
        self.began
    }

    /// The exit code of the last ended prompt of this client.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.last {
            _ if self.has_own() => exit_codes::UNFINISHED,
            Some(code) => code,
            None => exit_codes::OK,
        }
    }
}

/// Whether the frame reports the end of a command that is no turn.
fn is_end_of_steer(frame: &ReceivedFrame) -> bool {
    frame.data.pointer("/update/_meta/ostler/type").is_some_and(|event_type| event_type == "terminal_status")
}

/// The reasons for which an agent ends a turn, as outcomes.
fn stop_code(reason: Option<&str>) -> u8 {
    match reason {
        Some("end_turn") => exit_codes::OK,
        Some("cancelled") => exit_codes::CANCELLED,
        // A budget, or the model, does not allow more.
        _ => exit_codes::BLOCKED,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn frame(id: i64, prompt: &str, frame_type: &str, data: Value) -> ReceivedFrame {
        serde_json::from_value(json!({"id": id, "v": 1, "type": frame_type, "data": data, "promptId": prompt})).unwrap()
    }

    fn update(id: i64, prompt: &str) -> ReceivedFrame {
        frame(id, prompt, "session_update", json!({"update": {"sessionUpdate": "user_message_chunk"}}))
    }

    fn complete(id: i64, prompt: &str, reason: &str) -> ReceivedFrame {
        frame(id, prompt, "turn_complete", json!({"promptId": prompt, "stopReason": reason}))
    }

    #[test]
    fn the_exit_code_is_that_of_the_last_own_prompt() {
        let mut turns = Turns::default();
        assert_eq!(turns.exit_code(), exit_codes::OK);
        turns.submitted("a".into());
        turns.apply(&update(4, "a"));
        assert_eq!((turns.is_idle(), turns.has_own(), turns.exit_code()), (false, true, exit_codes::UNFINISHED));
        turns.apply(&complete(5, "a", "cancelled"));
        turns.apply(&update(6, "of another client"));
        assert_eq!((turns.has_own(), turns.is_idle(), turns.began()), (false, false, Some(6)));
        turns.apply(&complete(7, "of another client", "end_turn"));
        assert_eq!((turns.exit_code(), turns.is_idle(), turns.began()), (exit_codes::CANCELLED, true, None));
        turns.submitted("b".into());
        turns.apply(&frame(8, "b", "turn_error", json!({"promptId": "b", "message": "x"})));
        assert_eq!(turns.exit_code(), exit_codes::FAILED);
    }

    #[test]
    fn a_steer_ends_without_ending_the_turn() {
        let mut turns = Turns::default();
        turns.apply(&update(1, "turn"));
        turns.apply(&update(2, "steer"));
        let end = json!({"update": {"sessionUpdate": "notice", "_meta": {"ostler": {"type": "terminal_status"}}}});
        turns.apply(&frame(3, "steer", "session_update", end));
        assert!(!turns.is_idle());
        turns.apply(&complete(4, "turn", "end_turn"));
        assert!(turns.is_idle());
    }

    #[test]
    fn a_prompt_that_waits_is_open() {
        let mut turns = Turns::default();
        turns.apply(&frame(1, "waits", "pending_prompt_added", json!({"promptId": "waits"})));
        assert!(!turns.is_idle());
        turns.apply(&complete(2, "waits", "cancelled"));
        assert!(turns.is_idle());
    }

    #[test]
    fn an_end_may_arrive_before_the_response_to_the_prompt() {
        let mut turns = Turns::default();
        turns.apply(&update(1, "a"));
        turns.apply(&complete(2, "a", "max_tokens"));
        turns.submitted("a".into());
        assert_eq!((turns.is_idle(), turns.exit_code()), (true, exit_codes::BLOCKED));
        turns.apply(&update(3, "a"));
        assert!(turns.is_idle(), "late frames of an ended prompt do not open it again");
    }
}
