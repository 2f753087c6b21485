//! Tools: list them, and call one, in a run or to try it.

use std::{sync::Arc, time::Duration};

use ostler_protocol::{
    Failure,
    ids::RunId,
    kernel::commands::Command,
    tools::wire::{CallTool, CalledTool, RunTools, RunToolsQuery, ToolList, TryTool},
};

use super::lookup;
use crate::{
    app::App,
    auth::{Access, LOCAL, Principal},
    dialect::Dialects,
    tools::{McpAccess, ToolContext, Toolkit},
};

/// Every tool that the caller's runs may be offered. All tools of MCP servers are for callers whose runs may work in the workspace; users
/// see those that the operator offers to them.
pub async fn list(app: &App, caller: &Principal) -> Result<ToolList, Failure> {
    Access::Browse.admit(caller)?;
    let tools = Toolkit::of(app).list(app, &outside(app, caller)).await?;
    Ok(ToolList { tools: tools.values().map(|tool| tool.as_ref().into()).collect() })
}

/// The tools that a run is offered, for its runner.
pub async fn of_run(app: &App, caller: &Principal, run_id: RunId, query: RunToolsQuery) -> Result<RunTools, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_run(&run)?;
    let stored = lookup::run_unchecked(app, run_id).await?;
    let command = match query.command_id {
        Some(command_id) => Some(lookup::command_of(app, run_id, command_id).await?),
        None => None,
    };
    // Most commands have called no tool yet, and their calls need not be read.
    let has_called = |command: &&Command| !query.without_calls && command.fold.tools.count > 0;
    let called = command.as_ref().filter(has_called).map(|command| command.command_id);
    let context = ToolContext::of_run(&run, Arc::new(stored), command.map(Arc::new));
    let tools = Toolkit::of(app).list(app, &context).await?;
    let earlier_calls = match called {
        Some(command_id) => Toolkit::earlier_calls(app, &run, command_id).await?,
        None => vec![],
    };
    Ok(RunTools { tools: tools.values().map(|tool| tool.as_ref().into()).collect(), earlier_calls })
}

/// Calls a tool in a run, as the holder of its lease. Idempotent by the call's id, as long as the call is among the newest
/// `CONVERSATION_EVENTS_MAX` events of its session.
pub async fn call(app: &App, caller: &Principal, run_id: RunId, request: CallTool) -> Result<CalledTool, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_run(&run)?;
    let wait = Duration::from_millis(request.check()?);
    Toolkit::call(app, run, request, wait).await
}

/// Calls a tool outside of any run, for the operator. The server's log has a line about it.
pub async fn try_out(app: &App, caller: &Principal, name: &str, request: TryTool) -> Result<CalledTool, Failure> {
    Access::Operate.admit(caller)?;
    tracing::info!(tool = name, caller = caller.name(), "a tool is called outside of a run");
    Toolkit::try_out(app, &outside(app, caller), name, request).await
}

fn outside(app: &App, caller: &Principal) -> ToolContext {
    let owner = match caller {
        Principal::User { user_id, .. } => Some(user_id.to_string().into()),
        Principal::Operator => Some(LOCAL.into()),
        _ => None,
    };
    let is_bound = app.config.server.workspace.is_some();
    let may_use_workspace =
        |tenant_id: &String| is_bound && Dialects::of(app).may_use_workspace(&app.config, tenant_id);
    let mcp = match caller {
        Principal::Operator => McpAccess::All,
        Principal::Service { tenants, .. } if tenants.iter().any(may_use_workspace) => McpAccess::All,
        Principal::User { .. } => McpAccess::Granted,
        _ => McpAccess::None,
    };
    ToolContext { tenant_id: "".into(), owner, run: None, command: None, mcp }
}
