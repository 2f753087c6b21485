use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    answering::{RelationParties, answer, establish, narrow, revoke, use_scope},
    standing::{Declared, DeclaredSince, Standing, declared_since},
    *,
};
use crate::{
    Failure, FailureKind,
    trust::{
        manifest::{Checked, ManifestDiff, diff::diff},
        receipts::ReceiptAction,
    },
};

const SCOPES: [&str; 4] = ["notes:read", "notes:write", "shell:exec", "filesystem:read"];

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn scope(id: &str, sensitivity: Sensitivity) -> Value {
    json!({"id": id, "label_i18n_key": "a.b", "label_fallback": id, "description_fallback": "x", "sensitivity": sensitivity})
}

fn tool(name: &str, scope: &str, required: &[&str]) -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": required, "additionalProperties": false});
    json!({"name": name, "description_i18n_key": "a.b", "input_schema": schema, "permission_scope": scope})
}

fn manifest(scopes: &[(&str, Sensitivity)], tools: Vec<Value>) -> Value {
    let scopes: Vec<_> = scopes.iter().map(|(id, sensitivity)| scope(id, *sensitivity)).collect();
    json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": tools, "permission_scopes": scopes})
}

/// An agent's manifests, one after the other, and a person's relation with it.
struct World {
    versions: Vec<(Checked, DeclaredSince)>,
    relation: Relation,
    now: Timestamp,
}

impl World {
    fn start(first: Value, granted: &[&str]) -> Self {
        let checked = Checked::read(&first.to_string()).unwrap();
        let since = declared_since(&DeclaredSince::new(), &checked.manifest, 1);
        let declared =
            Declared { version: 1, hash: &checked.canonical.hash, manifest: &checked.manifest, since: &since };
        let relation = establish(parties(), declared, &BTreeMap::new(), &grants(granted), at(0)).unwrap();
        Self { versions: vec![(checked, since)], relation, now: at(1) }
    }

    fn patch(&mut self, next: Value) {
        let checked = Checked::read(&next.to_string()).unwrap();
        let version = self.versions.len() as i64 + 1;
        let since = declared_since(&self.versions.last().unwrap().1, &checked.manifest, version);
        self.versions.push((checked, since));
    }

    fn declared(&self) -> Declared<'_> {
        let (checked, since) = self.versions.last().unwrap();
        let version = self.versions.len() as i64;
        Declared { version, hash: &checked.canonical.hash, manifest: &checked.manifest, since }
    }

    fn changed(&self) -> ManifestDiff {
        let consented = self.relation.consented.version;
        let (before, now) = (&self.versions[consented as usize - 1].0, &self.versions.last().unwrap().0);
        self.declared().changed_since(consented, diff(Some(before), now))
    }

    fn with<T>(&self, look: impl FnOnce(Standing<'_>) -> T) -> T {
        let changed = self.changed();
        look(Standing { relation: &self.relation, declared: self.declared(), changed: &changed, now: self.now })
    }

    fn view(&self) -> RelationView {
        self.with(|standing| standing.view())
    }

    fn reauth(&self) -> Option<ReauthRequired> {
        Some(self.declared().question(&self.changed())?.to(&self.relation, self.now))
    }

    fn answer(&mut self, request: &Answers) -> Result<ReceiptAction, Failure> {
        let (next, act) = match narrow(&self.relation, Some(self.declared().since), request, self.now)? {
            Some(next) => (next, ReceiptAction::Narrowed),
            None => self.with(|standing| answer(standing, request))?,
        };
        self.relation = next;
        Ok(act)
    }

    /// Answers to the current manifest.
    fn consent(&mut self, granted: &[&str]) {
        let seen = Some(self.declared().hash.to_owned());
        self.answer(&Answers { manifest_hash: seen, ..grants(granted) }).unwrap();
    }
}

fn parties() -> RelationParties {
    RelationParties {
        relation_id: RelationId::new(Uuid::nil()),
        agent_id: AgentId::new(Uuid::nil()),
        agent_name: "helper".into(),
        agent_owner_id: "local".into(),
        user_id: "local".into(),
    }
}

fn grants(granted: &[&str]) -> Answers {
    Answers { granted_scopes: Some(granted.iter().map(|id| (*id).to_owned()).collect()), ..Answers::default() }
}

use Sensitivity::{High, Low, Medium};

