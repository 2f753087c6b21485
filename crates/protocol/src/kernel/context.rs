//! Context: what a front end gives the agent along with a message, for this turn only. It is sent in the command's
//! payload and is in no event, so that it is never mistaken for part of the conversation.

use serde::{Deserialize, Serialize};

use crate::RawJson;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Context {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Remark>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<UsersClock>,
}

/// A message that is not the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remark {
    pub role: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub description: String,
    pub value: String,
}

/// The time where the user is, as reported by their device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsersClock {
    pub now: String,
    pub timezone: String,
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
        if self.is_empty() {
            return prompt.to_owned();
        }
        let mut text = String::from("<context>\n");
        for note in &self.notes {
            text += &format!("{}: {}\n", note.description, note.value);
        }
        for remark in &self.messages {
            text += &format!("[{}] {}\n", remark.role, remark.text);
        }
        if let Some(clock) = &self.clock {
            text += &format!("The user's clock: {} ({})\n", clock.now, clock.timezone);
        }
        text + "</context>\n\n" + prompt
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
