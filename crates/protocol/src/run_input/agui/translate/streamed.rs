//! Messages that an agent sends piece by piece and then whole: texts and thoughts.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::{
    limits::EVENT_BYTES_MAX,
    run_input::agui::{
        events::{AssistantRole, EventBody, ReasoningRole},
        translate::out::{Out, named},
    },
};

/// Messages that can be open at once; a further one replaces the oldest.
const OPEN_MAX: usize = 256;
/// How many complete messages are remembered, so that none is sent twice.
const WHOLE_KEPT: usize = 4_096;

#[derive(Clone, Debug, PartialEq, Eq)]
enum StreamKind {
    Text,
    Thought,
}

#[derive(Clone, Debug)]
struct StreamedMessage {
    /// What the agent calls it; nothing, if it does not.
    key: Option<String>,
    id: String,
    /// The part that was sent. `None` if that is longer than a whole message can be.
    sent: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct StreamedMessages {
    kind: StreamKind,
    open: Vec<StreamedMessage>,
    whole: VecDeque<String>,
    /// Of the current attempt.
    attempt: VecDeque<String>,
}

impl StreamedMessages {
    pub(super) fn texts() -> Self {
        Self { kind: StreamKind::Text, open: vec![], whole: VecDeque::new(), attempt: VecDeque::new() }
    }

    pub(super) fn thoughts() -> Self {
        Self { kind: StreamKind::Thought, ..Self::texts() }
    }

    pub(super) fn delta(&mut self, payload: &Value, seq: i64, out: &mut Out) {
        let Some(delta) = payload["delta"].as_str() else { return };
        let key = payload["messageId"].as_str().map(named);
        if key.as_ref().is_some_and(|key| self.whole.contains(key)) {
            return;
        }
        let at = self.find_or_open(key, seq);
        let message = &mut self.open[at];
        message.sent =
            message.sent.take().filter(|sent| sent.len() + delta.len() <= EVENT_BYTES_MAX).map(|mut sent| {
                sent.push_str(delta);
                sent
            });
        let id = message.id.clone();
        self.start(&id, out);
        self.content(&id, delta, out);
    }

    /// Sends the rest of the message, and its end. Returns its id; `None` if it had ended before.
    pub(super) fn whole(
        &mut self,
        payload: &Value,
        seq: i64,
        metadata: Map<String, Value>,
        out: &mut Out,
    ) -> Option<String> {
        let text = payload["text"].as_str().unwrap_or_default();
        let key = payload["messageId"].as_str().map(named);
        if key.as_ref().is_some_and(|key| self.whole.contains(key)) {
            return None;
        }
        let at = self.find_or_open(key, seq);
        let StreamedMessage { key, id, sent } = self.open.remove(at);
        if let Some(key) = key {
            remember(&mut self.whole, key);
        }
        let mut metadata = metadata;
        self.start(&id, out);
        match sent.as_deref().map(|sent| text.strip_prefix(sent)) {
            Some(Some(rest)) => self.content(&id, rest, out),
            // Other text was sent before, which cannot be revoked: the metadata carries the final text for front ends
            // that use it.
            Some(None) if payload["textTruncated"] != true => {
                metadata.insert("text".into(), text.into());
            }
            _ => {}
        }
        self.end(&id, metadata, out);
        Some(id)
    }

    /// A new attempt begins: returns the ids of the messages that no longer count.
    pub(super) fn forget(&mut self) -> Vec<String> {
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
            (StreamKind::Text, Some(key)) => key.clone(),
            (StreamKind::Text, None) => format!("msg-{seq}"),
            (StreamKind::Thought, Some(key)) => format!("think-{key}"),
            (StreamKind::Thought, None) => format!("think-{seq}"),
        };
        remember(&mut self.attempt, id.clone());
        self.open.push(StreamedMessage { key, id, sent: Some(String::new()) });
        self.open.len() - 1
    }

    /// Sent before each piece: the verifier lets it through where the message is not open.
    fn start(&self, id: &str, out: &mut Out) {
        let message_id = id.to_owned();
        if self.kind == StreamKind::Text {
            return out.send(EventBody::TextMessageStart { message_id, role: AssistantRole::Assistant });
        }
        out.send(EventBody::ReasoningStart { message_id: message_id.clone() });
        out.send(EventBody::ReasoningMessageStart { message_id, role: ReasoningRole::Reasoning });
    }

    fn content(&self, id: &str, delta: &str, out: &mut Out) {
        let (message_id, delta) = (id.to_owned(), delta.to_owned());
        if delta.is_empty() {
            return;
        }
        out.send(match self.kind {
            StreamKind::Text => EventBody::TextMessageContent { message_id, delta },
            StreamKind::Thought => EventBody::ReasoningMessageContent { message_id, delta },
        });
    }

    fn end(&self, id: &str, metadata: Map<String, Value>, out: &mut Out) {
        let message_id = id.to_owned();
        if self.kind == StreamKind::Text {
            return out.send_with(EventBody::TextMessageEnd { message_id }, metadata);
        }
        out.send_with(EventBody::ReasoningMessageEnd { message_id: message_id.clone() }, metadata);
        out.send(EventBody::ReasoningEnd { message_id });
    }
}

fn remember(stored: &mut VecDeque<String>, id: String) {
    if stored.len() == WHOLE_KEPT {
        stored.pop_front();
    }
    stored.push_back(id);
}