fn rule(outcome: Result<ReceiptAction, Failure>) -> (FailureKind, String) {
    let failure = outcome.unwrap_err();
    (failure.kind, failure.rule_name().unwrap_or_default().to_owned())
}

#[test]
fn a_scope_that_went_and_came_back_is_not_granted() {
    let two = manifest(&[("notes:read", Low), ("shell:exec", High)], vec![]);
    let mut world = World::start(two.clone(), &["notes:read", "shell:exec"]);
    world.patch(manifest(&[("notes:read", Low)], vec![]));
    let view = world.view();
    assert_eq!((view.granted_scopes, view.reauth_required), (vec!["notes:read".to_owned()], false));
    world.patch(two);
    let view = world.view();
    assert_eq!(view.granted_scopes, ["notes:read"]);
    assert_eq!(view.scopes_requiring_reauth, ["shell:exec"]);
    assert_eq!(view.scopes[1].state, ScopeState::Unanswered);
    world.consent(&["shell:exec"]);
    assert_eq!(world.view().granted_scopes, ["shell:exec"]);
}

#[test]
fn what_went_takes_its_limits_along() {
    let first = manifest(&[("notes:read", Low)], vec![]);
    let mut world = World::start(first.clone(), &[]);
    let seen = Some(world.declared().hash.to_owned());
    let terms = BTreeMap::from([("notes:read".to_owned(), Terms { once: true, expires_in_ms: None })]);
    world.answer(&Answers { manifest_hash: seen, terms, ..grants(&["notes:read"]) }).unwrap();
    assert!(world.view().scopes[0].once);
    world.patch(manifest(&[], vec![]));
    world.patch(first);
    world.consent(&["notes:read"]);
    assert!(!world.view().scopes[0].once, "it was granted again, and for good");
}

#[test]
fn a_lowered_sensitivity_stays_as_high_as_it_was_consented_to() {
    let mut world = World::start(manifest(&[("shell:exec", High)], vec![]), &["shell:exec"]);
    world.patch(manifest(&[("shell:exec", Low)], vec![]));
    let view = world.view();
    assert_eq!((view.reauth_required, view.scopes[0].sensitivity), (false, High));
    world.answer(&grants(&["shell:exec"])).unwrap();
    assert_eq!(world.view().scopes[0].sensitivity, High, "taking back is no consent to the new level");
    world.consent(&["shell:exec"]);
    assert_eq!(world.view().scopes[0].sensitivity, Low);
}

#[test]
fn scopes_that_need_consent_again_are_suspended_until_answered() {
    let before = manifest(&[("notes:read", Low), ("notes:write", Medium)], vec![tool("write", "notes:write", &[])]);
    let mut world = World::start(before, &["notes:read", "notes:write"]);
    let scopes = [("notes:read", Low), ("notes:write", Medium), ("shell:exec", High)];
    world.patch(manifest(&scopes, vec![tool("write", "notes:write", &["a"])]));
    let view = world.view();
    assert_eq!(view.granted_scopes, ["notes:read"]);
    assert_eq!(view.suspended_scopes, ["notes:write"]);
    let reauth = world.reauth().unwrap();
    assert_eq!(reauth.scopes_requiring_reauth, ["notes:write", "shell:exec"]);
    assert_eq!(
        (reauth.suspended_scopes, reauth.unanswered_scopes),
        (vec!["notes:write".into()], vec!["shell:exec".into()])
    );
    assert_eq!(world.with(|s| use_scope(s, "notes:write")).unwrap_err().rule_name(), Some("scope-not-granted"));
    world.consent(&["notes:read", "notes:write"]);
    let view = world.view();
    assert_eq!((view.granted_scopes.len(), view.reauth_required), (2, false));
    assert_eq!(world.reauth(), None);
}

#[test]
fn a_person_who_was_away_is_notified_once_of_all_changes_since_their_consent() {
    let one = [("notes:read", Low)];
    let mut world = World::start(manifest(&one, vec![tool("read", "notes:read", &[])]), &["notes:read"]);
    world.patch(manifest(&one, vec![tool("read", "notes:read", &["a"])]));
    // Silent against the version before it, not against what was consented to.
    let mut third = manifest(&one, vec![tool("read", "notes:read", &["a"])]);
    third["agent_version"] = json!("1.1.0");
    world.patch(third);
    let reauth = world.reauth().unwrap();
    assert_eq!(reauth.new_manifest_version, 3);
    assert_eq!(reauth.new_manifest_hash, world.declared().hash);
    assert_eq!(world.changed().changes.iter().filter(|change| change.breaking).count(), 1);
}

