//! Events of the kernel as frames. An event has one frame, or two: a prompt that runs out of time ends with an error and a
//! cancel, and the echo of a prompt that waited for other turns is sent before the first event of its own turn. The frames depend
//! only on the event and on facts that were settled before it was recorded, so that a client that reconnects receives the frames
//! that it would have received live.

mod context;
mod ends;
mod notified;
mod permissions;
mod queued;
mod streamed;
mod tools;

pub use context::{PromptRef, TranslationContext, is_deadline};
pub use queued::{begins_turn, work_types};
pub use streamed::{MessagePart, SentPieces, restarts_attempt};

use serde_json::{Map, Value, json};

use self::context::picked;
use super::frames::{FRAMES_PER_EVENT, Frame, SESSION_CLOSED, first_id};
use crate::{
    kernel::{
        chain,
        events::{Event, EventType, PHASE_ATTEMPT_RESTARTED},
    },
    text::clip,
};

/// Bytes of the type of a noted frame.
const FRAME_TYPE_BYTES_MAX: usize = 64;
const FRAMES_PER_EVENT_MAX: usize = FRAMES_PER_EVENT as usize;

/// The frames of an event: one or two. None if the event's payload was removed, unless that is known to be the session's end.
pub fn frames(event: &Event, context: TranslationContext<'_>) -> Vec<Frame> {
    let Some(payload) = event.payload.as_deref() else { return erased(event, context) };
    let payload = serde_json::from_str(payload).unwrap_or(Value::Null);
    if let Some(frame) = recorded_frame(event, &payload) {
        return vec![frame];
    }
    let mut bodies = match event.event_type {
        EventType::TerminalStatus => ends::of_command(event, context),
        EventType::Audit if is_late(&payload, context) => ends::out_of_time(payload["reason"].as_str(), "", context),
        EventType::UserMessage if context.waits => vec![queued::added(event, &user_text(&payload), context)],
        _ => vec![body(event, &payload, context)],
    };
    // The two frames of a prompt that ran out of time leave no id for the echo.
    if let Some(message) = context.queued_message.filter(|_| bodies.len() < FRAMES_PER_EVENT_MAX) {
        let message = serde_json::from_str(message).unwrap_or(Value::Null);
        bodies.insert(0, context.update(echo(&message)));
    }
    let frame = |((frame_type, data), n): ((&'static str, Value), i64)| {
        let mut frame = numbered(event, Frame::new(frame_type, data, event.created_at), n);
        frame.prompt_id = context.prompt.map(|prompt| prompt.prompt_id.clone());
        let submitter = || context.prompt.and_then(|prompt| prompt.client_id.clone());
        let voter = permissions::voter(event.event_type, &payload);
        let cause = voter.or_else(|| payload["origin"].as_str().filter(|_| has_origin(event)).map(str::to_owned));
        frame.originator_client_id = cause.or_else(|| submitter().filter(|_| !is_of_any_client(event, &payload)));
        frame
    };
    bodies.into_iter().zip(0..).map(frame).collect()
}

/// Whether the event names the client that caused it, if a client did.
fn has_origin(event: &Event) -> bool {
    matches!(event.event_type, EventType::Audit | EventType::Session)
}

/// Whether any client, or none, may have caused the event.
fn is_of_any_client(event: &Event, payload: &Value) -> bool {
    match event.event_type {
        EventType::PermissionResolved => true,
        // The voter may have no client id. The client that submitted the prompt has not voted for it.
        EventType::Audit => {
            let action = payload["action"].as_str();
            let is_late = is_deadline(payload["reason"].as_str());
            matches!(action, Some("permission.voted" | "permission.forbidden"))
                || (action == Some("command.cancel") && !is_late)
        }
        _ => false,
    }
}

fn numbered(event: &Event, mut frame: Frame, n: i64) -> Frame {
    frame.id = Some(first_id(event.session_seq) + n);
    frame
}

fn body(event: &Event, payload: &Value, context: TranslationContext<'_>) -> (&'static str, Value) {
    let event_type = event.event_type;
    match event_type {
        EventType::UserMessage => context.update(echo(payload)),
        EventType::AssistantDelta | EventType::AssistantMessage => {
            context.update(message(payload, context.is_streamed))
        }
        EventType::ReasoningDelta | EventType::Reasoning => context.update(thought(payload, context.is_streamed)),
        EventType::ToolCall => context.update(tools::call(payload)),
        EventType::CommandOutput => match tools::output(payload) {
            Some(update) => context.update(update),
            None => context.notice(event_type, picked(payload, &["stream", "text"])),
        },
        EventType::Activity => match plan(payload) {
            Some(update) => context.update(update),
            None => context.notice(event_type, whole(payload)),
        },
        EventType::Step | EventType::State | EventType::Custom => context.notice(event_type, whole(payload)),
        EventType::Usage => context.update(usage(payload)),
        EventType::BackendStatus if payload["phase"] == PHASE_ATTEMPT_RESTARTED => context.update(restarted(payload)),
        EventType::BackendStatus => notified::frame(payload, context).unwrap_or_else(|| {
            let names = ["phase", "message", "resumeAt", "model", "reason", "toolCallId", "tools", "context"];
            context.notice(event_type, picked(payload, &names))
        }),
        EventType::Lease => context.notice(event_type, picked(payload, &["state", "leaseEpoch"])),
        EventType::Error => context.notice(event_type, picked(payload, &["failureKind", "message", "willRetry"])),
        EventType::PermissionRequest => permissions::request(event, payload, context),
        EventType::PermissionResolved => permissions::resolved(payload, context),
        EventType::Audit => audit(payload, context),
        EventType::Session => session(payload, context),
        EventType::TerminalStatus => context.notice(event_type, picked(payload, &["status", "failureKind", "message"])),
    }
}

/// Parts of a prompt, beside its text, that its echo lists, and characters of each of their texts.
const ECHO_PARTS_MAX: usize = 32;
const ECHO_CHARS_MAX: usize = 512;

/// The echo of a prompt. Its content is the text, or the first part of a prompt without text. All parts that are no text are listed
/// beside it, without the bytes of images: those are only in the command.
fn echo(payload: &Value) -> Value {
    let parts = payload["content"].as_array().into_iter().flatten();
    let parts: Vec<Value> = parts.filter_map(echoed_part).take(ECHO_PARTS_MAX).collect();
    let text = user_text(payload);
    let content = match parts.first() {
        Some(part) if text.is_empty() => part.clone(),
        _ => json!({"type": "text", "text": text}),
    };
    let mut meta = json!({"source": "bridge-echo"});
    if !parts.is_empty() {
        meta["parts"] = parts.into();
    }
    json!({"sessionUpdate": "user_message_chunk", "content": content, "_meta": meta})
}

/// A part that is no text. `None` if it is text.
fn echoed_part(part: &Value) -> Option<Value> {
    let text = |name: &str| part[name].as_str().map(|text| clip(text, ECHO_CHARS_MAX)).unwrap_or_default();
    match part["type"].as_str()? {
        "image" => {
            Some(json!({"type": "image", "mimeType": text("mimeType"), "data": "", "_meta": {"bytes": part["bytes"]}}))
        }
        "resource_link" => Some(json!({"type": "resource_link", "uri": text("uri"), "name": text("name")})),
        _ => None,
    }
}

/// The text of a message's parts.
fn user_text(payload: &Value) -> String {
    let parts = payload["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = parts.filter_map(|part| part["text"].as_str()).chain(payload["text"].as_str()).collect();
    texts.join("\n")
}

/// Bytes of the name of a segment, as published clients accept it.
const SEGMENT_BYTES_MAX: usize = 512;
/// The text of the message between two attempts at a turn.
const RESTARTED: &str = "[The turn was interrupted and starts again. Its reply up to here does not count.]";

/// A piece of a message, or the end of one. A whole message repeats no text that its pieces have brought.
fn message(payload: &Value, is_streamed: bool) -> Value {
    let mut meta = picked(payload, &["messageId", "final", "textTruncated"]);
    let text = chunk_text(payload, is_streamed, &mut meta);
    chunk("agent_message_chunk", text, meta)
}

fn thought(payload: &Value, is_streamed: bool) -> Value {
    let mut meta = picked(payload, &["messageId", "textTruncated"]);
    let text = chunk_text(payload, is_streamed, &mut meta);
    chunk("agent_thought_chunk", text, meta)
}

/// A piece of a text. Published clients add it to the text before unless its segment is another one, so that the messages of two
/// attempts at a turn, or of two calls of a model, stay apart.
fn chunk(kind: &str, text: &str, meta: Map<String, Value>) -> Value {
    let segment = meta.get("messageId").and_then(Value::as_str).filter(|id| id.len() <= SEGMENT_BYTES_MAX);
    let segment = segment.map(|id| json!({"segmentId": id}));
    let mut update =
        json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}, "_meta": {"ostler": meta}});
    if let Some(segment) = segment {
        update["_meta"]["qwenTranscript"] = segment;
    }
    update
}

