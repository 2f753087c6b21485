//! Subagents of the coding agent: files with front matter. Those of the workspace are in it; those for every workspace are in the part of
//! the agent's home that its sessions share. Both are reached in the way in which files of the workspace are.

use std::{ops::ControlFlow, time::Duration};

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        agents::{
            AGENT_FILE_BYTES_MAX, AGENT_FILES_MAX, AGENT_FOLDER_BYTES_MAX, AGENTS_FOLDER, AgentBody, AgentChanged,
            AgentDefinition, AgentDetail, AgentLevel, AgentList, AgentScope, AgentSummary, GenerateAgent,
            GeneratedAgent, check_agent_type,
        },
        cells::{CellErrorKind, StatusCell},
        files::EntryKind,
        workspace::SNAPSHOT_VERSION,
    },
    kernel::provider_profiles::ProfileOwner,
};
use ostler_server::{
    app::App,
    auth::Principal,
    directories,
    service::companions::{self, CompanionKey},
};
use serde_json::json;

use super::{
    companion,
    documents::{self, as_document_failure},
    notes::Note,
    workspace,
};
use crate::files::{Expected, Workspace};

/// How long the model may take to write a definition.
const GENERATE_LIMIT: Duration = Duration::from_secs(120);
/// The kind of the cell of a file that cannot be read.
const CELL: &str = "agent_file";

/// A definition with the file that it is in.
struct StoredAgent {
    definition: AgentDefinition,
    /// Its path in the workspace or in the shared home.
    path: String,
    hash: String,
}

pub(crate) async fn list(app: &App, caller: &Principal) -> Result<AgentList, Failure> {
    workspace::check_read(app, caller)?;
    let key = companion::of_workspace(app).await?;
    let mut list = AgentList {
        v: SNAPSHOT_VERSION,
        workspace_cwd: workspace::cwd(app)?,
        agents: AgentDefinition::built_in().map(|agent| agent.summary()).collect(),
        errors: vec![],
    };
    for level in [AgentLevel::Project, AgentLevel::User] {
        let summaries = &mut list.agents;
        let errors = visit_level(app, &key, level, |agent| {
            let file_path = shown_path(app, level, &agent.path);
            summaries.push(AgentSummary { file_path, ..agent.definition.summary() });
            ControlFlow::Continue(())
        });
        list.errors.extend(errors.await?);
    }
    Ok(list)
}

pub(crate) async fn get(app: &App, caller: &Principal, name: &str, scope: &AgentScope) -> Result<AgentDetail, Failure> {
    workspace::check_read(app, caller)?;
    let name = check_agent_type(name)?;
    let level = AgentLevel::of_scope(scope.scope.as_deref())?;
    let key = companion::of_workspace(app).await?;
    if let Some(found) = find(app, &key, name, level).await? {
        let detail = detail(app, &found.definition, &found.path);
        let may_provide = caller.may_provide(&ProfileOwner::of(Some(workspace::tenant(app)))).is_ok();
        return Ok(if may_provide { detail } else { detail.without_programs() });
    }
    let built_in = AgentDefinition::built_in().find(|agent| level.is_none() && agent.name() == name);
    built_in.map(|agent| agent.detail()).ok_or_else(|| not_found(name))
}

pub(crate) async fn create(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: AgentBody,
) -> Result<AgentChanged, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    check_programs(app, caller, &request)?;
    let level = request.level()?;
    let definition = AgentDefinition::create(level, &request)?;
    let key = companion::of_workspace(app).await?;
    let exists = || {
        let message = format!("there is an agent {:?} already", definition.name());
        let failure = Failure::rule(Rule::AgentAlreadyExists, message).detail("name", definition.name());
        failure.detail("level", level.as_str())
    };
    if find(app, &key, definition.name(), Some(level)).await?.is_some() {
        return Err(exists());
    }
    let folder = place(app, &key, level).await?;
    folder.create_directories(&folder.path(AGENTS_FOLDER)?).await.map_err(as_document_failure)?;
    let path = format!("{AGENTS_FOLDER}/{}.md", definition.name());
    match folder.write_text_atomic(&folder.path(&path)?, definition.to_text(), Expected::Absent).await {
        Ok(_) => {}
        Err(failure) if failure.broken_rule() == Some(Rule::FileConflict) => return Err(exists()),
        Err(failure) => return Err(as_document_failure(failure)),
    }
    announce(app, caller, client, "created", &definition).await;
    Ok(AgentChanged { ok: true, agent: detail(app, &definition, &path), changed: None })
}

