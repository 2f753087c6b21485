//! Relations: people grant agents scopes, answer again when an agent has changed, and take grants back. Every answer is
//! written together with its receipt.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc};

use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    cursors::{self, Cursor},
    i18n::Language,
    ids::{AgentId, ReceiptId, RelationId, name},
    manifest::ManifestDiff,
    receipts::{Act, Note, Receipt},
    relations::{
        Answers, CreateRelation, ListRelations, RELATIONS_PER_USER_MAX, ReauthAnnounced, ReauthRequired, Relation,
        RelationChanges, RelationPage, RelationView, UseScope,
        answering::{self, establish},
        standing::Standing,
    },
};
use ostler_store as store;

use crate::{
    app::{App, store_failure},
    auth::Principal,
    manifests::Version,
};

/// How often an answer is decided anew because something else was written meanwhile.
const ATTEMPTS_MAX: usize = 20;
/// Relations read at a time while an agent's people are told.
const TOLD_AT_ONCE: u32 = 1_000;
/// Versions that people of one agent may have consented to, of which its own side is told; the newest ones.
const VERSIONS_MAX: u32 = 100;

/// A relation with what it has to be seen against.
struct Held {
    relation: Relation,
    current: Arc<Version>,
    changed: Arc<ManifestDiff>,
}

impl Held {
    async fn of(app: &App, relation: Relation) -> Result<Self, Failure> {
        let current = app.manifests.current(&app.db, relation.agent_id).await?;
        Self::against(app, relation, current).await
    }

    async fn against(app: &App, relation: Relation, current: Arc<Version>) -> Result<Self, Failure> {
        let consented = relation.consented.version;
        let changed = app.manifests.changed(&app.db, relation.agent_id, consented, &current).await?;
        Ok(Self { relation, current, changed })
    }

    fn standing(&self, now: Timestamp) -> Standing<'_> {
        Standing { relation: &self.relation, declared: self.current.declared(), changed: &self.changed, now }
    }
}

/// Establishes a relation. The same again answers with the relation there is.
pub async fn create(app: &App, caller: &Principal, asked: CreateRelation) -> Result<(RelationView, bool), Failure> {
    let user_id = caller.owner()?;
    let CreateRelation { agent_id, answers } = asked;
    for _ in 0..ATTEMPTS_MAX {
        if let Some(known) = store::relations::find_active(&app.db, &user_id, agent_id).await.map_err(store_failure)? {
            return Ok((same(app, known, &answers).await?, false));
        }
        // The ledger's end comes first: whoever writes after this makes the count old, and the number taken.
        let head = store::receipts::head(&app.db, &user_id).await.map_err(store_failure)?;
        let count = store::relations::count_active(&app.db, &user_id).await.map_err(store_failure)?;
        if count >= RELATIONS_PER_USER_MAX {
            let message = format!("one person has {RELATIONS_PER_USER_MAX} relations at most; end one first");
            return Err(Failure::rule(FailureKind::StateConflict, "relations-limit", message));
        }
        let current = app.manifests.current(&app.db, agent_id).await?;
        let (id, now) = (RelationId::new(app.ids.body()), app.now());
        let relation = establish(id, agent_id, user_id.clone(), current.declared(), &answers, now)?;
        let note = note(app, Act::Established, answers.language, None);
        let receipt = Receipt::write(&head, note, &relation, &current.checked.manifest);
        if store::relations::insert(&app.db, &relation, &receipt).await.map_err(store_failure)? {
            return Ok((Held::of(app, relation).await?.standing(now).view(), true));
        }
    }
    Err(contended())
}

/// Somebody who has a relation asks for it once more.
async fn same(app: &App, known: Relation, asked: &Answers) -> Result<RelationView, Failure> {
    let held = Held::of(app, known).await?;
    let now = app.now();
    let again = establish(
        held.relation.relation_id,
        held.relation.agent_id,
        held.relation.user_id.clone(),
        held.current.declared(),
        asked,
        held.relation.created_at,
    )?;
    if again.answers == held.relation.answers && again.consented == held.relation.consented {
        return Ok(held.standing(now).view());
    }
    let message = "there is a relation with this agent already; change that one";
    let failure = Failure::rule(FailureKind::StateConflict, "relation-exists", message);
    Err(failure.detail("relation_id", held.relation.relation_id.to_string()))
}

