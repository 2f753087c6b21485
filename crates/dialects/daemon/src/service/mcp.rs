//! MCP servers of the workspace, as clients see them, and what they are notified of. Reading starts no server, and needs no workspace:
//! the operator's runs use the configured servers without one, too.

use std::collections::HashSet;

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        cells::{CellErrorKind, CellStatus, StatusCell},
        mcp::{
            McpBudgetStatus, McpConfigOrigin, McpDisabledReason, McpDiscoveryState, McpRuntimeStatus, McpServerStatus,
            McpStatus, McpToolStatus, McpToolsStatus, check_named,
        },
        workspace::SNAPSHOT_VERSION,
    },
    mcp::{
        budget::{BudgetMode, WARNING_RATIO},
        states::ConnectionState,
        tools::McpTool,
    },
    text::clip,
};
use ostler_server::{
    app::App,
    auth::{Access, Principal},
    mcp::{self, BudgetUse, ConnectionView, Mcp, McpNotice, McpProblem, RegisteredServer, ServerOrigin},
    traces::note_tenant,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::{notes::Note, workspace};

/// Most tools that cannot be called which a hint names, and its most characters.
const SKIPPED_SHOWN_MAX: usize = 8;
const SKIPPED_CHARS_MAX: usize = 400;
/// Most sessions of which it is remembered that their servers were connected.
const DISCOVERED_MAX: usize = 1_024;
const BUDGET_HINT: &str = "raise --mcp-client-budget, or disable MCP servers";

/// The server of this name.
pub(super) async fn find(app: &App, name: &str) -> Result<RegisteredServer, Failure> {
    let absent = || Failure::rule(Rule::McpServerNotFound, "there is no such MCP server").detail("serverName", name);
    Mcp::of(app).server(app, check_named(name)?).await?.ok_or_else(absent)
}

/// Checks that the caller may read about the servers.
fn check_read(app: &App, caller: &Principal) -> Result<(), Failure> {
    Access::Browse.admit(caller)?;
    caller.is_of(workspace::tenant(app))?;
    note_tenant(workspace::tenant(app));
    Ok(())
}

pub(crate) async fn status(app: &App, caller: &Principal) -> Result<McpStatus, Failure> {
    check_read(app, caller)?;
    snapshot(app).await
}

/// The servers and their states. The caller authorises.
pub(super) async fn snapshot(app: &App) -> Result<McpStatus, Failure> {
    let known = Mcp::of(app).servers(app).await?;
    let views: Vec<_> = known.iter().map(|known| latest(app, &known.name)).collect();
    let servers: Vec<_> =
        known.iter().zip(&views).map(|(known, view)| server_status(app, known, view.as_ref())).collect();
    let is_in = |state: ConnectionState| views.iter().flatten().any(|view| view.state == state);
    let discovery_state = match () {
        () if is_in(ConnectionState::Connecting) => McpDiscoveryState::InProgress,
        () if views.iter().any(Option::is_some) => McpDiscoveryState::Completed,
        () => McpDiscoveryState::NotStarted,
    };
    let refused = servers.iter().filter(|server| server.disabled_reason == Some(McpDisabledReason::Budget)).count();
    let budget = Mcp::of(app).budget();
    Ok(McpStatus {
        v: SNAPSHOT_VERSION,
        workspace_cwd: workspace::cwd(app).ok(),
        initialized: true,
        discovery_state,
        servers,
        client_count: budget.live,
        client_budget: budget.slots_max,
        budget_mode: budget.mode,
        budgets: budget_status(app, &budget, refused).into_iter().collect(),
    })
}

/// The newest connection of a server. `None` if it was never connected.
fn latest(app: &App, name: &str) -> Option<ConnectionView> {
    let connections = Mcp::of(app).connections(name);
    let live = connections.iter().rev().find(|connection| connection.view.state.is_live());
    live.or(connections.last()).map(|connection| connection.view.clone())
}

fn server_status(app: &App, known: &RegisteredServer, view: Option<&ConnectionView>) -> McpServerStatus {
    let state = view.map(|view| view.state).unwrap_or_default();
    let is_refused = known.is_enabled && !state.is_live() && Mcp::of(app).is_refused(&known.name);
    let (status, mcp_status) = match state {
        _ if !known.is_enabled => (CellStatus::Disabled, McpRuntimeStatus::Disconnected),
        _ if is_refused => (CellStatus::Error, McpRuntimeStatus::Disconnected),
        ConnectionState::Connected => (CellStatus::Ok, McpRuntimeStatus::Connected),
        ConnectionState::Connecting => (CellStatus::Warning, McpRuntimeStatus::Connecting),
        ConnectionState::Disconnected => (CellStatus::NotStarted, McpRuntimeStatus::Disconnected),
        ConnectionState::Failed => (CellStatus::Error, McpRuntimeStatus::Disconnected),
    };
    let problem = view.and_then(|view| view.problem.as_ref()).filter(|_| status == CellStatus::Error && !is_refused);
    let is_added = matches!(known.origin, ServerOrigin::Added { .. });
    let disabled_reason = match () {
        () if !known.is_enabled => Some(McpDisabledReason::Config),
        () if is_refused => Some(McpDisabledReason::Budget),
        () => None,
    };
    let error_kind = problem.map(error_kind).or(is_refused.then_some(CellErrorKind::BudgetExhausted));
    let description = known.server.description.as_ref().map(|text| app.redactor.redact(text).into_owned());
    McpServerStatus {
        kind: "mcp_server".to_owned(),
        status,
        error: problem.map(|problem| problem.to_string()),
        error_kind,
        hint: is_refused
            .then(|| BUDGET_HINT.to_owned())
            .or_else(|| pause_hint(app, known))
            .or_else(|| skipped_hint(view?)),
        name: known.name.clone(),
        mcp_status,
        transport: known.server.transport(),
        disabled: !known.is_enabled,
        disabled_reason,
        config_origin: if is_added { McpConfigOrigin::Runtime } else { McpConfigOrigin::SystemSettings },
        removable: is_added,
        description,
    }
}

/// When a server that could not be connected is connected again. `None` if it does not pause.
fn pause_hint(app: &App, known: &RegisteredServer) -> Option<String> {
    let left = Mcp::of(app).pause_left(app, known).filter(|_| known.is_enabled)?;
    Some(format!("it is skipped for {} s, and connected again when it is needed after that", left.as_secs() + 1))
}

/// The tools that the server lists and that cannot be called. `None` if there are none.
fn skipped_hint(view: &ConnectionView) -> Option<String> {
    let skipped = view.tools.iter().filter(|tool| tool.invalid_reason.is_some());
    let reason = |tool: &McpTool| tool.invalid_reason.clone().unwrap_or_default();
    let names: Vec<_> = skipped.map(|tool| format!("{} ({})", tool.server_tool_name, reason(tool))).collect();
    let shown = names.iter().take(SKIPPED_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!names.is_empty())
        .then(|| format!("{} of its tools are skipped: {}", names.len(), clip(&shown, SKIPPED_CHARS_MAX)))
}

pub(super) fn error_kind(problem: &McpProblem) -> CellErrorKind {
    match problem {
        McpProblem::Missing => CellErrorKind::MissingBinary,
        McpProblem::ValueMissing(_) | McpProblem::LoginRequired => CellErrorKind::AuthEnvError,
        McpProblem::Unusable(_) => CellErrorKind::InvalidConfig,
        McpProblem::AddressRefused => CellErrorKind::BlockedEgress,
        McpProblem::TimedOut => CellErrorKind::InitTimeout,
        McpProblem::NotStarted => CellErrorKind::McpServerSpawnFailed,
        McpProblem::Protocol
        | McpProblem::TooLarge
        | McpProblem::Lost
        | McpProblem::Stopped
        | McpProblem::CallRefused(_) => CellErrorKind::ProtocolError,
    }
}

fn scope(app: &App) -> &'static str {
    if app.config.mcp.no_pool { "session" } else { "workspace" }
}