/// Another attempt at the turn begins. It is a message of its own, as the published daemon sends notices of its agent, because
/// published clients show no other update in the middle of a turn.
fn restarted(payload: &Value) -> Value {
    let mut facts = picked(payload, &["phase", "attemptId", "previousAttemptId"]);
    facts.insert("type".into(), EventType::BackendStatus.as_str().into());
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": RESTARTED},
        "_meta": {"source": "attempt_restarted", "qwenDiscreteMessage": true, "ostler": facts}})
}

fn chunk_text<'a>(payload: &'a Value, is_streamed: bool, meta: &mut Map<String, Value>) -> &'a str {
    if let Some(delta) = payload["delta"].as_str() {
        return delta;
    }
    meta.insert("complete".into(), true.into());
    payload["text"].as_str().filter(|_| !is_streamed).unwrap_or_default()
}

/// A plan, as ACP agents and Codex report it. `None` if the activity is none.
fn plan(payload: &Value) -> Option<Value> {
    if payload["activityType"] != "plan" {
        return None;
    }
    let content = &payload["content"];
    let entries = content["entries"].as_array().or_else(|| content["plan"].as_array())?;
    let entry = |entry: &Value| {
        let text = entry["content"].as_str().or_else(|| entry["step"].as_str()).unwrap_or_default();
        let status = match entry["status"].as_str() {
            Some("inProgress" | "in_progress") => "in_progress",
            Some("completed") => "completed",
            _ => "pending",
        };
        json!({"content": text, "priority": entry["priority"].as_str().unwrap_or("medium"), "status": status})
    };
    Some(json!({"sessionUpdate": "plan", "entries": entries.iter().map(entry).collect::<Vec<_>>()}))
}

