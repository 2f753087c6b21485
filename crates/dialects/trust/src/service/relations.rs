//! Relations: people grant agents scopes, decide again when an agent has changed, and revoke grants. Every decision is stored
//! together with its receipt.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc, time::Duration};

use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    created::Created,
    cursors::{Cursor, PageRequest},
    ids::{AgentId, ReceiptId, RelationId, name},
    trust::{
        i18n::Language,
        manifest::ManifestDiff,
        receipts::{ConsentTexts, Receipt, ReceiptAction, ReceiptNote},
        relations::{
            Answers, CreateRelation, ListRelations, RELATIONS_PER_USER_MAX, ReauthAnnounced, ReauthRequired, Relation,
            RelationChanges, RelationNotification, RelationPage, RelationView, UseScope,
            answering::{self, RelationParties, establish},
            standing::{DeclaredSince, Question, Standing},
        },
    },
};
use ostler_store::{
    self as store,
    trust::{
        decisions::{DecisionInputs, Ledger, RevocationInputs},
        webhooks::NewDelivery,
    },
};
use tokio::time::timeout;

use super::{frames, lookup, webhooks};
use crate::{manifests::ManifestVersion, state::Trust};
use ostler_server::{app::App, auth::Principal};

/// Relations read at a time while an agent's people are notified.
const NOTIFIED_AT_ONCE: u32 = 1_000;
/// How long a revocation waits for the read of what the agent still declares.
const DECLARED_WITHIN: Duration = Duration::from_secs(1);
/// Relations read at a time while they are ended.
const ENDED_AT_ONCE: u32 = 500;

/// A relation with the manifest that its state follows from.
struct RelationContext {
    relation: Relation,
    current: Arc<ManifestVersion>,
    changed: Arc<ManifestDiff>,
}

impl RelationContext {
    async fn of(app: &App, relation: Relation) -> Result<Self, Failure> {
        let current = Trust::of(app).manifests.current(&app.db, relation.agent_id).await?;
        Self::with_manifest(app, relation, current).await
    }

    /// With the number of the agent's current manifest, as it was read together with the relation.
    async fn with_version(app: &App, relation: Relation, manifest_version: Option<i64>) -> Result<Self, Failure> {
        let current = Trust::of(app).manifests.numbered(&app.db, relation.agent_id, manifest_version).await?;
        Self::with_manifest(app, relation, current).await
    }

    async fn with_manifest(app: &App, relation: Relation, current: Arc<ManifestVersion>) -> Result<Self, Failure> {
        let consented = relation.consented.version;
        let changed = match relation.revoked_at {
            None => Trust::of(app).manifests.changed(&app.db, relation.agent_id, consented, &current).await?,
            // An ended relation has nothing pending.
            Some(_) => Arc::default(),
        };
        Ok(Self { relation, current, changed })
    }

    fn standing(&self, now: Timestamp) -> Standing<'_> {
        Standing { relation: &self.relation, declared: self.current.declared(), changed: &self.changed, now }
    }
}

/// A change of a relation that is decided and not yet stored.
struct Decision {
    next: Relation,
    act: ReceiptAction,
    used: Option<UseScope>,
    /// The manifest that it was decided under. `None` if it was decided from the relation alone.
    current: Option<Arc<ManifestVersion>>,
    /// The language of the manifest's texts that the person decided on.
    language: Language,
}

impl Decision {
    /// A decision from the relation alone: no manifest can prevent a revocation.
    fn alone(next: Relation, act: ReceiptAction) -> Self {
        Self { next, act, used: None, current: None, language: Language::default() }
    }

    /// The version that must still be the agent's current one when the decision is stored.
    fn must_be_current(&self) -> Option<i64> {
        match self.act {
            ReceiptAction::Established | ReceiptAction::Consented | ReceiptAction::Used => {
                self.current.as_ref().map(|current| current.version)
            }
            ReceiptAction::Narrowed | ReceiptAction::Revoked | ReceiptAction::Ended => None,
        }
    }
}

/// The scopes that the user has granted to the agent and that are in force now.
pub(crate) async fn granted_scopes(app: &App, agent_id: AgentId, user_id: &str) -> Result<BTreeSet<String>, Failure> {
    let inputs = store::trust::decisions::find_grant_inputs(&app.db, user_id, agent_id).await?;
    let Some(relation) = inputs.active else { return Ok(BTreeSet::new()) };
    let context = RelationContext::with_version(app, relation, inputs.manifest_version).await?;
    Ok(context.standing(app.wall()).view().granted_scopes.into_iter().collect())
}