fn budget_status(app: &App, usage: &BudgetUse, refused_count: usize) -> Option<McpBudgetStatus> {
    let budget = usage.slots_max?;
    let is_scarce = f64::from(usage.reserved) >= WARNING_RATIO * f64::from(budget);
    let status = match () {
        () if refused_count > 0 => CellStatus::Error,
        () if is_scarce => CellStatus::Warning,
        () => CellStatus::Ok,
    };
    Some(McpBudgetStatus {
        kind: "mcp_budget".to_owned(),
        status,
        error_kind: (refused_count > 0).then_some(CellErrorKind::BudgetExhausted),
        hint: (refused_count > 0).then(|| BUDGET_HINT.to_owned()),
        scope: scope(app).to_owned(),
        live_count: usage.live,
        budget,
        mode: usage.mode,
        refused_count,
    })
}

pub(crate) async fn tools(app: &App, caller: &Principal, name: &str) -> Result<McpToolsStatus, Failure> {
    check_read(app, caller)?;
    let known = find(app, name).await?;
    let disabled = mcp::disabled_tools(app).await?;
    let view = latest(app, &known.name).unwrap_or_default();
    let listed = view.tools.iter().filter(|tool| known.is_enabled && !disabled.contains(&tool.name));
    let problem = view.problem.as_ref().filter(|_| known.is_enabled);
    Ok(McpToolsStatus {
        v: SNAPSHOT_VERSION,
        workspace_cwd: workspace::cwd(app).ok(),
        server_name: known.name,
        initialized: true,
        acp_channel_live: view.state == ConnectionState::Connected,
        tools: listed.map(tool_status).collect(),
        errors: problem
            .map(|problem| StatusCell::error("mcp_server", error_kind(problem), problem.to_string()))
            .into_iter()
            .collect(),
    })
}

