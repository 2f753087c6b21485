//! The scopes of agents, and whether a run may make a call.

use std::collections::BTreeSet;

use ostler_protocol::{
    Failure,
    kernel::modes::ApprovalMode,
    tools::{Authorisation, CallAuthority, ToolDefinition, authorise},
};

use super::source::ToolContext;
use crate::{app::App, dialect::Dialects};

/// The scopes that the user has granted to the run's agent. `None` if the run has no agent.
pub(super) async fn granted_scopes(app: &App, context: &ToolContext) -> Result<Option<BTreeSet<String>>, Failure> {
    let Some(agent_id) = context.run.as_ref().and_then(|run| run.agent_id) else { return Ok(None) };
    let read = Dialects::of(app).iter().find_map(|dialect| dialect.granted_scopes.as_ref());
    match (read, &context.owner) {
        (Some(read), Some(owner)) => read(app.clone(), agent_id, owner.to_string()).await.map(Some),
        _ => Ok(Some(BTreeSet::new())),
    }
}

/// Whether the run may call the tool now.
pub(super) async fn authorise_call(
    app: &App,
    context: &ToolContext,
    tool: &ToolDefinition,
) -> Result<Authorisation, Failure> {
    let granted = granted_scopes(app, context).await?;
    let (Some(run), Some(command)) = (&context.run, &context.command) else {
        return Err(Failure::internal("a call outside of a run"));
    };
    let mode = ApprovalMode::of(&command.payload);
    Ok(authorise(tool, &CallAuthority::of(&run.execution_policy, mode, granted.as_ref())))
}
