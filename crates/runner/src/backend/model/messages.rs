//! The messages of a request: the earlier turns of the session with the calls of tools between them, and the current prompt.

use ostler_protocol::kernel::conversation::{ConversationMessage, PastCall, Role};

use super::wire::{ChatMessage, Speaker, WireCall};

/// The earlier turns and the current prompt with its images.
pub(super) fn request_messages(
    earlier: &[ConversationMessage],
    calls: &[PastCall],
    prompt: &str,
    images: &[String],
) -> Vec<ChatMessage> {
    let mut messages = earlier_messages(earlier, calls);
    push_text(&mut messages, Role::User, prompt);
    if let Some(last) = messages.last_mut() {
        last.add_images(images);
    }
    messages
}

/// The earlier turns, with the calls of the server's tools at their places.
pub(super) fn earlier_messages(earlier: &[ConversationMessage], calls: &[PastCall]) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = vec![];
    for place in 0..=earlier.len() {
        let of_place = calls.iter().enumerate().filter(|(_, call)| call.before == place);
        let past = of_place.map(|(number, call)| {
            let (name, arguments) = (call.name.clone(), call.arguments.clone());
            (WireCall { id: format!("past_{}", number + 1), name, arguments }, call.result.clone())
        });
        push_calls(&mut messages, past.collect());
        if let Some(message) = earlier.get(place) {
            push_text(&mut messages, message.role, &message.text);
        }
    }
    messages
}

/// Adds a text. Consecutive messages of the same role are joined, because many models accept only alternating roles.
pub(super) fn push_text(messages: &mut Vec<ChatMessage>, role: Role, text: &str) {
    match messages.last_mut() {
        Some(last) if last.role == role.into() => last.append_text(text),
        _ => messages.push(ChatMessage::of(role, text)),
    }
}

/// Adds calls that the model made, with their results.
pub(super) fn push_calls(messages: &mut Vec<ChatMessage>, calls: Vec<(WireCall, String)>) {
    if calls.is_empty() {
        return;
    }
    let made: Vec<WireCall> = calls.iter().map(|(call, _)| call.clone()).collect();
    match messages.last_mut() {
        Some(last) if last.role == Speaker::Assistant => last.add_calls(&made),
        _ => messages.push(ChatMessage::reply("", &made)),
    }
    messages.extend(calls.iter().map(|(call, result)| ChatMessage::tool_result(call, result)));
}
