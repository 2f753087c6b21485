//! A session's own facts: numbered in the session, of no run, once each, and none after the close.

use super::*;
use crate::{
    ids::CommandId,
    kernel::{
        session_storage::{RefreshStorage, StorageKind, StoragePlace},
        sessions::ParentSession,
    },
};

fn change(scene: &mut Scene, change: SessionChange) -> Result<Session, Failure> {
    let (session, op) = (scene.desk.session.session, Op::ChangeSession(ChangeSessionOp { change, by: "me".into() }));
    match apply(&mut scene.desk, Request { session, run_id: None, op }, scene.now)? {
        Reply::Session(session) => Ok(*session),
        other => panic!("a change was answered with {other:?}"),
    }
}

fn renamed_to(title: Option<&str>) -> SessionChange {
    SessionChange::Rename { title: title.map(str::to_owned), origin: None }
}

fn rename(scene: &mut Scene, title: &str) -> Session {
    change(scene, renamed_to(Some(title))).unwrap()
}

#[test]
fn a_sessions_fact_has_the_sessions_number_and_no_runs() {
    let mut scene = Scene::new();
    let run = scene.run();
    rename(&mut scene, "first");
    scene.turn(run);
    let places: Vec<_> = scene.desk.events.iter().map(|event| (event.session_seq, event.run)).collect();
    assert_eq!(places, [(1, Some((run, 1))), (2, None), (3, Some((run, 2)))]);
    let fact = scene.facts(EventType::Session).pop().unwrap();
    assert_eq!((&fact["change"], &fact["title"], &fact["by"]), (&json!("renamed"), &json!("first"), &json!("me")));
}

#[test]
fn what_is_so_already_is_no_fact() {
    let mut scene = Scene::new();
    assert_eq!(rename(&mut scene, "mine").title.as_deref(), Some("mine"));
    rename(&mut scene, "mine");
    assert_eq!(change(&mut scene, renamed_to(None)).unwrap().title, None);
    change(&mut scene, renamed_to(None)).unwrap();
    change(&mut scene, SessionChange::Close).unwrap();
    change(&mut scene, SessionChange::Close).unwrap();
    assert_eq!(scene.facts(EventType::Session).len(), 3);
}

#[test]
fn a_closed_session_takes_no_run_no_command_and_no_other_name() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let busy = change(&mut scene, SessionChange::Close).unwrap_err();
    assert_eq!(busy.kind, FailureKind::SessionBusy);
    scene.cancel(run, turn);
    assert_eq!(change(&mut scene, SessionChange::Close).unwrap().closed_at, Some(scene.now));
    let command = scene.new_command(run, CommandType::Turn, None);
    assert_eq!(scene.refused(run, command), "session-closed");
    let op = Op::CreateRun(Box::new(scene.new_run()));
    assert_eq!(scene.refused(run, op), "session-closed");
    let renamed = change(&mut scene, renamed_to(Some("late"))).unwrap_err();
    assert_eq!(renamed.rule_name(), Some("session-closed"));
}

fn make_storage(scene: &mut Scene) -> Session {
    change(scene, SessionChange::MakeStorage { place: StoragePlace::Directory, expires_at: None }).unwrap()
}

fn measure(scene: &mut Scene, size_bytes: i64, sha256: Option<&str>) -> Result<Session, Failure> {
    let sha256 = sha256.map(str::to_owned);
    let found = RefreshStorage { run_id: String::new(), size_bytes, files_count: 1, sha256 };
    change(scene, SessionChange::MeasureStorage { found, expires_at: None })
}

fn evict(scene: &mut Scene) -> Result<Session, Failure> {
    change(scene, SessionChange::EvictStorage { reason: "expired" })
}

#[test]
fn what_a_runner_finds_in_storage_is_a_fact_when_it_is_news() {
    let mut scene = Scene::new();
    assert_eq!(measure(&mut scene, 7, Some("aa")).unwrap_err().rule_name(), Some("storage-none"));
    make_storage(&mut scene);
    make_storage(&mut scene);
    measure(&mut scene, 7, Some("aa")).unwrap();
    let storage = measure(&mut scene, 7, Some("aa")).unwrap().storage;
    assert_eq!((storage.storage_size_bytes, storage.storage_updated_at), (Some(7), Some(scene.now)));
    assert_eq!(scene.facts(EventType::Session).len(), 2);
    // Without a digest it cannot be decided whether it is the same.
    measure(&mut scene, 7, None).unwrap();
    measure(&mut scene, 7, None).unwrap();
    assert_eq!(scene.facts(EventType::Session).len(), 4);
}

