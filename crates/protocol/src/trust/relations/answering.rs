//! What a person does to a relation: establish it, answer to a manifest, take grants back, use one up, end it. State and
//! action in, state and a note for the ledger out, or a failure and nothing changes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::{
    Answer, Answers, Consented, GRANT_LIFE_MS_MAX, Relation, Terms,
    standing::{Declared, DeclaredSince, Standing, was_there},
};
use crate::{
    Failure, Rule, Timestamp,
    ids::{AgentId, RelationId},
    trust::receipts::ReceiptAction,
};

/// Who a relation is between. An agent's name and owner never change.
#[derive(Clone, Debug)]
pub struct RelationParties {
    pub relation_id: RelationId,
    pub agent_id: AgentId,
    pub agent_name: String,
    pub agent_owner_id: String,
    pub user_id: String,
}

/// A relation of a person who has none with this agent. Scopes they refused in an earlier one stay refused. Naming the
/// manifest they saw is recommended, but not required.
pub fn establish(
    parties: RelationParties,
    declared: Declared<'_>,
    refused: &BTreeMap<String, Answer>,
    request: &Answers,
    now: Timestamp,
) -> Result<Relation, Failure> {
    check_consistent(request)?;
    // A person who saw another manifest is shown the current one first, even if it lacks scopes that they name.
    check_seen(declared, request)?;
    check_declared(declared, request)?;
    let RelationParties { relation_id, agent_id, agent_name, agent_owner_id, user_id } = parties;
    Ok(Relation {
        relation_id,
        agent_id,
        agent_name,
        agent_owner_id,
        user_id,
        consented: consented(declared),
        answers: answers(declared, &refusals(refused), request, now)?,
        revision: 1,
        created_at: now,
        updated_at: now,
        revoked_at: None,
    })
}

/// Revokes grants, or turns them into refusals. That needs the relation alone, whatever the agent's current manifest
/// is; where its declared scopes are known, grants of undeclared scopes are removed as well. `None` if the answer
/// contains more than that; [`answer`] then checks it against the manifest.
pub fn narrow(
    relation: &Relation,
    since: Option<&DeclaredSince>,
    request: &Answers,
    now: Timestamp,
) -> Result<Option<Relation>, Failure> {
    check_answer(relation, request)?;
    if !request.denied_scopes.iter().all(|id| relation.answers.contains_key(id)) {
        return Ok(None);
    }
    Ok(narrowed(relation, since, request, now))
}

/// Answers to the current manifest; or refuses for good what was never answered.
pub fn answer(standing: Standing<'_>, request: &Answers) -> Result<(Relation, ReceiptAction), Failure> {
    let Standing { relation, declared, now, .. } = standing;
    check_answer(relation, request)?;
    check_seen(declared, request)?;
    check_declared(declared, request)?;
    if let Some(next) = narrowed(relation, Some(declared.since), request, now) {
        return Ok((next, ReceiptAction::Narrowed));
    }
    if request.manifest_hash.is_none() {
        let message = "name the manifest_hash of what the person saw; only taking grants back needs none";
        return Err(Failure::invalid(Rule::ManifestHashMissing, message));
    }
    // What was granted of a scope that went since then went with it, limits and all.
    let mut before = relation.answers.clone();
    before.retain(|id, answer| *answer == Answer::Denied || was_there(declared.since, id, relation.consented.version));
    let answers = answers(declared, &before, request, now)?;
    let next = changed(relation, now, |next| {
        next.answers = answers;
        next.consented = consented(declared);
    });
    Ok((next, ReceiptAction::Consented))
}

/// The relation without grants that are no longer listed or declared, and with the new refusals. `None` if more is
/// granted than before, or for longer, or if the person answers to a manifest.
fn narrowed(relation: &Relation, since: Option<&DeclaredSince>, request: &Answers, now: Timestamp) -> Option<Relation> {
    let is_held = |id: &String| match relation.answers.get(id) {
        Some(Answer::Granted { expires_at, .. }) => expires_at.is_none_or(|end| now < end),
        Some(Answer::Denied) | None => false,
    };
    if request.manifest_hash.is_some() || !request.terms.is_empty() || !request.granted().iter().all(is_held) {
        return None;
    }
    let stays = |id: &String| {
        let is_declared = since.is_none_or(|since| was_there(since, id, relation.consented.version));
        is_declared && request.granted().contains(id)
    };
    Some(changed(relation, now, |next| {
        next.answers.retain(|id, answer| *answer == Answer::Denied || stays(id));
        next.answers.extend(request.denied_scopes.iter().map(|id| (id.clone(), Answer::Denied)));
    }))
}

/// Uses a grant for one call. `None`: nothing changes, for the grant is good for more than one.
pub fn use_scope(standing: Standing<'_>, scope: &str) -> Result<Option<Relation>, Failure> {
    let relation = standing.relation;
    is_not_revoked(relation)?;
    if !standing.is_granted(scope) {
        let message = format!("the scope {scope:?} is not granted now");
        return Err(Failure::rule(Rule::ScopeNotGranted, message).detail("scope", scope));
    }
    let used_up = matches!(relation.answers.get(scope), Some(Answer::Granted { once: true, .. }));
    Ok(used_up.then(|| {
        changed(relation, standing.now, |next| {
            next.answers.remove(scope);
            next.answers.retain(|id, answer| {
                *answer == Answer::Denied || was_there(standing.declared.since, id, relation.consented.version)
            });
        })
    }))
}

