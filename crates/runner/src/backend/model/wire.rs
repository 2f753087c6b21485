//! The part of the chat completions API that we use: the request, and the chunks of a streamed reply. Unknown fields are
//! ignored, and fields that providers fill differently are read leniently.

use ostler_protocol::kernel::conversation::Role;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Serialize)]
pub(crate) struct ChatRequest<'a> {
    pub(crate) model: &'a str,
    pub(crate) messages: &'a [ChatMessage],
    pub(crate) stream: bool,
    pub(crate) stream_options: StreamOptions,
    /// Some servers reject an empty list.
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    pub(crate) tools: &'a [Value],
}

#[derive(Serialize)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Speaker {
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
pub(crate) struct ChatMessage {
    pub(crate) role: Speaker,
    /// Null if the assistant only called tools.
    content: Option<WireContent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum WireContent {
    Text(String),
    Parts(Vec<Value>),
}

impl ChatMessage {
    pub(crate) fn of(role: Role, text: &str) -> Self {
        Self {
            role: role.into(),
            content: Some(WireContent::Text(text.to_owned())),
            tool_calls: vec![],
            tool_call_id: None,
        }
    }

    /// A message of the model.
    pub(crate) fn reply(text: &str, calls: &[WireCall]) -> Self {
        let content = Some(text.to_owned()).filter(|text| !text.is_empty()).map(WireContent::Text);
        Self {
            role: Speaker::Assistant,
            content,
            tool_calls: calls.iter().map(tool_call).collect(),
            tool_call_id: None,
        }
    }

    /// Adds calls to a message of the model.
    pub(crate) fn add_calls(&mut self, calls: &[WireCall]) {
        self.tool_calls.extend(calls.iter().map(tool_call));
    }

    /// The result of a tool call.
    pub(crate) fn tool_result(call: &WireCall, text: &str) -> Self {
        let tool_call_id = Some(call.id.clone());
        Self {
            role: Speaker::Tool,
            content: Some(WireContent::Text(text.to_owned())),
            tool_calls: vec![],
            tool_call_id,
        }
    }

    pub(crate) fn append_text(&mut self, text: &str) {
        match &mut self.content {
            Some(WireContent::Text(content)) => content.extend(["\n\n", text]),
            Some(WireContent::Parts(parts)) => parts.push(json!({"type": "text", "text": text})),
            None => self.content = Some(WireContent::Text(text.to_owned())),
        }
    }

    /// Adds images to the message.
    pub(crate) fn add_images(&mut self, images: &[String]) {
        if images.is_empty() {
            return;
        }
        let mut parts = match self.content.take() {
            Some(WireContent::Parts(parts)) => parts,
            Some(WireContent::Text(text)) => vec![json!({"type": "text", "text": text})],
            None => vec![],
        };
        parts.extend(images.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url}})));
        self.content = Some(WireContent::Parts(parts));
    }
}

fn tool_call(call: &WireCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// A tool call, assembled from its pieces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WireCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Chunk {
    pub(crate) model: Option<String>,
    pub(crate) choices: Vec<WireChoice>,
    pub(crate) usage: Option<ChatUsage>,
    pub(crate) error: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct WireChoice {
    pub(crate) delta: Option<ChatDelta>,
    pub(crate) finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChatDelta {
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    /// The thoughts of a reasoning model, under the two names in use.
    pub(crate) reasoning_content: Option<String>,
    pub(crate) reasoning: Option<String>,
    pub(crate) tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct CallPiece {
    pub(crate) index: Option<usize>,
    pub(crate) id: Option<String>,
    pub(crate) function: Option<FunctionPiece>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct FunctionPiece {
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChatUsage {
    pub(crate) prompt_tokens: Option<u64>,
    pub(crate) completion_tokens: Option<u64>,
    pub(crate) total_tokens: Option<u64>,
    pub(crate) prompt_tokens_details: Option<TokenDetails>,
    pub(crate) completion_tokens_details: Option<TokenDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct TokenDetails {
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) reasoning_tokens: Option<u64>,
}
