//! Finding the agent that a request names.

use ostler_protocol::{Failure, Rule, ids::AgentId, trust::agents::Agent};
use ostler_server::{app::App, auth::Principal};
use ostler_store as store;

/// An agent that was not retired.
pub(crate) async fn get(app: &App, id: AgentId) -> Result<Agent, Failure> {
    not_retired(store::trust::agents::get(&app.db, id).await?)
}

/// The agent that was found. Fails if there is none, or if it was retired.
pub(super) fn not_retired(found: Option<Agent>) -> Result<Agent, Failure> {
    let agent = found.ok_or_else(|| Failure::not_found("agent"))?;
    match agent.retired_at {
        None => Ok(agent),
        Some(_) => Err(retired()),
    }
}

pub(super) fn retired() -> Failure {
    Failure::rule(Rule::AgentRetired, "this agent was retired")
}

/// An agent, also one that was retired.
pub(super) async fn find(app: &App, id: AgentId) -> Result<Agent, Failure> {
    let found = store::trust::agents::get(&app.db, id).await?;
    found.ok_or_else(|| Failure::not_found("agent"))
}

/// The agent, if the caller owns it. That it exists is no secret.
pub(super) async fn owned(app: &App, caller: &Principal, id: AgentId) -> Result<Agent, Failure> {
    let agent = get(app, id).await?;
    check_owner(caller, &agent)?;
    Ok(agent)
}

pub(super) fn check_owner(caller: &Principal, agent: &Agent) -> Result<(), Failure> {
    if agent.owner_id == caller.owner()? {
        return Ok(());
    }
    Err(Failure::rule(Rule::NotOwner, "only the agent's owner may do this"))
}
