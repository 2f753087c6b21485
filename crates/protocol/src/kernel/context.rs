//! Context: what a front end gives the agent along with a message, for this turn only. It is sent in the command's
//! payload and is in no event, so that it is never mistaken for part of the conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    RawJson,
    kernel::front_end::{FrontEndTool, ToolAnswer},
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Context {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Remark>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// What is known of the message itself, such as the name of its user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub about: Vec<Note>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<UsersClock>,
    /// The state that the front end and the agent share, as the front end has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// Tools that the front end runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<FrontEndTool>,
    /// Results of calls that an earlier turn made of such tools. The prompt has them too, as text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_answers: Vec<ToolAnswer>,
}

/// A message that is not the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remark {
    pub role: String,
    /// What the agent reads.
    pub text: String,
    /// The message as the front end sent it. Without its `role` it also lacks its `content`, which is the text.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub sent: Map<String, Value>,
}

impl Remark {
    /// The whole message as the front end sent it. `None` if only its text was stored.
    pub fn as_sent(&self) -> Option<Value> {
        if self.sent.is_empty() {
            return None;
        }
        let mut sent = self.sent.clone();
        if !sent.contains_key("role") {
            sent.insert("content".to_owned(), self.text.clone().into());
            sent.insert("role".to_owned(), self.role.clone().into());
        }
        Some(sent.into())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub description: String,
    pub value: String,
}

/// The time where the user is: as reported by their device, else the server's time in the user's zone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsersClock {
    pub now: String,
    pub timezone: String,
    /// The user's device has reported it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device: bool,
}

#[derive(Deserialize)]
struct ContextPayload {
    context: Option<Context>,
}

impl Context {
    /// What came with a command.
    pub fn of(payload: &RawJson) -> Self {
        payload.view::<ContextPayload>().and_then(|payload| payload.context).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The prompt with its context before it, for an agent that takes words only.
    pub fn before(&self, prompt: &str) -> String {
        let mut text = String::new();
        for note in self.notes.iter().chain(&self.about) {
            text += &format!("{}: {}\n", note.description, note.value);
        }
        for remark in &self.messages {
            text += &format!("[{}] {}\n", remark.role, remark.text);
        }
        if let Some(clock) = &self.clock {
            text += &format!("The user's clock: {} ({})\n", clock.now, clock.timezone);
        }
        if let Some(state) = &self.state {
            text += &format!("The state that you share with the user's page: {state}\n");
        }
        if text.is_empty() { prompt.to_owned() } else { format!("<context>\n{text}</context>\n\n{prompt}") }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_prompt_without_context_stays_as_it_is() {
        let payload = RawJson::of(&json!({"prompt": "hi"}));
        assert_eq!(Context::of(&payload).before("hi"), "hi");
    }

    #[test]
    fn context_precedes_the_prompt_in_its_order() {
        let context = json!({"messages": [{"role": "system", "text": "Be brief."}],
            "notes": [{"description": "Page", "value": "/orders/7"}],
            "clock": {"now": "2026-03-16T09:12:33-07:00", "timezone": "America/Los_Angeles"}});
        let payload = RawJson::of(&json!({"prompt": "hi", "context": context}));
        let text = "<context>\nPage: /orders/7\n[system] Be brief.\n\
            The user's clock: 2026-03-16T09:12:33-07:00 (America/Los_Angeles)\n</context>\n\nhi";
        assert_eq!(Context::of(&payload).before("hi"), text);
    }
}
