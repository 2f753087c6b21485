//! What an agent says piece by piece and then whole: texts and thoughts.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use super::{Out, named};
use crate::{
    limits::EVENT_BYTES_MAX,
    run_input::agui::events::{AssistantRole, Body, ReasoningRole},
};

/// Messages being said at once; a further one takes the place of the oldest.
const OPEN_MAX: usize = 256;
/// How many messages that were said whole are remembered, so that nothing is said twice.
const WHOLE_KEPT: usize = 4_096;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thought,
}

#[derive(Clone, Debug)]
struct Message {
    /// What the agent calls it; nothing, if it does not.
    key: Option<String>,
    id: String,
    /// What was told of it. `None`: more than a whole message can be.
    told: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Said {
    kind: Kind,
    open: Vec<Message>,
    whole: VecDeque<String>,
    /// Of the attempt that speaks.
    attempt: VecDeque<String>,
}

impl Said {
    pub fn texts() -> Self {
        Self { kind: Kind::Text, open: vec![], whole: VecDeque::new(), attempt: VecDeque::new() }
    }

    pub fn thoughts() -> Self {
        Self { kind: Kind::Thought, ..Self::texts() }
    }

    pub fn delta(&mut self, payload: &Value, seq: i64, out: &mut Out) {
        let Some(delta) = payload["delta"].as_str() else { return };
        let key = payload["messageId"].as_str().map(named);
        if key.as_ref().is_some_and(|key| self.whole.contains(key)) {
            return;
        }
        let at = self.find_or_open(key, seq);
        let message = &mut self.open[at];
        message.told =
            message.told.take().filter(|told| told.len() + delta.len() <= EVENT_BYTES_MAX).map(|mut told| {
                told.push_str(delta);
                told
            });
        let id = message.id.clone();
        self.start(&id, out);
        self.content(&id, delta, out);
    }

    /// What has not been told of it yet, and its end. The answer is its id; `None`: it had ended before.
    pub fn whole(&mut self, payload: &Value, seq: i64, metadata: Map<String, Value>, out: &mut Out) -> Option<String> {
        let text = payload["text"].as_str().unwrap_or_default();
        let key = payload["messageId"].as_str().map(named);
        if key.as_ref().is_some_and(|key| self.whole.contains(key)) {
            return None;
        }
        let at = self.find_or_open(key, seq);
        let Message { key, id, told } = self.open.remove(at);
        if let Some(key) = key {
            remember(&mut self.whole, key);
        }
        let mut metadata = metadata;
        self.start(&id, out);
        match told.as_deref().map(|told| text.strip_prefix(told)) {
            Some(Some(rest)) => self.content(&id, rest, out),
            // It was told otherwise, which cannot be taken back: a front end that cares finds here what holds.
            Some(None) if payload["textTruncated"] != true => {
                metadata.insert("text".into(), text.into());
            }
            _ => {}
        }
        self.end(&id, metadata, out);
        Some(id)
    }

    /// A new attempt begins: the ids of what does not count any more.
    pub fn forget(&mut self) -> Vec<String> {
        let open = self.open.drain(..).filter_map(|message| message.key);
        open.for_each(|key| remember(&mut self.whole, key));
        self.attempt.drain(..).collect()
    }

    fn find_or_open(&mut self, key: Option<String>, seq: i64) -> usize {
        if let Some(at) = self.open.iter().position(|message| message.key == key) {
            return at;
        }
        if self.open.len() == OPEN_MAX {
            self.open.remove(0);
        }
        // A client keeps thoughts and texts in one list, by their ids.
        let id = match (&self.kind, &key) {
            (Kind::Text, Some(key)) => key.clone(),
            (Kind::Text, None) => format!("msg-{seq}"),
            (Kind::Thought, Some(key)) => format!("think-{key}"),
            (Kind::Thought, None) => format!("think-{seq}"),
        };
        remember(&mut self.attempt, id.clone());
        self.open.push(Message { key, id, told: Some(String::new()) });
        self.open.len() - 1
    }

    /// Said before each piece: the verifier lets it through where the message is not open.
    fn start(&self, id: &str, out: &mut Out) {
        let message_id = id.to_owned();
        if self.kind == Kind::Text {
            return out.say(Body::TextMessageStart { message_id, role: AssistantRole::Assistant });
        }
        out.say(Body::ReasoningStart { message_id: message_id.clone() });
        out.say(Body::ReasoningMessageStart { message_id, role: ReasoningRole::Reasoning });
    }

    fn content(&self, id: &str, delta: &str, out: &mut Out) {
        let (message_id, delta) = (id.to_owned(), delta.to_owned());
        if delta.is_empty() {
            return;
        }
        out.say(match self.kind {
            Kind::Text => Body::TextMessageContent { message_id, delta },
            Kind::Thought => Body::ReasoningMessageContent { message_id, delta },
        });
    }

    fn end(&self, id: &str, metadata: Map<String, Value>, out: &mut Out) {
        let message_id = id.to_owned();
        if self.kind == Kind::Text {
            return out.say_with(Body::TextMessageEnd { message_id }, metadata);
        }
        out.say_with(Body::ReasoningMessageEnd { message_id: message_id.clone() }, metadata);
        out.say(Body::ReasoningEnd { message_id });
    }
}

fn remember(kept: &mut VecDeque<String>, id: String) {
    if kept.len() == WHOLE_KEPT {
        kept.pop_front();
    }
    kept.push_back(id);
}
