//! What all backends share of a front end's tools: their limits, and the tool that changes the shared state.

use ostler_protocol::run_input::agui::translate::TranslatorState;
use serde_json::{Value, json};

/// Calls in one reply of a model, and calls of the front end's tools that one turn leaves pending.
pub(crate) const CALLS_MAX: usize = 32;
/// Bytes of the arguments of one call.
pub(crate) const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// The description of the tool that changes the shared state.
pub(crate) const UPDATE_STATE_DESCRIPTION: &str = "Changes the state that you share with the user's page.";

/// The state that an agent shares with the front end, as it is in the course of a turn.
pub(crate) struct FrontEndState(TranslatorState);

/// A change of the state that was applied.
pub(crate) struct StateUpdate {
    /// The payload of its `state` event.
    pub(crate) event: Value,
    /// The result of the call.
    pub(crate) result: String,
}

impl FrontEndState {
    pub(crate) fn new(state: &Value) -> Self {
        let mut document = TranslatorState::default();
        document.take(&json!({"snapshot": state}));
        Self(document)
    }

    /// The schema of the tool's arguments.
    pub(crate) fn parameters() -> Value {
        let patch = json!({"type": "array", "items": {"type": "object"}, "description": "JSON Patch (RFC 6902)"});
        json!({"type": "object", "required": ["patch"], "properties": {"patch": patch}})
    }

    /// Applies the arguments of a call of the tool, or returns why they do not apply.
    pub(crate) fn update(&mut self, arguments: &str) -> Result<StateUpdate, String> {
        if arguments.len() > ARGUMENTS_BYTES_MAX {
            return Err(too_long());
        }
        let arguments: Value = serde_json::from_str(arguments).map_err(|error| format!("not JSON: {error}"))?;
        let patch = &arguments["patch"];
        if !patch.is_array() {
            return Err("the argument patch must be an array, the operations of a JSON Patch".to_owned());
        }
        if !self.0.patch(patch) {
            return Err("the patch does not apply to the state".to_owned());
        }
        let result = self.0.value().map_or_else(|| "done".to_owned(), |state| format!("The state is now: {state}"));
        Ok(StateUpdate { event: json!({"patch": patch}), result })
    }
}

/// The error for arguments beyond their limit.
pub(crate) fn too_long() -> String {
    "the arguments are too long".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_changed_by_patches_within_the_limit_only() {
        let mut state = FrontEndState::new(&json!({"text": ""}));
        let patch = |text: &str| json!({"patch": [{"op": "replace", "path": "/text", "value": text}]}).to_string();
        let updated = state.update(&patch("short")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(updated.result, r#"The state is now: {"text":"short"}"#);
        assert_eq!(updated.event["patch"][0]["value"], "short");
        let refused = state.update(&patch(&"x".repeat(ARGUMENTS_BYTES_MAX))).err();
        assert_eq!(refused, Some(too_long()));
        assert_eq!(state.update("{").err().map(|error| error.starts_with("not JSON")), Some(true));
        for arguments in ["{}", "[]", r#"{"patch": {}}"#] {
            let refused = state.update(arguments).err().unwrap_or_default();
            assert!(refused.contains("the argument patch must be an array"), "{arguments}: {refused}");
        }
    }
}
