//! Claims, fencing, and what becomes of work when its runner goes.

use super::*;

#[test]
fn a_second_runner_waits_until_the_lease_has_run_out_and_is_noted_once() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    assert_eq!(scene.claim(run, "first"), 1);
    for _ in 0..3 {
        let op = scene.new_claim("second");
        let failure = scene.apply(run, op).unwrap_err();
        assert_eq!(failure.rule_name(), Some("lease-held"));
        assert_eq!(failure.details.unwrap()["ownerRunnerId"], "first");
    }
    let states: Vec<_> = scene.facts(EventType::Lease).iter().map(|fact| fact["state"].clone()).collect();
    assert_eq!(states, ["claimed", "claim-waiting"]);
    scene.advance_ms(LEASE_MS);
    assert_eq!(scene.claim(run, "second"), 2);
    let taken = scene.facts(EventType::Lease).pop().unwrap();
    assert_eq!((&taken["state"], &taken["previousRunnerId"]), (&json!("recovered"), &json!("first")));
}

#[test]
fn a_take_over_is_recovered_whether_the_sweeper_came_first_or_not() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let last = |scene: &Scene| scene.facts(EventType::Lease).pop().unwrap();
    scene.claim(run, "first");
    scene.advance_ms(LEASE_MS);
    scene.sweep(run);
    assert_eq!(scene.refused(run, Scene::append_op("first", 1, None, vec![says(turn)])), "lease-expired");
    scene.claim(run, "second");
    assert_eq!((&last(&scene)["state"], &last(&scene)["previousRunnerId"]), (&json!("recovered"), &json!("first")));
    // The same runner again, that had not given the lease back: another life of it.
    scene.claim(run, "second");
    assert_eq!((&last(&scene)["state"], &last(&scene)["previousRunnerId"]), (&json!("recovered"), &json!("second")));
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    scene.claim(run, "third");
    assert_eq!((&last(&scene)["state"], &last(&scene)["previousRunnerId"]), (&json!("claimed"), &Value::Null));
}

#[test]
fn a_batch_number_identifies_one_batch() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let epoch = scene.claim(run, "runner");
    let batch = |events| Scene::append_op("runner", epoch, Some(1), events);
    scene.apply(run, batch(vec![says(turn)])).unwrap();
    let events = scene.desk.events.len();
    assert_eq!(scene.refused(run, batch(vec![says(turn), says(turn)])), "batch-payload");
    scene.apply(run, batch(vec![says(turn)])).unwrap();
    assert_eq!(scene.desk.events.len(), events);
}

#[test]
fn every_claim_raises_the_epoch_even_by_the_same_runner() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    assert_eq!(scene.claim(run, "runner"), 1);
    assert_eq!(scene.claim(run, "runner"), 2);
    let stale = Scene::append_op("runner", 1, None, vec![says(turn)]);
    assert_eq!(scene.refused(run, stale), "lease-epoch-stale");
    scene.append(run, vec![says(turn)]).unwrap();
}

#[test]
fn only_the_holder_of_the_live_lease_writes() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let write = |runner: &str, epoch| Scene::append_op(runner, epoch, None, vec![says(turn)]);
    assert_eq!(scene.refused(run, write("runner", 0)), "lease-absent");
    scene.claim(run, "runner");
    assert_eq!(scene.refused(run, write("stranger", 1)), "lease-owner");
    let mut op = AppendOp {
        runner_id: "runner".into(),
        lease_epoch: 1,
        attempt_id: Some(AttemptId::new(Uuid::nil())),
        batch_no: None,
        release_if_idle: false,
        ends_job: None,
        voting: VotingRules::default(),
        known_calls: None,
        events: vec![says(turn)],
    };
    assert_eq!(scene.refused(run, Op::Append(op.clone())), "attempt-stale");
    op.attempt_id = scene.rows(run).run.attempt_id;
    scene.apply(run, Op::Append(op)).unwrap();
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    assert_eq!(scene.refused(run, write("runner", 1)), "lease-released");
    scene.claim(run, "runner");
    scene.advance_ms(LEASE_MS);
    assert_eq!(scene.refused(run, write("runner", 2)), "lease-expired");
    scene.sweep(run);
    assert_eq!(scene.refused(run, write("runner", 2)), "lease-expired");
    assert_eq!(scene.refused(run, write("runner", 3)), "lease-epoch-unknown");
}

