//! Work under an alias: submitted once, to a session that is free or makes room, continued by answers.

use super::*;
use crate::kernel::{aliases::OnBusy, events::PHASE_ROLLED_BACK, permissions::PermissionStatus};

impl Scene {
    fn message(&mut self, name: &str, hash: &str, on_busy: OnBusy) -> SubmitOp {
        let mut fresh = self.new_run();
        let run_id = fresh.run.run_id;
        let Op::CreateCommand(first) = self.new_command(run_id, CommandType::Turn, None) else { unreachable!() };
        fresh.start = Some((first, Box::new(self.new_job(run_id))));
        let work = Submission::Turn { fresh: Box::new(fresh), on_busy };
        SubmitOp { alias: name.into(), parent: None, request_hash: hash.into(), work, by: "me".into() }
    }

    fn submit(&mut self, op: SubmitOp) -> Result<Submitted, Failure> {
        let (session, last) = (self.desk.session.session, self.desk.session.last_run_id);
        match apply(&mut self.desk, Request { session, run_id: last, op: Op::Submit(Box::new(op)) }, self.now)? {
            Reply::Submitted(accepted) => Ok(*accepted),
            other => panic!("an agent run was answered with {other:?}"),
        }
    }

    fn say(&mut self, name: &str, on_busy: OnBusy) -> Result<Submitted, Failure> {
        let op = self.message(name, name, on_busy);
        self.submit(op)
    }

    /// The rule that refuses it; nothing may have changed.
    fn say_refused(&mut self, op: SubmitOp) -> String {
        let before = format!("{:?}", self.desk);
        let failure = self.submit(op).expect_err("it is refused");
        assert_eq!(format!("{:?}", self.desk), before);
        failure.rule_name().unwrap_or(failure.kind.as_str()).to_owned()
    }

    /// Answers by their payloads; null abandons.
    fn resume(&self, name: &str, answers: &[(PermissionId, Value)]) -> SubmitOp {
        let resumed = |(permission_id, payload): &(PermissionId, Value)| {
            let choice = match payload {
                Value::Null => Choice::Cancel,
                Value::Bool(allows) => Choice::Allow(*allows),
                Value::String(option_id) => Choice::Option(option_id.clone()),
                _ => Choice::Unreadable,
            };
            PermissionAnswer { permission_id: *permission_id, choice, edited: None }
        };
        let work = Submission::Answers { answers: answers.iter().map(resumed).collect(), voter: voter(None) };
        SubmitOp { alias: name.into(), parent: None, request_hash: name.into(), work, by: "me".into() }
    }
}

/// A thread whose first run is at work under a lease.
fn at_work() -> (Scene, RunId, Submitted) {
    let mut scene = Scene::new();
    let first = scene.say("one", OnBusy::Reject).unwrap();
    let run = first.started.as_ref().unwrap().run_id;
    scene.claim(run, "runner");
    scene.work(run, first.alias.command_id);
    (scene, run, first)
}

/// … and has opened a permission request.
fn asking() -> (Scene, RunId, CommandId, PermissionId) {
    let (mut scene, run, first) = at_work();
    let permission = PermissionId::new(scene.body());
    scene.append(run, vec![asks(first.alias.command_id, permission)]).unwrap();
    (scene, run, first.alias.command_id, permission)
}

#[test]
fn the_first_message_makes_the_thread_and_the_next_goes_on_with_its_run() {
    let mut scene = Scene::new();
    let first = scene.say("one", OnBusy::Reject).unwrap();
    assert!(first.is_new_session && first.alias.after_seq == 0);
    let run = first.started.unwrap().run_id;
    scene.claim(run, "runner");
    scene.append(run, vec![says(first.alias.command_id), ends(first.alias.command_id, "completed")]).unwrap();
    let before = scene.desk.session.last_seq;
    let second = scene.say("two", OnBusy::Reject).unwrap();
    assert!(!second.is_new_session && second.started.is_none());
    assert_eq!(second.alias.after_seq, before);
    assert_eq!(scene.command(run, second.alias.command_id).seq, 2);
}

#[test]
fn a_name_is_used_once_and_the_same_again_is_answered_the_same() {
    let (mut scene, _, first) = at_work();
    let events = scene.desk.events.len();
    let again = scene.say("one", OnBusy::Reject).unwrap();
    assert_eq!((again.alias, again.is_new_session), (first.alias, false));
    let other = scene.message("one", "another body", OnBusy::Enqueue);
    assert_eq!(scene.say_refused(other), "payload-hash");
    assert_eq!(scene.desk.events.len(), events);
}

#[test]
fn a_client_that_has_not_seen_the_threads_last_run_looks_again() {
    let (mut scene, _, _) = at_work();
    let op = scene.message("two", "two", OnBusy::Enqueue);
    let session = scene.desk.session.session;
    let request = Request { session, run_id: None, op: Op::Submit(Box::new(op)) };
    let refused = apply(&mut scene.desk, request, scene.now).unwrap_err();
    assert_eq!(refused.rule_name(), Some("session-moved-on"));
}