#[test]
fn a_session_whose_storage_was_evicted_takes_no_run_no_command_and_no_storage() {
    let mut scene = Scene::new();
    assert_eq!(evict(&mut scene).unwrap_err().rule_name(), Some("storage-none"));
    let run = scene.run();
    make_storage(&mut scene);
    let turn = scene.turn(run);
    assert_eq!(evict(&mut scene).unwrap_err().kind, FailureKind::SessionBusy);
    scene.cancel(run, turn);
    let evicted = evict(&mut scene).unwrap().storage;
    assert_eq!((evicted.storage_kind, evicted.storage_evicted_at), (StorageKind::Evicted, Some(scene.now)));
    evict(&mut scene).unwrap();
    assert_eq!(scene.facts(EventType::Session).len(), 2);
    let command = scene.new_command(run, CommandType::Turn, None);
    assert_eq!(scene.refused(run, command), "storage-evicted");
    let op = Op::CreateRun(Box::new(scene.new_run()));
    assert_eq!(scene.refused(run, op), "storage-evicted");
    assert_eq!(measure(&mut scene, 7, None).unwrap_err().rule_name(), Some("storage-evicted"));
    let again = change(&mut scene, SessionChange::MakeStorage { place: StoragePlace::Directory, expires_at: None })
        .unwrap_err();
    assert_eq!(again.kind, FailureKind::SessionStoreEvicted);
    rename(&mut scene, "still to be read");
}

fn make_claim(scene: &mut Scene) -> Result<Session, Failure> {
    let place = StoragePlace::Claim { name: "claim".into(), namespace: "agents".into() };
    change(scene, SessionChange::MakeStorage { place, expires_at: None })
}

#[test]
fn a_volume_claim_is_named_by_its_fact_and_stays_known_after_its_eviction() {
    let mut scene = Scene::new();
    let storage = make_claim(&mut scene).unwrap().storage;
    assert_eq!((storage.storage_kind, storage.storage_pvc_name.as_deref()), (StorageKind::Pvc, Some("claim")));
    make_claim(&mut scene).unwrap();
    let facts = scene.facts(EventType::Session);
    assert_eq!((facts.len(), &facts[0]["storageKind"], &facts[0]["pvcName"]), (1, &json!("pvc"), &json!("claim")));
    assert_eq!(facts[0]["pvcNamespace"], "agents");
    measure(&mut scene, 7, Some("aa")).unwrap();
    let evicted = evict(&mut scene).unwrap().storage;
    assert_eq!((evicted.storage_kind, evicted.storage_pvc_name.as_deref()), (StorageKind::Evicted, Some("claim")));
    assert_eq!(make_claim(&mut scene).unwrap_err().kind, FailureKind::SessionStoreEvicted);
}

#[test]
fn storage_changes_its_kind_only_before_an_agent_has_used_it() {
    let mut scene = Scene::new();
    make_storage(&mut scene);
    make_claim(&mut scene).unwrap();
    let storage = make_storage(&mut scene).storage;
    assert_eq!((storage.storage_kind, storage.storage_pvc_name), (StorageKind::Local, None));
    measure(&mut scene, 7, Some("aa")).unwrap();
    assert_eq!(make_claim(&mut scene).unwrap_err().rule_name(), Some("storage-elsewhere"));
    assert_eq!(make_storage(&mut scene).storage.storage_kind, StorageKind::Local);
}

#[test]
fn a_replay_knows_the_kind_of_storage() {
    let mut scene = Scene::new();
    make_claim(&mut scene).unwrap();
    let differs = |scene: &Scene| {
        let mut replay = Replay::default();
        scene.desk.events.iter().for_each(|event| replay.apply(event));
        let rows = Rows { session: &scene.desk.session, runs: &[], commands: &[], leases: &[], usage: &[] };
        replay.differences(&rows).iter().any(|difference| difference.contains("storage_kind"))
    };
    assert!(!differs(&scene));
    scene.desk.session.storage.storage_kind = StorageKind::Local;
    assert!(differs(&scene));
}