fn tool_status(tool: &McpTool) -> McpToolStatus {
    McpToolStatus {
        name: tool.name.clone(),
        server_tool_name: tool.server_tool_name.clone(),
        description: tool.description.clone(),
        schema: tool.schema.clone(),
        annotations: tool.annotations.clone(),
        is_valid: tool.invalid_reason.is_none(),
        invalid_reason: tool.invalid_reason.clone(),
    }
}

/// The scopes whose servers this process has connected: that of the pool, or the sessions if there is no pool.
#[derive(Default)]
pub(crate) struct DiscoveredScopes(Mutex<HashSet<String>>);

impl DiscoveredScopes {
    /// `false` if the scope is recorded already. Many sessions are forgotten: connecting their servers once more is harmless.
    fn insert(&self, app: &App, session_id: &str) -> bool {
        let scope = if app.config.mcp.no_pool { session_id } else { "" };
        let mut scopes = self.0.lock();
        if scopes.len() >= DISCOVERED_MAX {
            scopes.clear();
        }
        scopes.insert(scope.to_owned())
    }

    fn remove(&self, app: &App, session_id: &str) {
        let scope = if app.config.mcp.no_pool { session_id } else { "" };
        self.0.lock().remove(scope);
    }
}

/// Connects the servers of the workspace for a session that clients use again, unless this process has done so: the session may have
/// been opened before the server was restarted.
pub(crate) fn discover_once(app: &App, session_id: &str) {
    if app.state::<DiscoveredScopes>().insert(app, session_id) {
        discover(app, session_id);
    }
}

/// Connects the servers of the workspace for a session that was just opened, without waiting for them.
pub(crate) fn discover(app: &App, session_id: &str) {
    if workspace::cwd(app).is_err() {
        return;
    }
    app.state::<DiscoveredScopes>().insert(app, session_id);
    let (app, session_id) = (app.clone(), session_id.to_owned());
    tokio::spawn(async move {
        match Mcp::of(&app).servers(&app).await {
            Ok(servers) if servers.is_empty() => {}
            Ok(servers) => Mcp::of(&app).connect_all(&app, &servers, &session_id).await,
            Err(failure) => {
                // The next use of the session tries again.
                app.state::<DiscoveredScopes>().remove(&app, &session_id);
                tracing::warn!(%failure, "the MCP servers of the workspace could not be read");
            }
        }
    });
}

/// Sends what happens to the budget to the followers of all open sessions, until the server stops.
pub(crate) async fn announce_budget(app: App) {
    let mut notices = Mcp::of(&app).notices();
    loop {
        let notice = tokio::select! {
            notice = notices.recv() => notice,
            () = app.stopped() => return,
        };
        match notice {
            Ok(notice) => {
                if let Some(note) = budget_note(&app, &notice) {
                    workspace::announce(&app, &Principal::Operator, &note).await;
                }
            }
            Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "notices about MCP servers were dropped"),
            Err(RecvError::Closed) => return,
        }
    }
}

/// `None` if no client is to be notified: nothing is counted, or there is no workspace.
fn budget_note(app: &App, notice: &McpNotice) -> Option<Note> {
    workspace::cwd(app).ok()?;
    let usage = notice.budget();
    let budget = usage.slots_max.filter(|_| notice.mode() != BudgetMode::Off)?;
    let mut data: Value = json!({"liveCount": usage.live, "reservedCount": usage.reserved, "budget": budget,
        "mode": usage.mode, "scope": scope(app)});
    let frame = match notice {
        McpNotice::Warning(_) => {
            data["thresholdRatio"] = WARNING_RATIO.into();
            "mcp_budget_warning"
        }
        McpNotice::Refused { servers, .. } => {
            let refused = servers
                .iter()
                .map(|(name, transport)| json!({"name": name, "transport": transport, "reason": "budget_exhausted"}));
            data["refusedServers"] = refused.collect();
            "mcp_child_refused_batch"
        }
    };
    Some(Note { frame, data, client: None })
}
