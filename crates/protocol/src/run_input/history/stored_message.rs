//! A user's message as its event stores it: its own parts, and results of the front end's tools.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{HistoryPart, Picture};
use crate::kernel::{commands::CommandType, front_end::TOOL_RESULT_PART};

/// A person's message, as its event keeps it.
pub struct UserContent {
    pub message_id: String,
    pub command_type: Option<CommandType>,
    /// Its texts and pictures, in their order.
    pub parts: Vec<UserContentPart>,
    /// Results of the front end's tools.
    pub results: Vec<ToolResultContent>,
    /// Other fields of the message, as the client sent them.
    pub fields: Map<String, Value>,
    /// More came with it, which its command has.
    pub has_input: bool,
}

/// A text or a picture, with the fields of its part that the client sent besides.
pub struct UserContentPart {
    pub content: TextOrPicture,
    pub fields: Map<String, Value>,
}

pub enum TextOrPicture {
    Text(String),
    Picture(Picture),
}

/// The result of a call of a front end's tool.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolResultContent {
    pub message_id: String,
    pub tool_call_id: String,
    #[serde(rename = "text")]
    pub content: String,
    pub error: Option<String>,
    /// Other fields of the message, as the client sent them.
    pub sent: Map<String, Value>,
}

/// Reads the payload of a `user_message` event. `None` if it is not one.
pub fn user_content(payload: &str) -> Option<UserContent> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stored {
        message_id: String,
        command_type: Option<CommandType>,
        #[serde(default)]
        content: Vec<Value>,
        #[serde(default)]
        fields: Map<String, Value>,
        #[serde(default)]
        has_input: bool,
    }
    let Stored { message_id, command_type, content, fields, has_input } = serde_json::from_str(payload).ok()?;
    let (results, content): (Vec<_>, Vec<_>) = content.into_iter().partition(|part| part["type"] == TOOL_RESULT_PART);
    let results = results.into_iter().filter_map(|part| serde_json::from_value(part).ok()).collect();
    let parts = content.into_iter().filter_map(UserContentPart::read).collect();
    Some(UserContent { message_id, command_type, parts, results, fields, has_input })
}

impl UserContentPart {
    fn read(mut part: Value) -> Option<Self> {
        let fields = part.get_mut("fields").map(Value::take);
        let fields = fields.and_then(|fields| fields.as_object().cloned()).unwrap_or_default();
        let part: HistoryPart = serde_json::from_value(part).ok()?;
        let content = match part.part_type.as_str() {
            "image" => TextOrPicture::Picture(part.picture),
            _ => TextOrPicture::Text(part.text?),
        };
        Some(Self { content, fields })
    }
}
