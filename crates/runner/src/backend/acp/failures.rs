//! What the errors of an ACP backend mean for a turn.

use ostler_protocol::{Failure, FailureKind, RawJson, Rule, rpc::RpcError};

use super::wire::AUTH_REQUIRED;
use crate::{
    backend::{child, process::CallError, turn::TurnEnd},
    text_cutter::TextCutter,
};

/// How a turn ends when a call that it depends on has no result.
pub(super) fn call_failed(cutter: &TextCutter, method: &str, error: &CallError) -> TurnEnd {
    match error {
        CallError::Refused(refusal) if refusal.code == AUTH_REQUIRED => login_required(),
        _ => child::call_failed(cutter, method, error),
    }
}

pub(super) fn login_required() -> TurnEnd {
    let message = "the agent requires a login that the profile does not have";
    TurnEnd::of_failure(Failure::rule(Rule::ProfileKey, message))
}

pub(super) fn resume_failed(reason: &str) -> TurnEnd {
    TurnEnd::failed(FailureKind::ThreadResumeFailed, format!("the agent cannot resume its session: {reason}"))
}

/// The kind of failure of a prompt, and whether the provider asks us to come back later. Backends pass on the provider's
/// error as text, so both are derived from the HTTP status in that text.
pub(super) fn prompt_failure_kind(error: &RpcError) -> (FailureKind, bool) {
    let text = error_text(error);
    let status = |codes: &[&str]| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| codes.contains(&word));
    match () {
        () if status(&["401", "403"]) => (FailureKind::ProviderAuthFailed, false),
        () if status(&["429", "503"]) => (FailureKind::ProviderUnavailable, true),
        () if status(&["500", "502", "504", "ECONNREFUSED", "ECONNRESET", "ENOTFOUND"]) => {
            (FailureKind::ProviderUnavailable, false)
        }
        () if text.contains("Connection error") || text.contains("terminated") => {
            (FailureKind::ProviderUnavailable, false)
        }
        () => (FailureKind::BackendFailed, false),
    }
}

pub(super) fn error_text(error: &RpcError) -> String {
    let data = error.data.as_ref().map(RawJson::to_value).unwrap_or_default();
    let details = data["details"].as_str().or_else(|| data["message"].as_str()).or_else(|| data.as_str());
    [error.message.as_str(), details.unwrap_or_default()].join(" ").trim().to_owned()
}
