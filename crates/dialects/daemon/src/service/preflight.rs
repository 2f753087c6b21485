//! Checks that a client makes before it prompts: of the server's machine, and of the backend that would handle the prompt. No agent
//! is started for them. Those that start a process are made at most once in a few seconds, whatever clients request.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use ostler_protocol::{
    Failure,
    daemon::{
        agent_status::entries,
        cells::{
            CellErrorKind,
            CellLocality::{Acp, Daemon},
            CellStatus::{Disabled, Error, NotStarted, Ok as Good, Unknown, Warning},
            PreflightCell,
        },
        mcp::{McpDiscoveryState, McpRuntimeStatus, McpStatus},
        workspace::{PreflightStatus, SNAPSHOT_VERSION},
    },
    kernel::backends::Backend,
    text::clip,
};
use ostler_server::{app::App, auth::Principal, service::companions::CompanionKey};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use super::{
    companion, mcp, profiles, providers,
    workspace::{self, Checks, WorkspaceState},
};
use crate::state::DaemonState;

/// Time limit of one check.
const CHECK_MAX: Duration = Duration::from_secs(2);
/// How long the checks of the server are valid, in milliseconds.
const VALID_MS: i64 = 10_000;
const VERSION_CHARS_MAX: usize = 80;
const MCP_DISCOVERY: &str = "mcp_discovery";
/// The checks that only a running agent can answer.
const AGENT_CHECKS: [&str; 4] = [MCP_DISCOVERY, "skills", "tool_registry", "egress"];

pub(crate) async fn get(app: &App, caller: &Principal) -> Result<PreflightStatus, Failure> {
    workspace::check_read(app, caller)?;
    let mut cells = checks(app).await?;
    let model = providers::current_model(app).await;
    let backend = profiles::list(app, caller).await?.into_iter().find(|backend| backend.profile == model);
    cells.extend(of_backend(&model, backend.as_ref()));
    let running = companion::running_of_workspace(app).await?;
    let acp_channel_live = match &running {
        Some(key) => ask_agent(app, key, &mut cells).await,
        None => false,
    };
    let servers = mcp::snapshot(app).await;
    if let Some(cell) = cells.iter_mut().find(|cell| cell.kind == MCP_DISCOVERY) {
        match &servers {
            Ok(servers) => add_servers(cell, servers),
            Err(failure) => add_failure(cell, failure),
        }
    }
    Ok(PreflightStatus {
        v: SNAPSHOT_VERSION,
        workspace_cwd: workspace::cwd(app)?,
        initialized: true,
        acp_channel_live,
        cells,
    })
}

/// The checks of the server. Concurrent callers wait for the same ones.
async fn checks(app: &App) -> Result<Vec<PreflightCell>, Failure> {
    let mut latest = WorkspaceState::of(app).checks.lock().await;
    let now = app.now();
    if let Some(checks) = &*latest
        && now.duration_since(checks.at).as_millis() < i128::from(VALID_MS)
    {
        return Ok(checks.cells.clone());
    }
    let directory = DaemonState::of(app).workspace()?.clone();
    let path = app.config.environment.get("PATH");
    let (directory, git, ripgrep) = tokio::join!(
        check_directory(directory),
        check_program("git", path.clone(), "agents need it for version control", CHECK_MAX),
        check_program("rg", path, "agents search files without it, more slowly", CHECK_MAX),
    );
    let entry = PreflightCell::new("cli_entry", Daemon, Good).detail("version", env!("CARGO_PKG_VERSION"));
    let runtime = |kind: &str| PreflightCell::new(kind, Daemon, Disabled).hint("this server needs no Node.js");
    let cells = vec![runtime("node_version"), entry, directory, ripgrep, git, runtime("npm")];
    *latest = Some(Checks { at: now, cells: cells.clone() });
    Ok(cells)
}

async fn check_directory(directory: PathBuf) -> PreflightCell {
    let cell = |status| PreflightCell::new("workspace_dir", Daemon, status);
    let looked = tokio::task::spawn_blocking(move || look_at(&directory));
    match timeout(CHECK_MAX, looked).await {
        Ok(Ok(Ok(()))) => cell(Good),
        Ok(Ok(Err(failed))) if failed.kind() == std::io::ErrorKind::NotFound => {
            cell(Error).failed(CellErrorKind::MissingFile, "the workspace has been removed")
        }
        Ok(Ok(Err(failed))) => cell(Error).failed(CellErrorKind::StatFailed, failed.to_string()),
        Ok(Err(_)) => cell(Error).failed(CellErrorKind::StatFailed, "the check was aborted"),
        Err(_) => cell(Error).failed(CellErrorKind::InitTimeout, "the directory did not respond in time"),
    }
}

