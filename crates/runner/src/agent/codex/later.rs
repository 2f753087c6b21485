//! A provider that says "later": the command is parked, the agent told to go on after a while, a few times over.

use ostler_protocol::{
    FailureKind, Timestamp,
    events::{EventType, PHASE_WAITING_PROVIDER},
};
use serde_json::json;
use tokio::time::{Duration, sleep};

use super::{conversation::Conversation, failures, wire::TurnError};
use crate::agent::{Left, TurnEnd};

/// What the thread is told when it has heard the prompt before.
pub const GO_ON: &str = "The work on this request was cut off before it was finished. Look at what has been done already, and \
    go on from there; do not do again what is done.";

impl Conversation<'_> {
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
