//! The tools that an automation names: whether they exist when it is created or changed, and whether it can use any when it starts.

use ostler_protocol::{Failure, Rule, run_input::automations::Automation};

use crate::{service::threads, state::RunInputState};
use ostler_server::{
    app::App,
    auth::Principal,
    tools::{McpAccess, ToolContext, Toolkit},
};

/// Names of tools that a rejection lists.
const LISTED_MAX: usize = 16;

/// Rejects names of tools that the owner's runs are not offered. A tool of an MCP server that cannot be connected now is accepted if
/// the operator offers it.
pub(super) async fn check(app: &App, owner: &Principal, names: Option<&[String]>) -> Result<(), Failure> {
    let names = names.unwrap_or_default();
    let access = if wants_mcp(app, names).await? { McpAccess::Granted } else { McpAccess::None };
    let offered = offered(app, owner, names, access).await?;
    let mut unknown = vec![];
    for name in names.iter().filter(|name| !offered.contains(name)) {
        if may_come_back(app, name, &offered).await? {
            tracing::warn!(tool = name, "an automation names a tool of an MCP server that does not list its tools now");
        } else {
            unknown.push(name.as_str());
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    unknown.truncate(LISTED_MAX);
    let message = format!("config.enabled_tools: your runs are offered no tool {}", unknown.join(", "));
    Err(Failure::invalid(Rule::AutomationTools, app.redactor.redact(&message).into_owned()))
}

/// Rejects a start that would have none of the tools that its automation names. No MCP server is connected, because other starts wait
/// for this one and an outage of a server must not pause automations: tools of MCP servers that the operator offers count as
/// available.
pub(super) async fn check_start(app: &App, owner: &Principal, automation: &Automation) -> Result<(), Failure> {
    let names = automation.config.enabled_tools.as_deref().unwrap_or_default();
    if names.is_empty() {
        return Ok(());
    }
    let offered = offered(app, owner, names, McpAccess::None).await?;
    if names.iter().any(|name| offered.contains(name)) {
        return Ok(());
    }
    for name in names {
        if may_come_back(app, name, &offered).await? {
            return Ok(());
        }
    }
    let listed: Vec<_> = names.iter().map(String::as_str).take(LISTED_MAX).collect();
    let message = format!("none of the automation's tools is available: {}", listed.join(", "));
    Err(Failure::invalid(Rule::AutomationTools, message))
}

/// Whether one of the names may name a tool of an MCP server.
async fn wants_mcp(app: &App, names: &[String]) -> Result<bool, Failure> {
    if names.is_empty() {
        return Ok(false);
    }
    let prefixes = Toolkit::mcp_prefixes(app).await?;
    Ok(names.iter().any(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))))
}

/// The names of the tools that the owner's runs are offered. Without access to MCP servers, none of them is connected.
async fn offered(app: &App, owner: &Principal, names: &[String], mcp: McpAccess) -> Result<Vec<String>, Failure> {
    if names.is_empty() {
        return Ok(vec![]);
    }
    let context = ToolContext {
        tenant_id: threads::tenant(app, owner)?.into(),
        owner: Some(threads::owner(owner)?.into()),
        run: None,
        command: None,
        mcp,
    };
    Ok(Toolkit::of(app).list(app, &context).await?.into_keys().collect())
}

/// Whether the operator offers the tool, and its server lists no tools now.
async fn may_come_back(app: &App, name: &str, offered: &[String]) -> Result<bool, Failure> {
    if !RunInputState::of(app).system_agents.mcp_tools().iter().any(|granted| granted == name) {
        return Ok(false);
    }
    let prefixes = Toolkit::mcp_prefixes(app).await?;
    let mut own = prefixes.iter().filter(|prefix| name.starts_with(prefix.as_str()));
    Ok(own.any(|prefix| !offered.iter().any(|offered| offered.starts_with(prefix))))
}