#[test]
fn each_use_keeps_storage_at_least_as_long_as_before() {
    let mut scene = Scene::new();
    let (soon, late) = (scene.now, Timestamp::MAX);
    let made =
        change(&mut scene, SessionChange::MakeStorage { place: StoragePlace::Directory, expires_at: Some(late) })
            .unwrap();
    assert_eq!(made.storage.expires_at, Some(late));
    let found = RefreshStorage { sha256: Some("aa".into()), ..RefreshStorage::default() };
    let used = SessionChange::MeasureStorage { found, expires_at: Some(soon) };
    assert_eq!(change(&mut scene, used).unwrap().storage.expires_at, Some(late));
}

fn rewind(scene: &mut Scene, before: CommandId) -> Result<Session, Failure> {
    let at_seq = scene.desk.session.last_seq;
    change(scene, SessionChange::Rewind { before, at_seq })
}

#[test]
fn a_rewind_gives_up_the_agents_thread_and_nothing_else() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let busy = rewind(&mut scene, turn).unwrap_err();
    assert_eq!(busy.kind, FailureKind::SessionBusy);
    scene.cancel(run, turn);
    scene.desk.session.thread_id = Some("thread".into());
    let before = (*scene.desk.session).clone();
    let after = rewind(&mut scene, turn).unwrap();
    let (last_seq, chain_head) = (after.last_seq, after.chain_head);
    assert_eq!(last_seq, before.last_seq + 1);
    assert_eq!(after, Session { thread_id: None, last_seq, chain_head, ..before });
    let fact = scene.facts(EventType::Session).pop().unwrap();
    assert_eq!((&fact["change"], &fact["beforeCommandId"]), (&json!("rewound"), &json!(turn)));
}

/// Whether the events determine another thread than the row has.
fn differs_in_thread(scene: &Scene) -> bool {
    let mut replay = Replay::default();
    scene.desk.events.iter().for_each(|event| replay.apply(event));
    let rows = Rows { session: &scene.desk.session, runs: &[], commands: &[], leases: &[], usage: &[] };
    replay.differences(&rows).iter().any(|difference| difference.contains("thread_id"))
}

#[test]
fn a_replay_gives_up_the_thread_where_the_session_was_rewound() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.cancel(run, turn);
    let now = scene.now;
    scene.desk.append(run, NewEvent::written(EventType::Session, None, &json!({"threadId": "thread"})), now);
    assert!(differs_in_thread(&scene));
    scene.desk.session.thread_id = Some("thread".into());
    assert!(!differs_in_thread(&scene));
    rewind(&mut scene, turn).unwrap();
    assert!(!differs_in_thread(&scene));
    scene.desk.session.thread_id = Some("thread".into());
    assert!(differs_in_thread(&scene));
}

#[test]
fn a_rewind_is_refused_if_the_session_has_changed_or_a_runner_may_continue_it() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.cancel(run, turn);
    let at_seq = scene.desk.session.last_seq;
    rename(&mut scene, "changed");
    let failure = change(&mut scene, SessionChange::Rewind { before: turn, at_seq }).unwrap_err();
    assert_eq!(failure.rule_name(), Some("session-moved-on"));
    scene.desk.session.active_run_id = Some(run);
    scene.desk.session.active_lease_until = Some(Timestamp::MAX);
    assert_eq!(rewind(&mut scene, turn).unwrap_err().kind, FailureKind::SessionBusy);
    scene.desk.session.active_lease_until = Some(scene.now);
    rewind(&mut scene, turn).unwrap();
    change(&mut scene, SessionChange::Close).unwrap();
    assert_eq!(rewind(&mut scene, turn).unwrap_err().rule_name(), Some("session-closed"));
    let message = SessionChange::AddMessage { text: "late".into() };
    assert_eq!(change(&mut scene, message).unwrap_err().rule_name(), Some("session-closed"));
}

#[test]
fn the_parent_of_a_session_is_part_of_its_record() {
    let mut scene = Scene::new();
    let alone = scene.desk.session.record_digest();
    let parent = |seq| Some(ParentSession { session: scene.desk.session.session, seq });
    let (first, second) = (parent(7), parent(8));
    scene.desk.session.parent = first;
    let digest = scene.desk.session.record_digest();
    assert_ne!(digest, alone);
    scene.desk.session.parent = second;
    assert_ne!(scene.desk.session.record_digest(), digest);
}
