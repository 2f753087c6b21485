//! Agents: create, read, list, change, and try a manifest before it is published. Only an agent's owner changes it.

use std::sync::Arc;

use ostler_protocol::{
    Failure, RawJson, Rule, Timestamp,
    cursors::{Cursor, PageRequest},
    ids::{AgentId, TokenId},
    limits::PAGE_ITEMS_MAX,
    problems::Problems,
    tokens::TokenRole,
    trust::{
        agents::{
            AGENT_TOKENS_MAX, AGENTS_PER_OWNER_MAX, Agent, AgentPage, AgentToken, AgentTokens, CreateAgent,
            CreateAgentToken, CreatedAgentToken, DiffManifest, ListAgents, Published, SavedAgent, TriedManifest,
            UpdateAgent,
        },
        manifest::{Canonical, Checked, ManifestDiff, diff::diff},
        relations::{
            REAUTH_REQUIRED, ReauthAnnounced,
            standing::{DeclaredSince, Question, declared_since},
        },
    },
};
use ostler_server::{
    app::App,
    auth::{Access, Principal, mint, token_hash},
    service::tokens::later,
};
use ostler_store::{
    self as store, Db,
    trust::{manifests::StoredManifest, webhooks::NewDelivery},
};
use secrecy::ExposeSecret;

use super::{live, relations, webhooks};
use crate::{
    manifests::ManifestVersion,
    service::lookup::{check_owner, find, get, owned, retired},
    state::Trust,
};

/// Agents of removed owners that are retired at a time.
const RETIRED_AT_ONCE: u32 = 100;

pub(crate) async fn create(app: &App, caller: &Principal, request: CreateAgent) -> Result<SavedAgent, Failure> {
    Access::Own.admit(caller)?;
    let owner_id = caller.owner()?;
    let mut problems = Problems::default();
    problems.note(request.check().and_then(|()| app.name("name", &request.name)));
    // Concurrent calls may exceed the limit by their number.
    let has = store::trust::agents::count(&app.db, &owner_id, AGENTS_PER_OWNER_MAX).await?;
    check_room(has, AGENTS_PER_OWNER_MAX, "agents")?;
    let checked = match &request.capability_manifest {
        Some(text) => problems.note(read(app, text).await),
        None => None,
    };
    problems.check()?;
    let now = app.now();
    let id = AgentId::new(app.ids.body());
    let mut agent = Agent::new(id, request.name, owner_id, request.backend_profile, now);
    let first = checked.as_ref().map(|checked| declare(&mut agent, checked, &DeclaredSince::default()));
    let warnings = checked.map(|checked| checked.warnings).unwrap_or_default();
    store::trust::agents::insert(&app.db, &agent, first.as_ref()).await?;
    tracing::info!(agent_id = %agent.id, by = caller.name(), "an agent was made");
    // No person has consented to it yet.
    let (manifest_changed, breaking, scopes_requiring_reauth) = (first.is_some(), false, vec![]);
    Ok(SavedAgent { agent, warnings, manifest_changed, breaking, scopes_requiring_reauth })
}

/// An agent as this caller may see it: every caller may read its manifest.
pub(crate) async fn show(app: &App, caller: Option<&Principal>, id: AgentId) -> Result<Agent, Failure> {
    Ok(visible_to(caller, get(app, id).await?))
}

/// Hides the backend profile, which people do not consent to, from every caller except the owner and the platform.
fn visible_to(caller: Option<&Principal>, agent: Agent) -> Agent {
    let may_see = match caller {
        Some(Principal::Service { role: TokenRole::Metrics, .. }) => false,
        Some(Principal::Operator | Principal::Service { .. }) => true,
        Some(caller) => caller.owner().is_ok_and(|owner| owner == agent.owner_id),
        None => false,
    };
    Agent { backend_profile: agent.backend_profile.filter(|_| may_see), ..agent }
}

/// The beginning of agents' tokens, after the prefix of all tokens.
pub(crate) const TOKEN_KIND: &str = "agt";

