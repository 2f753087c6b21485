//! Prompts: blocks of text, images and resources that a client sends to the agent.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{Failure, Rule, text::is_blank_text};

/// Maximum number of blocks of a prompt.
pub const BLOCKS_MAX: usize = 256;

/// The text that an event and a command's own payload contain of a prompt whose whole is stored beside the command.
const SHORT_TEXT_BYTES_MAX: usize = 64 * 1024;

/// The body of `POST /session/{sessionId}/prompt`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubmitPrompt {
    /// Blocks of the types `text`, `image`, `resource_link` and `resource`.
    #[schema(value_type = Vec<Object>, required)]
    pub prompt: Value,
    /// How long the prompt may take from now on, in milliseconds. It can only shorten what the server allows, and is ignored
    /// if the server sets no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub deadline_ms: Option<Value>,
    /// Ignored: the client repeats its last prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub retry: Option<Value>,
    /// Ignored.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub meta: Option<Value>,
}

/// The prompt is stored, and runs when the earlier ones of its session have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromptAccepted {
    pub prompt_id: String,
    /// The id of the last frame before those of the prompt.
    pub last_event_id: i64,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptBlock {
    Text(String),
    /// Base64.
    Image {
        mime_type: String,
        data: String,
    },
    ResourceLink {
        uri: String,
        name: String,
    },
    Resource {
        uri: String,
        text: String,
    },
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::invalid(Rule::PromptInvalid, message)
}

impl SubmitPrompt {
    pub fn blocks(&self) -> Result<Vec<PromptBlock>, Failure> {
        let blocks = self.prompt.as_array().filter(|blocks| !blocks.is_empty());
        let blocks = blocks.ok_or_else(|| invalid("prompt must be a non-empty array of blocks"))?;
        if blocks.len() > BLOCKS_MAX {
            return Err(invalid(format!("prompt has over {BLOCKS_MAX} blocks")));
        }
        let blocks: Vec<_> = blocks.iter().enumerate().map(|(at, block)| read(at, block)).collect::<Result<_, _>>()?;
        let is_empty = |block: &PromptBlock| matches!(block, PromptBlock::Text(text) if is_blank_text(text));
        match blocks.iter().all(is_empty) {
            true => Err(invalid("the prompt is empty")),
            false => Ok(blocks),
        }
    }

    /// The deadline of the prompt, if the server sets one: the earlier of both.
    pub fn deadline_ms(&self, server_ms: Option<u64>) -> Result<Option<u64>, Failure> {
        let message = "deadlineMs must be a positive number of milliseconds";
        let invalid = || Failure::invalid(Rule::InvalidDeadlineMs, message);
        let requested = match &self.deadline_ms {
            None => None,
            Some(value) => Some(value.as_u64().filter(|ms| *ms > 0).ok_or_else(invalid)?),
        };
        Ok(server_ms.map(|server_ms| requested.unwrap_or(server_ms).min(server_ms)))
    }
}

fn read(at: usize, block: &Value) -> Result<PromptBlock, Failure> {
    let member = |of: &Value, name: &str| {
        let text = of.get(name).and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| invalid(format!("prompt[{at}]: {name} must be text")))
    };
    if !block.is_object() {
        return Err(invalid(format!("prompt[{at}] must be an object")));
    }
    match member(block, "type")?.as_str() {
        "text" => Ok(PromptBlock::Text(member(block, "text")?)),
        "image" => {
            let (mime_type, data) = (member(block, "mimeType")?, member(block, "data")?);
            check_image(at, &mime_type, &data)?;
            Ok(PromptBlock::Image { mime_type, data })
        }
        "resource_link" => Ok(PromptBlock::ResourceLink { uri: member(block, "uri")?, name: member(block, "name")? }),
        "resource" => {
            let resource = block.get("resource").unwrap_or(&Value::Null);
            Ok(PromptBlock::Resource { uri: member(resource, "uri")?, text: member(resource, "text")? })
        }
        other => Err(invalid(format!("prompt[{at}]: blocks of the type {other:?} are not supported"))),
    }
}

fn check_image(at: usize, mime_type: &str, data: &str) -> Result<(), Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    let is_image = |kind: &str| !kind.is_empty() && kind.len() <= 64 && kind.bytes().all(plain);
    if !mime_type.strip_prefix("image/").is_some_and(is_image) {
        return Err(invalid(format!("prompt[{at}]: mimeType must be that of an image")));
    }
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    if data.is_empty() || !data.bytes().all(is_base64) {
        return Err(invalid(format!("prompt[{at}]: data must be base64")));
    }
    Ok(())
}

impl PromptBlock {
    /// What the agent reads of it. `None` for an image.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Image { .. } => None,
            Self::ResourceLink { uri, name } => Some(format!("[{name}]({uri})")),
            Self::Resource { uri, text } => Some(format!("{uri}:\n{text}")),
        }
    }

    /// The block as the command stores it for the agent.
    pub fn stored(&self) -> Value {
        match self {
            Self::Image { mime_type, data } => {
                json!({"type": "image", "mimeType": mime_type, "url": format!("data:{mime_type};base64,{data}")})
            }
            other => other.unredacted(),
        }
    }

    /// The block as the event of the message stores it. `redact` removes secrets from text. The bytes of an image are only in the
    /// command.
    pub fn event_value(&self, mut redact: impl FnMut(&str) -> String) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": redact(text)}),
            Self::Image { mime_type, data } => {
                json!({"type": "image", "mimeType": mime_type, "bytes": data.len() / 4 * 3})
            }
            Self::ResourceLink { uri, name } => {
                json!({"type": "resource_link", "uri": redact(uri), "name": redact(name)})
            }
            // A conversation is put together from the text of each part.
            Self::Resource { uri, text } => {
                json!({"type": "resource", "uri": redact(uri), "text": redact(text)})
            }
        }
    }

    /// Bytes of its text or image.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Image { data, .. } => data.len(),
            Self::ResourceLink { uri, name } => uri.len() + name.len(),
            Self::Resource { uri, text } => uri.len() + text.len(),
        }
    }

    fn unredacted(&self) -> Value {
        self.event_value(str::to_owned)
    }
}

