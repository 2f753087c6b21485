//! Runner jobs: tried again a bounded number of times, then given up; standing ones start again.

use super::*;
use crate::{kernel::cluster_launching::DEADLINE_EXCEEDED, limits::JOB_ATTEMPTS_MAX};

#[test]
fn a_job_that_keeps_failing_is_given_up_with_its_work() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (turn, next) = (scene.turn(run), scene.turn(run));
    let job = scene.running_job(run, false);
    for _ in 1..JOB_ATTEMPTS_MAX {
        assert_eq!(scene.finish_job(run, job, JobEnd::Failed), JobPhase::Pending);
        assert_eq!(scene.state(run, turn), CommandState::Pending);
        scene.take_job(run, job);
    }
    assert_eq!(scene.finish_job(run, job, JobEnd::Failed), JobPhase::Failed);
    for command in [turn, next] {
        assert_eq!(scene.state(run, command), CommandState::Failed);
        assert_eq!(scene.failure_kind(run, command), Some(FailureKind::InfraFailed));
        let end = scene.command(run, command).terminal.as_ref().expect("an end");
        assert_eq!(end.rule, Some(crate::Rule::RunnerStarts));
    }
    assert_eq!(scene.status(run), RunStatus::Pending, "the run can be tried with another command");
}

#[test]
fn a_job_that_finds_no_storage_is_not_tried_again_and_its_command_has_the_reason() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    let summary = RawJson::of(&json!({"status": "not-started", "failureKind": "session-store-evicted"}));
    let heartbeat_at = scene.rows(run).jobs[&job].heartbeat_at;
    let owner = "launcher".to_owned();
    let op = FinishJobOp { runner_job_id: job, owner, end: JobEnd::Failed, heartbeat_at, summary };
    scene.apply(run, Op::FinishJob(op)).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Failed);
    assert_eq!(scene.failure_kind(run, turn), Some(FailureKind::SessionStoreEvicted));
}

#[test]
fn a_job_that_fails_with_nothing_left_to_do_is_not_tried_again() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.finish_job(run, job, JobEnd::Failed), JobPhase::Failed);
}

#[test]
fn who_no_longer_owns_a_job_cannot_finish_it() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = scene.running_job(run, false);
    let op = FinishJobOp {
        runner_job_id: job,
        owner: "another owner".into(),
        end: JobEnd::Succeeded,
        heartbeat_at: None,
        summary: RawJson::null(),
    };
    scene.apply(run, Op::FinishJob(op)).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Running);
}

/// Several servers may report the same end. The one whose report was recorded counts it.
#[test]
fn an_end_that_is_reported_twice_is_recorded_once() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = scene.running_job(run, false);
    let heartbeat_at = scene.rows(run).jobs[&job].heartbeat_at;
    let (owner, summary) = ("launcher".to_owned(), RawJson::null());
    let op = FinishJobOp { runner_job_id: job, owner, end: JobEnd::Failed, heartbeat_at, summary };
    let mut report = || match scene.apply(run, Op::FinishJob(op.clone())) {
        Ok(Reply::FinishedJob(is_recorded)) => is_recorded,
        other => panic!("{other:?}"),
    };
    assert_eq!((report(), report()), (true, false));
}

#[test]
fn a_job_does_not_give_up_what_another_runner_has_in_hand() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "another runner");
    scene.work(run, turn);
    scene.finish_job(run, job, JobEnd::Failed);
    assert_eq!(scene.state(run, turn), CommandState::Running);
}

