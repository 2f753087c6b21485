//! Asking the coding agent of a profile outside of turns. Sessions ask the agent of their own profile, the workspace asks that of the
//! server's configuration.

use std::time::Duration;

use ostler_protocol::{Failure, FailureKind, Rule};
use ostler_server::{
    app::App,
    auth::Principal,
    service::{
        companions::{self, CompanionKey, lacking},
        side_queries::{self, QueriedBackend},
    },
};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};

use super::{lookup::OpenSession, sessions::current_model};
use crate::state::DaemonState;

/// How long the agent may take to answer a request about its state.
pub(crate) const STATUS_LIMIT: Duration = Duration::from_secs(20);
/// How long it is remembered what the backend of the server's profile has.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// What the backend of the server's profile has beside turns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BackendFacts {
    /// Its agent answers requests about the workspace.
    pub has_agent: bool,
    /// Its model answers questions about a session.
    pub answers_questions: bool,
}

/// What the backend of the server's profile has, and when that was found out.
#[derive(Default)]
pub(crate) struct AgentProbe(Mutex<Option<(Instant, BackendFacts)>>);

/// What the backend of the server's profile has beside turns. Nothing is started to find out.
pub(crate) async fn backend_facts(app: &App) -> BackendFacts {
    let mut known = app.state::<AgentProbe>().0.lock().await;
    if let Some((at, facts)) = *known
        && at.elapsed() < KNOWN_FOR
    {
        return facts;
    }
    let facts = match read_facts(app).await {
        Ok(facts) => facts,
        // The store does not respond. What was true a moment ago still is.
        Err(_) => known.map(|(_, facts)| facts).unwrap_or_default(),
    };
    *known = Some((Instant::now(), facts));
    facts
}

async fn read_facts(app: &App) -> Result<BackendFacts, Failure> {
    let state = DaemonState::of(app);
    let (tenant_id, profile) = (state.config.tenant.as_str(), state.config.profile.as_str());
    let answers_questions = side_queries::can_answer(app, QueriedBackend { tenant_id, profile }).await?;
    let has_agent = state.workspace().is_ok() && companions::extensions(app, tenant_id, profile).await?.is_some();
    Ok(BackendFacts { has_agent, answers_questions })
}

/// Rejects what can start programs if the caller is limited to tenants, unless the operator allows programs of tenants. The same
/// setting decides which profiles a tenant may store.
pub(crate) fn check_programs(app: &App, caller: &Principal, what: &str) -> Result<(), Failure> {
    if caller.tenants().is_none() || app.config.profiles.tenant_commands {
        return Ok(());
    }
    let message = format!(
        "{what} can start programs; a token of a tenant may do this only if the operator sets profiles.tenant_commands"
    );
    Err(Failure::rule(Rule::ProfileCommand, message))
}

/// The companion of the workspace. Fails if the agent of the server's profile answers no requests.
pub(crate) async fn of_workspace(app: &App) -> Result<CompanionKey, Failure> {
    let DaemonState { config, .. } = DaemonState::of(app);
    let workspace = DaemonState::of(app).workspace()?.clone();
    checked(app, CompanionKey { tenant_id: config.tenant.clone(), profile: config.profile.clone(), workspace }).await
}

/// The companion of a session's agent. Fails if that agent answers no requests.
pub(crate) async fn of_session(app: &App, open: &OpenSession) -> Result<CompanionKey, Failure> {
    let workspace = DaemonState::of(app).workspace()?.clone();
    let (tenant_id, profile) = (open.session.tenant_id.clone(), current_model(app, open));
    checked(app, CompanionKey { tenant_id, profile, workspace }).await
}

/// The companion of the workspace if its process runs. It is not started to find out.
pub(crate) async fn running_of_workspace(app: &App) -> Result<Option<CompanionKey>, Failure> {
    match of_workspace(app).await {
        Ok(key) => Ok(Some(key).filter(|key| companions::is_running(app, key))),
        Err(failure) if failure.kind == FailureKind::NotImplemented => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn checked(app: &App, key: CompanionKey) -> Result<CompanionKey, Failure> {
    match companions::extensions(app, &key.tenant_id, &key.profile).await? {
        Some(_) => Ok(key),
        None => Err(lacking(&format!("the backend of the profile {:?} does not have this", key.profile))),
    }
}

/// The agent's reply to a request about the companion's own session.
pub(crate) async fn ask_session(app: &App, key: &CompanionKey, what: &str) -> Result<Value, Failure> {
    let method = format!("qwen/status/session/{what}");
    companions::ask(app, key, &method, |session_id| json!({"sessionId": session_id}), STATUS_LIMIT).await
}

/// The agent's reply to a request about the workspace. `None` if no process of it runs.
pub(crate) async fn ask_workspace(app: &App, key: &CompanionKey, what: &str) -> Result<Option<Value>, Failure> {
    let method = format!("qwen/status/workspace/{what}");
    companions::ask_running(app, key, &method, |_| json!({}), STATUS_LIMIT).await
}