#[test]
fn an_agent_is_notified_only_of_grants_in_force() {
    let all = [("notes:read", Low), ("notes:write", Medium), ("shell:exec", High), ("filesystem:read", Medium)];
    let mut world = World::start(manifest(&all, vec![]), &["notes:read", "notes:write", "shell:exec"]);
    let hash = world.declared().hash.to_owned();
    let terms = [("notes:read".to_owned(), Terms { once: false, expires_in_ms: Some(10_000) })].into();
    world
        .answer(&Answers { manifest_hash: Some(hash), terms, ..grants(&["notes:read", "notes:write", "shell:exec"]) })
        .unwrap();
    let notified = |world: &World, act| {
        RelationNotification::of(act, &world.relation, Some(world.declared().since)).unwrap().1.granted_scopes
    };
    assert_eq!(notified(&world, ReceiptAction::Consented), ["notes:read", "notes:write", "shell:exec"]);
    // One goes and comes back, which no person has answered to; another one goes for good.
    world.patch(manifest(&[("notes:read", Low), ("filesystem:read", Medium)], vec![]));
    assert_eq!(notified(&world, ReceiptAction::Narrowed), ["notes:read"]);
    world.patch(manifest(&[("notes:read", Low), ("notes:write", Medium)], vec![]));
    assert_eq!(notified(&world, ReceiptAction::Narrowed), ["notes:read"]);
    // The time of the last one is over by the time that something else is taken back.
    world.now = at(60);
    world.answer(&grants(&["notes:write"])).unwrap();
    assert!(notified(&world, ReceiptAction::Narrowed).is_empty());
    world.relation = revoke(&world.relation, world.now).unwrap();
    assert!(notified(&world, ReceiptAction::Revoked).is_empty());
}

#[test]
fn an_answer_names_the_manifest_that_was_seen() {
    let one = manifest(&[("notes:read", Low), ("notes:write", Medium)], vec![]);
    let mut world = World::start(one, &["notes:read"]);
    let first = world.declared().hash.to_owned();
    world.patch(manifest(&[("notes:read", Low), ("notes:write", High)], vec![]));
    let wider = grants(&["notes:read", "notes:write"]);
    assert_eq!(rule(world.answer(&wider)), (FailureKind::SchemaInvalid, "manifest-hash-missing".into()));
    let stale = Answers { manifest_hash: Some(first), ..wider };
    assert_eq!(rule(world.answer(&stale)), (FailureKind::StateConflict, "version-conflict".into()));
    // That scope went, too: the person must still see the current manifest first.
    let gone = Answers { granted_scopes: grants(&["nope:x"]).granted_scopes, ..stale };
    assert_eq!(rule(world.answer(&gone)).1, "version-conflict");
    let begun =
        establish(parties(), world.declared(), &BTreeMap::new(), &gone, at(2)).map(|_| ReceiptAction::Established);
    assert_eq!(rule(begun).1, "version-conflict");
    assert_eq!(rule(world.answer(&grants(&["nope:x"]))), (FailureKind::SchemaInvalid, "scope-unknown".into()));
    assert_eq!(world.answer(&grants(&[])).unwrap(), ReceiptAction::Narrowed, "taking back needs no hash");
    assert!(world.view().granted_scopes.is_empty() && world.view().reauth_required, "and answers nothing");
}

#[test]
fn a_grant_without_its_own_end_cannot_be_had_by_taking_back() {
    let mut world = World::start(manifest(&[("notes:read", Low)], vec![]), &[]);
    let seen = Some(world.declared().hash.to_owned());
    let terms = BTreeMap::from([("notes:read".to_owned(), Terms { once: true, expires_in_ms: Some(5_000) })]);
    world.answer(&Answers { terms, manifest_hash: seen, ..grants(&["notes:read"]) }).unwrap();
    world.answer(&grants(&["notes:read"])).unwrap();
    let scope = world.view().scopes[0].clone();
    assert!(scope.once && scope.expires_at == Some(at(6)));
}