#[test]
fn a_command_that_a_runner_works_on_gets_another_runner_only_after_the_lease() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    let op = scene.new_job(run);
    let refused = scene.apply(run, Op::CreateJob(Box::new(op.clone()))).err().unwrap();
    assert_eq!(refused.broken_rule(), Some(crate::Rule::CommandNotPending));
    assert!(scene.rows(run).jobs.is_empty());
    scene.advance_ms(LEASE_MS);
    scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
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
    for end in [JobEnd::Succeeded, JobEnd::Failed] {
        let mut scene = Scene::new();
        let run = scene.run();
        let turn = scene.turn(run);
        let job = scene.running_job(run, true);
        scene.claim(run, "runner");
        scene.append(run, vec![ends(turn, "completed")]).unwrap();
        let release = scene.patch(run, true, false);
        scene.apply(run, release).unwrap();
        assert!(scene.finish_job(run, job, end).is_finished());
        scene.turn(run);
        assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Pending, "{end:?}");
        assert!(!scene.desk.waiting_jobs.is_empty());
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
    assert_eq!(scene.finish_job(run, job, JobEnd::Succeeded), JobPhase::Succeeded);
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
    scene.finish_job(run, job, JobEnd::Succeeded);
    scene.turn(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Succeeded);
}

#[test]
fn a_standing_job_whose_runner_leaves_its_command_behind_is_given_up_in_the_end() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.advance_ms(1);
    let job = scene.running_job(run, true);
    for _ in 1..JOB_ATTEMPTS_MAX {
        assert_eq!(scene.finish_job(run, job, JobEnd::Succeeded), JobPhase::Pending);
        scene.advance_ms(1);
        scene.take_job(run, job);
    }
    assert_eq!(scene.finish_job(run, job, JobEnd::Succeeded), JobPhase::Failed);
    assert_eq!(scene.failure_kind(run, turn), Some(FailureKind::InfraFailed));
}

#[test]
fn a_command_that_comes_while_the_runner_leaves_is_a_new_start_not_a_failed_one() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.advance_ms(1);
    let job = scene.running_job(run, true);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    scene.advance_ms(1);
    scene.turn(run);
    assert_eq!(scene.finish_job(run, job, JobEnd::Succeeded), JobPhase::Pending);
    assert_eq!(scene.rows(run).jobs[&job].attempt, 0, "the starts are counted from zero again");
}

#[test]
fn a_runner_whose_end_was_seen_holds_its_run_no_longer() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "runner");
    scene.work(run, turn);
    assert_eq!(scene.finish_job(run, job, JobEnd::Failed), JobPhase::Pending);
    let leases = scene.facts(EventType::Lease);
    assert!(leases.iter().any(|fact| fact["state"] == "expired" && fact["orphaned"] == true), "{leases:?}");
    assert_eq!(scene.facts(EventType::BackendStatus)[0]["phase"], "runner-ended");
    scene.claim(run, "another runner");
}

#[test]
fn a_start_that_a_stopping_server_gives_back_does_not_count() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "runner");
    scene.work(run, turn);
    assert_eq!(scene.finish_job(run, job, JobEnd::Returned), JobPhase::Pending);
    assert_eq!(scene.rows(run).jobs[&job].attempt, 0);
    assert_eq!(scene.state(run, turn), CommandState::Running);
    assert!(scene.facts(EventType::Lease).iter().any(|fact| fact["state"] == "released"));
    assert_eq!(scene.facts(EventType::BackendStatus), Vec::<Value>::new());
}

#[test]
fn a_process_that_renews_its_lease_is_not_given_up_with_its_launcher() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.desk.run_mut(run).jobs.get_mut(&job).unwrap().launcher = Launcher::Process;
    scene.claim(run, "runner");
    assert_eq!(scene.finish_job(run, job, JobEnd::Lost), JobPhase::Running);
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    assert_eq!(scene.finish_job(run, job, JobEnd::Lost), JobPhase::Succeeded, "its work is done");
}

#[test]
fn a_process_that_is_lost_with_its_launcher_is_started_again_when_its_lease_runs_out() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = scene.running_job(run, false);
    scene.desk.run_mut(run).jobs.get_mut(&job).unwrap().launcher = Launcher::Process;
    scene.claim(run, "runner");
    assert_eq!(scene.finish_job(run, job, JobEnd::Lost), JobPhase::Running);
    scene.advance_ms(LEASE_MS);
    assert_eq!(scene.finish_job(run, job, JobEnd::Lost), JobPhase::Pending);
}