#[test]
fn a_lease_can_be_given_back_twice_but_not_once_it_ran_out() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.claim(run, "runner");
    let release = scene.patch(run, true, false);
    for _ in 0..2 {
        let Ok(Reply::Lease(state)) = scene.apply(run, release.clone()) else { panic!("released") };
        assert!(state.released);
    }
    assert_eq!(scene.facts(EventType::Lease).len(), 2, "claimed and released, once each");
    scene.claim(run, "runner");
    scene.advance_ms(LEASE_MS);
    scene.sweep(run);
    let release = scene.patch(run, true, false);
    assert_eq!(scene.refused(run, release), "lease-expired");
}

#[test]
fn a_heartbeat_keeps_the_lease_and_comes_too_late_for_one_that_ran_out() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.claim(run, "runner");
    for _ in 0..5 {
        scene.advance_ms(LEASE_MS - 1);
        let beat = scene.patch(run, false, false);
        scene.apply(run, beat).unwrap();
    }
    scene.advance_ms(LEASE_MS);
    let beat = scene.patch(run, false, false);
    assert_eq!(scene.refused(run, beat), "lease-expired");
}

#[test]
fn a_runner_that_leaves_only_if_idle_stays_while_work_is_left() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    let leave = scene.patch(run, true, true);
    let Ok(Reply::Lease(state)) = scene.apply(run, leave.clone()) else { panic!("a heartbeat") };
    assert!(!state.released);
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    let Ok(Reply::Lease(state)) = scene.apply(run, leave) else { panic!("a release") };
    assert!(state.released);
    assert_eq!(scene.status(run), RunStatus::Pending);
    assert_eq!(scene.desk.session.active_run_id, None);
}

#[test]
fn a_batch_sent_again_is_answered_as_the_first_time_and_appends_nothing() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let epoch = scene.claim(run, "runner");
    let permission = PermissionId::new(scene.body());
    scene.append(run, vec![asks(turn, permission)]).unwrap();
    // The open question is answered first, so that the end is not the only event of its batch.
    let batch = Scene::append_op("runner", epoch, Some(7), vec![ends(turn, "completed")]);
    let Ok(Reply::Appended(first)) = scene.apply(run, batch.clone()) else { panic!("appended") };
    assert!(first.first_seq < first.last_seq);
    let events = scene.desk.events.len();
    let Ok(Reply::Appended(again)) = scene.apply(run, batch) else { panic!("answered again") };
    assert_eq!((first, events), (again, scene.desk.events.len()));
}

#[test]
fn a_turn_taken_over_is_acked_again_and_its_reply_restarts() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "first");
    scene.work(run, turn);
    assert!(scene.command(run, turn).fold.latest.is_some());
    scene.advance_ms(LEASE_MS);
    scene.sweep(run);
    assert_eq!(scene.status(run), RunStatus::Pending);
    let epoch = scene.claim(run, "second");
    let op = AckOp { command_id: turn, runner_id: "second".into(), lease_epoch: epoch, attempt_id: None };
    scene.apply(run, Op::Ack(op)).unwrap();
    assert_eq!(scene.state(run, turn), CommandState::Acked);
    assert_eq!(scene.command(run, turn).attempt_id, scene.rows(run).run.attempt_id);
    assert!(scene.command(run, turn).fold.latest.is_none());
    assert_eq!(scene.facts(EventType::BackendStatus)[0]["phase"], "attempt-restarted");
}