#[test]
fn a_grant_for_one_call_is_gone_with_it() {
    let mut world = World::start(manifest(&[("notes:read", Low), ("notes:write", Low)], vec![]), &[]);
    let seen = Some(world.declared().hash.to_owned());
    let terms = BTreeMap::from([("notes:read".to_owned(), Terms { once: true, expires_in_ms: None })]);
    world.answer(&Answers { terms, manifest_hash: seen, ..grants(&["notes:read", "notes:write"]) }).unwrap();
    assert_eq!(world.with(|s| use_scope(s, "notes:write")).unwrap(), None, "this one stays");
    world.relation = world.with(|s| use_scope(s, "notes:read")).unwrap().unwrap();
    assert_eq!(world.view().granted_scopes, ["notes:write"]);
    assert!(world.with(|s| use_scope(s, "notes:read")).is_err());
}

#[test]
fn what_is_left_after_a_call_is_what_the_agent_still_declares() {
    let mut world = World::start(manifest(&[("notes:read", Low), ("notes:write", Low)], vec![]), &[]);
    let seen = Some(world.declared().hash.to_owned());
    let terms = BTreeMap::from([("notes:read".to_owned(), Terms { once: true, expires_in_ms: None })]);
    world.answer(&Answers { terms, manifest_hash: seen, ..grants(&["notes:read", "notes:write"]) }).unwrap();
    world.patch(manifest(&[("notes:read", Low)], vec![]));
    let used = world.with(|s| use_scope(s, "notes:read")).unwrap().unwrap();
    assert!(used.answers.is_empty(), "{:?}", used.answers);
}

#[test]
fn a_grant_ends_at_its_time_and_not_after_it() {
    let mut world = World::start(manifest(&[("notes:read", Low)], vec![]), &[]);
    let seen = Some(world.declared().hash.to_owned());
    let lasting = |ms| BTreeMap::from([("notes:read".to_owned(), Terms { once: false, expires_in_ms: Some(ms) })]);
    let answers = Answers { manifest_hash: seen, ..grants(&["notes:read"]) };
    for bad in [0, -1, GRANT_LIFE_MS_MAX + 1] {
        let outcome = world.answer(&Answers { terms: lasting(bad), ..answers.clone() });
        assert_eq!(rule(outcome).1, "expires-in", "{bad}");
    }
    world.answer(&Answers { terms: lasting(10_000), ..answers }).unwrap();
    let end = world.now + SignedDuration::from_secs(10);
    world.now = end - SignedDuration::from_millis(1);
    assert_eq!(world.view().scopes[0].state, ScopeState::Granted);
    world.now = end;
    assert_eq!(world.view().scopes[0].state, ScopeState::Expired);
    assert!(world.view().granted_scopes.is_empty());
}

#[test]
fn a_refusal_is_remembered_until_the_scope_is_granted() {
    let two = manifest(&[("notes:read", Low), ("shell:exec", High)], vec![]);
    let mut world = World::start(two, &["notes:read"]);
    let denied_scopes = vec!["shell:exec".to_owned()];
    world.answer(&Answers { denied_scopes: denied_scopes.clone(), ..grants(&["notes:read"]) }).unwrap();
    world.consent(&["notes:read"]);
    assert_eq!(world.view().denied_scopes, denied_scopes);
    let both = Answers { denied_scopes: denied_scopes.clone(), ..grants(&["shell:exec"]) };
    assert_eq!(rule(world.answer(&both)).1, "scope-twice");
    world.consent(&["shell:exec"]);
    assert!(world.view().denied_scopes.is_empty());
}

#[test]
fn a_refusal_outlives_the_relation() {
    let two = manifest(&[("notes:read", Low), ("shell:exec", High)], vec![]);
    let mut world = World::start(two, &["notes:read"]);
    world.answer(&Answers { denied_scopes: vec!["shell:exec".into()], ..grants(&["notes:read"]) }).unwrap();
    let ended = revoke(&world.relation, world.now).unwrap();
    let again = |request: &Answers| establish(parties(), world.declared(), &ended.answers, request, at(2)).unwrap();
    assert_eq!(again(&grants(&[])).answers, BTreeMap::from([("shell:exec".to_owned(), Answer::Denied)]));
    let changed_mind = again(&grants(&["shell:exec"]));
    assert!(matches!(changed_mind.answers["shell:exec"], Answer::Granted { .. }));
}

