//! A session's own facts: numbered in the session, of no run, once each, and none after the close.

use super::*;

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
