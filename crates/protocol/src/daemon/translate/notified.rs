//! What a backend reports of its own session beside its work.

use serde_json::{Map, Value, json};

use super::context::{TranslationContext, named};

/// Characters of a suggestion.
const SUGGESTION_CHARS_MAX: usize = 2_000;

/// The frame of a notification. `None` if there is none for it.
pub(super) fn frame(payload: &Value, context: TranslationContext<'_>) -> Option<(&'static str, Value)> {
    let (session_id, data) = (context.session_id, &payload["data"]);
    let text = |name: &str| data[name].as_str().filter(|text| !text.is_empty()).map(named);
    match payload["notification"].as_str()? {
        "model-update" => {
            Some(("model_switched", json!({"sessionId": session_id, "modelId": text("currentModelId")?})))
        }
        "mode-update" => {
            let previous = text("previousModeId").unwrap_or_default();
            let change = json!({"sessionId": session_id, "previous": previous, "next": text("currentModeId")?,
                "persisted": false});
            Some(("approval_mode_changed", change))
        }
        "title-update" => {
            let mut change = json!({"sessionId": session_id, "displayName": text("title")?});
            if let Some(source) = text("titleSource") {
                change["titleSource"] = source.into();
            }
            Some(("session_metadata_updated", change))
        }
        "prompt-suggestion" => {
            let suggestion = data["suggestion"].as_str().filter(|text| !text.is_empty())?;
            let suggestion: String = suggestion.chars().take(SUGGESTION_CHARS_MAX).collect();
            let prompt_id = context.prompt.map(|prompt| prompt.prompt_id.as_str()).unwrap_or_default();
            Some((
                "followup_suggestion",
                json!({"sessionId": session_id, "suggestion": suggestion, "promptId": prompt_id}),
            ))
        }
        "commands-update" => {
            let commands = data["availableCommands"].as_array()?;
            Some(context.update(json!({"sessionUpdate": "available_commands_update", "availableCommands": commands,
                "_meta": {"availableSkills": data["availableSkills"]}})))
        }
        "terminal-sequence" => Some(("terminal_sequence", with_session(session_id, data, &[])?)),
        "mcp-budget-event" => {
            let frame_type = match data["kind"].as_str()? {
                "budget_warning" => "mcp_budget_warning",
                "refused_batch" => "mcp_child_refused_batch",
                _ => return None,
            };
            Some((frame_type, with_session(session_id, data, &["kind"])?))
        }
        _ => None,
    }
}

/// The backend's own members, without these.
fn with_session(session_id: &str, data: &Value, without: &[&str]) -> Option<Value> {
    let mut members: Map<String, Value> = data.as_object()?.clone();
    members.retain(|name, _| !without.contains(&name.as_str()));
    members.insert("sessionId".to_owned(), session_id.into());
    Some(Value::Object(members))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::translate::PromptRef;

    fn of(name: &str, data: Value) -> Option<(&'static str, Value)> {
        let prompt = PromptRef { prompt_id: "p".into(), ..PromptRef::default() };
        let context = TranslationContext { session_id: "s", prompt: Some(&prompt), ..TranslationContext::default() };
        frame(&json!({"phase": "notified", "notification": name, "data": data}), context)
    }

    #[test]
    fn each_notification_is_the_frame_that_clients_know() {
        for (name, data, expected) in [
            (
                "model-update",
                json!({"currentModelId": "m"}),
                ("model_switched", json!({"sessionId": "s", "modelId": "m"})),
            ),
            (
                "mode-update",
                json!({"currentModeId": "yolo", "previousModeId": "plan"}),
                (
                    "approval_mode_changed",
                    json!({"sessionId": "s", "previous": "plan", "next": "yolo", "persisted": false}),
                ),
            ),
            (
                "title-update",
                json!({"title": "A plan", "titleSource": "auto"}),
                ("session_metadata_updated", json!({"sessionId": "s", "displayName": "A plan", "titleSource": "auto"})),
            ),
            (
                "prompt-suggestion",
                json!({"suggestion": "run it", "promptId": "theirs"}),
                ("followup_suggestion", json!({"sessionId": "s", "suggestion": "run it", "promptId": "p"})),
            ),
            (
                "commands-update",
                json!({"availableCommands": [{"name": "init"}], "availableSkills": ["review"]}),
                (
                    "session_update",
                    json!({"sessionId": "s", "update": {"sessionUpdate": "available_commands_update",
                        "availableCommands": [{"name": "init"}], "_meta": {"availableSkills": ["review"]}}}),
                ),
            ),
            (
                "terminal-sequence",
                json!({"sequence": "x"}),
                ("terminal_sequence", json!({"sessionId": "s", "sequence": "x"})),
            ),
            (
                "mcp-budget-event",
                json!({"kind": "budget_warning", "budget": 4}),
                ("mcp_budget_warning", json!({"sessionId": "s", "budget": 4})),
            ),
            (
                "mcp-budget-event",
                json!({"kind": "refused_batch", "refusedServers": []}),
                ("mcp_child_refused_batch", json!({"sessionId": "s", "refusedServers": []})),
            ),
        ] {
            assert_eq!(of(name, data), Some(expected), "{name}");
        }
    }

    #[test]
    fn notifications_that_lack_their_parts_have_no_frame_of_their_own() {
        for name in [
            "model-update",
            "mode-update",
            "title-update",
            "prompt-suggestion",
            "commands-update",
            "mcp-budget-event",
            "other",
        ] {
            assert_eq!(of(name, json!({})), None, "{name}");
        }
    }
}
