//! What only the coding agent knows: commands, language servers, hooks and skills.

use ostler_protocol::{
    Failure,
    daemon::agent_status::{SessionHooks, SessionLsp, SupportedCommands, WorkspaceHooks, WorkspaceSkills},
};
use ostler_server::{app::App, auth::Principal};
use serde_json::Value;

use super::{
    companion,
    lookup::{self, OpenSession},
    workspace,
};

pub(crate) async fn supported_commands(app: &App, caller: &Principal, id: &str) -> Result<SupportedCommands, Failure> {
    let (open, reply) = of_session(app, caller, id, "supported_commands").await?;
    Ok(SupportedCommands::of(&open.session.public_id(), &reply))
}

pub(crate) async fn lsp(app: &App, caller: &Principal, id: &str) -> Result<SessionLsp, Failure> {
    let (open, reply) = of_session(app, caller, id, "lsp").await?;
    Ok(SessionLsp::of(&open.session.public_id(), &open.daemon.workspace, &reply))
}

pub(crate) async fn session_hooks(app: &App, caller: &Principal, id: &str) -> Result<SessionHooks, Failure> {
    let (open, reply) = of_session(app, caller, id, "hooks").await?;
    Ok(SessionHooks::of(&open.session.public_id(), &open.daemon.workspace, &reply))
}

async fn of_session(app: &App, caller: &Principal, id: &str, what: &str) -> Result<(OpenSession, Value), Failure> {
    let open = lookup::open_session(app, caller, id).await?;
    let key = companion::of_session(app, &open).await?;
    let reply = companion::ask_session(app, &key, what).await?;
    Ok((open, reply))
}

pub(crate) async fn workspace_hooks(app: &App, caller: &Principal) -> Result<WorkspaceHooks, Failure> {
    let (cwd, reply) = of_workspace(app, caller, "hooks").await?;
    Ok(WorkspaceHooks::of(cwd, reply.as_ref()))
}

pub(crate) async fn skills(app: &App, caller: &Principal) -> Result<WorkspaceSkills, Failure> {
    let (cwd, reply) = of_workspace(app, caller, "skills").await?;
    Ok(WorkspaceSkills::of(cwd, reply.as_ref()))
}

async fn of_workspace(app: &App, caller: &Principal, what: &str) -> Result<(String, Option<Value>), Failure> {
    workspace::check_read(app, caller)?;
    let key = companion::of_workspace(app).await?;
    Ok((workspace::cwd(app)?, companion::ask_workspace(app, &key, what).await?))
}
