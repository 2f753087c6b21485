//! Arguments with which a person replaces those of a call before allowing it. They are checked, authorised and completed when the
//! person answers, so that what the answer records is what is executed.

use std::sync::Arc;

use ostler_protocol::{Failure, Rule, json::text_of, kernel::permissions::PermissionRequest, tools::Authorisation};
use serde_json::Value;

use super::{
    checks::check_arguments,
    scopes::authorise_call,
    source::ToolContext,
    toolkit::{FoundTool, Toolkit},
};
use crate::{app::App, service::lookup};

/// Completes arguments for the call of a tool of this server that a request is about. Fails if the call cannot be made with them.
pub async fn complete_edits(
    app: &App,
    request: &PermissionRequest,
    tool: &str,
    arguments: &Value,
) -> Result<Value, Failure> {
    let rejected = |message: String| Failure::invalid(Rule::PermissionEdits, message);
    let run = app.run_ref(request.run_id).await?;
    let stored = Arc::new(lookup::run_unchecked(app, request.run_id).await?);
    let command = Arc::new(lookup::command_of(app, request.run_id, request.command_id).await?);
    let context = ToolContext::of_run(&run, stored, Some(command));
    let found = Toolkit::of(app).find(app, &context, tool).await?;
    let Some(FoundTool { tool, source }) = found else {
        let reason = Toolkit::of(app).unavailable(app, &context, tool).await?;
        return Err(rejected(reason.unwrap_or_else(|| format!("the tool {tool:?} is no longer available"))));
    };
    let checked = check_arguments(app, &tool, &text_of(arguments)).await;
    let checked = checked.map_err(|problem| rejected(format!("editedArgs: {problem}")))?;
    if let Authorisation::Refuse(failure) = authorise_call(app, &context, &tool).await? {
        return Err(rejected(failure.message));
    }
    let completed = source.complete(app, &context, &tool, checked).await?;
    let usable = source.check(app, &context, &tool, &completed).await?;
    usable.map_err(|problem| rejected(format!("editedArgs: {problem}")))?;
    Ok(Value::Object(completed))
}
