//! Runner jobs: tried again a bounded number of times, then given up; standing ones start again.

use super::*;
use crate::limits::JOB_ATTEMPTS_MAX;

#[test]
fn a_job_that_keeps_failing_is_given_up_with_its_work() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (turn, next) = (scene.turn(run), scene.turn(run));
    let job = scene.running_job(run, false);
    for _ in 1..JOB_ATTEMPTS_MAX {
        assert_eq!(scene.finish_job(run, job, false), JobPhase::Pending);
        assert_eq!(scene.state(run, turn), CommandState::Pending);
        scene.take_job(run, job);
    }
    assert_eq!(scene.finish_job(run, job, false), JobPhase::Failed);
    for command in [turn, next] {
        assert_eq!(scene.state(run, command), CommandState::Failed);
        assert_eq!(scene.failure_kind(run, command), Some(FailureKind::InfraFailed));
    }
    assert_eq!(scene.status(run), RunStatus::Pending, "the run can be tried with another command");
}

#[test]
fn a_job_that_fails_with_nothing_left_to_do_is_not_tried_again() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.finish_job(run, job, false), JobPhase::Failed);
}

#[test]
fn who_no_longer_owns_a_job_cannot_finish_it() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = scene.running_job(run, false);
    let op =
        FinishJobOp { runner_job_id: job, owner: "somebody else".into(), succeeded: true, summary: RawJson::null() };
    scene.apply(run, Op::FinishJob(op)).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Running);
}

#[test]
fn a_job_does_not_give_up_what_another_runner_has_in_hand() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "another runner");
    scene.work(run, turn);
    scene.finish_job(run, job, false);
    assert_eq!(scene.state(run, turn), CommandState::Running);
}

#[test]
fn the_first_claim_takes_the_attempt_its_job_minted_and_a_later_one_its_own() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = scene.running_job(run, false);
    let minted = scene.rows(run).jobs[&job].attempt_id;
    scene.claim(run, "runner");
    assert_eq!(scene.rows(run).run.attempt_id, Some(minted));
    scene.claim(run, "runner");
    assert_ne!(scene.rows(run).run.attempt_id, Some(minted));
}

#[test]
fn a_standing_job_starts_again_for_a_new_command_whether_it_went_well_or_not() {
    for succeeded in [true, false] {
        let mut scene = Scene::new();
        let run = scene.run();
        let turn = scene.turn(run);
        let job = scene.running_job(run, true);
        scene.claim(run, "runner");
        scene.append(run, vec![ends(turn, "completed")]).unwrap();
        let release = scene.patch(run, true, false);
        scene.apply(run, release).unwrap();
        assert!(scene.finish_job(run, job, succeeded).is_finished());
        scene.turn(run);
        assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Pending, "succeeded: {succeeded}");
        assert!(scene.desk.jobs_waiting);
    }
}

#[test]
fn a_standing_job_waits_while_a_runner_is_live_and_starts_when_it_is_gone() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, true);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.finish_job(run, job, true), JobPhase::Succeeded);
    scene.turn(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Succeeded, "the live runner will poll it");
    scene.advance_ms(LEASE_MS);
    scene.sweep(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Pending);
}

#[test]
fn another_jobs_new_commands_wait_for_a_new_job() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    scene.finish_job(run, job, true);
    scene.turn(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Succeeded);
}
