//! Why a provider gave no reply, and whether a retry may help.

use ostler_protocol::FailureKind;
use serde_json::Value;

use crate::{backend::turn::TurnEnd, text::clip};

const MESSAGE_CHARS_MAX: usize = 300;

/// Why there is no reply.
#[derive(Debug)]
pub(super) struct ProviderError {
    pub(super) kind: FailureKind,
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
            message: message.into(),
            is_transient: false,
            retry_after_ms: None,
            is_throttled: false,
            is_disconnected: false,
        }
    }

    pub(super) fn transient(message: impl Into<String>) -> Self {
        Self { is_transient: true, ..Self::new(FailureKind::ProviderUnavailable, message) }
    }

    /// How the turn ends if it is not retried.
    pub(super) fn into_end(self) -> TurnEnd {
        match self.is_throttled {
            true => TurnEnd::blocked(self.kind, self.message),
            false => TurnEnd::failed(self.kind, self.message),
        }
    }
}

/// The message in the body of a provider's error, wherever the provider puts it.
pub(super) fn error_text(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let message = match serde_json::from_str::<Value>(&text) {
        Ok(value) => {
            let error = value.get("error").unwrap_or(&value);
            let message = error.get("message").or_else(|| value.get("message")).or_else(|| value.get("detail"));
            message.unwrap_or(error).as_str().unwrap_or_default().to_owned()
        }
        Err(_) => text.trim().to_owned(),
    };
    clip(&message, MESSAGE_CHARS_MAX)
}
