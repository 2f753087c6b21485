//! Approval modes of a session: how much the agent does without asking.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{Failure, Rule, json::present, kernel::modes::ApprovalMode};

/// The modes with the names and descriptions that clients show.
const DESCRIPTIONS: [(ApprovalMode, &str, &str); 5] = [
    (ApprovalMode::Plan, "Plan", "Reads and plans; changes nothing"),
    (ApprovalMode::Default, "Default", "Asks before each change"),
    (ApprovalMode::AutoEdit, "Auto Edit", "Edits files without asking"),
    (ApprovalMode::Auto, "Auto", "The agent decides which actions are safe"),
    (ApprovalMode::Yolo, "YOLO", "Never asks"),
];

/// `POST /session/{sessionId}/approval-mode`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetApprovalMode {
    /// `plan`, `default`, `auto-edit`, `auto` or `yolo`.
    #[schema(value_type = String)]
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub mode: Option<Value>,
    /// Also make it the mode of new sessions in the workspace.
    #[schema(value_type = bool)]
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub persist: Option<Value>,
}

impl SetApprovalMode {
    /// The mode, and whether it becomes that of new sessions.
    pub fn read(&self) -> Result<(ApprovalMode, bool), Failure> {
        let Some(mode) = self.mode.as_ref().and_then(Value::as_str).and_then(ApprovalMode::parse) else {
            let allowed = ApprovalMode::ALL.map(ApprovalMode::as_str);
            let message = format!("mode must be one of {}", allowed.join(", "));
            return Err(Failure::invalid(Rule::InvalidApprovalMode, message).detail("allowed", json!(allowed)));
        };
        match &self.persist {
            None => Ok((mode, false)),
            Some(Value::Bool(persist)) => Ok((mode, *persist)),
            Some(_) => Err(Failure::invalid(Rule::InvalidPersistFlag, "persist must be true or false")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalModeSet {
    pub session_id: String,
    pub mode: String,
    /// The mode before.
    pub previous: String,
    /// Whether it is now the mode of new sessions, too.
    pub persisted: bool,
}

/// The modes of a session, as clients read them in its state.
pub fn session_modes(current: ApprovalMode) -> Value {
    let mode = |(mode, name, description): (ApprovalMode, &str, &str)| json!({"id": mode.as_str(), "name": name, "description": description});
    json!({"currentModeId": current.as_str(), "availableModes": DESCRIPTIONS.map(mode)})
}

/// The mode as one of the session's options.
pub fn mode_option(current: ApprovalMode) -> Value {
    let choice = |(mode, name, description): (ApprovalMode, &str, &str)| json!({"value": mode.as_str(), "name": name, "description": description});
    json!({"id": "mode", "name": "Mode", "description": "How much the agent does without asking", "category": "mode",
        "type": "select", "currentValue": current.as_str(), "options": DESCRIPTIONS.map(choice)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_must_be_one_of_those_that_there_are() {
        let read = |body: Value| serde_json::from_value::<SetApprovalMode>(body).unwrap().read();
        assert_eq!(read(json!({"mode": "plan"})).unwrap(), (ApprovalMode::Plan, false));
        assert_eq!(read(json!({"mode": "yolo", "persist": true})).unwrap(), (ApprovalMode::Yolo, true));
        for body in [json!({}), json!({"mode": 7}), json!({"mode": null}), json!({"mode": "YOLO"})] {
            let failure = read(body).unwrap_err();
            assert_eq!(failure.rule_name(), Some("invalid-approval-mode"));
            assert_eq!(failure.details.unwrap()["allowed"].as_array().unwrap().len(), 5);
        }
        let failure = read(json!({"mode": "plan", "persist": "yes"})).unwrap_err();
        assert_eq!(failure.rule_name(), Some("invalid-persist-flag"));
    }
}
