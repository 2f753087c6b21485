//! Cancel, in every state.

use super::*;

#[test]
fn what_no_runner_has_touched_ends_at_once() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (turn, other) = (scene.turn(run), scene.turn(run));
    scene.claim(run, "runner");
    scene.cancel(run, turn);
    assert_eq!(scene.state(run, turn), CommandState::Cancelled, "pending, though the run is held");
    assert_eq!(scene.state(run, other), CommandState::Pending);
}

#[test]
fn a_command_of_a_live_runner_is_flagged_and_ends_when_the_runner_ends_it() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.cancel(run, turn);
    assert_eq!(scene.state(run, turn), CommandState::Running);
    assert!(scene.command(run, turn).cancel_requested_at.is_some());
    scene.append(run, vec![ends(turn, "cancelled")]).unwrap();
    assert_eq!(scene.state(run, turn), CommandState::Cancelled);
    assert_eq!(scene.command(run, turn).terminal.as_ref().unwrap().source, "runner");
}

/// The end of a command as a runner reports it.
fn reports(command_id: CommandId, status: &str, kind: Option<&str>) -> NewEvent {
    let payload = json!({"status": status, "failureKind": kind, "message": "as the runner sees it"});
    NewEvent::written(EventType::TerminalStatus, Some(command_id), &payload)
}

/// How a command ends that a runner reports so, with or without a requested cancel.
fn end_of_report(is_cancelled: bool, status: &str, kind: Option<&str>) -> (CommandState, Option<FailureKind>) {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    if is_cancelled {
        scene.cancel(run, turn);
    }
    scene.append(run, vec![reports(turn, status, kind)]).unwrap();
    let recorded = scene.facts(EventType::TerminalStatus).pop().unwrap();
    assert_eq!(recorded["status"], scene.state(run, turn).as_str(), "the log has the end that holds");
    (scene.state(run, turn), scene.failure_kind(run, turn))
}

#[test]
fn an_end_that_a_runner_attributes_to_a_cancel_is_cancelled_if_the_cancel_was_requested() {
    let by_cancel = Some(FailureKind::Cancelled);
    for status in ["blocked", "failed", "cancelled"] {
        assert_eq!(end_of_report(true, status, Some("cancelled")), (CommandState::Cancelled, by_cancel), "{status}");
    }
    assert_eq!(
        end_of_report(false, "blocked", Some("cancelled")),
        (CommandState::Blocked, by_cancel),
        "a permission request that expired"
    );
}

#[test]
fn an_end_for_another_reason_stays_as_reported_after_a_cancel() {
    assert_eq!(end_of_report(true, "completed", None), (CommandState::Completed, None));
    let (failed, denied) = (FailureKind::BackendFailed, FailureKind::PermissionDenied);
    assert_eq!(end_of_report(true, "failed", Some(failed.as_str())), (CommandState::Failed, Some(failed)));
    assert_eq!(end_of_report(true, "blocked", Some(denied.as_str())), (CommandState::Blocked, Some(denied)));
}

#[test]
fn a_report_that_was_recorded_as_a_cancel_may_be_repeated() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.cancel(run, turn);
    let report = || vec![reports(turn, "blocked", Some("cancelled"))];
    scene.append(run, report()).unwrap();
    let terminal = scene.command(run, turn).terminal.clone().unwrap();
    assert_eq!((terminal.source.as_str(), terminal.message.as_deref()), ("runner", Some("cancelled on request")));
    let events = scene.desk.events.len();
    scene.append(run, report()).unwrap();
    assert_eq!(scene.desk.events.len(), events);
}

#[test]
fn a_run_that_ends_by_its_requested_cancel_is_cancelled_with_its_turn() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.cancel_run(run);
    let end = json!({"status": "failed", "failureKind": "cancelled", "message": "stopped"});
    scene.append(run, vec![NewEvent::written(EventType::TerminalStatus, None, &end)]).unwrap();
    assert_eq!((scene.state(run, turn), scene.status(run)), (CommandState::Cancelled, RunStatus::Cancelled));
}

#[test]
fn what_a_lost_runner_worked_on_ends_at_once() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.advance_ms(LEASE_MS);
    scene.cancel(run, turn);
    assert_eq!(scene.state(run, turn), CommandState::Cancelled);
}

#[test]
fn a_cancel_that_waits_is_carried_out_when_the_lease_runs_out() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.cancel_run(run);
    assert_eq!(scene.status(run), RunStatus::Running);
    scene.advance_ms(LEASE_MS);
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Cancelled);
    assert_eq!(scene.status(run), RunStatus::Cancelled);
}

#[test]
fn a_cancel_that_waits_is_carried_out_when_the_runner_leaves() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (turn, other) = (scene.turn(run), scene.turn(run));
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.cancel(run, turn);
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    assert_eq!(scene.state(run, turn), CommandState::Cancelled);
    assert_eq!(scene.state(run, other), CommandState::Pending, "no cancel was requested for this one");
}

#[test]
fn a_cancel_takes_the_steers_of_its_turn_along() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let steer = scene.command_of(run, CommandType::Steer);
    scene.cancel(run, turn);
    assert_eq!(scene.state(run, steer), CommandState::Blocked);
}

#[test]
fn cancelling_again_or_too_late_changes_nothing() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (done, working) = (scene.turn(run), scene.turn(run));
    scene.claim(run, "runner");
    scene.append(run, vec![ends(done, "completed")]).unwrap();
    scene.work(run, working);
    scene.cancel(run, working);
    let events = scene.desk.events.len();
    scene.cancel(run, done);
    scene.cancel(run, working);
    assert_eq!(scene.state(run, done), CommandState::Completed);
    assert_eq!(scene.desk.events.len(), events);
    scene.cancel_run(run);
    let events = scene.desk.events.len();
    scene.cancel_run(run);
    assert_eq!(scene.desk.events.len(), events);
}

#[test]
fn an_idle_run_is_cancelled_at_once_with_its_lease() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.claim(run, "runner");
    scene.cancel_run(run);
    assert_eq!(scene.status(run), RunStatus::Cancelled);
    assert!(scene.rows(run).lease.as_deref().unwrap().ended);
    let claim = scene.new_claim("runner");
    assert_eq!(scene.refused(run, claim), "run-cancelled");
    let command = scene.new_command(run, CommandType::Turn, None);
    assert_eq!(scene.refused(run, command), "run-cancelled");
}

#[test]
fn a_run_that_is_being_cancelled_takes_no_new_command_and_ends_with_its_last_one() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.cancel_run(run);
    let command = scene.new_command(run, CommandType::Turn, None);
    assert_eq!(scene.refused(run, command), "run-cancelling");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.state(run, turn), CommandState::Completed, "it was quicker than the cancel");
    assert_eq!(scene.status(run), RunStatus::Cancelled);
}

#[test]
fn jobs_that_no_runner_has_claimed_are_cancelled_with_their_run_and_not_with_a_command() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let op = scene.new_job(run);
    let job = op.job.runner_job_id;
    scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
    scene.cancel(run, turn);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Pending);
    scene.cancel_run(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Cancelled);
}

#[test]
fn a_runner_that_is_lost_while_its_run_is_cancelled_is_not_started_again() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, true);
    let runner = scene.rows(run).jobs[&job].runner_id.clone();
    scene.claim(run, &runner);
    scene.work(run, turn);
    scene.cancel_run(run);
    assert_eq!(scene.finish_job(run, job, JobEnd::Failed), JobPhase::Cancelled);
    assert_eq!((scene.state(run, turn), scene.status(run)), (CommandState::Cancelled, RunStatus::Cancelled));
}