#[test]
fn grants_are_taken_back_beside_one_that_is_suspended_and_whatever_the_manifest_is() {
    let scopes = [("notes:read", Low), ("notes:write", Medium), ("shell:exec", High)];
    let mut world = World::start(manifest(&scopes, vec![tool("write", "notes:write", &[])]), &SCOPES[..3]);
    world.patch(manifest(&scopes[..2], vec![tool("write", "notes:write", &["a"])]));
    assert_eq!(world.view().suspended_scopes, ["notes:write"]);
    // One is suspended, one is not declared any more.
    let before = world.relation.clone();
    assert_eq!(world.answer(&grants(&["notes:write", "shell:exec"])).unwrap(), ReceiptAction::Narrowed);
    assert_eq!((world.view().granted_scopes.len(), world.view().suspended_scopes), (0, vec!["notes:write".into()]));
    assert!(!world.relation.answers.contains_key("shell:exec"), "nothing is left to say of it in a receipt");
    let unread = narrow(&before, None, &grants(&["notes:write", "shell:exec"]), world.now).unwrap().unwrap();
    assert!(unread.answers.contains_key("shell:exec"), "the declared scopes are unknown, and no answer is pending");
    world.relation = before;
    let denied = Answers { denied_scopes: vec!["shell:exec".into()], ..grants(&["notes:write"]) };
    assert_eq!(world.answer(&denied).unwrap(), ReceiptAction::Narrowed);
    assert_eq!(world.relation.answers["shell:exec"], Answer::Denied);
}

#[test]
fn a_grant_that_is_given_again_keeps_its_limits_unless_they_are_lifted() {
    let mut world = World::start(manifest(&[("notes:read", Low), ("notes:write", Low)], vec![]), &[]);
    let seen = Some(world.declared().hash.to_owned());
    let limited = |once, expires_in_ms| Terms { once, expires_in_ms };
    let terms =
        [("notes:read".to_owned(), limited(true, None)), ("notes:write".to_owned(), limited(false, Some(5_000)))];
    let both = Answers { manifest_hash: seen, ..grants(&["notes:read", "notes:write"]) };
    world.answer(&Answers { terms: terms.into(), ..both.clone() }).unwrap();
    world.now = at(3);
    assert_eq!(world.answer(&both).unwrap(), ReceiptAction::Consented);
    let scopes = world.view().scopes;
    assert_eq!((scopes[0].once, scopes[1].expires_at), (true, Some(at(6))), "the answer did not mention them");
    let lifted = BTreeMap::from([("notes:read".to_owned(), Terms::default())]);
    world.answer(&Answers { terms: lifted, ..both.clone() }).unwrap();
    assert!(!world.view().scopes[0].once);
    world.now = at(6);
    world.answer(&both).unwrap();
    assert_eq!(world.view().scopes[1].expires_at, None, "that one was over");
}

#[test]
fn nothing_is_left_of_a_relation_that_was_ended() {
    let mut world = World::start(manifest(&[("notes:read", Low)], vec![]), &["notes:read"]);
    world.relation = revoke(&world.relation, world.now).unwrap();
    world.patch(manifest(&[("notes:read", High)], vec![]));
    let view = world.view();
    assert!(view.granted_scopes.is_empty() && !view.reauth_required && view.revoked_at.is_some());
    assert_eq!(revoke(&world.relation, world.now), None);
    let seen = Some(world.declared().hash.to_owned());
    let again = world.answer(&Answers { manifest_hash: seen, ..grants(&["notes:read"]) });
    assert_eq!(rule(again).1, "relation-revoked");
}

#[test]
fn a_preset_scope_is_never_below_its_floor() {
    let world = World::start(manifest(&[("filesystem:read", Medium)], vec![]), &["filesystem:read"]);
    let mut low = world.versions[0].0.clone();
    // As a store from before the floor could hold it.
    low.manifest.permission_scopes[0].sensitivity = Low;
    let world = World { versions: vec![(low, world.versions[0].1.clone())], ..world };
    assert_eq!(world.view().scopes[0].sensitivity, Medium);
}

