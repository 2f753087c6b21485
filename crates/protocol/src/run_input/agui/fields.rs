//! The fields of messages and parts that no rule of ours depends on. They are stored with the run and replayed as they were
//! sent. A field of a wrong type, and one that this server has no meaning for, is rejected by name: a client that reads it
//! back would abort the run.

use serde_json::{Map, Value};

use super::refused::InputRefused;
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

/// Checks the fields of a message that is stored and replayed. Its names are in camelCase, and it has no nulls.
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