#[test]
fn a_busy_thread_refuses_or_queues_as_requested() {
    let (mut scene, run, first) = at_work();
    let op = scene.message("two", "two", OnBusy::Reject);
    assert_eq!(scene.say_refused(op), "session-busy");
    let second = scene.say("two", OnBusy::Enqueue).unwrap().alias;
    assert_eq!(scene.state(run, second.command_id), CommandState::Pending);
    assert_eq!(scene.state(run, first.alias.command_id), CommandState::Running);
}

#[test]
fn an_interrupt_cancels_what_runs_and_what_waits_and_a_rollback_also_takes_it_back() {
    for (busy, taken_back) in [(OnBusy::Interrupt, false), (OnBusy::Rollback, true)] {
        let (mut scene, run, first) = at_work();
        let waiting = scene.say("two", OnBusy::Enqueue).unwrap().alias.command_id;
        let third = scene.say("three", busy).unwrap().alias;
        let first = first.alias.command_id;
        assert!(scene.command(run, first).cancel_requested_at.is_some(), "its runner is notified");
        assert_eq!(scene.state(run, waiting), CommandState::Cancelled, "no runner has it");
        assert_eq!(scene.state(run, third.command_id), CommandState::Pending);
        for earlier in [first, waiting] {
            assert_eq!(scene.command(run, earlier).rolled_back_at.is_some(), taken_back);
        }
        assert!(scene.command(run, third.command_id).rolled_back_at.is_none());
        let phases = scene.facts(EventType::BackendStatus);
        let marks = phases.iter().filter(|fact| fact["phase"] == PHASE_ROLLED_BACK).count();
        assert_eq!(marks, if taken_back { 2 } else { 0 });
        let own = scene.desk.events.iter().find(|event| event.command_id == Some(third.command_id)).unwrap();
        assert_eq!(own.session_seq, third.after_seq + 1);
    }
}

#[test]
fn nothing_is_cancelled_for_a_message_that_is_refused() {
    let (mut scene, _, _) = at_work();
    scene.desk.session.closed_at = Some(scene.now);
    let op = scene.message("two", "two", OnBusy::Rollback);
    assert_eq!(scene.say_refused(op), "session-closed");
}

#[test]
fn a_thread_whose_run_has_ended_or_whose_agent_was_exchanged_gets_another_run() {
    let (mut scene, run, _) = at_work();
    scene.append(run, vec![ends_run("failed")]).unwrap();
    let second = scene.say("two", OnBusy::Reject).unwrap();
    let run = second.started.unwrap().run_id;
    assert_eq!(scene.desk.session.last_run_id, Some(run));
    assert!(!second.is_new_session);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(second.alias.command_id, "completed")]).unwrap();
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    let mut op = scene.message("three", "three", OnBusy::Reject);
    let Submission::Turn { fresh, .. } = &mut op.work else { unreachable!() };
    fresh.run.backend_profile = "model".into();
    assert_ne!(scene.submit(op).unwrap().started.unwrap().run_id, run);
}

#[test]
fn a_run_that_no_launcher_starts_or_that_has_another_policy_is_not_continued() {
    let mut scene = Scene::new();
    let first = scene.say("one", OnBusy::Reject).unwrap().started.unwrap().run_id;
    scene.cancel_run(first);
    // Made in the thread without a job: whatever is put onto it waits for ever.
    let bare = scene.run();
    assert_eq!(scene.desk.session.last_run_id, Some(bare));
    let accepted = scene.say("two", OnBusy::Enqueue).unwrap();
    let second = accepted.started.expect("a run of its own").run_id;
    assert_ne!(second, bare);
    scene.claim(second, "runner");
    scene.append(second, vec![ends(accepted.alias.command_id, "completed")]).unwrap();
    let release = scene.patch(second, true, false);
    scene.apply(second, release).unwrap();
    let mut op = scene.message("three", "three", OnBusy::Enqueue);
    let Submission::Turn { fresh, .. } = &mut op.work else { unreachable!() };
    fresh.run.execution_policy.sandbox = Sandbox::WorkspaceWrite;
    assert!(scene.submit(op).unwrap().started.is_some());
}

#[test]
fn while_the_agent_waits_for_an_answer_no_message_is_taken_whatever_the_policy() {
    for busy in [OnBusy::Reject, OnBusy::Enqueue, OnBusy::Interrupt, OnBusy::Rollback] {
        let (mut scene, _, _, _) = asking();
        let op = scene.message("two", "two", busy);
        assert_eq!(scene.say_refused(op), "permissions-open");
    }
}

