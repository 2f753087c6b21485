//! Finding the agent that a request names.

use std::collections::HashSet;

use ostler_protocol::{
    Failure, Rule,
    ids::{AgentId, RunId, UserId},
    trust::agents::Agent,
};
use ostler_server::{
    app::{App, RunRef},
    auth::{LOCAL, Principal},
    traces::note_run,
};
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

/// The owner of agents as a caller, with the rights that their requests have. `None` if the user was removed.
pub(crate) async fn owner(app: &App, owner_id: &str) -> Result<Option<Principal>, Failure> {
    if owner_id == LOCAL {
        return Ok(Some(Principal::Operator));
    }
    let Ok(user_id) = owner_id.parse::<UserId>() else { return Ok(None) };
    let user = store::users::get(&app.db, user_id).await?.filter(|user| user.removed_at.is_none());
    Ok(user.map(|user| Principal::User { user_id, name: user.name.into(), tenants: user.tenants.into() }))
}

/// Those of these runs that the reader may read, by the same check as over REST. Erased runs are not among them.
pub(crate) async fn readable(app: &App, reader: &Principal, runs: &[RunId]) -> Result<HashSet<RunId>, Failure> {
    if runs.is_empty() {
        return Ok(HashSet::new());
    }
    let found = store::trust::run_webhooks::list_access(&app.db, runs).await?;
    let found = found.into_iter().map(|run| RunRef {
        run_id: run.run_id,
        session: run.session,
        tenant_id: run.tenant_id.into(),
        owner: run.owner.map(Into::into),
        backend_profile: run.backend_profile.into(),
    });
    let readable: Vec<RunRef> = found.filter(|run| reader.may_read(run).is_ok()).collect();
    // Of several runs, none is the one that the operation is about.
    if let ([_], [run]) = (runs, readable.as_slice()) {
        note_run(&run.tenant_id, run.session, run.run_id);
    }
    Ok(readable.into_iter().map(|run| run.run_id).collect())
}
