//! MCP servers that clients add until this server ends. What a client sends of them is never shown again.

use ostler_protocol::{
    Failure, Rule,
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
    mcp::{ConnectionView, KnownServer, Mcp, ServerOrigin},
};

use super::{companion, mcp_changes::failed, notes::Note, workspace};

/// The client that changes something. These routes need one.
async fn check(app: &App, caller: &Principal, client: Option<String>) -> Result<String, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    let missing = || Failure::invalid(Rule::MissingClientId, "this needs the header X-Qwen-Client-Id");
    client.ok_or_else(missing)
}

/// Adds a server, or replaces one that was added before, and connects it. A server that cannot be connected is not added.
pub(crate) async fn add(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: AddMcpServer,
) -> Result<McpServerAdded, Failure> {
    let client = check(app, caller, client).await?;
    let (name, server) = request.read()?;
    if server.command.is_some() {
        companion::check_programs(app, caller, "an MCP server with a command")?;
    }
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        let _adding = Mcp::of(&app).lock_additions().await;
        if Mcp::of(&app).would_exceed(&name) {
            return match Mcp::of(&app).budget().mode {
                BudgetMode::Enforce => Err(budget_used_up(&name)),
                _ => Ok(McpServerAdded::Skipped(skipped(name, McpSkipReason::BudgetWarningOnly))),
            };
        }
        let shadows = app.config.mcp.servers.contains_key(&name);
        let transport = server.transport();
        let before = Mcp::of(&app).add(&name, server.clone())?;
        let replaced = before.is_some();
        let origin = ServerOrigin::Added { shadows };
        let known = KnownServer { name: name.clone(), server, origin, is_enabled: true };
        let view = match connect(&app, &known).await {
            Ok(view) => view,
            Err(failure) => {
                Mcp::of(&app).undo_add(&name, before);
                return Err(failure);
            }
        };
        let added = AddedMcpServer {
            name,
            transport,
            replaced,
            shadowed_settings: shadows,
            tool_count: view.tools.len(),
            originator_client_id: client.clone(),
        };
        let note = Note { frame: "mcp_server_added", data: value_of(&added), client: Some(client) };
        workspace::announce(&app, &caller, &note).await;
        Ok(McpServerAdded::Added(added))
    })
    .await
}

/// Connects a server that was just added. A switch of an earlier server of its name does not apply to it.
async fn connect(app: &App, known: &KnownServer) -> Result<ConnectionView, Failure> {
    let lease = Mcp::of(app).lease(app, known, "").await.map_err(|_| budget_used_up(&known.name))?;
    let connected = lease.ready().await;
    let view = connected.map_err(|problem| failed(Rule::McpServerSpawnFailed, &known.name, &problem))?;
    Mcp::of(app).delete_switch(app, &known.name).await?;
    Ok(view)
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
    let client = check(app, caller, client).await?;
    let name = check_new_name(name)?.to_owned();
    if !Mcp::of(app).remove(&name) {
        return Ok(McpServerRemoved::Skipped(skipped(name, McpSkipReason::NotPresent)));
    }
    let was_shadowing_settings = app.config.mcp.servers.contains_key(&name);
    let removed =
        RemovedMcpServer { name, removed: true, was_shadowing_settings, originator_client_id: client.clone() };
    let data = serde_json::json!({"name": removed.name, "wasShadowingSettings": was_shadowing_settings,
        "originatorClientId": client});
    let note = Note { frame: "mcp_server_removed", data, client: Some(client) };
    workspace::announce(app, caller, &note).await;
    Ok(McpServerRemoved::Removed(removed))
}
