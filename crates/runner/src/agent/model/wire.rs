//! The wire of chat completions, as far as we speak it: what is sent, and the chunks of a streamed answer. Fields we do
//! not know are skipped; a field that providers fill differently is read loosely.

use ostler_protocol::conversation::Role;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Serialize)]
pub struct Request<'a> {
    pub model: &'a str,
    pub messages: &'a [Message],
    pub stream: bool,
    pub stream_options: StreamOptions,
    /// Some servers refuse an empty list.
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    pub tools: &'a [Value],
}

#[derive(Serialize)]
pub struct StreamOptions {
    pub include_usage: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    User,
    Assistant,
    Tool,
}

impl From<Role> for Speaker {
    fn from(role: Role) -> Self {
        match role {
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
        }
    }
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Message {
    pub role: Speaker,
    /// Null where an assistant only called tools.
    content: Option<Content>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Value>),
}

impl Message {
    pub fn of(role: Role, text: &str) -> Self {
        Self {
            role: role.into(),
            content: Some(Content::Text(text.to_owned())),
            tool_calls: vec![],
            tool_call_id: None,
        }
    }

    pub fn reply(text: &str, calls: &[Call]) -> Self {
        let told = |call: &Call| {
            serde_json::json!({"id": call.id, "type": "function",
                "function": {"name": call.name, "arguments": call.arguments}})
        };
        let content = Some(text.to_owned()).filter(|text| !text.is_empty()).map(Content::Text);
        Self { role: Speaker::Assistant, content, tool_calls: calls.iter().map(told).collect(), tool_call_id: None }
    }

    pub fn result(call: &Call, text: &str) -> Self {
        let tool_call_id = Some(call.id.clone());
        Self { role: Speaker::Tool, content: Some(Content::Text(text.to_owned())), tool_calls: vec![], tool_call_id }
    }

    pub fn add(&mut self, text: &str) {
        match &mut self.content {
            Some(Content::Text(content)) => content.extend(["\n\n", text]),
            Some(Content::Parts(parts)) => parts.push(json!({"type": "text", "text": text})),
            None => self.content = Some(Content::Text(text.to_owned())),
        }
    }

    /// Puts pictures beside its words.
    pub fn show(&mut self, images: &[String]) {
        if images.is_empty() {
            return;
        }
        let mut parts = match self.content.take() {
            Some(Content::Parts(parts)) => parts,
            Some(Content::Text(text)) => vec![json!({"type": "text", "text": text})],
            None => vec![],
        };
        parts.extend(images.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url}})));
        self.content = Some(Content::Parts(parts));
    }
}

/// A tool call, put together from its pieces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Chunk {
    pub model: Option<String>,
    pub choices: Vec<Choice>,
    pub usage: Option<Usage>,
    pub error: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Choice {
    pub delta: Option<Delta>,
    pub finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Delta {
    pub content: Option<String>,
    pub refusal: Option<String>,
    /// What a thinking model shows, under the two names in use.
    pub reasoning_content: Option<String>,
    pub reasoning: Option<String>,
    pub tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct CallPiece {
    pub index: Option<usize>,
    pub id: Option<String>,
    pub function: Option<FunctionPiece>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct FunctionPiece {
    pub name: Option<String>,
    pub arguments: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub total_tokens: Option<u64>,
    pub prompt_tokens_details: Option<Details>,
    pub completion_tokens_details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Details {
    pub cached_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
}
