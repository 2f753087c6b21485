//! The fields of messages and parts that no rule of ours depends on. They are stored with the run and replayed as they were
//! sent. A field of a wrong type, and one that this server has no meaning for, is rejected by name: a client that reads it
//! back would abort the run.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{messages::Part, refused::InputRefused};
use crate::Rule;

#[derive(Clone, Copy)]
enum FieldType {
    Text,
    Object,
    List,
    Unsupported,
}

impl FieldType {
    /// What is wrong with the value, if anything is.
    fn fault(self, value: &Value) -> Option<&'static str> {
        match self {
            Self::Text => (!value.is_string()).then_some("must be a string"),
            Self::Object => (!value.is_object()).then_some("must be an object"),
            Self::List => (!value.is_array()).then_some("must be an array"),
            Self::Unsupported => Some("is not supported: the agents of this server have no subagents"),
        }
    }
}

const MESSAGE: [(&str, FieldType); 6] = [
    ("name", FieldType::Text),
    ("encryptedValue", FieldType::Text),
    ("error", FieldType::Text),
    ("metadata", FieldType::Object),
    ("toolCalls", FieldType::List),
    ("subagentRunId", FieldType::Unsupported),
];
const TOOL_CALL: [(&str, FieldType); 2] = [("encryptedValue", FieldType::Text), ("metadata", FieldType::Object)];
const PART: [(&str, FieldType); 3] =
    [("id", FieldType::Text), ("filename", FieldType::Text), ("metadata", FieldType::Object)];

fn check(object: &Value, place: &str, fields: &[(&str, FieldType)]) -> Result<(), InputRefused> {
    for (name, wanted) in fields {
        let fault = object.get(*name).and_then(|value| wanted.fault(value));
        if let Some(fault) = fault {
            return Err(InputRefused::new(Rule::AgentRunMessagesInvalid, format!("{place}.{name} {fault}")));
        }
    }
    Ok(())
}

/// Checks the fields of a message of the run or of the transcript. Its names are in camelCase, and it has no nulls.
pub(super) fn check_message(message: &Value, index: usize) -> Result<(), InputRefused> {
    let place = format!("RunAgentInput.messages[{index}]");
    check(message, &place, &MESSAGE)?;
    for (at, call) in message["toolCalls"].as_array().into_iter().flatten().enumerate() {
        let place = format!("{place}.toolCalls[{at}]");
        check(call, &place, &TOOL_CALL)?;
        if call["type"] != "function" {
            let detail = format!("{place}.type must be \"function\"");
            return Err(InputRefused::new(Rule::AgentRunMessagesInvalid, detail));
        }
    }
    for (at, part) in message["content"].as_array().into_iter().flatten().enumerate() {
        check(part, &format!("{place}.content[{at}]"), &PART)?;
    }
    Ok(())
}

/// Why a message cannot be read, to be put after its place: the first field without which it has no meaning. Its names are in
/// camelCase, and it has no nulls.
pub(super) fn shape_fault(message: &Value) -> String {
    let text = |object: &Value, name: &str| match object[name].is_string() {
        true => None,
        false => Some(format!(".{name} must be a string")),
    };
    let optional_text = |name: &str| message.get(name).and_then(|_| text(message, name));
    let parts = || (!message["content"].is_string()).then(|| parts_fault(&message["content"])).flatten();
    let fault = match message["role"].as_str() {
        _ if !message.is_object() => Some(" must be an object".to_owned()),
        Some("developer" | "system" | "reasoning") => text(message, "id").or_else(|| text(message, "content")),
        Some("assistant") => {
            text(message, "id").or_else(|| optional_text("content")).or_else(|| calls_fault(&message["toolCalls"]))
        }
        Some("user") => text(message, "id").or_else(parts),
        Some("tool") => text(message, "id")
            .or_else(parts)
            .or_else(|| text(message, "toolCallId"))
            .or_else(|| optional_text("error")),
        Some("activity") => text(message, "id")
            .or_else(|| text(message, "activityType"))
            .or_else(|| (!message["content"].is_object()).then(|| ".content must be an object".to_owned())),
        _ => Some(".role is not that of a message".to_owned()),
    };
    fault.unwrap_or_else(|| " does not have the shape of its role".to_owned())
}

/// What is wrong with calls of tools. `None` if nothing is found.
fn calls_fault(calls: &Value) -> Option<String> {
    let Value::Array(calls) = calls else {
        return (!calls.is_null()).then(|| ".toolCalls must be an array".to_owned());
    };
    calls.iter().enumerate().find_map(|(at, call)| {
        let missing = match call {
            Value::Object(call) if !call.get("id").is_some_and(Value::is_string) => "id must be a string",
            Value::Object(call) => match call.get("function").and_then(Value::as_object) {
                None => "function must be an object",
                Some(function) if !function.get("name").is_some_and(Value::is_string) => {
                    "function.name must be a string"
                }
                Some(function) if !function.get("arguments").is_some_and(Value::is_string) => {
                    "function.arguments must be a string"
                }
                Some(_) => return None,
            },
            _ => return Some(format!(".toolCalls[{at}] must be an object")),
        };
        Some(format!(".toolCalls[{at}].{missing}"))
    })
}

/// What is wrong with content that is no text. `None` if nothing is found.
fn parts_fault(content: &Value) -> Option<String> {
    let Value::Array(parts) = content else { return Some(".content must be a string or an array of parts".to_owned()) };
    let at = parts.iter().position(|part| Part::deserialize(part).is_err())?;
    Some(format!(".content[{at}] does not have the shape of its type"))
}

/// The fields of the user's message beside what the rules read.
pub(super) fn of_user(sent: &Map<String, Value>) -> Map<String, Value> {
    without(sent, &["id", "role", "content"])
}

/// The same for each part of its content. Empty if the content is text.
pub(super) fn of_parts(sent: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let parts = sent.get("content").and_then(Value::as_array).into_iter().flatten();
    let fields = parts.filter_map(Value::as_object);
    fields.map(|part| without(part, &["type", "text", "source", "mimeType", "url", "data"])).collect()
}

fn without(object: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let others = object.iter().filter(|(name, _)| !names.contains(&name.as_str()));
    others.map(|(name, value)| (name.clone(), value.clone())).collect()
}