pub async fn get(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationView, Failure> {
    Ok(Held::of(app, own(app, caller, relation_id).await?).await?.standing(app.now()).view())
}

/// The caller's own relations that have not ended, newest first.
pub async fn list(app: &App, caller: &Principal, asked: ListRelations) -> Result<RelationPage, Failure> {
    let user_id = caller.owner()?;
    let limit = cursors::limit(asked.limit)?;
    let fingerprint = cursors::fingerprint("relations", &(&user_id, asked.agent_id));
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let found = store::relations::list(&app.db, &user_id, asked.agent_id, after.as_ref(), limit + 1).await;
    let mut found = found.map_err(store_failure)?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| more).map(|last| {
        let created_at_us = last.created_at.as_microsecond();
        Cursor { created_at_us, id: last.relation_id.to_string() }.encode(&fingerprint)
    });
    let mut relations = Vec::with_capacity(found.len());
    for relation in found {
        relations.push(Held::of(app, relation).await?.standing(app.now()).view());
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
    change(app, caller, relation_id, |standing| {
        let (next, act) = answering::answer(standing, &asked)?;
        Ok(Some((next, note(app, act, asked.language, None))))
    })
    .await
}

/// A person's client lets a call happen under a grant; one that is good for a single call is used up by it.
pub async fn use_scope(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    asked: UseScope,
) -> Result<RelationView, Failure> {
    name("call_id", &asked.call_id)?;
    change(app, caller, relation_id, |standing| {
        let next = answering::use_scope(standing, &asked.scope)?;
        let note = note(app, Act::Used, Language::default(), Some(asked.call_id.clone()));
        Ok(next.map(|next| (next, note)))
    })
    .await
}

/// Ends a relation; a second time changes nothing.
pub async fn revoke(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationView, Failure> {
    change(app, caller, relation_id, |standing| {
        let next = answering::revoke(standing.relation, standing.now);
        Ok(next.map(|next| (next, note(app, Act::Revoked, Language::default(), None))))
    })
    .await
}

/// What has changed since the caller last consented.
pub async fn changes(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationChanges, Failure> {
    let held = Held::of(app, own(app, caller, relation_id).await?).await?;
    let (view, changed) = (held.standing(app.now()).view(), ManifestDiff::clone(&held.changed));
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
    let behind = store::relations::list_behind(&app.db, user_id, RELATIONS_PER_USER_MAX as u32).await;
    let mut told = vec![];
    for relation in behind.map_err(store_failure)? {
        told.extend(Held::of(app, relation).await?.standing(app.now()).reauth_required());
    }
    Ok(told)
}

/// Everybody who has something to answer to now that an agent has changed: hands on their id and what they are told, until
/// somebody has heard enough.
pub async fn each_pending(
    app: &App,
    agent_id: AgentId,
    mut tell: impl FnMut(&str, ReauthRequired) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let current = app.manifests.current(&app.db, agent_id).await?;
    let mut last: Option<Relation> = None;
    loop {
        let page =
            store::relations::list_behind_version(&app.db, agent_id, current.version, last.as_ref(), TOLD_AT_ONCE);
        let page = page.await.map_err(store_failure)?;
        let Some(end) = page.last().cloned() else { return Ok(()) };
        for relation in page {
            let held = Held::against(app, relation, current.clone()).await?;
            let event = held.standing(app.now()).reauth_required();
            if event.is_some_and(|event| tell(&held.relation.user_id, event).is_break()) {
                return Ok(());
            }
        }
        last = Some(end);
    }
}

/// What the agent's own side is told for as long as somebody has not answered to its manifest of now. `None`: nobody has to.
pub async fn announced(app: &App, agent_id: AgentId) -> Result<Option<ReauthAnnounced>, Failure> {
    let version = store::manifests::find_current_version(&app.db, agent_id).await.map_err(store_failure)?;
    let Some(version) = version else { return Ok(None) };
    let current = app.manifests.get(&app.db, agent_id, version).await?;
    let consented = store::relations::list_consented_before(&app.db, agent_id, version, VERSIONS_MAX).await;
    let (mut must_ask, mut scopes) = (false, BTreeSet::new());
    for seen in consented.map_err(store_failure)? {
        let changed = app.manifests.changed(&app.db, agent_id, seen, &current).await?;
        must_ask |= changed.breaking;
        scopes.extend(changed.scopes_requiring_reauth.iter().cloned());
    }
    Ok(must_ask.then(|| ReauthAnnounced {
        agent_id,
        new_manifest_version: version,
        new_manifest_hash: current.declared().hash.to_owned(),
        scopes_requiring_reauth: scopes.into_iter().collect(),
    }))
}

/// Decides and writes a change, anew as long as something else is written in between. `None` changes nothing.
async fn change(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    decide: impl Fn(Standing<'_>) -> Result<Option<(Relation, Note)>, Failure>,
) -> Result<RelationView, Failure> {
    for _ in 0..ATTEMPTS_MAX {
        let held = Held::of(app, own(app, caller, relation_id).await?).await?;
        let now = app.now();
        let Some((next, note)) = decide(held.standing(now))? else { return Ok(held.standing(now).view()) };
        let seen = app.manifests.get(&app.db, next.agent_id, next.consented.version).await?;
        let head = store::receipts::head(&app.db, &next.user_id).await.map_err(store_failure)?;
        let receipt = Receipt::write(&head, note, &next, &seen.checked.manifest);
        if store::relations::update(&app.db, &next, &receipt, held.current.version).await.map_err(store_failure)? {
            return Ok(Held::of(app, next).await?.standing(now).view());
        }
    }
    Err(contended())
}

/// A relation of the caller's. Somebody else's is not even there.
pub(super) async fn own(app: &App, caller: &Principal, relation_id: RelationId) -> Result<Relation, Failure> {
    let user_id = caller.owner()?;
    let found = store::relations::get(&app.db, relation_id).await.map_err(store_failure)?;
    found.filter(|relation| relation.user_id == user_id).ok_or_else(|| Failure::not_found("relation"))
}

fn note(app: &App, act: Act, language: Language, call_id: Option<String>) -> Note {
    Note { id: ReceiptId::new(app.ids.body()), act, language, call_id }
}

fn contended() -> Failure {
    Failure::new(FailureKind::Overloaded, "too much else is written to this ledger at once; try again")
}
