//! Why a provider gave no reply, and whether a retry may help.

use ostler_protocol::{FailureKind, Rule};
use serde_json::Value;

use crate::{backend::turn::TurnEnd, text_cutter::TextCutter};

const MESSAGE_CHARS_MAX: usize = 300;

/// Why there is no reply.
#[derive(Debug)]
pub(super) struct ProviderError {
    pub(super) kind: FailureKind,
    pub(super) rule: Option<Rule>,
    pub(super) message: String,
    /// Whether the same request may succeed later.
    pub(super) is_transient: bool,
    pub(super) retry_after_ms: Option<u64>,
    /// Whether the provider itself asked us to come back later.
    pub(super) is_throttled: bool,
    /// Whether there is no connection to the provider.
    pub(super) is_disconnected: bool,
}

impl ProviderError {
    pub(super) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            rule: None,
            message: message.into(),
            is_transient: false,
            retry_after_ms: None,
            is_throttled: false,
            is_disconnected: false,
        }
    }

    /// A failure of this rule, with the kind that the rule usually has.
    pub(super) fn of_rule(rule: Rule, message: impl Into<String>) -> Self {
        Self { rule: Some(rule), ..Self::new(rule.row().kind, message) }
    }

    pub(super) fn transient(message: impl Into<String>) -> Self {
        Self { is_transient: true, ..Self::new(FailureKind::ProviderUnavailable, message) }
    }

    /// How the turn ends if it is not retried.
    pub(super) fn into_end(self) -> TurnEnd {
        let end = match self.is_throttled {
            true => TurnEnd::blocked(self.kind, self.message),
            false => TurnEnd::failed(self.kind, self.message),
        };
        end.with_rule(self.rule)
    }
}

/// The message in the body of a provider's error, wherever the provider puts it, without secrets that the cutter knows.
pub(super) fn error_text(cutter: &TextCutter, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let message = match serde_json::from_str::<Value>(&text) {
        Ok(value) => {
            let error = value.get("error").unwrap_or(&value);
            let message = error.get("message").or_else(|| value.get("message")).or_else(|| value.get("detail"));
            message.unwrap_or(error).as_str().unwrap_or_default().to_owned()
        }
        Err(_) => text.trim().to_owned(),
    };
    cutter.cut(&cutter.redact(&message), MESSAGE_CHARS_MAX)
}