/// Establishes a relation. Idempotent: the same request again returns the existing relation.
pub(crate) async fn create(
    app: &App,
    caller: &Principal,
    request: CreateRelation,
) -> Result<Created<RelationView>, Failure> {
    let user_id = caller.owner()?;
    let (agent_id, answers) = request.into_answers();
    let mut attempts = app.db.attempts(contended);
    loop {
        attempts.start_next()?;
        let inputs = store::trust::decisions::find_grant_inputs(&app.db, &user_id, agent_id).await?;
        if let Some(existing) = inputs.active {
            let existing = check_same(app, existing, inputs.manifest_version, &answers).await?;
            return Ok(Created::existing(existing));
        }
        if inputs.active_count >= RELATIONS_PER_USER_MAX {
            let message = format!("one person has {RELATIONS_PER_USER_MAX} relations at most; end one first");
            return Err(Failure::rule(Rule::RelationsLimit, message));
        }
        let agent = lookup::not_retired(inputs.agent)?;
        let refused = inputs.ended.map(|ended| ended.answers).unwrap_or_default();
        let current = Trust::of(app).manifests.numbered(&app.db, agent_id, inputs.manifest_version).await?;
        let parties = RelationParties {
            relation_id: RelationId::new(app.ids.body()),
            agent_id,
            agent_name: agent.name,
            agent_owner_id: agent.owner_id,
            user_id: user_id.clone(),
        };
        let now = app.wall();
        let relation = establish(parties, current.declared(), &refused, &answers, now)?;
        let words = ConsentTexts::Displayed { manifest: &current.checked.manifest, language: answers.language };
        let receipt = Receipt::write(&inputs.head, note(app, ReceiptAction::Established, None), &relation, &words);
        let delivery = relation_delivery(app, ReceiptAction::Established, &relation, Some(&current)).await;
        let inserted = store::trust::relations::insert(&app.db, &relation, &receipt, delivery.as_ref()).await;
        if inserted? {
            announce(app, delivery);
            return Ok(Created::new(RelationContext::of(app, relation).await?.standing(now).view()));
        }
    }
}

/// The existing relation, if a repeated request for it has the same answers. Fails otherwise.
async fn check_same(
    app: &App,
    existing: Relation,
    manifest_version: Option<i64>,
    repeated: &Answers,
) -> Result<RelationView, Failure> {
    let context = RelationContext::with_version(app, existing, manifest_version).await?;
    let Relation { relation_id, agent_id, agent_name, agent_owner_id, user_id, answers, created_at, .. } =
        context.relation.clone();
    let parties = RelationParties { relation_id, agent_id, agent_name, agent_owner_id, user_id };
    let again = establish(parties, context.current.declared(), &answers, repeated, created_at)?;
    if again.answers == context.relation.answers && again.consented == context.relation.consented {
        return Ok(context.standing(app.wall()).view());
    }
    let message = "there is a relation with this agent already; change that one";
    let failure = Failure::rule(Rule::RelationExists, message);
    Err(failure.detail("relation_id", relation_id.to_string()))
}