fn look_at(directory: &Path) -> std::io::Result<()> {
    std::fs::read_dir(directory)?.next().transpose().map(drop)
}

/// Asks a program for its version. A program that is missing is a warning: prompts work without it.
async fn check_program(program: &'static str, path: Option<OsString>, hint: &str, time_max: Duration) -> PreflightCell {
    let kind = if program == "rg" { "ripgrep" } else { program };
    let cell = |status| PreflightCell::new(kind, Daemon, status);
    let failed = |error_kind, error: String| cell(Warning).failed(error_kind, error).hint(hint);
    match timeout(time_max, version(program, path)).await {
        Ok(Ok(version)) => cell(Good).detail("version", version),
        Ok(Err(error)) => failed(CellErrorKind::MissingBinary, error),
        Err(_) => failed(CellErrorKind::InitTimeout, format!("{program} did not respond in time")),
    }
}

/// The first line of what the program prints as its version. The error is a message for people.
async fn version(program: &'static str, path: Option<OsString>) -> Result<String, String> {
    let file = tokio::task::spawn_blocking(move || find(program, path)).await.unwrap_or_default();
    let file = file.ok_or_else(|| format!("{program} is not on the PATH"))?;
    let mut command = Command::new(file);
    // Not in the workspace, whose files may be hostile to programs that start there.
    command.arg("--version").current_dir("/").env_clear().kill_on_drop(true);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    match command.output().await {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(clip(text.lines().next().unwrap_or_default(), VERSION_CHARS_MAX))
        }
        _ => Err(format!("{program} does not work")),
    }
}