#[test]
fn a_resume_answers_and_goes_on_from_the_answer() {
    let (mut scene, run, command, permission) = asking();
    let before = scene.desk.session.last_seq;
    let op = scene.resume("two", &[(permission, json!(true))]);
    let resumed = scene.submit(op.clone()).unwrap().alias;
    assert_eq!((resumed.command_id, resumed.after_seq), (command, before));
    let request = &scene.rows(run).permissions[&permission];
    assert_eq!((request.status, request.option_id.as_deref()), (PermissionStatus::Allowed, Some("yes")));
    // The same again, and the same under another name: nothing happens twice.
    let events = scene.desk.events.len();
    assert_eq!(scene.submit(op).unwrap().alias, resumed);
    let replayed = scene.resume("three", &[(permission, json!("yes"))]);
    assert_eq!(scene.submit(replayed).unwrap().alias.after_seq, before);
    assert_eq!(scene.desk.events.len(), events);
    let other = scene.resume("four", &[(permission, json!(false))]);
    assert_eq!(scene.say_refused(other), "permission-resolved");
}

#[test]
fn questions_sent_together_are_answered_together_and_later_ones_come_next() {
    let (mut scene, run, command, first) = asking();
    let [second, third] = [1, 2].map(|_| PermissionId::new(scene.body()));
    scene.append(run, vec![asks(command, second), asks(command, third)]).unwrap();
    let yes = || json!(true);
    let out_of_turn = scene.resume("two", &[(second, yes())]);
    assert_eq!(scene.say_refused(out_of_turn), "permissions-open");
    let op = scene.resume("two", &[(first, yes())]);
    scene.submit(op).unwrap();
    assert_eq!(scene.rows(run).run.open_permissions, 2, "these were not sent to the client yet");
    let partial = scene.resume("three", &[(second, yes())]);
    assert_eq!(scene.say_refused(partial), "permissions-open");
    let before = scene.desk.session.last_seq;
    let op = scene.resume("three", &[(second, yes()), (third, Value::Null)]);
    assert_eq!(scene.submit(op).unwrap().alias.after_seq, before);
    assert_eq!(scene.rows(run).run.open_permissions, 0);
}

#[test]
fn an_answer_that_makes_no_sense_or_comes_too_late_is_refused() {
    let (mut scene, run, _, permission) = asking();
    let unopened = PermissionId::new(Uuid::from_u128(77));
    let unknown = scene.resume("two", &[(permission, json!(true)), (unopened, Value::Null)]);
    assert_eq!(scene.say_refused(unknown), "permission-unknown");
    let no_option = scene.resume("two", &[(permission, json!("perhaps"))]);
    assert_eq!(scene.say_refused(no_option), "permission-option");
    scene.advance_ms(5_000);
    for swept in [false, true] {
        if swept {
            scene.sweep(run);
        }
        let late = scene.resume("two", &[(permission, json!(true))]);
        assert_eq!(scene.say_refused(late), "permission-expired", "swept: {swept}");
    }
    let cancelled = scene.resume("two", &[(permission, Value::Null)]);
    scene.submit(cancelled).unwrap();
    assert_eq!(scene.rows(run).permissions[&permission].status, PermissionStatus::Cancelled);
}

#[test]
fn a_queued_turn_waits_for_answers_too_and_only_so_many_wait() {
    let (mut scene, run, first) = at_work();
    let permission = PermissionId::new(scene.body());
    scene.append(run, vec![asks(first.alias.command_id, permission)]).unwrap();
    let queued = |scene: &mut Scene, name: &str| {
        let mut op = scene.message(name, name, OnBusy::Enqueue);
        let Submission::Turn { fresh, .. } = op.work else { unreachable!() };
        op.work = Submission::QueuedTurn { fresh, turns_max: 2, at_seq: 0 };
        op
    };
    let op = queued(&mut scene, "two");
    let second = scene.submit(op).unwrap();
    assert!(second.started.is_none(), "the session's run takes it");
    let third = queued(&mut scene, "three");
    assert_eq!(scene.say_refused(third), "commands-unfinished");
}

#[test]
fn requests_of_one_set_are_answered_together() {
    let (mut scene, run, first) = at_work();
    let command = first.alias.command_id;
    let [a, b, c] = [(); 3].map(|()| PermissionId::new(scene.body()));
    let with_next = |permission| {
        let event = asks(command, permission);
        let mut payload: Value = serde_json::from_str(&event.payload).unwrap();
        payload["withNext"] = true.into();
        NewEvent::written(EventType::PermissionRequest, Some(command), &payload)
    };
    for events in [vec![with_next(a)], vec![with_next(a), says(command)], vec![with_next(a), with_next(b)]] {
        assert_eq!(scene.append(run, events).unwrap_err().rule_name(), Some("permission-set"));
    }
    scene.append(run, vec![with_next(a), asks(command, b), asks(command, c)]).unwrap();
    let partial = scene.resume("two", &[(a, true.into())]);
    assert_eq!(scene.say_refused(partial), "permissions-open");
    let ahead = scene.resume("two", &[(a, true.into()), (b, true.into()), (c, true.into())]);
    assert_eq!(scene.say_refused(ahead), "permission-unknown", "the third is no part of the set");
    let both = scene.resume("two", &[(a, true.into()), (b, false.into())]);
    scene.submit(both).unwrap();
    let last = scene.resume("three", &[(c, true.into())]);
    scene.submit(last).unwrap();
}
