//! Turns, steers and interrupts.

use super::*;

#[test]
fn a_steer_aims_at_the_turn_at_work_and_not_at_an_older_one_that_waits() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (waiting, working) = (scene.turn(run), scene.turn(run));
    scene.claim(run, "runner");
    scene.work(run, working);
    let steer = scene.command_of(run, CommandType::Steer);
    assert_eq!(scene.command(run, steer).target_command_id, Some(working));
    assert_eq!(scene.state(run, waiting), CommandState::Pending);
}

#[test]
fn a_steer_aims_at_the_next_turn_when_none_is_at_work() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (first, _second) = (scene.turn(run), scene.turn(run));
    for aimed in [CommandType::Steer, CommandType::Interrupt] {
        let command = scene.command_of(run, aimed);
        assert_eq!(scene.command(run, command).target_command_id, Some(first));
        assert_eq!(scene.state(run, command), CommandState::Pending);
    }
}

#[test]
fn a_steer_without_a_turn_ends_blocked_at_once() {
    let mut scene = Scene::new();
    let run = scene.run();
    let steer = scene.command_of(run, CommandType::Steer);
    assert_eq!(scene.state(run, steer), CommandState::Blocked);
    assert_eq!(scene.failure_kind(run, steer), Some(FailureKind::StateConflict));
    assert_eq!(scene.desk.session.active_run_id, None);
}

#[test]
fn steers_that_never_reached_their_turn_end_blocked_with_it() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    let (steer, interrupt) = (scene.command_of(run, CommandType::Steer), scene.command_of(run, CommandType::Interrupt));
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.state(run, turn), CommandState::Completed);
    assert_eq!(scene.state(run, steer), CommandState::Blocked);
    assert_eq!(scene.state(run, interrupt), CommandState::Blocked);
    assert_eq!(scene.status(run), RunStatus::Claimed, "a command's end does not end its run");
}

#[test]
fn a_steer_that_was_delivered_keeps_its_own_end() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    let steer = scene.command_of(run, CommandType::Steer);
    scene.append(run, vec![ends(steer, "completed"), ends(turn, "completed")]).unwrap();
    assert_eq!(scene.state(run, steer), CommandState::Completed);
}

#[test]
fn in_one_batch_a_steer_may_still_be_ended_after_its_turn_but_sends_no_message() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let epoch = scene.claim(run, "runner");
    let steer = scene.command_of(run, CommandType::Steer);
    let late = Scene::append_op("runner", epoch, None, vec![ends(turn, "completed"), says(steer)]);
    assert_eq!(scene.refused(run, late), "command-terminal");
    scene.append(run, vec![ends(turn, "completed"), ends(steer, "completed")]).unwrap();
    assert_eq!(scene.state(run, steer), CommandState::Blocked, "it ended with its turn, a moment before");
    assert_eq!(scene.facts(EventType::TerminalStatus).len(), 2);
}

#[test]
fn the_same_key_is_the_same_command_and_another_body_under_it_a_conflict() {
    let mut scene = Scene::new();
    let run = scene.run();
    let first = scene.new_command(run, CommandType::Turn, Some("key"));
    let second = scene.new_command(run, CommandType::Turn, Some("key"));
    let other = scene.new_command(run, CommandType::Steer, Some("key"));
    let Ok(Reply::Command(first, true)) = scene.apply(run, first) else { panic!("created") };
    let Ok(Reply::Command(again, false)) = scene.apply(run, second) else { panic!("found") };
    assert_eq!(first.command_id, again.command_id);
    assert_eq!(scene.refused(run, other), "payload-hash");
    assert_eq!(scene.rows(run).run.command_count, 1);
}

#[test]
fn an_end_stated_again_is_fine_and_another_end_is_refused() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let epoch = scene.claim(run, "runner");
    let end = |status| Scene::append_op("runner", epoch, None, vec![ends(turn, status)]);
    let Ok(Reply::Appended(first)) = scene.apply(run, end("failed")) else { panic!("ended") };
    let Ok(Reply::Appended(again)) = scene.apply(run, end("failed")) else { panic!("stated before") };
    assert_eq!(first, again);
    assert_eq!(scene.refused(run, end("completed")), "command-terminal");
    assert_eq!(scene.failure_kind(run, turn), Some(FailureKind::BackendFailed));
}

#[test]
fn a_run_that_ends_takes_its_commands_and_its_lease_with_it() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (turn, next) = (scene.turn(run), scene.turn(run));
    let epoch = scene.claim(run, "runner");
    scene.work(run, turn);
    let late = Scene::append_op("runner", epoch, None, vec![ends_run("failed"), says(turn)]);
    assert_eq!(scene.refused(run, late), "after-run-end");
    scene.append(run, vec![ends_run("failed")]).unwrap();
    assert_eq!(scene.status(run), RunStatus::Failed);
    assert_eq!(scene.state(run, turn), CommandState::Failed);
    assert_eq!(scene.state(run, next), CommandState::Failed);
    assert!(scene.rows(run).lease.as_deref().unwrap().ended);
    assert_eq!(scene.desk.session.version, 3);
    assert_eq!(scene.desk.session.active_run_id, None);
    let more = scene.new_command(run, CommandType::Turn, None);
    assert_eq!(scene.refused(run, more), "run-terminal");
}

#[test]
fn commands_that_a_completed_run_leaves_behind_are_cancelled_not_completed() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.append(run, vec![ends_run("completed")]).unwrap();
    assert_eq!(scene.status(run), RunStatus::Completed);
    assert_eq!(scene.state(run, turn), CommandState::Cancelled);
}

#[test]
fn a_session_with_an_active_run_takes_no_second_one() {
    let mut scene = Scene::new();
    let (idle, active) = (scene.run(), scene.run());
    scene.turn(active);
    let third = scene.new_run();
    assert_eq!(scene.refused(third.run.run_id, Op::CreateRun(Box::new(third))), "session-busy");
    let command = scene.new_command(idle, CommandType::Turn, None);
    assert_eq!(scene.refused(idle, command), "session-busy");
    let claim = scene.new_claim("runner");
    assert_eq!(scene.refused(idle, claim), "session-busy");
}
