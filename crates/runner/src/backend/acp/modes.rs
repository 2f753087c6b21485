//! Modes of a backend's session: how much the backend does without asking. A turn can name the mode it wants; the run's policy
//! limits which ones it gets.

use ostler_protocol::kernel::{modes::ApprovalMode, policy::Approval};
use serde_json::{Value, json};

use super::{
    failures::call_failed,
    session::{CALL_MS, OpenSession},
    wire::Modes,
};
use crate::backend::{
    child::call,
    turn::{Turn, TurnEnd},
};

/// The mode, by its usual name, in which a backend asks before it acts.
const ASKING_MODE: &str = "default";
const PLAN_MODE: &str = "plan";

#[derive(Default)]
pub(super) struct SessionModes {
    available: Vec<String>,
    pub(super) current: String,
    /// The mode that the last turn wanted.
    wanted: Option<&'static str>,
}

impl From<Modes> for SessionModes {
    fn from(modes: Modes) -> Self {
        let available = modes.available_modes.into_iter().map(|mode| mode.id).collect();
        Self { available, current: modes.current_mode_id, wanted: None }
    }
}

impl SessionModes {
    /// The mode for a turn. `None` if the backend's own is used.
    fn wanted_by(&self, requested: Option<ApprovalMode>, approval: Approval) -> Option<&'static str> {
        let has = |mode: &str| self.available.iter().any(|available| available == mode);
        let allowed = requested.filter(|mode| mode.needs() <= approval && has(mode.as_str()));
        match allowed {
            Some(mode) => Some(mode.as_str()),
            // The policy wants nothing to be asked.
            None if approval == Approval::Never => None,
            None if self.current == PLAN_MODE && requested.is_none() => None,
            // The backend must not decide alone what the policy wants to be asked.
            None => has(ASKING_MODE).then_some(ASKING_MODE),
        }
    }
}

impl OpenSession {
    /// Selects the mode that the turn wants. A mode that the backend has changed by itself since the last turn stays, unless the
    /// turn wants another one than the last did.
    pub(super) async fn select_mode(&mut self, turn: &Turn) -> Result<(), TurnEnd> {
        let requested = ApprovalMode::of(&turn.command.payload);
        let Some(wanted) = self.modes.wanted_by(requested, turn.run.execution_policy.approval) else { return Ok(()) };
        if self.modes.wanted.replace(wanted) == Some(wanted) || self.modes.current == wanted {
            return Ok(());
        }
        let params = json!({"sessionId": self.session_id, "modeId": wanted});
        let _: Value = call(&mut self.process, "session/set_mode", &params, CALL_MS, call_failed).await?;
        self.modes.current = wanted.to_owned();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(current: &str) -> SessionModes {
        let available = ["plan", "default", "auto-edit", "yolo"].map(str::to_owned).to_vec();
        SessionModes { available, current: current.to_owned(), wanted: None }
    }

    #[test]
    fn a_mode_is_used_only_if_the_policy_allows_it_and_the_backend_has_it() {
        let wanted = |requested, approval| modes("yolo").wanted_by(requested, approval);
        let yolo = Some(ApprovalMode::Yolo);
        assert_eq!(wanted(yolo, Approval::Never), Some("yolo"));
        assert_eq!(wanted(yolo, Approval::OnRequest), Some("default"), "the policy wants to be asked");
        assert_eq!(wanted(Some(ApprovalMode::AutoEdit), Approval::OnRequest), Some("auto-edit"));
        assert_eq!(wanted(Some(ApprovalMode::AutoEdit), Approval::Untrusted), Some("default"));
        assert_eq!(wanted(Some(ApprovalMode::Plan), Approval::Untrusted), Some("plan"));
        assert_eq!(wanted(Some(ApprovalMode::Auto), Approval::OnRequest), Some("default"), "it has no such mode");
        assert_eq!(SessionModes::default().wanted_by(yolo, Approval::Never), None);
    }

    #[test]
    fn a_turn_without_a_mode_asks_unless_the_policy_never_does() {
        assert_eq!(modes("yolo").wanted_by(None, Approval::Untrusted), Some("default"));
        assert_eq!(modes("yolo").wanted_by(None, Approval::Never), None);
        assert_eq!(modes("plan").wanted_by(None, Approval::OnRequest), None, "a plan changes nothing");
        assert_eq!(SessionModes::default().wanted_by(None, Approval::OnRequest), None);
    }
}