pub(crate) async fn update(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    (name, scope): (&str, &AgentScope),
    request: AgentBody,
) -> Result<AgentChanged, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    check_programs(app, caller, &request)?;
    let name = check_agent_type(name)?;
    let level = AgentLevel::of_scope(scope.scope.as_deref())?;
    let key = companion::of_workspace(app).await?;
    let contended = || Failure::rule(Rule::FileError, "the agent's file is being changed by others");
    let mut attempts = documents::attempts(contended);
    loop {
        attempts.start_next()?;
        let Some(StoredAgent { mut definition, path, hash }) = find(app, &key, name, level).await? else {
            return Err(missing(name));
        };
        if !definition.update(&request)? {
            return Ok(AgentChanged { ok: true, agent: detail(app, &definition, &path), changed: Some(false) });
        }
        let folder = place(app, &key, definition.level).await?;
        match folder.write_text_atomic(&folder.path(&path)?, definition.to_text(), Expected::Hash(hash)).await {
            Ok(_) => {
                announce(app, caller, client, "updated", &definition).await;
                return Ok(AgentChanged { ok: true, agent: detail(app, &definition, &path), changed: Some(true) });
            }
            Err(failure) if matches!(failure.broken_rule(), Some(Rule::FileConflict | Rule::FileUnknown)) => {}
            Err(failure) => return Err(as_document_failure(failure)),
        }
    }
}

pub(crate) async fn delete(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    name: &str,
    scope: &AgentScope,
) -> Result<(), Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    let name = check_agent_type(name)?;
    let level = AgentLevel::of_scope(scope.scope.as_deref())?;
    let key = companion::of_workspace(app).await?;
    let mut is_found = false;
    for at in [AgentLevel::Project, AgentLevel::User] {
        if level.is_some_and(|level| level != at) {
            continue;
        }
        let Some(found) = find(app, &key, name, Some(at)).await? else { continue };
        let folder = place(app, &key, at).await?;
        if folder.remove_file(&folder.path(&found.path)?).await.map_err(as_document_failure)? {
            is_found = true;
            announce(app, caller, client.clone(), "deleted", &found.definition).await;
        }
    }
    if is_found { Ok(()) } else { Err(missing(name)) }
}

/// Lets the agent's model write a definition.
pub(crate) async fn generate(
    app: &App,
    caller: &Principal,
    client: Option<&str>,
    request: &GenerateAgent,
) -> Result<GeneratedAgent, Failure> {
    workspace::check_change(app, caller, client).await?;
    let description = request.read()?;
    let key = companion::of_workspace(app).await?;
    let method = "qwen/control/workspace/agents/generate";
    let params = |_: &str| json!({"description": description});
    let generated = companions::ask(app, &key, method, params, GENERATE_LIMIT).await;
    let reply = generated.map_err(|failure| match failure.broken_rule() {
        Some(Rule::AgentRequestFailed) => Failure::rule(Rule::AgentGenerateFailed, failure.message),
        _ => failure,
    })?;
    let read = serde_json::from_value(reply);
    read.map_err(|_| Failure::rule(Rule::AgentGenerateFailed, "the agent's definition cannot be read"))
}

/// The definition with the path of its file, if that is shown.
fn detail(app: &App, definition: &AgentDefinition, path: &str) -> AgentDetail {
    let mut detail = definition.detail();
    detail.summary.file_path = shown_path(app, definition.level, path);
    detail
}

/// The file of an agent of the workspace. `None` for others, which are in the server's data directory.
fn shown_path(app: &App, level: AgentLevel, path: &str) -> Option<String> {
    let cwd = workspace::cwd(app).ok().filter(|_| level == AgentLevel::Project)?;
    Some(format!("{}/{path}", cwd.trim_end_matches('/')))
}

/// Checks that the caller may give an agent what the request names.
fn check_programs(app: &App, caller: &Principal, request: &AgentBody) -> Result<(), Failure> {
    if !request.names_programs() {
        return Ok(());
    }
    companion::check_programs(app, caller, "a subagent with hooks or MCP servers")
}

fn not_found(name: &str) -> Failure {
    Failure::rule(Rule::AgentNotFound, format!("there is no agent {name:?}")).detail("name", name)
}

