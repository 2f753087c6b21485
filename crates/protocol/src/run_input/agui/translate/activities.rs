//! Activities: what an agent shows beside its messages, replaced whole or changed by patches.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use super::{
    documents::StateDocument,
    out::{Out, named},
};
use crate::{
    limits::NAME_BYTES_MAX,
    run_input::agui::events::{EventBody, Patch},
    text::clip,
};

/// Activities without an id that are distinguished by their type.
const UNNAMED_MAX: usize = 256;
/// Activities that can be patched, and how large they are together; beyond either the oldest can no longer be patched.
const SHOWN_MAX: usize = 256;
const SHOWN_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Activities {
    /// Types whose activities have no id of their own, and the id that they were given.
    unnamed: Vec<(String, String)>,
    /// What clients hold, by message id. The newest is the last.
    shown: VecDeque<(String, StateDocument)>,
}

impl Activities {
    /// `false` if a patch was held back.
    pub(super) fn take(&mut self, payload: &Value, seq: i64, out: &mut Out) -> bool {
        let kind = payload["activityType"].as_str().unwrap_or("activity");
        let activity_type = clip(kind, NAME_BYTES_MAX);
        let message_id = match payload["messageId"].as_str() {
            Some(id) => format!("activity-{}", named(id)),
            None => self.id_of(&activity_type, seq),
        };
        if let Some(patch) = payload.get("patch") {
            let Some(patch) = Patch::read(patch).filter(|patch| self.apply(&message_id, patch)) else { return false };
            out.send(EventBody::ActivityDelta { message_id, activity_type, patch });
            return true;
        }
        let content = content(payload);
        self.show(&message_id, content.clone());
        out.send(EventBody::ActivitySnapshot { message_id, activity_type, content });
        true
    }

    /// Activities of one type that name no message are one that changes.
    fn id_of(&mut self, activity_type: &str, seq: i64) -> String {
        if let Some((_, id)) = self.unnamed.iter().find(|(known, _)| known == activity_type) {
            return id.clone();
        }
        let id = format!("activity-{seq}");
        if self.unnamed.len() < UNNAMED_MAX {
            self.unnamed.push((activity_type.to_owned(), id.clone()));
        }
        id
    }

    fn show(&mut self, message_id: &str, content: Map<String, Value>) {
        self.shown.retain(|(id, _)| id != message_id);
        self.shown.push_back((message_id.to_owned(), StateDocument::new(content.into())));
        self.drop_oldest();
    }

    fn apply(&mut self, message_id: &str, patch: &Patch) -> bool {
        let shown = self.shown.iter_mut().find(|(id, _)| id == message_id);
        let applies = shown.is_some_and(|(_, content)| content.apply(patch));
        self.drop_oldest();
        applies
    }

    fn drop_oldest(&mut self) {
        let bytes =
            |shown: &VecDeque<(String, StateDocument)>| shown.iter().map(|(_, content)| content.bytes()).sum::<usize>();
        while self.shown.len() > SHOWN_MAX || bytes(&self.shown) > SHOWN_BYTES_MAX {
            self.shown.pop_front();
        }
    }
}

fn content(payload: &Value) -> Map<String, Value> {
    match (payload.get("content"), payload) {
        (Some(Value::Object(content)), _) => content.clone(),
        (None, Value::Object(fields)) => {
            let is_content = |(name, _): &(&String, &Value)| !matches!(name.as_str(), "activityType" | "messageId");
            fields.iter().filter(is_content).map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        (Some(other), _) => [("content".to_owned(), other.clone())].into_iter().collect(),
        _ => Map::new(),
    }
}