/// The agent that a token was made for, and when the token expires. `None` if it is not valid now.
pub(crate) async fn find_by_token(
    db: Db,
    hash: String,
    now: Timestamp,
) -> Result<Option<(Principal, Option<Timestamp>)>, Failure> {
    let found = store::trust::agents::find_token_by_hash(&db, &hash).await?;
    let found = found.filter(|found| found.is_good(now));
    Ok(found.map(|found| {
        let principal = Principal::Agent { agent_id: found.agent_id, token_id: found.token_id };
        (principal, found.expires_at)
    }))
}

/// Retires an agent permanently: its tokens and its webhook are deleted, and every relation with it ends. Idempotent: the first
/// time is kept.
pub(crate) async fn retire(app: &App, caller: &Principal, id: AgentId) -> Result<Agent, Failure> {
    Access::Own.admit(caller)?;
    check_owner(caller, &find(app, id).await?)?;
    tracing::info!(agent_id = %id, by = caller.name(), "an agent is retired");
    app.to_the_end(|app| async move {
        end(&app, &[id]).await?;
        relations::end_orphaned(&app).await?;
        find(&app, id).await
    })
    .await
}

/// Retires agents whose owner was removed.
pub(crate) async fn retire_orphaned(app: &App) -> Result<(), Failure> {
    loop {
        let orphaned = store::trust::agents::list_orphaned(&app.db, RETIRED_AT_ONCE).await?;
        if orphaned.is_empty() {
            return Ok(());
        }
        end(app, &orphaned).await?;
    }
}

async fn end(app: &App, ids: &[AgentId]) -> Result<(), Failure> {
    for id in ids {
        store::trust::agents::update_retired(&app.db, *id, app.now()).await?;
    }
    app.auth.forget_callers();
    Ok(())
}

pub(crate) async fn list(app: &App, caller: Option<&Principal>, request: ListAgents) -> Result<AgentPage, Failure> {
    let name = request.name.map(|name| name.to_ascii_lowercase());
    let page = PageRequest::new("agents", &name, request.limit, request.cursor.as_deref())?;
    let found = store::trust::agents::list(&app.db, name.as_deref(), page.after.as_ref(), page.rows_max()).await?;
    let page = page.page(found, |last| Cursor::after(last.created_at, last.id));
    let agents = page.items.into_iter().map(|agent| visible_to(caller, agent)).collect();
    Ok(AgentPage { agents, next_cursor: page.next_cursor })
}

/// Changes an agent. A manifest that differs gets the next version, together with all other changes or not at all. People are
/// notified after that, even if the owner disconnects.
pub(crate) async fn update(
    app: &App,
    caller: &Principal,
    id: AgentId,
    request: UpdateAgent,
) -> Result<SavedAgent, Failure> {
    Access::Own.admit(caller)?;
    request.check()?;
    let caller = caller.clone();
    app.to_the_end(|app| async move { change(&app, &caller, id, request).await }).await
}

async fn change(app: &App, caller: &Principal, id: AgentId, request: UpdateAgent) -> Result<SavedAgent, Failure> {
    let current = owned(app, caller, id).await?;
    let mut problems = Problems::default();
    if request.name.as_ref().is_some_and(|name| *name != current.name) {
        let message = "an agent keeps its name: people have granted it something under this one; make another agent";
        problems.note::<()>(Err(Failure::rule(Rule::NameFixed, message)));
    }
    let checked = match &request.capability_manifest {
        Some(text) => problems.note(read(app, text).await).map(Arc::new),
        None => None,
    };
    problems.check()?;
    // Within this server an agent's updates take turns; only those of another server can interleave.
    let _turn = Trust::of(app).manifests.turn(id).await;
    let mut attempts = app.db.attempts(|| {
        let message = "the agent was changed from elsewhere all the while; try again";
        Failure::rule(Rule::VersionConflict, message)
    });
    loop {
        attempts.start_next()?;
        let current = owned(app, caller, id).await?;
        let mut agent = Agent { revision: current.revision + 1, ..current.clone() };
        if let Some(profile) = &request.backend_profile {
            agent.backend_profile.clone_from(profile);
        }
        let warnings = checked.as_ref().map(|checked| checked.warnings.clone()).unwrap_or_default();
        let published = match &checked {
            Some(checked) if agent.capability_manifest_hash.as_ref() != Some(&checked.canonical.hash) => {
                let before = current_version(app, &current).await?;
                let diff = foresee_changes(app, &current, before.clone(), checked.clone()).await?;
                let since = before.map(|before| before.declared().since.clone()).unwrap_or_default();
                agent.updated_at = app.now();
                Some((declare(&mut agent, checked, &since), diff))
            }
            _ => None,
        };
        let manifest = published.as_ref().map(|(manifest, _)| manifest);
        let delivery = published.as_ref().and_then(|(_, diff)| reauth_delivery(app, &agent, diff));
        if store::trust::agents::update(&app.db, &agent, manifest, delivery.as_ref()).await? {
            let manifest_changed = published.is_some();
            let diff = published.map(|(_, diff)| diff).unwrap_or_default();
            let (breaking, scopes_requiring_reauth) = (diff.breaking, diff.scopes_requiring_reauth.clone());
            if manifest_changed {
                publish(app, caller, &Published { agent: agent.clone(), diff });
            }
            return Ok(SavedAgent { agent, warnings, manifest_changed, breaking, scopes_requiring_reauth });
        }
    }
}