#[test]
fn a_sweeper_does_not_end_a_start_that_was_vouched_for_after_it_looked() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = scene.running_job(run, false);
    let heartbeat_at = scene.rows(run).jobs[&job].heartbeat_at;
    scene.advance_ms(1);
    scene.desk.run_mut(run).jobs.get_mut(&job).unwrap().heartbeat_at = Some(scene.now);
    let op = FinishJobOp {
        runner_job_id: job,
        owner: "launcher".into(),
        end: JobEnd::Lost,
        heartbeat_at,
        summary: RawJson::null(),
    };
    scene.apply(run, Op::FinishJob(op)).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Running);
}

#[test]
fn a_runner_of_a_cluster_that_released_its_run_is_not_lost_however_often_its_job_is_deleted() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.advance_ms(1);
    let job = scene.running_job(run, false);
    scene.desk.run_mut(run).jobs.get_mut(&job).unwrap().launcher = Launcher::Kubernetes;
    for _ in 0..=JOB_ATTEMPTS_MAX {
        scene.claim(run, "runner");
        scene.work(run, turn);
        let release = scene.patch(run, true, false);
        scene.apply(run, release).unwrap();
        assert_eq!(scene.finish_job(run, job, JobEnd::Lost), JobPhase::Pending);
        let ended = &scene.rows(run).jobs[&job];
        assert_eq!((ended.attempt, &ended.terminal_summary.to_value()["status"]), (0, &json!("released")));
        scene.advance_ms(1);
        scene.take_job(run, job);
    }
    assert_eq!(scene.facts(EventType::BackendStatus), Vec::<Value>::new());
    // One that never claimed the run, or whose lease has expired, has shown nothing.
    assert_eq!(scene.finish_job(run, job, JobEnd::Lost), JobPhase::Pending);
    assert_eq!(scene.rows(run).jobs[&job].attempt, 1);
    scene.advance_ms(1);
    scene.take_job(run, job);
    scene.claim(run, "runner");
    scene.advance_ms(LEASE_MS);
    assert_eq!(scene.finish_job(run, job, JobEnd::Lost), JobPhase::Pending);
    assert_eq!(scene.rows(run).jobs[&job].attempt, 2);
}

#[test]
fn a_start_after_which_nothing_is_left_counts() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.finish_job(run, job, JobEnd::Returned), JobPhase::Succeeded);
    assert_eq!(scene.rows(run).jobs[&job].attempt, 1);
}

#[test]
fn a_queue_that_never_drains_is_given_up_only_if_a_turn_exceeds_the_time_limit() {
    let mut scene = Scene::new();
    let run = scene.run();
    let mut turn = scene.turn(run);
    let job = scene.running_job(run, false);
    for _ in 0..=JOB_ATTEMPTS_MAX {
        scene.claim(run, "runner");
        let next = scene.turn(run);
        scene.append(run, vec![ends(turn, "completed")]).unwrap();
        assert_eq!(scene.finish_job(run, job, JobEnd::Overdue), JobPhase::Pending);
        assert_eq!(scene.rows(run).jobs[&job].attempt, 0, "the starts are counted from zero again");
        turn = next;
        scene.advance_ms(1);
        scene.take_job(run, job);
    }
    for started in 1..JOB_ATTEMPTS_MAX {
        scene.claim(run, "runner");
        scene.work(run, turn);
        assert_eq!(scene.finish_job(run, job, JobEnd::Overdue), JobPhase::Pending);
        assert_eq!(scene.rows(run).jobs[&job].attempt, started, "no command has ended in this start");
        scene.advance_ms(1);
        scene.take_job(run, job);
    }
    assert_eq!(scene.finish_job(run, job, JobEnd::Overdue), JobPhase::Failed);
    let end = scene.command(run, turn).terminal.as_ref().expect("an end");
    assert_eq!(end.rule, Some(crate::Rule::RunnerStarts));
}

