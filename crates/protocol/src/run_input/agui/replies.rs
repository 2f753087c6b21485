//! Results of the front end's tools among the messages of an input. A stock client sends its whole transcript, and a run that
//! only answers calls ends with the results; other clients send the results alone.

use serde_json::{Map, Value};

use super::{
    input::{Form, is_instruction},
    messages::{InputMessage, SentMessage},
    refused::InputRefused,
};
use crate::{Rule, json::text_of};

/// A result is stored as a part of one event.
pub const TOOL_RESULT_BYTES_MAX: usize = 64 * 1024;
/// Results that are compared with the thread's calls: the newest.
const REPLIES_MAX: usize = 64;

/// A tool message. It answers a call of this id, if the thread has one without a result.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolReply {
    pub message_id: String,
    pub tool_call_id: String,
    pub content: String,
    pub error: Option<String>,
    /// Its other fields: stored and replayed.
    pub fields: Map<String, Value>,
}

/// Where the messages begin that count, and whether they only answer calls.
pub(super) fn split(messages: &[Value], form: Form, resumes: bool) -> (usize, bool) {
    if resumes {
        return (if form == Form::Streamed { messages.len() } else { 0 }, false);
    }
    let results_from = messages.iter().rposition(|message| message["role"] != "tool").map_or(0, |at| at + 1);
    let (before, results) = messages.split_at(results_from);
    match form {
        _ if results.is_empty() || before.is_empty() => {}
        Form::Streamed if results.iter().all(|result| is_called(before, result)) => return (results_from, true),
        _ => {}
    }
    let is_user = |message: &Value| message["role"] == "user";
    let from = match form {
        Form::Queued => 0,
        Form::Opening => messages.iter().position(|message| !is_instruction(message)).unwrap_or(0),
        Form::Streamed => messages.iter().rposition(is_user).unwrap_or(0),
    };
    (from, before.is_empty() && !results.is_empty())
}

/// Whether the transcript has the call. Without it, a tool message is context like any other.
fn is_called(transcript: &[Value], result: &Value) -> bool {
    let either = |object: &Value, camel: &str, snake: &str| object.get(camel).or_else(|| object.get(snake)).cloned();
    let Some(id) = either(result, "toolCallId", "tool_call_id") else { return false };
    transcript.iter().rev().any(|message| {
        let calls = either(message, "toolCalls", "tool_calls");
        calls.as_ref().and_then(Value::as_array).is_some_and(|calls| calls.iter().any(|call| call["id"] == id))
    })
}

/// The results of a run that only answers calls.
pub(super) fn of_current(current: &[SentMessage]) -> Result<Vec<ToolReply>, InputRefused> {
    let mut replies: Vec<ToolReply> = vec![];
    for (index, SentMessage { message, sent }) in current.iter().enumerate() {
        let fault = |what: &str| {
            InputRefused::new(Rule::AgentRunMessagesInvalid, format!("a tool message (number {}) {what}", index + 1))
        };
        let Some(reply) = ToolReply::of(message) else { continue };
        let has_media = matches!(message, InputMessage::Tool { content, .. } if content.media().next().is_some());
        if has_media {
            return Err(fault("has content that is not text"));
        }
        if replies.iter().any(|other| other.tool_call_id == reply.tool_call_id) {
            return Err(fault("answers a call that another one answers"));
        }
        let known = ["id", "role", "content", "toolCallId", "error"];
        let fields = sent.iter().filter(|(name, _)| !known.contains(&name.as_str()));
        let fields: Map<_, _> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        let error_bytes = reply.error.as_ref().map_or(0, String::len);
        if reply.content.len() + error_bytes + text_of(&fields).len() > TOOL_RESULT_BYTES_MAX {
            return Err(fault(&format!("exceeds {TOOL_RESULT_BYTES_MAX} bytes")));
        }
        replies.push(ToolReply { fields, ..reply });
    }
    Ok(replies)
}

/// The results among messages that do more than answer. A result that is too large to store is context.
pub(super) fn of_messages<'a>(messages: impl DoubleEndedIterator<Item = &'a InputMessage>) -> Vec<ToolReply> {
    let replies = messages.rev().filter_map(ToolReply::of);
    replies.filter(|reply| reply.content.len() <= TOOL_RESULT_BYTES_MAX).take(REPLIES_MAX).collect()
}

impl ToolReply {
    fn of(message: &InputMessage) -> Option<Self> {
        let InputMessage::Tool { id, content, tool_call_id, error } = message else { return None };
        Some(Self {
            message_id: id.clone(),
            tool_call_id: tool_call_id.clone(),
            content: content.text(),
            error: error.clone(),
            fields: Map::new(),
        })
    }
}
