//! A message to a turn that is already running.

use std::sync::Arc;

use ostler_protocol::{
    RawJson,
    ids::CommandId,
    kernel::events::{EventType, PHASE_STEER_ACCEPTED},
};
use serde_json::json;

use super::shared::{SinkShared, terminal_payload};
use crate::backend::turn::TurnEnd;

/// A message to a running turn.
pub struct Steer {
    pub command_id: CommandId,
    pub text: String,
    shared: Arc<SinkShared>,
}

impl Steer {
    pub(super) fn new(command_id: CommandId, text: String, shared: Arc<SinkShared>) -> Self {
        Self { command_id, text, shared }
    }

    /// The backend has taken the steer: its command ends as completed. Returns the text.
    pub fn accept(self) -> String {
        let id = self.command_id.to_string();
        let phase = json!({"phase": PHASE_STEER_ACCEPTED, "targetCommandId": self.shared.command_id});
        let mut state = self.shared.state();
        state.outbox.push(EventType::BackendStatus, &id, RawJson::of(&phase));
        state.outbox.push(EventType::TerminalStatus, &id, terminal_payload(&TurnEnd::completed()));
        drop(state);
        self.shared.queued.notify_one();
        self.text
    }
}
