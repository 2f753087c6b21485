//! The state of a relation under the current manifest: what is granted, what is suspended, whether the person must
//! consent again. It is derived from what they consented to each time it is needed, so no change can slip past a person
//! who was away.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Answer, REAUTH_REQUIRED, ReauthRequired, Relation, RelationView, ScopeStanding, ScopeState};
use crate::{
    Timestamp,
    json::value_of,
    trust::manifest::{Change, DiffRule, Manifest, ManifestDiff, Scope, Sensitivity, scopes::preset},
};

/// Since which version of an agent's manifest each of its scopes has been declared without a break.
pub type DeclaredSince = BTreeMap<String, i64>;

/// An agent's current manifest.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    pub version: i64,
    pub hash: &'a str,
    pub manifest: &'a Manifest,
    pub since: &'a DeclaredSince,
}

/// The next `DeclaredSince`. A scope that was gone and comes back is a new one: no person has consented to it.
pub fn declared_since(before: &DeclaredSince, manifest: &Manifest, version: i64) -> DeclaredSince {
    let since = |scope: &Scope| (scope.id.clone(), before.get(&scope.id).copied().unwrap_or(version));
    manifest.permission_scopes.iter().map(since).collect()
}

/// A scope that is not declared is one that no person has consented to yet.
fn since_when(since: &DeclaredSince, id: &str) -> i64 {
    since.get(id).copied().unwrap_or(i64::MAX)
}

/// Whether consent to this version included this scope.
pub(super) fn was_there(since: &DeclaredSince, id: &str, version: i64) -> bool {
    since_when(since, id) <= version
}

impl Declared<'_> {
    pub fn scope(&self, id: &str) -> Option<&Scope> {
        self.manifest.permission_scopes.iter().find(|scope| scope.id == id)
    }

    /// Completes the difference between the manifest of a version and this one: what went and came back in between looks
    /// unchanged from both ends.
    pub fn changed_since(&self, version: i64, mut diff: ManifestDiff) -> ManifestDiff {
        let is_new =
            |change: &Change, id: &str| change.rule == DiffRule::ScopeAdded && change.scope.as_deref() == Some(id);
        let mut reauth_scopes: BTreeSet<_> = diff.scopes_requiring_reauth.drain(..).collect();
        for (index, scope) in self.manifest.permission_scopes.iter().enumerate() {
            if was_there(self.since, &scope.id, version) || diff.changes.iter().any(|change| is_new(change, &scope.id))
            {
                continue;
            }
            diff.changes.push(Change {
                rule: DiffRule::ScopeAdded,
                pointer: format!("/permission_scopes/{index}"),
                old: Value::Null,
                new: value_of(scope),
                breaking: true,
                scope: Some(scope.id.clone()),
                tool: None,
            });
            diff.breaking = true;
            reauth_scopes.insert(scope.id.clone());
        }
        diff.scopes_requiring_reauth = reauth_scopes.into_iter().collect();
        diff
    }

    /// The question to people who consented to an earlier version, because of what [changed](Self::changed_since)
    /// since. `None` if there is none.
    pub fn question(&self, changed: &ManifestDiff) -> Option<Question> {
        let since = |id: &String| (id.clone(), since_when(self.since, id));
        changed.breaking.then(|| Question {
            version: self.version,
            hash: self.hash.to_owned(),
            scopes: changed.scopes_requiring_reauth.iter().map(since).collect(),
        })
    }
}

/// What people have to answer to, apart from what it follows from: two manifests and all that changed between them may be
/// very long, and this is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Of the current manifest.
    pub version: i64,
    pub hash: String,
    /// The scopes in question, each with since when it is declared.
    pub scopes: DeclaredSince,
}

impl Question {
    /// As it is put to this person.
    pub fn to(&self, relation: &Relation, now: Timestamp) -> ReauthRequired {
        let of = |state| {
            let is_so = |(id, since): &(&String, &i64)| scope_state(relation, id, **since, true, now) == state;
            self.scopes.iter().filter(is_so).map(|(id, _)| id.clone()).collect()
        };
        ReauthRequired {
            event_type: REAUTH_REQUIRED.into(),
            agent_id: relation.agent_id,
            new_manifest_version: self.version,
            new_manifest_hash: self.hash.clone(),
            scopes_requiring_reauth: self.scopes.keys().cloned().collect(),
            relation_id: relation.relation_id,
            suspended_scopes: of(ScopeState::Suspended),
            unanswered_scopes: of(ScopeState::Unanswered),
        }
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.hash.len()
            + self.scopes.keys().map(|id| size_of::<(String, i64)>() + id.len()).sum::<usize>()
    }
}