/// The usage of one model call.
fn usage(payload: &Value) -> Value {
    let count = |field: &str| payload[field].as_u64().unwrap_or(0);
    let used = payload["totalTokens"].as_u64().unwrap_or_else(|| count("inputTokens") + count("outputTokens"));
    let mut update = json!({"sessionUpdate": "usage_update", "used": used});
    if let Some(size) = payload["contextWindow"].as_u64().or_else(|| payload["modelContextWindow"].as_u64()) {
        update["size"] = size.into();
    }
    if let Some(cost) = payload["costUsd"].as_f64() {
        update["cost"] = json!({"amount": cost, "currency": "USD"});
    }
    let fields =
        ["model", "provider", "inputTokens", "outputTokens", "totalTokens", "cachedInputTokens", "reasoningTokens"];
    update["_meta"] = json!({"usage": picked(payload, &fields)});
    update
}

/// Whether the event cancels a turn because it ran out of time. That is its end for clients: the agent may take a while to stop.
fn is_late(payload: &Value, context: TranslationContext<'_>) -> bool {
    let is_turn = context.prompt.is_some_and(|prompt| prompt.is_turn);
    is_turn && cancels_late(payload)
}

fn cancels_late(payload: &Value) -> bool {
    payload["action"] == "command.cancel" && is_deadline(payload["reason"].as_str())
}

/// Whether an audit event cancels its command because it ran out of time. `false` if the event's payload was removed.
pub fn is_late_cancel(event: &Event) -> bool {
    let payload = event.payload.as_deref().and_then(|payload| serde_json::from_str(payload).ok());
    payload.is_some_and(|payload: Value| cancels_late(&payload))
}

fn audit(payload: &Value, context: TranslationContext<'_>) -> (&'static str, Value) {
    match payload["action"].as_str() {
        Some("command.cancel") if !is_deadline(payload["reason"].as_str()) => ends::cancelled(context),
        Some("permission.voted") => permissions::voted(payload, context),
        Some("permission.forbidden") => permissions::forbidden(payload, context),
        _ => context.notice(EventType::Audit, picked(payload, &["action", "reason"])),
    }
}

fn session(payload: &Value, context: TranslationContext<'_>) -> (&'static str, Value) {
    let session_id = context.session_id;
    match payload["change"].as_str() {
        Some("renamed") => {
            let name = payload["title"].as_str().unwrap_or_default();
            ("session_metadata_updated", json!({"sessionId": session_id, "displayName": name}))
        }
        Some(change @ ("closed" | "erased")) => (SESSION_CLOSED, json!({"sessionId": session_id, "reason": change})),
        _ => context.notice(EventType::Session, picked(payload, &["change", "labels", "participant", "reason"])),
    }
}

/// The frame that a service of this dialect recorded in the log.
fn recorded_frame(event: &Event, payload: &Value) -> Option<Frame> {
    let is_note = event.event_type == EventType::Session && payload["change"] == "noted";
    let frame_type = payload["note"].as_str().filter(|_| is_note)?.strip_prefix("daemon.")?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    if !(1..=FRAME_TYPE_BYTES_MAX).contains(&frame_type.len()) || !frame_type.bytes().all(is_name) {
        return None;
    }
    let note = &payload["data"];
    let mut frame = Frame::new(frame_type.to_owned(), note["data"].clone(), event.created_at);
    frame.originator_client_id = note["clientId"].as_str().map(str::to_owned);
    Some(numbered(event, frame, 0))
}

/// The last event of an erased session is known by its digest, also without its payload.
fn erased(event: &Event, context: TranslationContext<'_>) -> Vec<Frame> {
    let erasure = json!({"change": "erased"});
    if event.event_type != EventType::Session || event.digest != chain::payload_digest(&erasure.to_string()) {
        return vec![];
    }
    let (frame_type, data) = session(&erasure, context);
    vec![numbered(event, Frame::new(frame_type, data, event.created_at), 0)]
}

/// What the agent itself reports, in full: its size is limited where it is recorded.
fn whole(payload: &Value) -> Map<String, Value> {
    [("payload".to_owned(), payload.clone())].into_iter().collect()
}

#[cfg(test)]
mod tests;