/// What an update with this manifest would change. Stores nothing.
pub(crate) async fn try_manifest(
    app: &App,
    caller: &Principal,
    id: AgentId,
    request: DiffManifest,
) -> Result<TriedManifest, Failure> {
    Access::Own.admit(caller)?;
    let current = owned(app, caller, id).await?;
    let checked = read(app, &request.capability_manifest).await?;
    let (hash, warnings) = (checked.canonical.hash.clone(), checked.warnings.clone());
    let is_same = current.capability_manifest_hash.as_ref() == Some(&hash);
    let diff = if is_same {
        ManifestDiff::default()
    } else {
        foresee_changes(app, &current, current_version(app, &current).await?, Arc::new(checked)).await?
    };
    let capability_manifest_version = current.capability_manifest_version + i64::from(!is_same);
    Ok(TriedManifest { diff, capability_manifest_hash: hash, capability_manifest_version, warnings })
}

/// Called once for every manifest that took effect, after it is durable. Starts to notify the people who granted the agent
/// scopes.
fn publish(app: &App, caller: &Principal, published: &Published) {
    let Published { agent, diff } = published;
    tracing::info!(agent_id = %agent.id, version = agent.capability_manifest_version, breaking = diff.breaking,
        by = caller.name(), "a manifest was published");
    Trust::of(app).deliveries.notify_one();
    live::notify_reauth(app, agent.id);
}

/// The delivery to the agent's webhook about a manifest that breaks what people consented to. `None` if it breaks nothing.
fn reauth_delivery(app: &App, agent: &Agent, diff: &ManifestDiff) -> Option<NewDelivery> {
    let event = ReauthAnnounced {
        agent_id: agent.id,
        new_manifest_version: agent.capability_manifest_version,
        new_manifest_hash: agent.capability_manifest_hash.clone()?,
        scopes_requiring_reauth: diff.scopes_requiring_reauth.clone(),
    };
    diff.breaking.then(|| webhooks::new_delivery(app, agent.id, REAUTH_REQUIRED, &event))
}

pub(crate) async fn create_token(
    app: &App,
    caller: &Principal,
    id: AgentId,
    request: CreateAgentToken,
) -> Result<CreatedAgentToken, Failure> {
    Access::Own.admit(caller)?;
    request.check()?;
    app.name("name", &request.name)?;
    owned(app, caller, id).await?;
    let has = store::trust::agents::count_tokens(&app.db, id, AGENT_TOKENS_MAX).await?;
    check_room(has, AGENT_TOKENS_MAX, "tokens")?;
    let now = app.wall();
    let agent_token = AgentToken {
        token_id: TokenId::new(app.ids.body()),
        agent_id: id,
        name: request.name,
        created_at: now,
        expires_at: request.expires_in_ms.map(|ms| later(now, ms)).transpose()?,
        revoked_at: None,
    };
    let token = mint(TOKEN_KIND);
    let hash = token_hash(token.expose_secret());
    if !store::trust::agents::insert_token(&app.db, &agent_token, &hash).await? {
        return Err(retired());
    }
    tracing::info!(agent_id = %id, token_id = %agent_token.token_id, by = caller.name(), "an agent's token was made");
    Ok(CreatedAgentToken { agent_token, token: token.expose_secret().to_owned() })
}

