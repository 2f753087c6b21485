//! Handles a provider that cannot be reached or is rate limiting. A lost connection is reported. When the provider is rate
//! limiting, the turn pauses and the runner sends Codex a prompt to continue later, a few times.

use ostler_protocol::{
    FailureKind, Timestamp,
    kernel::events::{EventType, PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER},
};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use super::{failures, turn::CodexTurn, wire::TurnError};
use crate::backend::turn::{TurnAbort, TurnEnd};

impl CodexTurn<'_> {
    /// Codex failed to reach its provider and retries by itself.
    pub(super) async fn mark_provider_lost(&mut self, error: &TurnError) {
        self.retrying_since.get_or_insert_with(Instant::now);
        if failures::is_disconnected(error) && !std::mem::replace(&mut self.is_disconnected, true) {
            let phase = json!({"phase": PHASE_TRANSPORT_DISCONNECTED, "failureKind": failures::failure_kind(error),
                "message": failures::error_message(self.sink.cutter(), error)});
            self.sink.emit(EventType::BackendStatus, &phase).await;
        }
    }

    /// Codex received a reply from its provider.
    pub(super) async fn mark_provider_reached(&mut self) {
        self.retrying_since = None;
        if std::mem::take(&mut self.is_disconnected) {
            self.sink.emit(EventType::BackendStatus, &json!({"phase": "transport-reconnected"})).await;
        }
    }

    /// Waits until the provider may be called again. `Some` after the last retry: the turn ends.
    pub(super) async fn wait_for_provider(&mut self, error: &TurnError) -> Result<Option<TurnEnd>, TurnAbort> {
        let Some(wait_ms) = self.environment.retry_policy.later_pause_ms(self.provider_retries) else {
            let message = failures::error_message(self.sink.cutter(), error);
            return Ok(Some(TurnEnd::blocked(FailureKind::ProviderUnavailable, message)));
        };
        let wait = Duration::from_millis(wait_ms);
        self.provider_retries += 1;
        let phase = json!({"phase": PHASE_WAITING_PROVIDER, "resumeAt": time_after(wait),
            "attempt": self.provider_retries, "message": failures::error_message(self.sink.cutter(), error)});
        self.sink.emit(EventType::BackendStatus, &phase).await;
        tokio::select! {
            () = self.sink.stopped() => Err(TurnAbort::Stopped),
            () = sleep(wait) => Ok(None),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "displayed to people; nothing is decided by it")]
fn time_after(wait: Duration) -> Timestamp {
    Timestamp::now().checked_add(wait).unwrap_or(Timestamp::MAX)
}
