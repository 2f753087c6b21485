//! MCP servers that clients add until this server ends. What a client sends of them is never shown again.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    daemon::mcp::{
        AddMcpServer, AddedMcpServer, McpChangeSkipped, McpServerAdded, McpServerRemoved, McpSkipReason,
        RemovedMcpServer, check_new_name,
    },
    json::value_of,
    mcp::budget::BudgetMode,
};
use ostler_server::{
    app::App,
    auth::Principal,
    mcp::{AddRefused, Mcp},
};
use serde_json::json;

use super::{companion, mcp_changes::failed, notes::Note, sessions::RETRY_AFTER_MS, workspace};

/// Checks that the caller may add and remove servers, and that it names its client. A token of the role `provide` cannot attach to a
/// session, so that it has no client to name.
async fn check(app: &App, caller: &Principal, client: Option<&str>) -> Result<(), Failure> {
    workspace::check_configure(app, caller, client).await?;
    let may_attach = caller.may_submit(workspace::tenant(app)).is_ok();
    if client.is_none() && may_attach {
        return Err(Failure::invalid(Rule::MissingClientId, "this needs the header X-Qwen-Client-Id"));
    }
    Ok(())
}

/// Adds a server, or replaces one that was added before, and connects it. A server that cannot be connected is not added.
pub(crate) async fn add(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: AddMcpServer,
) -> Result<McpServerAdded, Failure> {
    check(app, caller, client.as_deref()).await?;
    let (name, server) = request.read()?;
    if server.command.is_some() {
        companion::check_programs(app, caller, "an MCP server with a command")?;
    }
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        if Mcp::of(&app).would_exceed(&name) {
            return match Mcp::of(&app).budget().mode {
                BudgetMode::Enforce => Err(budget_used_up(&name)),
                _ => Ok(McpServerAdded::Skipped(skipped(name, McpSkipReason::BudgetWarningOnly))),
            };
        }
        let shadowed_settings = app.config.mcp.servers.contains_key(&name);
        let transport = server.transport();
        let addition = Mcp::of(&app).add(&app, &name, server).await.map_err(|refused| not_added(&name, refused))?;
        let added = AddedMcpServer {
            name,
            transport,
            replaced: addition.replaced,
            shadowed_settings,
            tool_count: addition.view.tools.len(),
            originator_client_id: client.clone(),
        };
        let note = Note { frame: "mcp_server_added", data: value_of(&added), client };
        workspace::announce(&app, &caller, &note).await;
        Ok(McpServerAdded::Added(added))
    })
    .await
}

fn not_added(name: &str, refused: AddRefused) -> Failure {
    match refused {
        AddRefused::Budget => budget_used_up(name),
        AddRefused::Busy => Failure::new(FailureKind::Overloaded, "too many MCP servers are being added")
            .detail("retryAfterMs", RETRY_AFTER_MS),
        AddRefused::Problem(problem) => failed(Rule::McpServerSpawnFailed, name, &problem),
        AddRefused::Failed(failure) => failure,
    }
}

fn budget_used_up(name: &str) -> Failure {
    Failure::rule(Rule::McpBudgetWouldExceed, "the budget of MCP servers is used up").detail("serverName", name)
}

fn skipped(name: String, reason: McpSkipReason) -> McpChangeSkipped {
    McpChangeSkipped { name, skipped: true, reason }
}

/// Removes a server that was added. A configured one of the same name is in force again.
pub(crate) async fn remove(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    name: &str,
) -> Result<McpServerRemoved, Failure> {
    check(app, caller, client.as_deref()).await?;
    let name = check_new_name(name)?.to_owned();
    if !Mcp::of(app).remove(&name) {
        return Ok(McpServerRemoved::Skipped(skipped(name, McpSkipReason::NotPresent)));
    }
    let was_shadowing_settings = app.config.mcp.servers.contains_key(&name);
    let removed =
        RemovedMcpServer { name, removed: true, was_shadowing_settings, originator_client_id: client.clone() };
    let mut data = json!({"name": removed.name, "wasShadowingSettings": was_shadowing_settings});
    if let Some(client) = &client {
        data["originatorClientId"] = client.as_str().into();
    }
    let note = Note { frame: "mcp_server_removed", data, client };
    workspace::announce(app, caller, &note).await;
    Ok(McpServerRemoved::Removed(removed))
}
