//! Arguments that a person has edited, as the answer to a permission request has them.

use ostler_protocol::{json::text_of, kernel::permissions::EditedArguments, tools::ToolDefinition};
use serde_json::{Map, Value};

use super::checks::check_arguments;
use crate::app::App;

/// Arguments with which a person has replaced those of a call.
pub(super) struct Edits {
    /// Complete.
    pub arguments: Map<String, Value>,
    /// The names of those that the source added to what the person sent.
    pub added: Vec<String>,
}

/// The arguments that a person has sent instead of those of the call. The error is the reason for which they cannot be used.
pub(super) async fn read_edited(app: &App, tool: &ToolDefinition, edited: EditedArguments) -> Result<Edits, String> {
    // Older servers have recorded edits without the tool, and with the digest of the arguments only.
    let is_of_tool = edited.tool.as_ref().is_none_or(|name| *name == tool.name);
    if !is_of_tool || !edited.is_sound() {
        return Err("the edited arguments do not have the digest that was recorded".into());
    }
    let checked = check_arguments(app, tool, &text_of(&edited.arguments)).await;
    let arguments = checked.map_err(|problem| format!("invalid edited arguments: {problem}"))?;
    Ok(Edits { arguments, added: edited.added })
}