/// The state of a scope declared since version `since` for this person. `needs_answer`: a change requires their answer.
pub(super) fn scope_state(relation: &Relation, id: &str, since: i64, needs_answer: bool, now: Timestamp) -> ScopeState {
    let is_over = relation.revoked_at.is_some();
    match relation.answers.get(id) {
        // A refusal is remembered after the end of the relation, for the next one.
        Some(Answer::Denied) => ScopeState::Denied,
        _ if is_over => ScopeState::Unanswered,
        Some(Answer::Granted { expires_at, .. }) if since <= relation.consented.version => match expires_at {
            Some(end) if *end <= now => ScopeState::Expired,
            _ if needs_answer => ScopeState::Suspended,
            _ => ScopeState::Granted,
        },
        Some(Answer::Granted { .. }) | None => ScopeState::Unanswered,
    }
}

/// A relation, the current manifest, and what changed between that and what was consented to.
#[derive(Clone, Copy)]
pub struct Standing<'a> {
    pub relation: &'a Relation,
    pub declared: Declared<'a>,
    /// Completed by [`Declared::changed_since`].
    pub changed: &'a ManifestDiff,
    pub now: Timestamp,
}

impl Standing<'_> {
    pub fn is_active(&self) -> bool {
        self.relation.revoked_at.is_none()
    }

    pub fn is_pending(&self) -> bool {
        self.is_active() && self.changed.breaking
    }

    fn scope(&self, scope: &Scope) -> ScopeStanding {
        let since = since_when(self.declared.since, &scope.id);
        let needs_answer = self.changed.scopes_requiring_reauth.contains(&scope.id);
        let state = scope_state(self.relation, &scope.id, since, needs_answer, self.now);
        let floor = preset(&scope.id).map_or(Sensitivity::Low, |preset| preset.floor).max(scope.sensitivity);
        let unanswered =
            ScopeStanding { id: scope.id.clone(), state, sensitivity: floor, once: false, expires_at: None };
        match self.relation.answers.get(&scope.id) {
            Some(Answer::Granted { sensitivity, once, expires_at }) if state != ScopeState::Unanswered => {
                let sensitivity = Sensitivity::in_force(*sensitivity, floor);
                ScopeStanding { sensitivity, once: *once, expires_at: *expires_at, ..unanswered }
            }
            _ => unanswered,
        }
    }

    pub fn scopes(&self) -> Vec<ScopeStanding> {
        self.declared.manifest.permission_scopes.iter().map(|scope| self.scope(scope)).collect()
    }

    /// Whether the agent may use this scope now.
    pub fn is_granted(&self, id: &str) -> bool {
        self.declared.scope(id).is_some_and(|scope| self.scope(scope).state == ScopeState::Granted)
    }

    pub fn view(&self) -> RelationView {
        let scopes = self.scopes();
        let of = |state| ids(scopes.iter().filter(|scope| scope.state == state));
        let reauth_required = self.is_pending();
        let reauth_scopes = if reauth_required { self.changed.scopes_requiring_reauth.clone() } else { vec![] };
        let Relation {
            relation_id,
            agent_id,
            agent_name,
            agent_owner_id,
            user_id,
            consented,
            created_at,
            updated_at,
            revoked_at,
            ..
        } = self.relation.clone();
        RelationView {
            id: relation_id,
            agent_id,
            agent_name,
            agent_owner_id,
            user_id,
            granted_scopes: of(ScopeState::Granted),
            suspended_scopes: of(ScopeState::Suspended),
            denied_scopes: of(ScopeState::Denied),
            scopes,
            consented_manifest_version: consented.version,
            consented_manifest_hash: consented.hash,
            manifest_version: self.declared.version,
            manifest_hash: self.declared.hash.to_owned(),
            reauth_required,
            scopes_requiring_reauth: reauth_scopes,
            created_at,
            updated_at,
            revoked_at,
        }
    }
}

fn ids<'a>(scopes: impl Iterator<Item = &'a ScopeStanding>) -> Vec<String> {
    let sorted: BTreeSet<_> = scopes.map(|scope| scope.id.clone()).collect();
    sorted.into_iter().collect()
}
