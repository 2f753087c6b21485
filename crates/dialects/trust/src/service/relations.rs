//! Relations: people grant agents scopes, answer again when an agent has changed, and take grants back. Every answer is
//! written together with its receipt.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    cursors::{self, Cursor},
    ids::{AgentId, ReceiptId, RelationId, name},
    trust::{
        i18n::Language,
        manifest::ManifestDiff,
        receipts::{Act, Note, Receipt, Words},
        relations::{
            Answers, CreateRelation, ListRelations, RELATIONS_PER_USER_MAX, ReauthAnnounced, ReauthRequired, Relation,
            RelationChanges, RelationPage, RelationTold, RelationView, UseScope,
            answering::{self, Between, establish},
            standing::{DeclaredSince, Question, Standing},
        },
    },
};
use ostler_store::{self as store, trust::webhooks::NewDelivery};
use tokio::time::timeout;

use super::{agents, live, webhooks};
use crate::{manifests::Version, state::Trust};
use ostler_server::{app::App, auth::Principal};

/// Relations read at a time while an agent's people are told.
const TOLD_AT_ONCE: u32 = 1_000;
/// How long taking something back waits to hear what the agent still declares.
const DECLARED_WITHIN: Duration = Duration::from_secs(1);
/// Relations read at a time while they are ended.
const ENDED_AT_ONCE: u32 = 500;

/// A relation with what it has to be seen against.
struct Held {
    relation: Relation,
    current: Arc<Version>,
    changed: Arc<ManifestDiff>,
}

impl Held {
    async fn of(app: &App, relation: Relation) -> Result<Self, Failure> {
        let current = Trust::of(app).manifests.current(&app.db, relation.agent_id).await?;
        Self::against(app, relation, current).await
    }

    async fn against(app: &App, relation: Relation, current: Arc<Version>) -> Result<Self, Failure> {
        let consented = relation.consented.version;
        let changed = match relation.revoked_at {
            None => Trust::of(app).manifests.changed(&app.db, relation.agent_id, consented, &current).await?,
            // Nothing is asked any more.
            Some(_) => Arc::default(),
        };
        Ok(Self { relation, current, changed })
    }

    fn standing(&self, now: Timestamp) -> Standing<'_> {
        Standing { relation: &self.relation, declared: self.current.declared(), changed: &self.changed, now }
    }
}

/// What a person did, decided and not yet written.
struct Decided {
    next: Relation,
    act: Act,
    used: Option<UseScope>,
    /// The manifest that it was decided under. `None`: it was decided from the relation alone.
    current: Option<Arc<Version>>,
    /// In which the manifest's texts were shown, where the person answers to it.
    language: Language,
}

impl Decided {
    /// From the relation alone: no manifest stands in the way of taking something back.
    fn alone(next: Relation, act: Act) -> Self {
        Self { next, act, used: None, current: None, language: Language::default() }
    }

    /// The version that must still be the agent's of now when it is written.
    fn must_be_current(&self) -> Option<i64> {
        match self.act {
            Act::Established | Act::Consented | Act::Used => self.current.as_ref().map(|current| current.version),
            Act::Narrowed | Act::Revoked | Act::Ended => None,
        }
    }
}

/// Establishes a relation. The same again answers with the relation there is.
pub async fn create(app: &App, caller: &Principal, asked: CreateRelation) -> Result<(RelationView, bool), Failure> {
    let user_id = caller.owner()?;
    let (agent_id, answers) = asked.into_answers();
    let mut attempts = app.attempts(contended);
    loop {
        attempts.start_next()?;
        if let Some(known) = store::trust::relations::find_active(&app.db, &user_id, agent_id).await? {
            return Ok((same(app, known, &answers).await?, false));
        }
        // The ledger's end comes first: whoever writes after this makes the count old, and the number taken.
        let head = store::trust::receipts::head(&app.db, &user_id).await?;
        let count = store::trust::relations::count_active(&app.db, &user_id).await?;
        if count >= RELATIONS_PER_USER_MAX {
            let message = format!("one person has {RELATIONS_PER_USER_MAX} relations at most; end one first");
            return Err(Failure::rule(FailureKind::StateConflict, "relations-limit", message));
        }
        let agent = agents::get(app, agent_id).await?;
        let ended = store::trust::relations::find_ended(&app.db, &user_id, agent_id).await?;
        let refused = ended.map(|ended| ended.answers).unwrap_or_default();
        let current = Trust::of(app).manifests.current(&app.db, agent_id).await?;
        let between = Between {
            relation_id: RelationId::new(app.ids.body()),
            agent_id,
            agent_name: agent.name,
            agent_owner_id: agent.owner_id,
            user_id: user_id.clone(),
        };
        let now = app.wall();
        let relation = establish(between, current.declared(), &refused, &answers, now)?;
        let words = Words::Shown { manifest: &current.checked.manifest, language: answers.language };
        let receipt = Receipt::write(&head, note(app, Act::Established, None), &relation, &words);
        let told = told(app, Act::Established, &relation, Some(&current)).await;
        let inserted = store::trust::relations::insert(&app.db, &relation, &receipt, told.as_ref()).await;
        if inserted? {
            announce(app, told);
            return Ok((Held::of(app, relation).await?.standing(now).view(), true));
        }
    }
}