pub(crate) async fn list_tokens(app: &App, caller: &Principal, id: AgentId) -> Result<AgentTokens, Failure> {
    Access::Own.admit(caller)?;
    owned(app, caller, id).await?;
    let tokens = store::trust::agents::list_tokens(&app.db, id, PAGE_ITEMS_MAX).await?;
    Ok(AgentTokens { tokens })
}

/// Idempotent: the time of the first revocation is kept.
pub(crate) async fn revoke_token(
    app: &App,
    caller: &Principal,
    id: AgentId,
    token_id: TokenId,
) -> Result<AgentToken, Failure> {
    Access::Own.admit(caller)?;
    owned(app, caller, id).await?;
    let revoked = app.taking_rights(move |app| async move {
        Ok(store::trust::agents::update_token_revoked(&app.db, id, token_id, app.now()).await?)
    });
    let revoked = revoked.await?.ok_or_else(|| Failure::not_found("token"))?;
    tracing::info!(agent_id = %id, %token_id, by = caller.name(), "an agent's token was revoked");
    Ok(revoked)
}

fn check_room(has: i64, limit: u32, what: &str) -> Result<(), Failure> {
    if has < i64::from(limit) {
        return Ok(());
    }
    Err(Failure::rule(Rule::AgentQuota, format!("there are {limit} {what} already, the most there may be")))
}

/// Parses and checks a manifest, on a blocking thread: it may take tens of milliseconds.
async fn read(app: &App, manifest: &RawJson) -> Result<Checked, Failure> {
    let text = manifest.as_str().to_owned();
    let checked = Trust::of(app).manifests.run_blocking(move || Checked::read(&text)).await??;
    if checked.is_large() {
        Trust::of(app).counters.large_manifest();
    }
    Ok(checked)
}

async fn current_version(app: &App, current: &Agent) -> Result<Option<Arc<ManifestVersion>>, Failure> {
    match current.capability_manifest_version {
        0 => Ok(None),
        version => Trust::of(app).manifests.get(&app.db, current.id, version).await.map(Some),
    }
}

/// What a manifest changes for people who consented to the last one, or to an earlier one: a scope that was removed without a
/// question and comes back changed is breaking only for the latter.
async fn foresee_changes(
    app: &App,
    current: &Agent,
    before: Option<Arc<ManifestVersion>>,
    checked: Arc<Checked>,
) -> Result<ManifestDiff, Failure> {
    let mut all = compare(app, before.clone(), checked.clone()).await?;
    let Some(before) = before else { return Ok(all) };
    for version in relations::consented_before(app, current.id, before.version).await? {
        let older = Trust::of(app).manifests.get(&app.db, current.id, version).await?;
        let pending = Trust::of(app).manifests.question(&app.db, current.id, version, before.version).await?;
        let diff = compare(app, Some(older), checked.clone()).await?;
        let is_pending =
            |question: &Question| diff.scopes_requiring_reauth.iter().all(|id| question.scopes.contains_key(id));
        if diff.breaking && !pending.as_ref().as_ref().is_some_and(is_pending) {
            all = all.and(&diff);
        }
    }
    Ok(all)
}

async fn compare(
    app: &App,
    before: Option<Arc<ManifestVersion>>,
    checked: Arc<Checked>,
) -> Result<ManifestDiff, Failure> {
    let compare = move || diff(before.as_ref().map(|before| &before.checked), &checked);
    Trust::of(app).manifests.run_blocking(compare).await
}

/// Sets the agent's next manifest, and returns it as it is stored for people who consent to it.
fn declare(agent: &mut Agent, checked: &Checked, before: &DeclaredSince) -> StoredManifest {
    let Canonical { text, hash } = checked.canonical.clone();
    let version = agent.capability_manifest_version + 1;
    agent.capability_manifest = RawJson::parse(text.clone()).ok();
    agent.capability_manifest_hash = Some(hash.clone());
    agent.capability_manifest_version = version;
    let declared_since = declared_since(before, &checked.manifest, version);
    StoredManifest { agent_id: agent.id, version, hash, manifest: text, declared_since, created_at: agent.updated_at }
}