#[test]
fn a_start_whose_time_limit_is_over_when_nothing_is_left_has_succeeded() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = scene.running_job(run, false);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.finish_job(run, job, JobEnd::Overdue), JobPhase::Succeeded);
    assert_eq!(scene.rows(run).jobs[&job].attempt, 1);
    assert_eq!(scene.facts(EventType::BackendStatus), Vec::<Value>::new());
}

#[test]
fn a_start_whose_time_limit_is_over_counts_although_its_runner_released_its_run_and_is_lost() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.advance_ms(1);
    let job = scene.running_job(run, false);
    scene.desk.run_mut(run).jobs.get_mut(&job).unwrap().launcher = Launcher::Kubernetes;
    for started in 1..=JOB_ATTEMPTS_MAX {
        scene.claim(run, "runner");
        scene.work(run, turn);
        let release = scene.patch(run, true, false);
        scene.apply(run, release).unwrap();
        let heartbeat_at = scene.rows(run).jobs[&job].heartbeat_at;
        let (owner, summary) = ("launcher".to_owned(), json!({"status": "lost", "reason": DEADLINE_EXCEEDED}));
        let summary = RawJson::of(&summary);
        let op = FinishJobOp { runner_job_id: job, owner, end: JobEnd::Lost, heartbeat_at, summary };
        scene.apply(run, Op::FinishJob(op)).unwrap();
        let ended = &scene.rows(run).jobs[&job];
        assert_eq!((ended.attempt, &ended.terminal_summary.to_value()["status"]), (started, &json!("released")));
        if started < JOB_ATTEMPTS_MAX {
            assert_eq!(ended.phase, JobPhase::Pending);
            scene.advance_ms(1);
            scene.take_job(run, job);
        }
    }
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Failed);
}

/// A standing job that a runner elsewhere has claimed.
fn external_job(scene: &mut Scene, run: RunId) -> RunnerJobId {
    let job = scene.running_job(run, true);
    scene.desk.run_mut(run).jobs.get_mut(&job).unwrap().launcher = Launcher::External;
    job
}

#[test]
fn the_job_of_a_runner_elsewhere_ends_when_the_runner_releases_its_lease() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = external_job(&mut scene, run);
    scene.claim(run, "runner");
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Running, "it may wait for the next turn");
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Succeeded);
    scene.turn(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Pending, "the next turn is work for a runner");
}

#[test]
fn the_job_of_a_runner_elsewhere_waits_again_as_soon_as_its_lease_has_expired() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let job = external_job(&mut scene, run);
    scene.claim(run, "runner");
    scene.work(run, turn);
    scene.advance_ms(LEASE_MS);
    scene.desk.waiting_jobs.clear();
    scene.sweep(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Pending);
    assert_eq!(scene.rows(run).jobs[&job].attempt, 1, "the start counts");
    assert!(!scene.desk.waiting_jobs.is_empty());
    assert!(scene.facts(EventType::BackendStatus).iter().any(|fact| fact["end"]["status"] == "lost"));
}

#[test]
fn an_earlier_lease_of_the_same_runner_does_not_end_its_next_start() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = external_job(&mut scene, run);
    scene.claim(run, "runner");
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Pending, "it left its command behind");
    scene.advance_ms(1);
    scene.take_job(run, job);
    scene.turn(run);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Running);
}

#[test]
fn a_lease_of_another_runner_does_not_end_the_job_of_a_runner_elsewhere() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let job = external_job(&mut scene, run);
    scene.claim(run, "another");
    let release = scene.patch(run, true, false);
    scene.apply(run, release).unwrap();
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Running);
}
