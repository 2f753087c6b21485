//! How prompts end. A turn that stops for a reason that agents know is complete; any other end is an error.

use serde_json::{Value, json};

use super::context::{TranslationContext, is_deadline, picked};
use crate::{
    FailureKind,
    kernel::{
        budgets::DEADLINE_EXCEEDED,
        events::{Event, EventType},
        facts::{Facts, TerminalFacts},
        runs::TerminalStatus,
    },
};

/// What the ACP backend reports when its agent refuses.
const REFUSED: &str = "the agent refuses to continue";
/// What the ACP backend reports when its agent reached its own limit.
const OWN_LIMIT: &str = "limit of model calls";

/// The frames of a terminal event.
pub(super) fn of_command(event: &Event, context: TranslationContext<'_>) -> Vec<(&'static str, Value)> {
    let is_turn = event.command_id.is_some() && context.prompt.is_some_and(|prompt| prompt.is_turn);
    let Some(end) = terminal(event).filter(|_| is_turn && !context.is_end_sent) else {
        // Runs, steers and interrupts end without ending a turn; a turn that ran out of time has ended before.
        let payload = event.payload.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
        return vec![
            context.notice(EventType::TerminalStatus, picked(&payload, &["status", "failureKind", "message"])),
        ];
    };
    let message = end.message.clone().unwrap_or_default();
    let is_late = is_deadline(context.cancel_reason) || is_deadline(Some(&message)) || is_out_of_time(&end, &message);
    if is_late && end.status != TerminalStatus::Completed {
        return out_of_time(context.cancel_reason, &message, context);
    }
    vec![match stop_reason(&end, &message) {
        Some(reason) => complete(reason, context),
        None => {
            let kind = end.failure_kind.unwrap_or(FailureKind::BackendFailed);
            let message = if message.is_empty() { kind.row().meaning } else { &message };
            failed(message, &kind.as_str().replace('-', "_"), context)
        }
    }]
}

/// The frames of a turn that ran out of time: an error, and then the cancel.
pub(super) fn out_of_time(
    cancel_reason: Option<&str>,
    message: &str,
    context: TranslationContext<'_>,
) -> Vec<(&'static str, Value)> {
    let message = late_message(cancel_reason, message);
    vec![failed(&message, DEADLINE_EXCEEDED, context), cancelled(context)]
}

fn terminal(event: &Event) -> Option<TerminalFacts> {
    match event.facts() {
        Facts::Terminal(end) => Some(end),
        _ => None,
    }
}

/// The prompt is to stop. Its end follows.
pub(super) fn cancelled(context: TranslationContext<'_>) -> (&'static str, Value) {
    ("prompt_cancelled", with_prompt(json!({"sessionId": context.session_id}), context))
}

fn complete(reason: &str, context: TranslationContext<'_>) -> (&'static str, Value) {
    ("turn_complete", with_prompt(json!({"sessionId": context.session_id, "stopReason": reason}), context))
}

fn failed(message: &str, code: &str, context: TranslationContext<'_>) -> (&'static str, Value) {
    let data = json!({"sessionId": context.session_id, "message": message, "code": code});
    ("turn_error", with_prompt(data, context))
}

fn with_prompt(mut data: Value, context: TranslationContext<'_>) -> Value {
    if let Some(prompt) = context.prompt {
        data["promptId"] = prompt.prompt_id.as_str().into();
    }
    data
}

/// The execution policy's time for one command is a deadline too.
fn is_out_of_time(end: &TerminalFacts, message: &str) -> bool {
    end.failure_kind == Some(FailureKind::BudgetExceeded) && message.contains("timeoutMs")
}

fn late_message(cancel_reason: Option<&str>, message: &str) -> String {
    let reason = cancel_reason.filter(|reason| is_deadline(Some(reason))).unwrap_or(message);
    let words = reason.strip_prefix(DEADLINE_EXCEEDED).unwrap_or(reason).trim_start_matches([':', ' ']);
    if words.is_empty() { "the prompt exceeded its deadline".to_owned() } else { words.to_owned() }
}

/// Why the turn stopped, in the words of ACP. `None` if it failed.
fn stop_reason(end: &TerminalFacts, message: &str) -> Option<&'static str> {
    match (end.status, end.failure_kind) {
        (TerminalStatus::Completed, _) => Some("end_turn"),
        (TerminalStatus::Cancelled, _) | (TerminalStatus::Blocked, Some(FailureKind::Cancelled)) => Some("cancelled"),
        (TerminalStatus::Blocked, Some(FailureKind::PermissionDenied)) => Some("refusal"),
        (_, Some(FailureKind::BudgetExceeded)) => {
            let names = |fields: &[&str]| fields.iter().any(|field| message.contains(field));
            let is_of_calls = names(&["maxTurns", "maxToolCalls", OWN_LIMIT]);
            let is_of_tokens = names(&["maxTokens", "maxCostUsd"]);
            is_of_calls.then_some("max_turn_requests").or_else(|| is_of_tokens.then_some("max_tokens"))
        }
        (TerminalStatus::Failed, Some(FailureKind::BackendFailed)) if message == REFUSED => Some("refusal"),
        _ => None,
    }
}