/// The program in an absolute directory of the search path.
fn find(program: &str, path: Option<OsString>) -> Option<PathBuf> {
    let folders: Vec<_> = std::env::split_paths(&path?).filter(|folder| folder.is_absolute()).collect();
    folders.into_iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// What is known of the backend without starting it.
fn of_backend(model: &str, backend: Option<&Backend>) -> Vec<PreflightCell> {
    let cell = |kind: &str, status| PreflightCell::new(kind, Acp, status);
    let Some(backend) = backend else {
        let error = format!("there is no backend profile {model:?}");
        let missing = cell("providers", Error).failed(CellErrorKind::InvalidConfig, error);
        return [cell("auth", NotStarted), missing].into_iter().chain(known_later()).collect();
    };
    let message = backend.message.clone().unwrap_or_else(|| "the profile is not ready".to_owned());
    let auth = match (backend.ready, backend.required_secret_keys.is_empty()) {
        (true, _) => cell("auth", Good),
        // What is missing is not a credential.
        (false, true) => cell("auth", NotStarted),
        (false, false) => cell("auth", Error).failed(CellErrorKind::AuthEnvError, message.clone()),
    };
    let providers = match (backend.available, backend.ready) {
        (true, true) => cell("providers", Good),
        (false, _) => cell("providers", Error).failed(CellErrorKind::MissingBinary, message),
        (true, false) => cell("providers", Error).failed(CellErrorKind::InvalidConfig, message),
    };
    let providers = providers.detail("modelId", model).detail("authType", backend.backend_kind.as_str());
    [auth, providers].into_iter().chain(known_later()).collect()
}

/// Checks that only a running agent could answer.
fn known_later() -> impl Iterator<Item = PreflightCell> {
    AGENT_CHECKS.into_iter().map(|kind| PreflightCell::new(kind, Acp, NotStarted))
}

/// Replaces the checks that only the agent can answer with its own. `false` if its process has ended.
async fn ask_agent(app: &App, key: &CompanionKey, cells: &mut [PreflightCell]) -> bool {
    match companion::ask_workspace(app, key, "preflight").await {
        Ok(Some(reply)) => {
            take_reported(cells, &reply);
            true
        }
        Ok(None) => false,
        Err(failure) => {
            for cell in cells.iter_mut().filter(|cell| is_of_agent(cell)) {
                (cell.status, cell.hint) = (Unknown, Some(failure.message.clone()));
            }
            true
        }
    }
}

fn is_of_agent(cell: &PreflightCell) -> bool {
    AGENT_CHECKS.contains(&cell.kind.as_str())
}

/// A check that the agent does not report, or that cannot be read, is unknown.
fn take_reported(cells: &mut [PreflightCell], reply: &Value) {
    let read = |entry| serde_json::from_value::<PreflightCell>(Value::Object(entry)).ok();
    let reported: Vec<_> = entries(reply, "cells").into_iter().filter_map(read).collect();
    for cell in cells.iter_mut().filter(|cell| is_of_agent(cell)) {
        match reported.iter().find(|reported| reported.kind == cell.kind) {
            Some(reported) => *cell = PreflightCell { locality: Acp, ..reported.clone() },
            None => cell.status = Unknown,
        }
    }
}

/// The MCP servers of this server cannot be listed. A problem that the agent has reported stays.
fn add_failure(cell: &mut PreflightCell, failure: &Failure) {
    if cell.status != Error {
        (cell.status, cell.hint) = (Error, None);
        (cell.error, cell.error_kind) = (Some(failure.message.clone()), Some(CellErrorKind::StatFailed));
    }
}

/// Adds the MCP servers of this server to those that the agent knows itself: agents call the tools of both.
fn add_servers(cell: &mut PreflightCell, status: &McpStatus) {
    if status.servers.is_empty() {
        return;
    }
    let detail = cell.detail.get_or_insert_default();
    let mut count = |name: &str, ours: usize| {
        let all = detail.get(name).and_then(Value::as_u64).unwrap_or_default().saturating_add(ours as u64);
        detail.insert(name.to_owned(), all.into());
        all
    };
    let in_state = |state: McpRuntimeStatus| status.servers.iter().filter(|server| server.mcp_status == state).count();
    let total = count("total", status.servers.len());
    let connected = count("connected", in_state(McpRuntimeStatus::Connected));
    let connecting = count("connecting", in_state(McpRuntimeStatus::Connecting));
    count("disconnected", in_state(McpRuntimeStatus::Disconnected));
    // The agent may still be connecting its own servers.
    if detail.get("discoveryState") != Some(&json!(McpDiscoveryState::InProgress)) {
        detail.insert("discoveryState".to_owned(), json!(status.discovery_state));
    }
    if matches!(cell.status, Error | Warning) {
        return;
    }
    // The agent's hint is that it has no servers of its own.
    cell.hint = None;
    let failed: Vec<_> = status.servers.iter().filter(|server| server.status == Error).collect();
    if let Some(first) = failed.first() {
        cell.error = Some(format!("{}/{total} MCP servers cannot be connected.", failed.len()));
        (cell.status, cell.error_kind) = (Error, first.error_kind);
    } else if connecting > 0 {
        cell.error = Some(format!("{connecting}/{total} MCP servers are still connecting."));
        cell.status = Warning;
    } else if connected > 0 {
        cell.status = Good;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn program(folder: &Path, script: &str) {
        let file = folder.join("git");
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[tokio::test]
    async fn the_version_of_a_program_is_read_without_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let path = || Some(folder.path().as_os_str().to_owned());
        program(folder.path(), "echo git version 9 in $(/bin/pwd) with home \"[$HOME]\"");
        let cell = check_program("git", path(), "hint", CHECK_MAX).await;
        assert_eq!((cell.status, &cell.detail.unwrap()["version"]), (Good, &"git version 9 in / with home []".into()));
        program(folder.path(), "exit 1");
        assert_eq!(
            check_program("git", path(), "hint", CHECK_MAX).await.error_kind,
            Some(CellErrorKind::MissingBinary)
        );
        let missing = check_program("rg", path(), "hint", CHECK_MAX).await;
        assert_eq!(
            (missing.kind.as_str(), missing.status, missing.hint.as_deref()),
            ("ripgrep", Warning, Some("hint"))
        );
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "exec sleep 60");
        let path = Some(folder.path().as_os_str().to_owned());
        let cell = check_program("git", path, "hint", Duration::from_millis(100)).await;
        assert_eq!(cell.error_kind, Some(CellErrorKind::InitTimeout));
    }

    #[test]
    fn a_relative_directory_of_the_path_is_not_searched() {
        assert_eq!(find("sh", Some("bin:.".into())), None);
        assert!(find("sh", Some("bin:/bin:/usr/bin".into())).is_some());
    }

    #[test]
    fn checks_of_the_agent_replace_those_that_are_known_later() {
        let mut cells: Vec<_> = [PreflightCell::new("auth", Acp, Good)].into_iter().chain(known_later()).collect();
        let reply = serde_json::json!({"cells": [
            {"kind": "auth", "status": "error", "locality": "acp"},
            {"kind": "skills", "status": "ok", "locality": "acp", "detail": {"count": 3}},
            {"kind": "tool_registry", "status": "error", "locality": "daemon", "errorKind": "protocol_error"},
            {"kind": "mcp_discovery", "status": "nonsense", "locality": "acp"}]});
        take_reported(&mut cells, &reply);
        let seen: Vec<_> = cells.iter().map(|cell| (cell.kind.as_str(), cell.status, cell.locality)).collect();
        let expected = [
            ("auth", Good, Acp),
            ("mcp_discovery", Unknown, Acp),
            ("skills", Good, Acp),
            ("tool_registry", Error, Acp),
            ("egress", Unknown, Acp),
        ];
        assert_eq!(seen, expected);
        assert_eq!(cells[2].detail.as_ref().unwrap()["count"], 3);
    }

    #[test]
    fn servers_of_both_are_counted_and_a_problem_of_the_agent_stays() {
        let server = json!({"kind": "mcp_server", "status": "error", "errorKind": "missing_binary", "name": "a",
            "mcpStatus": "disconnected", "transport": "stdio", "disabled": false, "configOrigin": "system_settings",
            "removable": false});
        let status = json!({"v": 1, "initialized": true, "discoveryState": "completed", "servers": [server],
            "clientCount": 0, "budgetMode": "off", "budgets": []});
        let status: McpStatus = serde_json::from_value(status).unwrap();
        let mut cell = PreflightCell::new(MCP_DISCOVERY, Acp, Good).hint("No MCP servers configured.");
        add_servers(&mut cell, &McpStatus { servers: vec![], ..status.clone() });
        assert_eq!((cell.status, cell.hint.is_some()), (Good, true));
        let mut cell = cell.detail("total", 2).detail("connected", 2);
        add_servers(&mut cell, &status);
        assert_eq!((cell.status, cell.error_kind, cell.hint), (Error, Some(CellErrorKind::MissingBinary), None));
        assert_eq!(cell.error.as_deref(), Some("1/3 MCP servers cannot be connected."));
        let detail = cell.detail.unwrap();
        assert_eq!((&detail["connected"], &detail["discoveryState"]), (&json!(2), &json!("completed")));
        let mut cell = PreflightCell::new(MCP_DISCOVERY, Acp, Good).detail("discoveryState", "in_progress");
        add_servers(&mut cell, &status);
        assert_eq!(cell.detail.unwrap()["discoveryState"], "in_progress", "the agent is not done");
        let mut cell = PreflightCell::new(MCP_DISCOVERY, Acp, Error).failed(CellErrorKind::ProtocolError, "its own");
        add_servers(&mut cell, &status);
        assert_eq!(cell.error.as_deref(), Some("its own"));
    }

    #[test]
    fn a_list_of_servers_that_fails_is_an_error_of_its_check() {
        let failure = Failure::not_found("list");
        let mut cell = PreflightCell::new(MCP_DISCOVERY, Acp, Good).hint("No MCP servers configured.");
        add_failure(&mut cell, &failure);
        assert_eq!((cell.status, cell.error, cell.hint), (Error, Some(failure.message.clone()), None));
        let mut cell = PreflightCell::new(MCP_DISCOVERY, Acp, Error).failed(CellErrorKind::ProtocolError, "its own");
        add_failure(&mut cell, &failure);
        assert_eq!((cell.error.as_deref(), cell.error_kind), (Some("its own"), Some(CellErrorKind::ProtocolError)));
    }

    #[test]
    fn an_unready_profile_is_an_error_with_its_reason() {
        let kinds = |backend: Option<&Backend>| -> Vec<_> {
            let cells = of_backend("codex", backend);
            assert!(cells[2..].iter().all(|cell| cell.status == NotStarted));
            cells[..2].iter().map(|cell| (cell.status, cell.error_kind)).collect()
        };
        let backend = Backend {
            required_secret_keys: vec!["auth.json".into()],
            available: true,
            ready: false,
            ..Backend::default()
        };
        let (auth, config) = (CellErrorKind::AuthEnvError, CellErrorKind::InvalidConfig);
        assert_eq!(kinds(Some(&backend)), [(Error, Some(auth)), (Error, Some(config))]);
        let missing = Backend { available: false, ..backend.clone() };
        assert_eq!(kinds(Some(&missing))[1], (Error, Some(CellErrorKind::MissingBinary)));
        assert_eq!(kinds(Some(&Backend { ready: true, ..backend })), [(Good, None), (Good, None)]);
        assert_eq!(kinds(None), [(NotStarted, None), (Error, Some(config))]);
    }
}
