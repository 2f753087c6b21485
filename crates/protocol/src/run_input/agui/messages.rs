//! Messages, parts, tools and answers as front ends send them. camelCase and snake_case are both read, and where a key
//! is there in both the camelCase one counts. A null is an absent field.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::kernel::{context::Remark, operations::Choice};

/// A message that is not the one the run is about: context for the agent, or the transcript a stock client sends along.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum InputMessage {
    Developer {
        id: String,
        content: String,
    },
    System {
        id: String,
        content: String,
    },
    Assistant {
        id: String,
        content: Option<String>,
        #[serde(default)]
        tool_calls: Vec<ToolCall>,
    },
    User {
        id: String,
        content: Content,
    },
    Tool {
        id: String,
        content: Content,
        tool_call_id: String,
        error: Option<String>,
    },
    Activity {
        id: String,
        activity_type: String,
        content: Map<String, Value>,
    },
    Reasoning {
        id: String,
        content: String,
    },
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub function: Function,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Function {
    pub name: String,
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message. `binary` is the seed's spelling of an image, `image` that of AG-UI 1.0; the other media are read so
/// that they can be refused by name.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum Part {
    Text { text: String },
    Binary { mime_type: Option<String>, url: Option<String>, data: Option<Value> },
    Image { source: Source },
    Audio { source: Source },
    Video { source: Source },
    Document { source: Source },
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum Source {
    Url { value: String, mime_type: Option<String> },
    Data { mime_type: Option<String> },
    File { mime_type: Option<String> },
}

/// A part that is not text, whichever way it was spelled.
pub struct Media<'a> {
    pub is_image: bool,
    pub mime_type: Option<&'a str>,
    pub url: Option<&'a str>,
    pub has_data: bool,
}

impl Part {
    pub fn media(&self) -> Option<Media<'_>> {
        let (source, is_image_by_type) = match self {
            Self::Text { .. } => return None,
            Self::Binary { mime_type, url, data } => {
                let (mime_type, url) = (mime_type.as_deref(), url.as_deref());
                let is_image = mime_type.is_some_and(is_image);
                return Some(Media { is_image, mime_type, url, has_data: data.is_some() });
            }
            Self::Image { source } => (source, true),
            Self::Audio { source } | Self::Video { source } | Self::Document { source } => (source, false),
        };
        let (mime_type, url, has_data) = match source {
            Source::Url { value, mime_type } => (mime_type.as_deref(), Some(value.as_str()), false),
            Source::Data { mime_type } => (mime_type.as_deref(), None, true),
            Source::File { mime_type } => (mime_type.as_deref(), None, false),
        };
        // An `image` from a URL need not name its media type.
        let is_image = is_image_by_type && mime_type.is_none_or(is_image);
        Some(Media { is_image, mime_type, url, has_data })
    }
}

fn is_image(mime_type: &str) -> bool {
    mime_type.split_once('/').is_some_and(|(kind, of)| kind.eq_ignore_ascii_case("image") && !of.is_empty())
}

impl Content {
    /// The words of it, one line per part.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts = parts.iter().filter_map(|part| match part {
                    Part::Text { text } => Some(text.as_str()),
                    _ => None,
                });
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// Characters are Unicode scalar values.
    pub fn text_chars(&self) -> usize {
        match self {
            Self::Text(text) => text.chars().count(),
            Self::Parts(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Text { text } => text.chars().count(),
                    _ => 0,
                })
                .sum(),
        }
    }

    pub fn media(&self) -> impl Iterator<Item = Media<'_>> {
        let parts: &[Part] = match self {
            Self::Text(_) => &[],
            Self::Parts(parts) => parts,
        };
        parts.iter().filter_map(Part::media)
    }
}

impl InputMessage {
    pub fn id(&self) -> &str {
        match self {
            Self::Developer { id, .. }
            | Self::System { id, .. }
            | Self::Assistant { id, .. }
            | Self::User { id, .. }
            | Self::Tool { id, .. }
            | Self::Activity { id, .. }
            | Self::Reasoning { id, .. } => id,
        }
    }