#[test]
fn a_lease_that_ran_out_unswept_does_not_push_aside_the_run_that_became_active_since() {
    let mut scene = Scene::new();
    let (old, new) = (scene.run(), scene.run());
    let turn = scene.turn(old);
    let job = scene.running_job(old, false);
    scene.claim(old, "runner");
    scene.append(old, vec![ends(turn, "completed")]).unwrap();
    scene.advance_ms(LEASE_MS);
    scene.turn(new);
    scene.finish_job(old, job, JobEnd::Failed);
    assert_eq!(scene.desk.session.active_run_id, Some(new));
    assert_eq!(scene.desk.session.active_unfinished, 1);
    scene.sweep(old);
    assert_eq!(scene.desk.session.active_run_id, Some(new));
}

#[test]
fn a_claim_can_take_up_the_next_turn() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (first, second) = (scene.turn(run), scene.turn(run));
    let take_up = |scene: &mut Scene, runner: &str| match scene.new_claim(runner) {
        Op::Claim(op) => Op::Claim(ClaimOp { take_up: true, ..op }),
        _ => unreachable!("a claim"),
    };
    let op = take_up(&mut scene, "runner");
    scene.apply(run, op).unwrap();
    let attempt = scene.rows(run).run.attempt_id;
    assert_eq!(scene.rows(run).commands[&first].state, CommandState::Acked);
    assert_eq!(scene.rows(run).commands[&first].attempt_id, attempt);
    assert_eq!(scene.rows(run).commands[&second].state, CommandState::Pending);
    // What an earlier attempt has had is seen to before it is acknowledged again.
    let op = take_up(&mut scene, "runner");
    scene.apply(run, op).unwrap();
    assert_eq!(scene.rows(run).commands[&first].attempt_id, attempt);
}

#[test]
fn the_last_batch_can_give_the_lease_back() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (first, second) = (scene.turn(run), scene.turn(run));
    scene.claim(run, "runner");
    let last = |turn, batch_no| match Scene::append_op("runner", 1, Some(batch_no), vec![ends(turn, "completed")]) {
        Op::Append(op) => Op::Append(AppendOp { release_if_idle: true, ..op }),
        _ => unreachable!("an append"),
    };
    let released = |reply| matches!(reply, Ok(Reply::Appended(Appended { released: true, .. })));
    assert!(!released(scene.apply(run, last(first, 1))), "another turn is left");
    assert!(released(scene.apply(run, last(second, 2))));
    assert!(scene.rows(run).lease.as_deref().unwrap().ended);
    assert!(!released(scene.apply(run, last(first, 1))), "the same batch, the same answer");
    assert!(released(scene.apply(run, last(second, 2))), "the same batch, the same answer");
}

#[test]
fn a_runner_that_only_waits_is_let_go_at_once_and_one_that_works_when_it_is_done() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.apply(run, Op::Dismiss(DismissOp { only_if_idle: true })).unwrap();
    let events = scene.desk.events.len();
    scene.apply(run, Op::Dismiss(DismissOp { only_if_idle: false })).unwrap();
    assert_eq!((scene.status(run), scene.desk.events.len()), (RunStatus::Running, events), "its work is its own");
    scene.work(run, turn);
    match scene.append(run, vec![ends(turn, "completed")]) {
        Ok(Reply::Appended(appended)) => assert!(appended.released, "the reply to its last batch reports the release"),
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.status(run), RunStatus::Pending);
    // The next lease is a new one, and this runner was not dismissed from it.
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    match scene.append(run, vec![ends(turn, "completed")]) {
        Ok(Reply::Appended(appended)) => assert!(!appended.released),
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.status(run), RunStatus::Claimed);
    scene.apply(run, Op::Dismiss(DismissOp { only_if_idle: true })).unwrap();
    assert_eq!(scene.status(run), RunStatus::Pending);
    let heartbeat = scene.patch(run, false, false);
    assert_eq!(scene.refused(run, heartbeat), "lease-released");
    assert_eq!(scene.desk.session.busy_with_other(None, scene.now), None, "the session takes another run");
}

#[test]
fn a_command_that_comes_as_its_runner_is_let_go_starts_another() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, true);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    scene.apply(run, Op::Dismiss(DismissOp { only_if_idle: true })).unwrap();
    scene.advance_ms(1);
    scene.turn(run);
    assert_eq!(scene.finish_job(run, job, JobEnd::Succeeded), JobPhase::Pending);
}