pub(crate) async fn get(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationView, Failure> {
    Ok(RelationContext::of(app, find_own(app, caller, relation_id).await?).await?.standing(app.wall()).view())
}

/// The caller's own relations that have not ended, newest first.
pub(crate) async fn list(app: &App, caller: &Principal, request: ListRelations) -> Result<RelationPage, Failure> {
    let user_id = caller.owner()?;
    let ListRelations { agent_id, ended, limit, cursor } = request;
    let which = (agent_id, ended.unwrap_or(false));
    let page = PageRequest::new("relations", &(&user_id, which), limit, cursor.as_deref())?;
    let (after, rows_max) = (page.after.as_ref(), page.rows_max());
    let found = store::trust::relations::list(&app.db, &user_id, which, after, rows_max).await?;
    let page = page.page(found, |last| Cursor::after(last.created_at, last.relation_id));
    let mut relations = Vec::with_capacity(page.items.len());
    for relation in page.items {
        relations.push(RelationContext::of(app, relation).await?.standing(app.wall()).view());
    }
    Ok(RelationPage { relations, next_cursor: page.next_cursor })
}

/// Decides on the agent's current manifest, or revokes grants.
pub(crate) async fn update(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    request: Answers,
) -> Result<RelationView, Failure> {
    let mut attempts = app.db.attempts(contended);
    loop {
        attempts.start_next()?;
        let (decision, ledger) = match narrow(app, caller, relation_id, &request).await? {
            Some(narrowed) => narrowed,
            None => {
                let inputs = load_decision(app, caller, relation_id, None).await?;
                // An answer that no manifest could make valid is rejected before the manifest is read.
                answering::check_answer(&inputs.relation, &request)?;
                let context = RelationContext::with_version(app, inputs.relation, inputs.manifest_version).await?;
                let (next, act) = answering::answer(context.standing(app.wall()), &request)?;
                let current = Some(context.current);
                (Decision { next, act, used: None, current, language: request.language }, inputs.ledger)
            }
        };
        if let Some(written) = write(app, decision, &ledger).await? {
            return Ok(RelationContext::of(app, written).await?.standing(app.wall()).view());
        }
    }
}

/// A revocation of grants, decided from the relation alone. `None` if the request contains more than that.
async fn narrow(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    request: &Answers,
) -> Result<Option<(Decision, Ledger)>, Failure> {
    // A decision on a manifest revokes nothing here.
    if request.manifest_hash.is_some() {
        return Ok(None);
    }
    let RevocationInputs { relation, ledger } = load_revocation(app, caller, relation_id).await?;
    let since = declared_soon(app, relation.agent_id).await;
    let narrowed = answering::narrow(&relation, since.as_ref(), request, app.wall())?;
    Ok(narrowed.map(|next| (Decision::alone(next, ReceiptAction::Narrowed), ledger)))
}

/// Records a call that a person's client allows under a grant. A grant for a single call is spent by it. Idempotent by the
/// call's id.
pub(crate) async fn use_scope(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    request: UseScope,
) -> Result<RelationView, Failure> {
    name("call_id", &request.call_id)?;
    let mut attempts = app.db.attempts(contended);
    loop {
        attempts.start_next()?;
        let inputs = load_decision(app, caller, relation_id, Some(&request.call_id)).await?;
        let context = RelationContext::with_version(app, inputs.relation, inputs.manifest_version).await?;
        let now = app.wall();
        if let Some(used) = inputs.call_receipt {
            if used.used_scope.as_ref() == Some(&request.scope) {
                return Ok(context.standing(now).view());
            }
            let message = "this call has used another scope";
            return Err(Failure::rule(Rule::CallIdTaken, message));
        }
        let Some(next) = answering::use_scope(context.standing(now), &request.scope)? else {
            return Ok(context.standing(now).view());
        };
        let (used, current) = (Some(request.clone()), Some(context.current));
        let decision = Decision { next, act: ReceiptAction::Used, used, current, language: Language::default() };
        if let Some(written) = write(app, decision, &inputs.ledger).await? {
            return Ok(RelationContext::of(app, written).await?.standing(app.wall()).view());
        }
    }
}

/// Ends a relation. Idempotent.
pub(crate) async fn revoke(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RelationView, Failure> {
    let mut attempts = app.db.attempts(contended);
    loop {
        attempts.start_next()?;
        let RevocationInputs { relation, ledger } = load_revocation(app, caller, relation_id).await?;
        let Some(next) = answering::revoke(&relation, app.wall()) else {
            return Ok(RelationContext::of(app, relation).await?.standing(app.wall()).view());
        };
        if let Some(written) = write(app, Decision::alone(next, ReceiptAction::Revoked), &ledger).await? {
            return Ok(RelationContext::of(app, written).await?.standing(app.wall()).view());
        }
    }
}

/// What has changed since the caller last consented.
pub(crate) async fn changes(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
) -> Result<RelationChanges, Failure> {
    let context = RelationContext::of(app, find_own(app, caller, relation_id).await?).await?;
    let (view, changed) = (context.standing(app.wall()).view(), ManifestDiff::clone(&context.changed));
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

/// What a person has not decided yet, whenever the change happened: it is sent on every connect until they do.
pub(crate) async fn pending(app: &App, user_id: &str) -> Result<Vec<ReauthRequired>, Failure> {
    let behind = store::trust::relations::list_behind(&app.db, user_id, RELATIONS_PER_USER_MAX as u32).await;
    let mut events = vec![];
    for (relation, current) in behind? {
        events.extend(pending_event(app, &relation, current).await?);
    }
    Ok(events)
}

/// What this person has to decide now that this version is current. `None` if nothing.
async fn pending_event(app: &App, relation: &Relation, current: i64) -> Result<Option<ReauthRequired>, Failure> {
    let consented = relation.consented.version;
    let question = Trust::of(app).manifests.question(&app.db, relation.agent_id, consented, current).await?;
    Ok(question.as_ref().as_ref().map(|question| question.to(relation, app.wall())))
}

/// Calls `notify` with the id and the event of each person who has to consent again because an agent has changed, until it
/// returns `Break`.
pub(crate) async fn each_pending(
    app: &App,
    agent_id: AgentId,
    mut notify: impl FnMut(&str, ReauthRequired) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let Some(current) = current_version(app, agent_id).await? else { return Ok(()) };
    let mut last: Option<Relation> = None;
    loop {
        let page =
            store::trust::relations::list_behind_version(&app.db, agent_id, current, last.as_ref(), NOTIFIED_AT_ONCE);
        let page = page.await?;
        let Some(end) = page.last().cloned() else { return Ok(()) };
        for relation in page {
            let event = pending_event(app, &relation, current).await?;
            if event.is_some_and(|event| notify(&relation.user_id, event).is_break()) {
                return Ok(());
            }
        }
        last = Some(end);
    }
}

/// The event for the agent itself as long as a person has not decided on its current manifest. `None` if no person has to.
pub(crate) async fn announced(app: &App, agent_id: AgentId) -> Result<Option<ReauthAnnounced>, Failure> {
    let Some(current) = current_version(app, agent_id).await? else { return Ok(None) };
    let mut announced: Option<ReauthAnnounced> = None;
    for consented in consented_before(app, agent_id, current).await? {
        let question = Trust::of(app).manifests.question(&app.db, agent_id, consented, current).await?;
        let Some(Question { version, hash, scopes }) = question.as_ref().as_ref() else { continue };
        let event = announced.get_or_insert_with(|| ReauthAnnounced {
            agent_id,
            new_manifest_version: *version,
            new_manifest_hash: hash.clone(),
            scopes_requiring_reauth: vec![],
        });
        event.scopes_requiring_reauth.extend(scopes.keys().cloned());
    }
    announced.iter_mut().for_each(|event| {
        event.scopes_requiring_reauth.sort_unstable();
        event.scopes_requiring_reauth.dedup();
    });
    Ok(announced)
}

async fn current_version(app: &App, agent_id: AgentId) -> Result<Option<i64>, Failure> {
    Ok(store::trust::manifests::find_current_version(&app.db, agent_id).await?)
}

/// The versions of an agent before this one that people last consented to.
pub(crate) async fn consented_before(app: &App, agent_id: AgentId, version: i64) -> Result<Vec<i64>, Failure> {
    Ok(store::trust::relations::list_consented_before(&app.db, agent_id, version).await?)
}

/// Stores a decision with its receipt, which is chained to the ledger that was read with it. `None` if a concurrent write came
/// first; then the caller must decide again.
async fn write(app: &App, decision: Decision, ledger: &Ledger) -> Result<Option<Relation>, Failure> {
    let manifest_version = decision.must_be_current();
    let Decision { next, act, used, current, language } = decision;
    let manifest = current.as_ref().map(|current| &current.checked.manifest);
    let before = match act {
        ReceiptAction::Established | ReceiptAction::Consented => None,
        _ => ledger.last_receipt(&app.db, &next.user_id).await?,
    };
    let words = match (&before, manifest) {
        (Some(before), manifest) => ConsentTexts::Recorded { before, manifest },
        (None, Some(manifest)) => ConsentTexts::Displayed { manifest, language },
        (None, None) => return Err(Failure::internal(format!("{} began without a receipt", next.relation_id))),
    };
    let receipt = Receipt::write(&ledger.head, note(app, act, used), &next, &words);
    let delivery = relation_delivery(app, act, &next, current.as_deref()).await;
    let updated = store::trust::relations::update(&app.db, &next, &receipt, manifest_version, delivery.as_ref()).await;
    if !updated? {
        return Ok(None);
    }
    announce(app, delivery);
    Ok(Some(next))
}

/// The delivery to the agent's webhook about a decision. A revocation is decided from the relation alone, and does not wait for
/// the manifest: if that cannot be read soon, the delivery contains all remaining grants.
async fn relation_delivery(
    app: &App,
    act: ReceiptAction,
    relation: &Relation,
    current: Option<&ManifestVersion>,
) -> Option<NewDelivery> {
    let declared = match current {
        Some(current) => Some(current.declared().since.clone()),
        None => declared_soon(app, relation.agent_id).await,
    };
    let (event_type, event) = RelationNotification::of(act, relation, declared.as_ref())?;
    Some(webhooks::new_delivery(app, relation.agent_id, event_type, &event))
}

/// What the agent still declares, if that can be read soon.
async fn declared_soon(app: &App, agent_id: AgentId) -> Option<DeclaredSince> {
    let read = store::trust::manifests::find_declared(&app.db, agent_id);
    timeout(DECLARED_WITHIN, read).await.ok().and_then(Result::ok).flatten()
}

/// Sends a durable delivery: wakes the webhook worker, and sends the same body to the agent's connections.
fn announce(app: &App, delivery: Option<NewDelivery>) {
    let Some(delivery) = delivery else { return };
    Trust::of(app).deliveries.notify_one();
    frames::send(app, delivery.agent_id, &delivery.body.as_str().into());
}

/// Ends relations whose person or agent no longer exists. Idempotent, so two servers may do it at once.
pub(crate) async fn end_orphaned(app: &App) -> Result<(), Failure> {
    loop {
        let orphaned = store::trust::relations::list_orphaned(&app.db, ENDED_AT_ONCE).await?;
        if orphaned.is_empty() {
            return Ok(());
        }
        // A failure with one relation does not stop the others.
        let mut failed = None;
        for relation in orphaned {
            failed = end(app, relation.relation_id).await.err().or(failed);
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
    }
}

async fn end(app: &App, relation_id: RelationId) -> Result<(), Failure> {
    let mut attempts = app.db.attempts(contended);
    loop {
        attempts.start_next()?;
        let found = store::trust::decisions::find_revocation_inputs(&app.db, relation_id).await?;
        let RevocationInputs { relation, ledger } = found.ok_or_else(|| Failure::not_found("relation"))?;
        let Some(next) = answering::revoke(&relation, app.wall()) else { return Ok(()) };
        if write(app, Decision::alone(next, ReceiptAction::Ended), &ledger).await?.is_some() {
            return Ok(());
        }
    }
}

/// A relation of the caller. Another person's relation is reported as not found.
pub(super) async fn find_own(app: &App, caller: &Principal, relation_id: RelationId) -> Result<Relation, Failure> {
    let user_id = caller.owner()?;
    let found = store::trust::relations::get(&app.db, relation_id).await?;
    found.filter(|relation| relation.user_id == user_id).ok_or_else(|| Failure::not_found("relation"))
}

/// As [`find_own`], with the ledger that a revocation is recorded in.
async fn load_revocation(app: &App, caller: &Principal, relation_id: RelationId) -> Result<RevocationInputs, Failure> {
    let user_id = caller.owner()?;
    let found = store::trust::decisions::find_revocation_inputs(&app.db, relation_id).await?;
    found.filter(|inputs| inputs.relation.user_id == user_id).ok_or_else(|| Failure::not_found("relation"))
}

/// As [`find_own`], with everything else that a decision under the current manifest is made from.
async fn load_decision(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    call_id: Option<&str>,
) -> Result<DecisionInputs, Failure> {
    let user_id = caller.owner()?;
    let found = store::trust::decisions::find_decision_inputs(&app.db, relation_id, call_id).await?;
    let inputs = found.filter(|inputs| inputs.relation.user_id == user_id);
    inputs.ok_or_else(|| Failure::not_found("relation"))
}

fn note(app: &App, act: ReceiptAction, used: Option<UseScope>) -> ReceiptNote {
    ReceiptNote { id: ReceiptId::new(app.ids.body()), act, used }
}

fn contended() -> Failure {
    Failure::new(FailureKind::Overloaded, "too many concurrent writes to this ledger; try again")
}
