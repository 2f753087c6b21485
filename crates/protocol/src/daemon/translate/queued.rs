//! Prompts that wait for the turns before them. Their echo is sent when their own turn begins, so that no prompt appears in the
//! middle of the reply to another one.

use serde_json::{Value, json};

use super::context::TranslationContext;
use crate::kernel::{
    events::{Event, EventType},
    facts::Facts,
    runs::TerminalStatus,
};

/// The frame of a prompt that waits, as the published daemon sends it.
pub(super) fn added(event: &Event, text: &str, context: TranslationContext<'_>) -> (&'static str, Value) {
    let prompt_id = context.prompt.map(|prompt| prompt.prompt_id.as_str()).unwrap_or_default();
    let queued_at = event.created_at.as_millisecond();
    let data = json!({"sessionId": context.session_id, "promptId": prompt_id, "text": text, "queuedAt": queued_at});
    ("pending_prompt_added", data)
}

/// Whether the event shows that the turn of its command has begun, if no earlier turn is unfinished. What is recorded together with
/// a prompt, and a cancel, may come before that. A turn that is cancelled before it begins never does.
pub fn begins_turn(event: &Event) -> bool {
    match event.event_type {
        EventType::TerminalStatus => {
            matches!(event.facts(), Facts::Terminal(end) if end.status != TerminalStatus::Cancelled)
        }
        event_type => is_work(event_type),
    }
}

/// The types of events that a turn at work records.
pub fn work_types() -> Vec<EventType> {
    EventType::ALL.iter().copied().filter(|event_type| is_work(*event_type)).collect()
}

fn is_work(event_type: EventType) -> bool {
    match event_type {
        EventType::AssistantDelta
        | EventType::AssistantMessage
        | EventType::ReasoningDelta
        | EventType::Reasoning
        | EventType::ToolCall
        | EventType::CommandOutput
        | EventType::Step
        | EventType::Activity
        | EventType::Usage
        | EventType::BackendStatus
        | EventType::PermissionRequest
        | EventType::Error
        | EventType::Custom => true,
        EventType::UserMessage
        | EventType::State
        | EventType::Lease
        | EventType::PermissionResolved
        | EventType::TerminalStatus
        | EventType::Session
        | EventType::Audit => false,
    }
}