/// The failure of a change: a built-in agent exists in every scope, but cannot be changed.
fn missing(name: &str) -> Failure {
    match AgentDefinition::built_in().any(|agent| agent.name() == name) {
        false => not_found(name),
        true => {
            let failure = Failure::rule(Rule::AgentReadonly, format!("the agent {name:?} is built in"));
            failure.detail("name", name).detail("level", AgentLevel::Builtin.as_str())
        }
    }
}

async fn announce(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    change: &'static str,
    definition: &AgentDefinition,
) {
    let data = json!({"change": change, "name": definition.name(), "level": definition.level.as_str()});
    workspace::announce(app, caller, &Note { frame: "agent_changed", data, client }).await;
}

/// The directory of a level.
async fn place(app: &App, key: &CompanionKey, level: AgentLevel) -> Result<Workspace, Failure> {
    if level == AgentLevel::Project {
        return Workspace::open(app);
    }
    let path = companions::shared_home(app, &key.tenant_id, &key.profile)?;
    let real = tokio::task::spawn_blocking(move || directories::create(&path).and_then(|()| path.canonicalize()));
    let real = real.await.map_err(Failure::internal)?.map_err(Failure::internal)?;
    Ok(Workspace::at(app, real))
}

/// The agent of this name, at this level or at the first one that has it.
async fn find(
    app: &App,
    key: &CompanionKey,
    name: &str,
    level: Option<AgentLevel>,
) -> Result<Option<StoredAgent>, Failure> {
    for at in [AgentLevel::Project, AgentLevel::User] {
        if level.is_some_and(|level| level != at) {
            continue;
        }
        let mut found = None;
        let visited = visit_level(app, key, at, |agent| {
            if agent.definition.name() != name {
                return ControlFlow::Continue(());
            }
            found = Some(agent);
            ControlFlow::Break(())
        });
        visited.await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Reads the definitions of a level one by one until `visit` breaks, so that not all prompts are in memory at once. Returns the files
/// that cannot be read.
async fn visit_level(
    app: &App,
    key: &CompanionKey,
    level: AgentLevel,
    mut visit: impl FnMut(StoredAgent) -> ControlFlow<()>,
) -> Result<Vec<StatusCell>, Failure> {
    let folder = place(app, key, level).await?;
    let entries = match folder.list(&folder.path(AGENTS_FOLDER)?).await {
        Err(failure) if failure.broken_rule() == Some(Rule::FileUnknown) => return Ok(vec![]),
        entries => entries.map_err(as_document_failure)?,
    };
    let (mut errors, mut bytes_left) = (vec![], AGENT_FOLDER_BYTES_MAX);
    let files =
        entries.entries.into_iter().filter(|entry| entry.kind == EntryKind::File && entry.name.ends_with(".md"));
    for entry in files.take(AGENT_FILES_MAX) {
        match read(&folder, level, format!("{AGENTS_FOLDER}/{}", entry.name), &mut bytes_left).await? {
            Ok(agent) => {
                if visit(agent).is_break() {
                    break;
                }
            }
            Err(problem) => {
                let error = format!("{}: {problem}", entry.name);
                errors.push(StatusCell::error(CELL, CellErrorKind::ParseError, error));
            }
        }
    }
    Ok(errors)
}

/// The definition in a file of at most `bytes_left` bytes, which are counted. The inner error is the reason why the file cannot be read.
async fn read(
    folder: &Workspace,
    level: AgentLevel,
    path: String,
    bytes_left: &mut usize,
) -> Result<Result<StoredAgent, String>, Failure> {
    let too_many = || format!("the definitions of this folder are larger than {AGENT_FOLDER_BYTES_MAX} bytes together");
    if *bytes_left == 0 {
        return Ok(Err(too_many()));
    }
    let window = match folder.read_bytes(&folder.path(&path)?, 0, AGENT_FILE_BYTES_MAX.min(*bytes_left)).await {
        Ok(window) => window,
        // It was deleted concurrently, or the system denies access.
        Err(failure) => return Ok(Err(failure.message)),
    };
    *bytes_left = bytes_left.saturating_sub(window.bytes.len());
    let Some(hash) = window.hash else {
        let is_large = window.size_bytes > AGENT_FILE_BYTES_MAX as u64;
        return Ok(Err(if is_large { format!("larger than {AGENT_FILE_BYTES_MAX} bytes") } else { too_many() }));
    };
    let Ok(text) = String::from_utf8(window.bytes) else { return Ok(Err("not UTF-8 text".to_owned())) };
    Ok(AgentDefinition::parse(level, &text).map(|definition| StoredAgent { definition, path, hash }))
}
