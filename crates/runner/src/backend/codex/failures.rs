//! What the errors of Codex mean for us. Its messages contain the provider's address and raw responses. They are shortened
//! here, and redacted like every event on its way into the log.

use ostler_protocol::{FailureKind, Rule};
use serde_json::Value;

use super::wire::TurnError;
use crate::{
    backend::{
        child::{MESSAGE_CHARS_MAX, call_failed},
        process::CallError,
        turn::TurnEnd,
    },
    text_cutter::TextCutter,
};

/// Whether the provider asks us to come back later: the same turn may continue after a while.
pub(super) fn is_throttled(error: &TurnError) -> bool {
    let (name, status) = error_info(error);
    matches!(name, "usageLimitExceeded" | "rateLimitExceeded" | "flexUnavailable") || status == Some(429)
}

/// Whether Codex lost the connection to its provider. Any HTTP status is a response.
pub(super) fn is_disconnected(error: &TurnError) -> bool {
    let (name, status) = error_info(error);
    let is_named =
        matches!(name, "httpConnectionFailed" | "responseStreamConnectionFailed" | "responseStreamDisconnected");
    let is_worded = ["stream disconnected", "Reconnecting"].iter().any(|words| error.message.starts_with(words));
    status.is_none() && (is_named || is_worded)
}

/// The kind of failure of a turn that Codex ended as failed.
pub(super) fn failure_kind(error: &TurnError) -> FailureKind {
    let (name, status) = error_info(error);
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
        // A stream that was cut too often, and a key that was never set, are recognisable by the message only.
        _ if error.message.starts_with("stream disconnected") => FailureKind::ProviderUnavailable,
        _ if error.message.starts_with("Missing environment variable") => FailureKind::SecretUnavailable,
        _ => FailureKind::BackendFailed,
    }
}

/// The name and HTTP status in an error's `codexErrorInfo`.
fn error_info(error: &TurnError) -> (&str, Option<u64>) {
    match &error.codex_error_info {
        Some(Value::String(name)) => (name, None),
        Some(Value::Object(info)) => match info.iter().next() {
            Some((name, detail)) => (name, detail["httpStatusCode"].as_u64()),
            None => ("", None),
        },
        _ => ("", None),
    }
}

pub(super) fn error_message(cutter: &TextCutter, error: &TurnError) -> String {
    cutter.cut(&error.message, MESSAGE_CHARS_MAX)
}

/// How a turn ends that Codex reports as failed.
pub(super) fn turn_failed(cutter: &TextCutter, error: &TurnError) -> TurnEnd {
    let kind = failure_kind(error);
    // Codex lacks no other secret than the provider's key.
    let rule = (kind == FailureKind::SecretUnavailable).then_some(Rule::ProfileKey);
    TurnEnd::failed(kind, error_message(cutter, error)).with_rule(rule)
}

/// How a turn ends whose `thread/resume` failed. If the session has its own storage, a missing rollout was evicted. It is
/// never replaced by a new thread.
pub(super) fn resume_failed(cutter: &TextCutter, error: &CallError, has_storage: bool) -> TurnEnd {
    match error {
        CallError::Refused(refusal) if refusal.message.contains("no rollout found") && has_storage => {
            let message = "the session's storage no longer holds the agent's thread";
            TurnEnd::failed(FailureKind::SessionStoreEvicted, message)
        }
        CallError::Refused(refusal) if is_config_error(&refusal.message) => call_failed(cutter, "thread/resume", error),
        CallError::Refused(refusal) => {
            let reason = cutter.cut(&refusal.message, MESSAGE_CHARS_MAX);
            let message = format!("the agent cannot resume its thread: {reason}");
            TurnEnd::failed(FailureKind::ThreadResumeFailed, message)
        }
        CallError::TimedOut | CallError::Gone | CallError::Broken(_) => call_failed(cutter, "thread/resume", error),
    }
}

fn is_config_error(message: &str) -> bool {
    message.contains("failed to load configuration")
}

/// Whether another process has the thread open. Its runner is about to end.
pub(super) fn is_writer_conflict(error: &CallError) -> bool {
    matches!(error, CallError::Refused(refusal) if refusal.message.contains("active writer"))
}

#[cfg(test)]
mod tests {
    use ostler_protocol::rpc::RpcError;
    use serde_json::json;

    use super::*;

    /// Each as seen on the wire.
    #[test]
    fn provider_failures_map_to_their_kinds() {
        for (info, message, expected) in [
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
            (json!("unknownName"), "", "backend-failed"),
            (json!({"unknownName": {"httpStatusCode": 418}}), "", "backend-failed"),
            (Value::Null, "", "backend-failed"),
        ] {
            let error =
                TurnError { message: message.into(), codex_error_info: Some(info.clone()), additional_details: None };
            assert_eq!(failure_kind(&error).as_str(), expected, "{info}");
            let end = turn_failed(&TextCutter::default(), &error);
            assert_eq!(end.rule == Some(Rule::ProfileKey), expected == "secret-unavailable", "{info}: {end:?}");
        }
    }

    #[test]
    fn a_status_is_an_answer_and_no_lost_connection() {
        let error = |info, message: &str| TurnError {
            message: message.into(),
            codex_error_info: Some(info),
            ..TurnError::default()
        };
        assert!(is_disconnected(&error(json!({"responseStreamDisconnected": {"httpStatusCode": null}}), "")));
        assert!(is_disconnected(&error(json!({"httpConnectionFailed": {}}), "")));
        assert!(is_disconnected(&error(json!("other"), "Reconnecting... waiting for network")));
        assert!(!is_disconnected(&error(json!({"httpConnectionFailed": {"httpStatusCode": 401}}), "Reconnecting...")));
        assert!(!is_disconnected(&error(json!("usageLimitExceeded"), "later")));
    }

    #[test]
    fn only_a_throttling_provider_is_retried_later() {
        let error = |info| TurnError { codex_error_info: Some(info), ..TurnError::default() };
        assert!(is_throttled(&error(json!({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}))));
        assert!(is_throttled(&error(json!("usageLimitExceeded"))));
        assert!(!is_throttled(&error(json!({"httpConnectionFailed": {"httpStatusCode": 503}}))));
    }

    #[test]
    fn a_missing_rollout_is_an_eviction_only_with_storage() {
        let resume_failed = |error: &CallError, has_storage| resume_failed(&TextCutter::default(), error, has_storage);
        let lost = CallError::Refused(RpcError::new(-32600, "no rollout found for thread id x"));
        assert_eq!(resume_failed(&lost, true).failure_kind, Some(FailureKind::SessionStoreEvicted));
        assert_eq!(resume_failed(&lost, false).failure_kind, Some(FailureKind::ThreadResumeFailed));
        let other = CallError::Refused(RpcError::new(-32600, "invalid session id"));
        assert_eq!(resume_failed(&other, true).failure_kind, Some(FailureKind::ThreadResumeFailed));
        let config = CallError::Refused(RpcError::new(-32600, "failed to load configuration: x"));
        assert_eq!(resume_failed(&config, true).failure_kind, Some(FailureKind::BackendFailed));
        assert!(is_writer_conflict(&CallError::Refused(RpcError::new(
            -32600,
            "thread x already has an active writer"
        ))));
    }
}
