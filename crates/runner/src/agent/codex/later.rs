//! A provider that says "later": the command is parked, the agent told to go on after a while, a few times over.

use ostler_protocol::{
    FailureKind, Timestamp,
    events::{EventType, PHASE_TRANSPORT_DISCONNECTED, PHASE_WAITING_PROVIDER},
};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use super::{conversation::Conversation, failures, wire::TurnError};
use crate::agent::{Left, TurnEnd};

/// What the thread is told when it has heard the prompt before.
pub const GO_ON: &str = "The work on this request was cut off before it was finished. Look at what has been done already, and \
    go on from there; do not do again what is done.";

impl Conversation<'_> {
    /// Codex has failed to reach its provider and tries again by itself.
    pub(super) async fn provider_lost(&mut self, error: &TurnError) {
        self.trying_since.get_or_insert_with(Instant::now);
        if failures::is_disconnected(error) && !std::mem::replace(&mut self.disconnected, true) {
            let phase = json!({"phase": PHASE_TRANSPORT_DISCONNECTED, "failureKind": failures::kind(error),
                "message": failures::message(error)});
            self.link.emit(EventType::BackendStatus, &phase).await;
        }
    }

    /// Codex got an answer from its provider.
    pub(super) async fn provider_reached(&mut self) {
        self.trying_since = None;
        if std::mem::take(&mut self.disconnected) {
            self.link.emit(EventType::BackendStatus, &json!({"phase": "transport-reconnected"})).await;
        }
    }

    /// Waits until the provider may be asked again. `Some`: it was asked often enough.
    pub(super) async fn wait_for_provider(&mut self, error: &TurnError) -> Result<Option<TurnEnd>, Left> {
        let Some(wait_ms) = self.outfit.patience.later_pause_ms(self.later) else {
            return Ok(Some(TurnEnd::blocked(FailureKind::ProviderUnavailable, failures::message(error))));
        };
        let wait = Duration::from_millis(wait_ms);
        self.later += 1;
        let phase = json!({"phase": PHASE_WAITING_PROVIDER, "resumeAt": after(wait), "attempt": self.later,
            "message": failures::message(error)});
        self.link.emit(EventType::BackendStatus, &phase).await;
        tokio::select! {
            () = self.link.stopped() => Err(Left::Stopped),
            () = sleep(wait) => Ok(None),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "told to people; nothing is decided by it")]
fn after(wait: Duration) -> Timestamp {
    Timestamp::now().checked_add(wait).unwrap_or(Timestamp::MAX)
}