    pub fn role(&self) -> &'static str {
        match self {
            Self::Developer { .. } => "developer",
            Self::System { .. } => "system",
            Self::Assistant { .. } => "assistant",
            Self::User { .. } => "user",
            Self::Tool { .. } => "tool",
            Self::Activity { .. } => "activity",
            Self::Reasoning { .. } => "reasoning",
        }
    }

    /// Whether it is an instruction to the agent, and not part of the conversation.
    pub fn is_instruction(&self) -> bool {
        matches!(self, Self::Developer { .. } | Self::System { .. })
    }

    /// Its text, for an agent that receives it as context.
    pub fn text(&self) -> String {
        match self {
            Self::Developer { content, .. } | Self::System { content, .. } | Self::Reasoning { content, .. } => {
                content.clone()
            }
            Self::Assistant { content, tool_calls, .. } => {
                let calls = tool_calls.iter().map(|ToolCall { id, function }| {
                    format!("(called the tool {}, call {id}: {})", function.name, function.arguments)
                });
                let lines = content.clone().filter(|text| !text.is_empty()).into_iter().chain(calls);
                lines.collect::<Vec<_>>().join("\n")
            }
            Self::User { content, .. } => content.text(),
            Self::Tool { content, tool_call_id, error, .. } => {
                let failure = error.iter().map(|error| format!("(the call failed: {error})"));
                let lines =
                    std::iter::once(format!("(result of call {tool_call_id}) {}", content.text())).chain(failure);
                lines.collect::<Vec<_>>().join("\n")
            }
            Self::Activity { content, .. } => Value::Object(content.clone()).to_string(),
        }
    }
}

/// A message, and all of its fields as they were sent, under camelCase names and without nulls.
#[derive(Clone, Debug, PartialEq)]
pub struct SentMessage {
    pub message: InputMessage,
    pub sent: Map<String, Value>,
}

impl SentMessage {
    /// The message as context for the agent.
    pub fn remark(&self) -> Remark {
        let text = self.message.text();
        let mut sent = self.sent.clone();
        let text = match sent.get("name").and_then(Value::as_str) {
            Some(name) => format!("{name}: {text}"),
            None => text,
        };
        if sent.get("content").and_then(Value::as_str) == Some(&text) {
            sent.remove("content");
            sent.remove("role");
        }
        Remark { role: self.message.role().to_owned(), text, sent }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResumeStatus {
    Resolved,
    Cancelled,
}

/// An answer to one interrupt, which is one permission request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResumeEntry {
    pub interrupt_id: String,
    pub status: ResumeStatus,
    #[serde(default)]
    pub payload: Value,
    /// Rejected: a decision has no place for it.
    #[serde(default)]
    pub metadata: Option<Value>,
}

impl ResumeEntry {
    /// The arguments that replace those of what would run.
    pub fn edited_args(&self) -> Option<&Value> {
        let edited = self.payload.get("editedArgs").or_else(|| self.payload.get("edited_args"));
        edited.filter(|edited| !edited.is_null())
    }

    /// The choice of the client: an option by its id, or `approved`, which selects the narrowest option of that meaning.
    pub fn choice(&self) -> Choice {
        if self.status == ResumeStatus::Cancelled {
            return Choice::Cancel;
        }
        let field = |camel, snake| self.payload.get(camel).or_else(|| self.payload.get(snake));
        match field("optionId", "option_id") {
            Some(id) => id.as_str().map_or(Choice::Unreadable, |id| Choice::Option(id.to_owned())),
            None => {
                let approved = self.payload.get("approved").unwrap_or(&self.payload).as_bool();
                approved.map_or(Choice::Unreadable, Choice::Allow)
            }
        }
    }
}

/// A message with its calls, parts and sources under camelCase names. What a message contains besides is not respelled.
pub fn respell_message(value: &mut Value) {
    respell(value);
    let Some(message) = value.as_object_mut() else { return };
    if let Some(Value::Array(calls)) = message.get_mut("toolCalls") {
        for call in calls {
            respell(call);
            if let Value::Object(call) = call {
                call.entry("type").or_insert_with(|| "function".into());
            }
        }
    }
    if let Some(Value::Array(parts)) = message.get_mut("content") {
        for part in parts {
            respell(part);
            if let Some(source) = part.get_mut("source") {
                respell(source);
            }
        }
    }
}

/// An object under camelCase names, with the nulls left out.
pub fn spelled(object: Map<String, Value>) -> Map<String, Value> {
    let known = object.into_iter().filter(|(_, value)| !value.is_null());
    let (mut out, snake): (Map<_, _>, Map<_, _>) = known.partition(|(name, _)| !name.contains('_'));
    for (name, value) in snake {
        out.entry(camel_case(&name)).or_insert(value);
    }
    out
}

pub fn respell(value: &mut Value) {
    if let Value::Object(object) = value {
        *object = spelled(std::mem::take(object));
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut out = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut chars = word.chars();
        out.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        out.push_str(chars.as_str());
    }
    out
}