/// Somebody who has a relation asks for it once more.
async fn same(app: &App, known: Relation, asked: &Answers) -> Result<RelationView, Failure> {
    let held = Held::of(app, known).await?;
    let Relation { relation_id, agent_id, agent_name, agent_owner_id, user_id, answers, created_at, .. } =
        held.relation.clone();
    let between = Between { relation_id, agent_id, agent_name, agent_owner_id, user_id };
    let again = establish(between, held.current.declared(), &answers, asked, created_at)?;
    if again.answers == held.relation.answers && again.consented == held.relation.consented {
        return Ok(held.standing(app.wall()).view());
    }
    let message = "there is a relation with this agent already; change that one";
    let failure = Failure::rule(FailureKind::StateConflict, "relation-exists", message);
    Err(failure.detail("relation_id", relation_id.to_string()))
}

pub async fn get(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationView, Failure> {
    Ok(Held::of(app, own(app, caller, relation_id).await?).await?.standing(app.wall()).view())
}

/// The caller's own relations that have not ended, newest first.
pub async fn list(app: &App, caller: &Principal, asked: ListRelations) -> Result<RelationPage, Failure> {
    let user_id = caller.owner()?;
    let limit = cursors::limit(asked.limit)?;
    let fingerprint = cursors::fingerprint("relations", &(&user_id, asked.agent_id));
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let found = store::trust::relations::list(&app.db, &user_id, asked.agent_id, after.as_ref(), limit + 1).await;
    let mut found = found?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| more).map(|last| {
        let created_at_us = last.created_at.as_microsecond();
        Cursor { created_at_us, id: last.relation_id.to_string() }.encode(&fingerprint)
    });
    let mut relations = Vec::with_capacity(found.len());
    for relation in found {
        relations.push(Held::of(app, relation).await?.standing(app.wall()).view());
    }
    Ok(RelationPage { relations, next_cursor })
}

/// Answers to the agent's manifest of now, or takes grants back.
pub async fn update(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    asked: Answers,
) -> Result<RelationView, Failure> {
    let mut attempts = app.attempts(contended);
    loop {
        attempts.start_next()?;
        let relation = own(app, caller, relation_id).await?;
        // Whoever answers to a manifest takes nothing back by this, so nobody need ask.
        let since = match asked.manifest_hash {
            None => declared_soon(app, relation.agent_id).await,
            Some(_) => None,
        };
        let decided = match answering::narrow(&relation, since.as_ref(), &asked, app.wall())? {
            Some(next) => Decided::alone(next, Act::Narrowed),
            None => {
                let held = Held::of(app, relation).await?;
                let (next, act) = answering::answer(held.standing(app.wall()), &asked)?;
                Decided { next, act, used: None, current: Some(held.current), language: asked.language }
            }
        };
        if let Some(written) = write(app, decided).await? {
            return Ok(Held::of(app, written).await?.standing(app.wall()).view());
        }
    }
}

/// A person's client lets a call happen under a grant; one that is good for a single call is used up by it. The same call
/// again is answered again, and uses nothing.
pub async fn use_scope(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    asked: UseScope,
) -> Result<RelationView, Failure> {
    name("call_id", &asked.call_id)?;
    let mut attempts = app.attempts(contended);
    loop {
        attempts.start_next()?;
        let held = Held::of(app, own(app, caller, relation_id).await?).await?;
        let now = app.wall();
        let used = store::trust::receipts::find_by_call(&app.db, relation_id, &asked.call_id).await?;
        if let Some(used) = used {
            if used.used_scope.as_ref() == Some(&asked.scope) {
                return Ok(held.standing(now).view());
            }
            let message = "this call has used another scope";
            return Err(Failure::rule(FailureKind::StateConflict, "call-id-taken", message));
        }
        let Some(next) = answering::use_scope(held.standing(now), &asked.scope)? else {
            return Ok(held.standing(now).view());
        };
        let (used, current) = (Some(asked.clone()), Some(held.current));
        let decided = Decided { next, act: Act::Used, used, current, language: Language::default() };
        if let Some(written) = write(app, decided).await? {
            return Ok(Held::of(app, written).await?.standing(app.wall()).view());
        }
    }
}