/// What happens, in any order: the owner changes the manifest, the person answers, time passes.
#[derive(Clone, Debug)]
enum Step {
    Patch(Vec<(usize, Sensitivity, bool)>),
    Consent(BTreeSet<usize>),
    TakeBack(BTreeSet<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let sensitivity = prop::sample::select(vec![Low, Medium, High]);
    let some = || prop::collection::btree_set(0..SCOPES.len(), 0..=SCOPES.len());
    let declared = prop::collection::btree_map(0..SCOPES.len(), (sensitivity, any::<bool>()), 0..=SCOPES.len());
    let declared =
        declared.prop_map(|scopes| scopes.into_iter().map(|(id, (level, tight))| (id, level, tight)).collect());
    prop_oneof![declared.prop_map(Step::Patch), some().prop_map(Step::Consent), some().prop_map(Step::TakeBack)]
}

fn generated(scopes: &[(usize, Sensitivity, bool)]) -> Value {
    let level = |id: usize, level: Sensitivity| if id == 3 { level.max(Medium) } else { level };
    let declared: Vec<_> = scopes.iter().map(|(id, sensitivity, _)| (SCOPES[*id], level(*id, *sensitivity))).collect();
    let required = |tight: bool| if tight { &["a"][..] } else { &[] };
    let tools = scopes.iter().map(|(id, _, tight)| tool(&format!("tool_{id}"), SCOPES[*id], required(*tight)));
    manifest(&declared, tools.collect())
}

/// What the person last granted, and when: kept beside the rules, in the plainest way.
#[derive(Default)]
struct Ledger(BTreeMap<String, usize>);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the owner does, a scope is in force only if the person granted it, it was declared ever since, no tool of
    /// it takes less than it did then, and it is treated as no less sensitive than it was then and is now.
    #[test]
    fn nothing_is_in_force_that_was_not_consented_to(steps in prop::collection::vec(step(), 1..20)) {
        let all: Vec<_> = (0..SCOPES.len()).map(|id| (id, Medium, false)).collect();
        let mut world = World::start(generated(&all), &SCOPES);
        let mut ledger = Ledger(SCOPES.iter().map(|id| ((*id).to_owned(), 1)).collect());
        for step in steps {
            let declared: Vec<_> = world.declared().manifest.permission_scopes.iter().map(|s| s.id.clone()).collect();
            let chosen = |ids: &BTreeSet<usize>| -> Vec<&str> {
                ids.iter().map(|id| SCOPES[*id]).filter(|id| declared.iter().any(|known| known == id)).collect()
            };
            match &step {
                Step::Patch(scopes) => world.patch(generated(scopes)),
                Step::Consent(ids) => {
                    world.consent(&chosen(ids));
                    ledger.0 = chosen(ids).into_iter().map(|id| (id.to_owned(), world.versions.len())).collect();
                }
                Step::TakeBack(ids) => {
                    let kept = chosen(ids);
                    if world.answer(&grants(&kept)).is_ok() {
                        ledger.0.retain(|id, _| kept.contains(&id.as_str()));
                    }
                }
            }
            let view = world.view();
            for scope in view.scopes.iter().filter(|scope| scope.state == ScopeState::Granted) {
                let since = *ledger.0.get(&scope.id).expect("it was granted");
                let at = |version: usize| {
                    let manifest = &world.versions[version - 1].0.manifest;
                    let declared = manifest.permission_scopes.iter().find(|known| known.id == scope.id);
                    let tool = manifest.tools.iter().find(|tool| tool.permission_scope == scope.id);
                    declared.map(|declared| (declared.sensitivity, tool.map(|tool| tool.input_schema["required"].clone())))
                };
                for version in since..=world.versions.len() {
                    prop_assert!(at(version).is_some(), "{} was not declared in version {version}", scope.id);
                }
                let (then, now) = (at(since).unwrap(), at(world.versions.len()).unwrap());
                prop_assert_eq!(scope.sensitivity, then.0.max(now.0));
                prop_assert!(then.0 >= now.0, "a raised sensitivity needs consent again");
                prop_assert!(now.1 == then.1 || now.1 == Some(json!([])), "its tool takes less than it did");
            }
            let silent = !view.reauth_required;
            let reauth = world.reauth();
            prop_assert_eq!(silent, reauth.is_none());
            if let Some(reauth) = reauth {
                let is_new = |scope: &&ScopeStanding| scope.state == ScopeState::Unanswered && reauth.scopes_requiring_reauth.contains(&scope.id);
                let unanswered: BTreeSet<_> = view.scopes.iter().filter(is_new).map(|scope| scope.id.clone()).collect();
                prop_assert_eq!(unanswered, reauth.unanswered_scopes.iter().cloned().collect());
                prop_assert_eq!((&view.suspended_scopes, &view.scopes_requiring_reauth), (&reauth.suspended_scopes, &reauth.scopes_requiring_reauth));
            }
            prop_assert!(!silent || view.suspended_scopes.is_empty());
            prop_assert_eq!(silent, view.scopes_requiring_reauth.is_empty());
        }
    }
}
