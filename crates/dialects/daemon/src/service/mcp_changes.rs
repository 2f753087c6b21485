//! Restarting MCP servers of the workspace, and switching them on and off.

use std::time::Duration;

use ostler_protocol::{
    Failure, Rule,
    daemon::mcp::{
        McpEntriesRestarted, McpEntryRestarted, McpManageAction, McpManaged, McpRestartReason, McpRestartSkipped,
        McpRestarted, McpServerRestarted, RestartQuery, invalid_index,
    },
};
use ostler_server::{
    app::App,
    auth::Principal,
    mcp::{Mcp, McpProblem, RestartSkipped, Restarted},
};
use serde_json::{Value, json};

use super::{
    mcp::{error_kind, find},
    notes::Note,
    workspace,
};

/// Connects to a server again, and notifies the followers of all open sessions of the outcome.
pub(crate) async fn restart(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    name: &str,
    query: &RestartQuery,
) -> Result<McpRestarted, Failure> {
    workspace::check_change(app, caller, client.as_deref()).await?;
    let index = query.index()?;
    if query.entry_index.is_some() && app.config.mcp.no_pool {
        return Err(invalid_index());
    }
    let known = find(app, name).await?;
    let connections = Mcp::of(app).connections(&known.name).len();
    if index.is_some_and(|index| index >= connections.max(1)) {
        return Err(invalid_index());
    }
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        let outcome = Mcp::of(&app).restart(&app, &known, index).await;
        let followers = Followers { app: &app, caller: &caller, client, server: &known.name };
        match outcome {
            Err(skipped) => Ok(followers.skipped(skipped).await),
            Ok(restarts) => followers.restarted(restarts, index).await,
        }
    })
    .await
}

/// The followers of the workspace's sessions, who are notified of a restart.
struct Followers<'a> {
    app: &'a App,
    caller: &'a Principal,
    client: Option<String>,
    server: &'a str,
}

impl Followers<'_> {
    async fn notify(&self, frame: &'static str, mut data: Value, entry_index: Option<usize>) {
        data["serverName"] = self.server.into();
        if let Some(index) = entry_index {
            data["entryIndex"] = index.into();
        }
        if let Some(client) = &self.client {
            data["originatorClientId"] = client.as_str().into();
        }
        let note = Note { frame, data, client: self.client.clone() };
        workspace::announce(self.app, self.caller, &note).await;
    }

    async fn skipped(&self, skipped: RestartSkipped) -> McpRestarted {
        let reason = match skipped {
            RestartSkipped::InFlight => McpRestartReason::InFlight,
            RestartSkipped::Disabled => McpRestartReason::Disabled,
            RestartSkipped::BudgetWouldExceed => McpRestartReason::BudgetWouldExceed,
        };
        self.notify("mcp_server_restart_refused", json!({"reason": reason}), None).await;
        let server_name = self.server.to_owned();
        McpRestarted::Skipped(McpRestartSkipped { server_name, restarted: false, skipped: true, reason })
    }

    /// The response to a restart that was tried. Several connections are reported one by one.
    async fn restarted(&self, restarts: Restarted, index: Option<usize>) -> Result<McpRestarted, Failure> {
        let are_several = restarts.len() > 1 || index.is_some();
        for (place, outcome) in &restarts {
            let entry_index = are_several.then_some(*place);
            match outcome {
                Ok(duration) => {
                    let data = json!({"durationMs": millis(*duration)});
                    self.notify("mcp_server_restarted", data, entry_index).await;
                }
                Err(problem) => {
                    let data = json!({"reason": McpRestartReason::RestartFailed, "details": problem.to_string()});
                    self.notify("mcp_server_restart_refused", data, entry_index).await;
                }
            }
        }
        let server_name = self.server.to_owned();
        if are_several {
            let entries = restarts.into_iter().map(|(entry_index, outcome)| entry(entry_index, &outcome)).collect();
            return Ok(McpRestarted::Entries(McpEntriesRestarted { server_name, entries }));
        }
        match restarts.into_iter().next() {
            Some((_, Ok(duration))) => {
                let duration_ms = millis(duration);
                Ok(McpRestarted::Done(McpServerRestarted { server_name, restarted: true, duration_ms }))
            }
            Some((_, Err(problem))) => Err(failed(Rule::RestartFailed, &server_name, &problem)),
            None => Err(invalid_index()),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn entry(entry_index: usize, outcome: &Result<Duration, McpProblem>) -> McpEntryRestarted {
    McpEntryRestarted {
        entry_index,
        restarted: outcome.is_ok(),
        duration_ms: outcome.as_ref().ok().map(|duration| millis(*duration)),
        reason: outcome.is_err().then_some(McpRestartReason::RestartFailed),
    }
}

/// The failure of a server that could not be connected.
pub(super) fn failed(rule: Rule, name: &str, problem: &McpProblem) -> Failure {
    let failure = Failure::rule(rule, format!("the MCP server {name} could not be connected: {problem}"));
    // Not `errorKind`, which replaces the code in failures about files.
    failure.detail("serverName", name).detail("reason", json!(error_kind(problem)))
}

/// Switches a server on or off, or ends its connections.
pub(crate) async fn manage(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    name: &str,
    action: McpManageAction,
) -> Result<McpManaged, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    let known = find(app, name).await?;
    if action == McpManageAction::Authenticate {
        let message = "this MCP server has no login; give its credential in its configuration, as env or headers";
        return Err(Failure::rule(Rule::McpAuthUnsupported, message).detail("serverName", known.name));
    }
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        let changed = match action {
            McpManageAction::Enable => Mcp::of(&app).switch(&app, &known, true).await?,
            McpManageAction::Disable => Mcp::of(&app).switch(&app, &known, false).await?,
            McpManageAction::Authenticate | McpManageAction::ClearAuth => {
                Mcp::of(&app).disconnect(&known.name);
                false
            }
        };
        let mut data = json!({"serverName": known.name, "action": action});
        if let Some(client) = &client {
            data["originatorClientId"] = client.as_str().into();
        }
        workspace::announce(&app, &caller, &Note { frame: "mcp_server_changed", data, client }).await;
        Ok(McpManaged { server_name: known.name, action, ok: true, changed })
    })
    .await
}
