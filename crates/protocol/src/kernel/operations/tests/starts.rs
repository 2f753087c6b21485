//! Jobs that are started by the flush that makes them wait, and that end with the lease of their runner.

use super::*;

fn start(scene: &mut Scene, places: usize) -> Vec<StartedJob> {
    start_with(scene, places, true)
}

fn start_with(scene: &mut Scene, places: usize, take_up: bool) -> Vec<StartedJob> {
    let (now, mut left) = (scene.now, places);
    let attempt_id = AttemptId::new(scene.body());
    scene.desk.start_jobs(now, |_, _| {
        left = left.checked_sub(1)?;
        Some(JobPlace { owner: "launcher".into(), lease_ms: LEASE_MS, attempt_id, take_up })
    })
}

#[test]
fn a_turn_of_a_runner_that_must_be_prepared_first_waits_for_it_without_a_deadline() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let op = scene.new_job(run);
    scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
    let [started] = start_with(&mut scene, 1, false).try_into().unwrap();
    let command = &scene.rows(run).commands[&turn];
    assert_eq!((command.state, command.deadline_at, command.attempt_id), (CommandState::Pending, None, None));
    assert_eq!(started.claimed.commands[0].state, CommandState::Pending);
    assert!(scene.rows(run).live_lease(scene.now).is_some());
}

#[test]
fn a_job_that_waits_since_this_flush_is_started_with_its_lease_and_its_turn() {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    let op = scene.new_job(run);
    let (job, offered) = (op.job.runner_job_id, op.job.attempt_id);
    scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
    let [started] = start(&mut scene, 1).try_into().unwrap();
    assert_eq!((started.job.phase, started.job.attempt, started.job.starts), (JobPhase::Running, 1, 1));
    assert_eq!((started.claimed.attempt_id, started.claimed.commands.len()), (offered, 1));
    assert_eq!(scene.state(run, turn), CommandState::Acked);
    assert_eq!(scene.rows(run).live_lease(scene.now).unwrap().runner_id, started.job.runner_id);
    assert_eq!(scene.rows(run).jobs[&job].owner.as_deref(), Some("launcher"));
    assert!(scene.desk.waiting_jobs.is_empty());
    assert!(start(&mut scene, 1).is_empty(), "it is started once");
}

#[test]
fn a_job_waits_for_a_launcher_where_there_is_no_place_or_its_runner_could_not_claim_the_run() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let op = scene.new_job(run);
    scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
    assert!(start(&mut scene, 0).is_empty());
    assert_eq!(scene.desk.waiting_jobs.len(), 1);
    // Another runner has come first.
    scene.claim(run, "another runner");
    assert!(start(&mut scene, 1).is_empty());
    assert_eq!(scene.desk.waiting_jobs.len(), 1);
    assert!(scene.rows(run).lease.as_deref().unwrap().waiters.is_empty());
}

#[test]
fn a_job_that_was_cancelled_in_the_flush_that_created_it_is_not_started() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.turn(run);
    let op = scene.new_job(run);
    scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
    scene.cancel_run(run);
    assert!(start(&mut scene, 1).is_empty());
}

#[test]
fn a_job_of_a_runner_in_the_servers_process_ends_with_the_lease_and_no_other_does() {
    for (launcher, ends_with_lease) in [(Launcher::Resident, true), (Launcher::Process, false)] {
        let mut scene = Scene::new();
        let run = scene.run();
        let turn = scene.turn(run);
        let op = scene.new_job(run);
        let job = op.job.runner_job_id;
        let op = CreateJobOp { job: RunnerJob { launcher, ..op.job }, ..op };
        scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
        let [started] = start(&mut scene, 1).try_into().unwrap();
        let StartedJob { job: RunnerJob { runner_id, .. }, claimed } = started;
        let summary = RawJson::of(&json!({"status": "idle"}));
        let Op::Append(op) = Scene::append_op(&runner_id, claimed.lease_epoch, Some(1), vec![ends(turn, "completed")])
        else {
            unreachable!("an append")
        };
        let op = AppendOp { release_if_idle: true, ends_job: Some((job, summary.clone())), ..op };
        let append = |scene: &mut Scene| match scene.apply(run, Op::Append(op.clone())) {
            Ok(Reply::Appended(appended)) => appended,
            other => panic!("{other:?}"),
        };
        let appended = append(&mut scene);
        assert_eq!((appended.released, appended.job_ended), (true, ends_with_lease));
        let row = &scene.rows(run).jobs[&job];
        let expected = if ends_with_lease { JobPhase::Succeeded } else { JobPhase::Running };
        assert_eq!(row.phase, expected);
        assert_eq!(row.terminal_summary.as_str() == summary.as_str(), ends_with_lease);
        // The launcher reports it after a repeated batch, which changes nothing.
        assert_eq!(append(&mut scene), Appended { job_ended: false, ..appended });
    }
}

#[test]
fn a_job_does_not_end_while_another_turn_waits() {
    let mut scene = Scene::new();
    let run = scene.run();
    let (turn, _next) = (scene.turn(run), scene.turn(run));
    let op = scene.new_job(run);
    let job = op.job.runner_job_id;
    scene.apply(run, Op::CreateJob(Box::new(op))).unwrap();
    let [StartedJob { job: RunnerJob { runner_id, .. }, claimed }] = start(&mut scene, 1).try_into().unwrap();
    let Op::Append(op) = Scene::append_op(&runner_id, claimed.lease_epoch, None, vec![ends(turn, "completed")]) else {
        unreachable!("an append")
    };
    let op = AppendOp { release_if_idle: true, ends_job: Some((job, RawJson::null())), ..op };
    let Ok(Reply::Appended(appended)) = scene.apply(run, Op::Append(op)) else { panic!("it is appended") };
    assert!(!appended.released && !appended.job_ended);
    assert_eq!(scene.rows(run).jobs[&job].phase, JobPhase::Running);
}
