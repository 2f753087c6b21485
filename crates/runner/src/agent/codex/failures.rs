//! What Codex's refusals and errors mean for us. Its messages hold the provider's address and raw answers; they are cut
//! here, and lose their secrets like every event on its way into the log.

use ostler_protocol::FailureKind;
use serde_json::Value;

use super::wire::TurnError;
use crate::{
    agent::{TurnEnd, process::CallError},
    holdback::clip,
};

const MESSAGE_CHARS_MAX: usize = 500;

/// Whether the provider says "later": the same turn may go on after a while.
pub fn says_later(error: &TurnError) -> bool {
    let (name, status) = described(error);
    matches!(name, "usageLimitExceeded" | "rateLimitExceeded" | "flexUnavailable") || status == Some(429)
}

/// The kind of failure of a turn that Codex ended as failed.
pub fn kind(error: &TurnError) -> FailureKind {
    let (name, status) = described(error);
    match (name, status) {
        ("unauthorized", _) | (_, Some(401 | 403)) => FailureKind::ProviderAuthFailed,
        ("usageLimitExceeded" | "rateLimitExceeded" | "flexUnavailable" | "serverOverloaded", _)
        | ("internalServerError" | "policyCapacityUnavailable", _)
        | (_, Some(408 | 429 | 500..)) => FailureKind::ProviderUnavailable,
        (_, Some(_)) => FailureKind::BackendFailed,
        (
            "httpConnectionFailed"
            | "responseStreamConnectionFailed"
            | "responseStreamDisconnected"
            | "responseTooManyFailedAttempts",
            None,
        ) => FailureKind::ProviderUnavailable,
        // A stream that was cut once too often is told by its words only, and so is a key that was never there.
        _ if error.message.starts_with("stream disconnected") => FailureKind::ProviderUnavailable,
        _ if error.message.starts_with("Missing environment variable") => FailureKind::SecretUnavailable,
        _ => FailureKind::BackendFailed,
    }
}

/// Name and HTTP status of an error's `codexErrorInfo`.
fn described(error: &TurnError) -> (&str, Option<u64>) {
    match &error.codex_error_info {
        Some(Value::String(name)) => (name, None),
        Some(Value::Object(info)) => match info.iter().next() {
            Some((name, detail)) => (name, detail["httpStatusCode"].as_u64()),
            None => ("", None),
        },
        _ => ("", None),
    }
}

pub fn message(error: &TurnError) -> String {
    clip(&error.message, MESSAGE_CHARS_MAX)
}

/// How a turn ends that Codex ended as failed.
pub fn failed(error: &TurnError) -> TurnEnd {
    TurnEnd::failed(kind(error), message(error))
}

/// How a turn ends whose `thread/resume` was refused. A rollout that is not there was evicted, where the session has a
/// storage of its own; it is never replaced by a new thread.
pub fn not_resumed(error: &CallError, has_storage: bool) -> TurnEnd {
    match error {
        CallError::Refused(refusal) if refusal.message.contains("no rollout found") && has_storage => {
            let message = "the session's storage no longer holds the agent's thread";
            TurnEnd::failed(FailureKind::SessionStoreEvicted, message)
        }
        CallError::Refused(refusal) if is_config(&refusal.message) => refused("thread/resume", error),
        CallError::Refused(refusal) => {
            let message = format!("the agent cannot resume its thread: {}", clip(&refusal.message, MESSAGE_CHARS_MAX));
            TurnEnd::failed(FailureKind::ThreadResumeFailed, message)
        }
        CallError::TimedOut | CallError::Gone | CallError::Broken(_) => refused("thread/resume", error),
    }
}

fn is_config(message: &str) -> bool {
    message.contains("failed to load configuration")
}

/// Another process has the thread open: its runner is about to end.
pub fn is_writer_conflict(error: &CallError) -> bool {
    matches!(error, CallError::Refused(refusal) if refusal.message.contains("active writer"))
}

/// How a turn ends when a call it depends on has no result.
pub fn refused(method: &str, error: &CallError) -> TurnEnd {
    match error {
        CallError::Refused(refusal) => {
            let message = format!("the agent refused {method}: {}", clip(&refusal.message, MESSAGE_CHARS_MAX));
            TurnEnd::failed(FailureKind::BackendFailed, message)
        }
        CallError::TimedOut => {
            TurnEnd::failed(FailureKind::BackendTimeout, format!("the agent did not answer {method}"))
        }
        CallError::Gone => TurnEnd::failed(FailureKind::BackendFailed, format!("the agent ended during {method}")),
        CallError::Broken(fault) => {
            TurnEnd::failed(FailureKind::BackendFailed, format!("the agent's output holds {fault}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::rpc::RpcError;
    use serde_json::json;

    use super::*;

    /// Each as it was seen on the wire.
    #[test]
    fn every_failure_of_a_provider_has_its_kind() {
        for (info, said, expected) in [
            (json!({"httpConnectionFailed": {"httpStatusCode": 401}}), "unexpected status 401", "provider-auth-failed"),
            (json!("other"), "{\"error\": {\"message\": \"unsupported parameter\"}}", "backend-failed"),
            (
                json!({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}),
                "exceeded retry limit",
                "provider-unavailable",
            ),
            (json!({"httpConnectionFailed": {"httpStatusCode": 503}}), "unexpected status 503", "provider-unavailable"),
            (json!("contextWindowExceeded"), "Codex ran out of room", "backend-failed"),
            (json!("other"), "stream disconnected before completion: stream closed", "provider-unavailable"),
            (json!("other"), "Missing environment variable: `X`.", "secret-unavailable"),
            (json!("unauthorized"), "", "provider-auth-failed"),
            (json!("serverOverloaded"), "", "provider-unavailable"),
            (json!("aWordOfTomorrow"), "", "backend-failed"),
            (json!({"aWordOfTomorrow": {"httpStatusCode": 418}}), "", "backend-failed"),
            (Value::Null, "", "backend-failed"),
        ] {
            let error =
                TurnError { message: said.into(), codex_error_info: Some(info.clone()), additional_details: None };
            assert_eq!(kind(&error).as_str(), expected, "{info}");
        }
    }

    #[test]
    fn only_a_provider_that_says_later_is_tried_again() {
        let error = |info| TurnError { codex_error_info: Some(info), ..TurnError::default() };
        assert!(says_later(&error(json!({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}))));
        assert!(says_later(&error(json!("usageLimitExceeded"))));
        assert!(!says_later(&error(json!({"httpConnectionFailed": {"httpStatusCode": 503}}))));
    }

    #[test]
    fn a_lost_rollout_is_an_eviction_only_where_there_is_storage() {
        let lost = CallError::Refused(RpcError::new(-32600, "no rollout found for thread id x"));
        assert_eq!(not_resumed(&lost, true).failure_kind, Some(FailureKind::SessionStoreEvicted));
        assert_eq!(not_resumed(&lost, false).failure_kind, Some(FailureKind::ThreadResumeFailed));
        let other = CallError::Refused(RpcError::new(-32600, "invalid session id"));
        assert_eq!(not_resumed(&other, true).failure_kind, Some(FailureKind::ThreadResumeFailed));
        let config = CallError::Refused(RpcError::new(-32600, "failed to load configuration: x"));
        assert_eq!(not_resumed(&config, true).failure_kind, Some(FailureKind::BackendFailed));
        assert!(is_writer_conflict(&CallError::Refused(RpcError::new(
            -32600,
            "thread x already has an active writer"
        ))));
    }
}