/// Ends a relation; what was refused in it is remembered for the next one. `None`: it has ended before.
pub fn revoke(relation: &Relation, now: Timestamp) -> Option<Relation> {
    relation.revoked_at.is_none().then(|| {
        changed(relation, now, |next| {
            next.answers = refusals(&relation.answers);
            next.revoked_at = Some(now);
        })
    })
}

fn changed(relation: &Relation, now: Timestamp, change: impl FnOnce(&mut Relation)) -> Relation {
    let mut next = Relation { revision: relation.revision + 1, updated_at: now, ..relation.clone() };
    change(&mut next);
    next
}

fn consented(declared: Declared<'_>) -> Consented {
    Consented { version: declared.version, hash: declared.hash.to_owned() }
}

fn is_not_revoked(relation: &Relation) -> Result<(), Failure> {
    match relation.revoked_at {
        None => Ok(()),
        Some(_) => Err(Failure::rule(Rule::RelationRevoked, "this relation was ended")),
    }
}

/// Checks an answer as far as that is possible without the manifest.
pub fn check_answer(relation: &Relation, request: &Answers) -> Result<(), Failure> {
    is_not_revoked(relation)?;
    // Silence must not take everything back.
    if request.granted_scopes.is_none() {
        return Err(Failure::invalid(
            Rule::GrantedScopesMissing,
            "granted_scopes must list what is granted, even if that is nothing",
        ));
    }
    check_consistent(request)
}

fn check_consistent(request: &Answers) -> Result<(), Failure> {
    let mut named = BTreeSet::new();
    if let Some(id) = request.granted().iter().chain(&request.denied_scopes).find(|id| !named.insert(*id)) {
        return Err(Failure::invalid(Rule::ScopeTwice, format!("the scope {id:?} is named twice")));
    }
    match request.terms.keys().find(|id| !request.granted().contains(id)) {
        Some(id) => Err(Failure::invalid(Rule::Terms, format!("terms are for granted scopes; {id:?} is none"))),
        None => Ok(()),
    }
}

fn check_declared(declared: Declared<'_>, request: &Answers) -> Result<(), Failure> {
    let unknown = request.granted().iter().chain(&request.denied_scopes).find(|id| declared.scope(id).is_none());
    let Some(id) = unknown else { return Ok(()) };
    let message = format!("the agent's manifest declares no scope {id:?}");
    Err(Failure::invalid(Rule::ScopeUnknown, message).detail("scope", id.as_str()))
}

/// The person saw this manifest and no other.
fn check_seen(declared: Declared<'_>, request: &Answers) -> Result<(), Failure> {
    if request.manifest_hash.as_deref().is_none_or(|seen| seen == declared.hash) {
        return Ok(());
    }
    let message = "the agent's manifest has changed since this person saw it; show them the current manifest";
    let failure = Failure::rule(Rule::VersionConflict, message);
    Err(failure.detail("manifest_version", declared.version).detail("manifest_hash", declared.hash))
}

fn refusals(answers: &BTreeMap<String, Answer>) -> BTreeMap<String, Answer> {
    let refused = answers.iter().filter(|(_, answer)| **answer == Answer::Denied);
    refused.map(|(id, answer)| (id.clone(), answer.clone())).collect()
}

/// The answers after a consent: what is granted now, and every refusal of a scope that is still declared.
#[expect(clippy::expect_used, reason = "each scope was found in the manifest before")]
fn answers(
    declared: Declared<'_>,
    before: &BTreeMap<String, Answer>,
    request: &Answers,
    now: Timestamp,
) -> Result<BTreeMap<String, Answer>, Failure> {
    let mut answers = refusals(before);
    answers.retain(|id, _| declared.scope(id).is_some());
    for id in request.granted() {
        let sensitivity = declared.scope(id).expect("it was checked").sensitivity;
        let (once, expires_at) = match (request.terms.get(id), before.get(id)) {
            (Some(Terms { once, expires_in_ms }), _) => (*once, expires_in_ms.map(|ms| end(now, ms)).transpose()?),
            // An answer without terms leaves the limits of an existing grant as they are.
            (None, Some(Answer::Granted { once, expires_at, .. })) if expires_at.is_none_or(|end| now < end) => {
                (*once, *expires_at)
            }
            (None, _) => (false, None),
        };
        answers.insert(id.clone(), Answer::Granted { sensitivity, once, expires_at });
    }
    answers.extend(request.denied_scopes.iter().map(|id| (id.clone(), Answer::Denied)));
    Ok(answers)
}

fn end(now: Timestamp, ms: i64) -> Result<Timestamp, Failure> {
    let refused = || Failure::invalid(Rule::ExpiresIn, format!("expires_in_ms must be 1 to {GRANT_LIFE_MS_MAX}"));
    if !(1..=GRANT_LIFE_MS_MAX).contains(&ms) {
        return Err(refused());
    }
    now.checked_add(SignedDuration::from_millis(ms)).map_err(|_| refused())
}