/// Ends a relation; a second time changes nothing.
pub async fn revoke(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationView, Failure> {
    let mut attempts = app.attempts(contended);
    loop {
        attempts.start_next()?;
        let relation = own(app, caller, relation_id).await?;
        let Some(next) = answering::revoke(&relation, app.wall()) else {
            return Ok(Held::of(app, relation).await?.standing(app.wall()).view());
        };
        if let Some(written) = write(app, Decided::alone(next, Act::Revoked)).await? {
            return Ok(Held::of(app, written).await?.standing(app.wall()).view());
        }
    }
}

/// What has changed since the caller last consented.
pub async fn changes(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationChanges, Failure> {
    let held = Held::of(app, own(app, caller, relation_id).await?).await?;
    let (view, changed) = (held.standing(app.wall()).view(), ManifestDiff::clone(&held.changed));
    Ok(RelationChanges {
        relation_id,
        agent_id: view.agent_id,
        consented_manifest_version: view.consented_manifest_version,
        consented_manifest_hash: view.consented_manifest_hash,
        manifest_version: view.manifest_version,
        manifest_hash: view.manifest_hash,
        breaking: changed.breaking,
        changes: changed.changes,
        scopes_requiring_reauth: changed.scopes_requiring_reauth,
    })
}

/// What a person has not answered to yet, whenever it happened: they are told on every connect until they do.
pub async fn pending(app: &App, user_id: &str) -> Result<Vec<ReauthRequired>, Failure> {
    let behind = store::trust::relations::list_behind(&app.db, user_id, RELATIONS_PER_USER_MAX as u32).await;
    let mut told = vec![];
    for (relation, current) in behind? {
        told.extend(asked(app, &relation, current).await?);
    }
    Ok(told)
}

/// What this person has to answer to, if anything, now that this version is current.
async fn asked(app: &App, relation: &Relation, current: i64) -> Result<Option<ReauthRequired>, Failure> {
    let consented = relation.consented.version;
    let question = Trust::of(app).manifests.question(&app.db, relation.agent_id, consented, current).await?;
    Ok(question.as_ref().as_ref().map(|question| question.to(relation, app.wall())))
}

/// Everybody who has something to answer to now that an agent has changed: hands on their id and what they are told, until
/// somebody has heard enough.
pub async fn each_pending(
    app: &App,
    agent_id: AgentId,
    mut tell: impl FnMut(&str, ReauthRequired) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let Some(current) = current_version(app, agent_id).await? else { return Ok(()) };
    let mut last: Option<Relation> = None;
    loop {
        let page =
            store::trust::relations::list_behind_version(&app.db, agent_id, current, last.as_ref(), TOLD_AT_ONCE);
        let page = page.await?;
        let Some(end) = page.last().cloned() else { return Ok(()) };
        for relation in page {
            let event = asked(app, &relation, current).await?;
            if event.is_some_and(|event| tell(&relation.user_id, event).is_break()) {
                return Ok(());
            }
        }
        last = Some(end);
    }
}

/// What the agent's own side is told for as long as somebody has not answered to its manifest of now. `None`: nobody has to.
pub async fn announced(app: &App, agent_id: AgentId) -> Result<Option<ReauthAnnounced>, Failure> {
    let Some(current) = current_version(app, agent_id).await? else { return Ok(None) };
    let mut announced: Option<ReauthAnnounced> = None;
    for consented in consented_before(app, agent_id, current).await? {
        let question = Trust::of(app).manifests.question(&app.db, agent_id, consented, current).await?;
        let Some(Question { version, hash, scopes }) = question.as_ref().as_ref() else { continue };
        let told = announced.get_or_insert_with(|| ReauthAnnounced {
            agent_id,
            new_manifest_version: *version,
            new_manifest_hash: hash.clone(),
            scopes_requiring_reauth: vec![],
        });
        told.scopes_requiring_reauth.extend(scopes.keys().cloned());
    }
    announced.iter_mut().for_each(|told| {
        told.scopes_requiring_reauth.sort_unstable();
        told.scopes_requiring_reauth.dedup();
    });
    Ok(announced)
}

async fn current_version(app: &App, agent_id: AgentId) -> Result<Option<i64>, Failure> {
    Ok(store::trust::manifests::find_current_version(&app.db, agent_id).await?)
}

/// The versions of an agent before this one that people last consented to.
pub async fn consented_before(app: &App, agent_id: AgentId, version: i64) -> Result<Vec<i64>, Failure> {
    Ok(store::trust::relations::list_consented_before(&app.db, agent_id, version).await?)
}

/// Writes what was decided, with its receipt. `None`: something else was written meanwhile, and it has to be decided anew.
async fn write(app: &App, decided: Decided) -> Result<Option<Relation>, Failure> {
    let manifest_version = decided.must_be_current();
    let Decided { next, act, used, current, language } = decided;
    let head = store::trust::receipts::head(&app.db, &next.user_id).await?;
    let manifest = current.as_ref().map(|current| &current.checked.manifest);
    let before = match act {
        Act::Established | Act::Consented => None,
        _ => store::trust::receipts::find_last(&app.db, next.relation_id).await?,
    };
    let words = match (&before, manifest) {
        (Some(before), manifest) => Words::Kept { before, manifest },
        (None, Some(manifest)) => Words::Shown { manifest, language },
        (None, None) => return Err(Failure::internal(format!("{} began without a receipt", next.relation_id))),
    };
    let receipt = Receipt::write(&head, note(app, act, used), &next, &words);
    let told = told(app, act, &next, current.as_deref()).await;
    let updated = store::trust::relations::update(&app.db, &next, &receipt, manifest_version, told.as_ref()).await;
    if !updated? {
        return Ok(None);
    }
    announce(app, told);
    Ok(Some(next))
}

/// What the agent's own side is told of this. What is taken back is decided from the relation alone, and is not put off by the
/// manifest: if that cannot be read soon, all that the person left is told.
async fn told(app: &App, act: Act, relation: &Relation, current: Option<&Version>) -> Option<NewDelivery> {
    let declared = match current {
        Some(current) => Some(current.declared().since.clone()),
        None => declared_soon(app, relation.agent_id).await,
    };
    let (event_type, told) = RelationTold::of(act, relation, declared.as_ref())?;
    Some(webhooks::new_delivery(app, relation.agent_id, event_type, &told))
}

/// What the agent still declares, if that can be read soon.
async fn declared_soon(app: &App, agent_id: AgentId) -> Option<DeclaredSince> {
    let read = store::trust::manifests::find_declared(&app.db, agent_id);
    timeout(DECLARED_WITHIN, read).await.ok().and_then(Result::ok).flatten()
}

/// It is durable by now: the webhook's turn has come, and whoever is connected hears the same.
fn announce(app: &App, told: Option<NewDelivery>) {
    let Some(told) = told else { return };
    Trust::of(app).deliveries.notify_one();
    live::say(app, told.agent_id, &told.body.as_str().into());
}

/// Ends relations whose person or agent is there no longer. Can be done twice, so two servers do no harm.
pub async fn end_orphaned(app: &App) -> Result<(), Failure> {
    loop {
        let orphaned = store::trust::relations::list_orphaned(&app.db, ENDED_AT_ONCE).await?;
        if orphaned.is_empty() {
            return Ok(());
        }
        // One that cannot be ended now keeps nobody else's.
        let mut failed = None;
        for relation in orphaned {
            failed = end(app, relation).await.err().or(failed);
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
    }
}

async fn end(app: &App, mut relation: Relation) -> Result<(), Failure> {
    let mut attempts = app.attempts(contended);
    loop {
        attempts.start_next()?;
        let Some(next) = answering::revoke(&relation, app.wall()) else { return Ok(()) };
        if write(app, Decided::alone(next, Act::Ended)).await?.is_some() {
            return Ok(());
        }
        let known = store::trust::relations::get(&app.db, relation.relation_id).await?;
        relation = known.ok_or_else(|| Failure::not_found("relation"))?;
    }
}

/// A relation of the caller's. Somebody else's is not even there.
pub(super) async fn own(app: &App, caller: &Principal, relation_id: RelationId) -> Result<Relation, Failure> {
    let user_id = caller.owner()?;
    let found = store::trust::relations::get(&app.db, relation_id).await?;
    found.filter(|relation| relation.user_id == user_id).ok_or_else(|| Failure::not_found("relation"))
}

fn note(app: &App, act: Act, used: Option<UseScope>) -> Note {
    Note { id: ReceiptId::new(app.ids.body()), act, used }
}

fn contended() -> Failure {
    Failure::new(FailureKind::Overloaded, "too much else is written to this ledger at once; try again")
}