/// The text of a prompt, as the agent reads it.
pub fn prompt_text(blocks: &[PromptBlock]) -> String {
    let text = blocks.iter().filter_map(PromptBlock::text).collect::<Vec<_>>().join("\n");
    if is_blank_text(&text) { "(an image)".to_owned() } else { text }
}

/// The beginning of a large prompt's text.
pub fn short_text(text: &str) -> String {
    take_text(text, &mut { SHORT_TEXT_BYTES_MAX })
}

/// The blocks of a large prompt as [`PromptBlock::noted`], with only the beginning of their text.
pub fn short_blocks(blocks: &[PromptBlock], redact: impl Fn(&str) -> String) -> Vec<Value> {
    let mut room = SHORT_TEXT_BYTES_MAX;
    // Redacted before it is cut: half a secret would not be recognised.
    blocks.iter().map(|block| block.event_value(|text| take_text(&redact(text), &mut room))).collect()
}

/// As much of the text as there is room for.
fn take_text(text: &str, room: &mut usize) -> String {
    if text.len() <= *room {
        *room -= text.len();
        return text.to_owned();
    }
    let end = (0..=*room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    *room = 0;
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitted(prompt: Value) -> Result<Vec<PromptBlock>, Failure> {
        SubmitPrompt { prompt, ..SubmitPrompt::default() }.blocks()
    }

    #[test]
    fn a_prompt_has_blocks_of_four_types() {
        let prompt = json!([
            {"type": "text", "text": "look"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "B"}},
        ]);
        let blocks = submitted(prompt).unwrap();
        assert_eq!(prompt_text(&blocks), "look\n[a](file:///a)\nfile:///b:\nB");
        assert_eq!(blocks[1].stored()["url"], "data:image/png;base64,AAAA");
        assert_eq!(blocks[1].event_value(str::to_owned), json!({"type": "image", "mimeType": "image/png", "bytes": 3}));
    }

    #[test]
    fn a_large_prompt_has_a_short_form_with_the_beginning_of_its_text() {
        let long = "ä".repeat(SHORT_TEXT_BYTES_MAX);
        let blocks = [
            PromptBlock::Text("look".into()),
            PromptBlock::Resource { uri: "file:///a".into(), text: long.clone() },
            PromptBlock::ResourceLink { uri: long.clone(), name: long.clone() },
            PromptBlock::Image { mime_type: "image/png".into(), data: "A".repeat(4_000_000) },
        ];
        let short = short_blocks(&blocks, str::to_owned);
        assert_eq!(short[0], json!({"type": "text", "text": "look"}));
        let text = short[1]["text"].as_str().unwrap();
        assert!(text.ends_with("ä…") && long.starts_with(text.trim_end_matches('…')), "{}", text.len());
        assert_eq!(short[2]["uri"], "…");
        assert_eq!(short[3], json!({"type": "image", "mimeType": "image/png", "bytes": 3_000_000}));
        assert!(Value::from(short).to_string().len() < SHORT_TEXT_BYTES_MAX + 1_000);
        assert_eq!(short_text("short"), "short");
        assert!(short_text(&long).len() <= SHORT_TEXT_BYTES_MAX + '…'.len_utf8());
    }

    #[test]
    fn a_prompt_that_cannot_be_read_is_rejected() {
        for bad in [
            json!([]),
            json!("hi"),
            json!(null),
            json!(["hi"]),
            json!([{"text": "hi"}]),
            json!([{"type": "text"}]),
            json!([{"type": "text", "text": " "}]),
            json!([{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]),
            json!([{"type": "image", "data": "AAAA", "mimeType": "text/html"}]),
            json!([{"type": "image", "data": "<>", "mimeType": "image/png"}]),
            json!([{"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}}]),
            json!(vec![json!({"type": "text", "text": "hi"}); BLOCKS_MAX + 1]),
        ] {
            assert_eq!(submitted(bad.clone()).unwrap_err().rule_name(), Some("prompt-invalid"), "{bad}");
        }
    }

    #[test]
    fn a_client_can_only_shorten_the_deadline() {
        let with = |deadline_ms: Value| SubmitPrompt { deadline_ms: Some(deadline_ms), ..SubmitPrompt::default() };
        assert_eq!(with(json!(5)).deadline_ms(Some(10)).unwrap(), Some(5));
        assert_eq!(with(json!(50)).deadline_ms(Some(10)).unwrap(), Some(10));
        assert_eq!(with(json!(5)).deadline_ms(None).unwrap(), None);
        for bad in [json!(0), json!(-1), json!(1.5), json!("5"), json!({})] {
            let failure = with(bad.clone()).deadline_ms(None).unwrap_err();
            assert_eq!(failure.rule_name(), Some("invalid-deadline-ms"), "{bad}");
        }
    }
}
