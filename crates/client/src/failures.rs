//! Failures of the connection itself, as opposed to failures that a server reports.

use std::error::Error;

use ostler_protocol::{Failure, FailureKind, Rule, text::clip};

const MESSAGE_CHARS_MAX: usize = 400;

/// Whether the same call may succeed shortly, because the server is unreachable or overloaded. Whether repeating the call
/// is safe is for the caller to know.
pub fn is_transient(failure: &Failure) -> bool {
    use FailureKind::*;
    is_unreachable(failure) || matches!(failure.kind, Overloaded | RateLimited | Draining | InfraFailed | Internal)
}

/// Whether there was no complete response, so that the outcome of the call is unknown.
pub fn is_unreachable(failure: &Failure) -> bool {
    matches!(failure.broken_rule(), Some(Rule::ServerUnreachable | Rule::ServerTimeout | Rule::AnswerInterrupted))
}

pub(crate) fn unreachable(error: &reqwest::Error) -> Failure {
    let message = format!("the server cannot be reached: {}", causes(error));
    Failure::rule(Rule::ServerUnreachable, message)
}

pub(crate) fn interrupted(error: &(dyn Error + 'static)) -> Failure {
    let message = format!("the connection broke off in the middle of a response: {}", causes(error));
    Failure::rule(Rule::AnswerInterrupted, message)
}

pub(crate) fn timed_out(after_ms: u64) -> Failure {
    let message = format!("the server did not respond within {} s", after_ms / 1_000);
    Failure::rule(Rule::ServerTimeout, message)
}

/// The error and its causes. The outermost error alone ("error sending request") is not helpful.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    clip(&text, MESSAGE_CHARS_MAX)
}
