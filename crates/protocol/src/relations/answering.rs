//! What a person does to a relation: establish it, answer to a manifest, take grants back, use one up, end it. State and
//! action in, state and a note for the ledger out, or a failure and nothing changes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::{
    Answer, Answers, Consented, GRANT_LIFE_MS_MAX, Relation, Terms,
    standing::{Declared, Standing},
};
use crate::{
    Failure, FailureKind, Timestamp,
    ids::{AgentId, RelationId},
    receipts::Act,
};

/// A relation of somebody who has none with this agent. Naming the manifest they saw is wise, and not demanded.
pub fn establish(
    relation_id: RelationId,
    agent_id: AgentId,
    user_id: String,
    declared: Declared<'_>,
    asked: &Answers,
    now: Timestamp,
) -> Result<Relation, Failure> {
    check(declared, asked)?;
    check_seen(declared, asked)?;
    Ok(Relation {
        relation_id,
        agent_id,
        user_id,
        consented: consented(declared),
        answers: answers(declared, &BTreeMap::new(), asked, now)?,
        revision: 1,
        created_at: now,
        updated_at: now,
        revoked_at: None,
    })
}

/// Answers to the manifest of now, or takes grants back.
pub fn answer(standing: Standing<'_>, asked: &Answers) -> Result<(Relation, Act), Failure> {
    let Standing { relation, declared, now, .. } = standing;
    is_not_revoked(relation)?;
    check(declared, asked)?;
    // Silence must not take everything back.
    if asked.granted_scopes.is_none() {
        return Err(Failure::invalid(
            "granted-scopes-missing",
            "say in granted_scopes what is granted, even if it is none",
        ));
    }
    if asked.manifest_hash.is_none() && only_takes_back(standing, asked) {
        let stays = |id: &String, answer: &Answer| *answer == Answer::Denied || asked.granted().contains(id);
        let mut answers = relation.answers.clone();
        answers.retain(|id, answer| stays(id, answer));
        answers.extend(asked.denied_scopes.iter().map(|id| (id.clone(), Answer::Denied)));
        return Ok((changed(relation, now, |next| next.answers = answers), Act::Narrowed));
    }
    if asked.manifest_hash.is_none() {
        let message = "name the manifest_hash of what the person saw; only taking grants back needs none";
        return Err(Failure::invalid("manifest-hash-missing", message));
    }
    check_seen(declared, asked)?;
    let answers = answers(declared, &relation.answers, asked, now)?;
    let next = changed(relation, now, |next| {
        next.answers = answers;
        next.consented = consented(declared);
    });
    Ok((next, Act::Consented))
}

/// Uses a grant for one call. `None`: nothing changes, for the grant is good for more than one.
pub fn use_scope(standing: Standing<'_>, scope: &str) -> Result<Option<Relation>, Failure> {
    let relation = standing.relation;
    is_not_revoked(relation)?;
    if !standing.is_granted(scope) {
        let message = format!("the scope {scope:?} is not granted now");
        return Err(Failure::rule(FailureKind::PermissionDenied, "scope-not-granted", message).detail("scope", scope));
    }
    let used_up = matches!(relation.answers.get(scope), Some(Answer::Granted { once: true, .. }));
    Ok(used_up.then(|| {
        changed(relation, standing.now, |next| {
            next.answers.remove(scope);
        })
    }))
}

/// Ends a relation. `None`: it has ended before.
pub fn revoke(relation: &Relation, now: Timestamp) -> Option<Relation> {
    relation.revoked_at.is_none().then(|| {
        changed(relation, now, |next| {
            next.answers.clear();
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
        Some(_) => Err(Failure::rule(FailureKind::StateConflict, "relation-revoked", "this relation was ended")),
    }
}

/// Nothing is granted that is not granted now, and nothing for longer.
fn only_takes_back(standing: Standing<'_>, asked: &Answers) -> bool {
    asked.terms.is_empty() && asked.granted().iter().all(|id| standing.is_granted(id))
}

fn check(declared: Declared<'_>, asked: &Answers) -> Result<(), Failure> {
    let mut named = BTreeSet::new();
    for id in asked.granted().iter().chain(&asked.denied_scopes) {
        if declared.scope(id).is_none() {
            let message = format!("the agent's manifest declares no scope {id:?}");
            return Err(Failure::invalid("scope-unknown", message).detail("scope", id.as_str()));
        }
        if !named.insert(id) {
            return Err(Failure::invalid("scope-twice", format!("the scope {id:?} is named twice")));
        }
    }
    match asked.terms.keys().find(|id| !asked.granted().contains(id)) {
        Some(id) => Err(Failure::invalid("terms", format!("terms are for granted scopes; {id:?} is none"))),
        None => Ok(()),
    }
}

/// The person saw this manifest and no other.
fn check_seen(declared: Declared<'_>, asked: &Answers) -> Result<(), Failure> {
    if asked.manifest_hash.as_deref().is_none_or(|seen| seen == declared.hash) {
        return Ok(());
    }
    let message = "the agent's manifest has changed since this person saw it; show them the one of now";
    let failure = Failure::rule(FailureKind::StateConflict, "version-conflict", message);
    Err(failure.detail("manifest_version", declared.version).detail("manifest_hash", declared.hash))
}

/// The answers after a consent: what is granted now, and every refusal of a scope that is still declared.
fn answers(
    declared: Declared<'_>,
    before: &BTreeMap<String, Answer>,
    asked: &Answers,
    now: Timestamp,
) -> Result<BTreeMap<String, Answer>, Failure> {
    let refused = before.iter().filter(|(id, answer)| **answer == Answer::Denied && declared.scope(id).is_some());
    let mut answers: BTreeMap<_, _> = refused.map(|(id, answer)| (id.clone(), answer.clone())).collect();
    for id in asked.granted() {
        let sensitivity = declared.scope(id).expect("it was checked").sensitivity;
        let Terms { once, expires_in_ms } = asked.terms.get(id).copied().unwrap_or_default();
        let expires_at = expires_in_ms.map(|ms| end(now, ms)).transpose()?;
        answers.insert(id.clone(), Answer::Granted { sensitivity, once, expires_at });
    }
    answers.extend(asked.denied_scopes.iter().map(|id| (id.clone(), Answer::Denied)));
    Ok(answers)
}

fn end(now: Timestamp, ms: i64) -> Result<Timestamp, Failure> {
    let refused = || Failure::invalid("expires-in", format!("expires_in_ms must be 1 to {GRANT_LIFE_MS_MAX}"));
    if !(1..=GRANT_LIFE_MS_MAX).contains(&ms) {
        return Err(refused());
    }
    now.checked_add(SignedDuration::from_millis(ms)).map_err(|_| refused())
}
