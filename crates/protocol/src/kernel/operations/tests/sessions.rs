//! A session's own facts: numbered in the session, of no run, once each, and none after the close.

use super::*;
use crate::kernel::session_storage::{RefreshStorage, StorageKind};

fn change(scene: &mut Scene, change: SessionChange) -> Result<Session, Failure> {
    let (session, op) = (scene.desk.session.session, Op::ChangeSession(ChangeSessionOp { change, by: "me".into() }));
    match apply(&mut scene.desk, Request { session, run_id: None, op }, scene.now)? {
        Reply::Session(session) => Ok(*session),
        other => panic!("a change was answered with {other:?}"),
    }
}

fn rename(scene: &mut Scene, title: &str) -> Session {
    change(scene, SessionChange::Rename(Some(title.into()))).unwrap()
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
    assert_eq!(change(&mut scene, SessionChange::Rename(None)).unwrap().title, None);
    change(&mut scene, SessionChange::Rename(None)).unwrap();
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
    let renamed = change(&mut scene, SessionChange::Rename(Some("late".into()))).unwrap_err();
    assert_eq!(renamed.rule_name(), Some("session-closed"));
}

fn make_storage(scene: &mut Scene) -> Session {
    change(scene, SessionChange::MakeStorage { expires_at: None }).unwrap()
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
    let again = change(&mut scene, SessionChange::MakeStorage { expires_at: None }).unwrap_err();
    assert_eq!(again.kind, FailureKind::SessionStoreEvicted);
    rename(&mut scene, "still to be read");
}

#[test]
fn each_use_keeps_storage_at_least_as_long_as_before() {
    let mut scene = Scene::new();
    let (soon, late) = (scene.now, Timestamp::MAX);
    let made = change(&mut scene, SessionChange::MakeStorage { expires_at: Some(late) }).unwrap();
    assert_eq!(made.storage.expires_at, Some(late));
    let found = RefreshStorage { sha256: Some("aa".into()), ..RefreshStorage::default() };
    let used = SessionChange::MeasureStorage { found, expires_at: Some(soon) };
    assert_eq!(change(&mut scene, used).unwrap().storage.expires_at, Some(late));
}
