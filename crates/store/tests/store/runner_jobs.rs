//! What a launcher asks of the store about its jobs.

use ostler_protocol::{
    ids::RunnerJobId,
    kernel::{operations::Op, runner_jobs::RunnerJob},
};
use ostler_store::kernel::runner_jobs::{claim, get, list_abandoned, list_claimed, update_heartbeat};

use crate::{
    build::LAUNCHER,
    place::{Place, both_engines},
    rows::Witness,
    workshop::Workshop,
};

async fn jobs(workshop: &mut Workshop, count: usize) {
    for _ in 0..count {
        let run = workshop.run().await;
        let command = workshop.turn(&run).await;
        let job = workshop.mint.job(&run, Some(command), false, None, workshop.now());
        workshop.ask(run.request(Op::CreateJob(Box::new(job)))).await;
    }
}

async fn claimed(workshop: &Workshop, limit: u32, except: &[RunnerJobId]) -> Vec<RunnerJobId> {
    let jobs = claim(
        &workshop.db,
        LAUNCHER,
        "us",
        workshop.now(),
        limit,
        except,
        ostler_store::kernel::runner_jobs::LaunchableJobs::default(),
    )
    .await
    .unwrap();
    ids(jobs)
}

fn ids(jobs: Vec<RunnerJob>) -> Vec<RunnerJobId> {
    let mut ids: Vec<_> = jobs.into_iter().map(|job| job.runner_job_id).collect();
    ids.sort_unstable();
    ids
}

#[both_engines]
async fn a_heartbeat_is_for_the_named_jobs_of_its_owner(place: Place) {
    let mut workshop = Workshop::open(&place).await;
    jobs(&mut workshop, 3).await;
    let all = claimed(&workshop, 3, &[]).await;
    workshop.host.advance_ms(1_000);
    let now = workshop.now();
    update_heartbeat(&workshop.db, "us", &all[..1], now).await.unwrap();
    update_heartbeat(&workshop.db, "others", &all, now).await.unwrap();
    update_heartbeat(&workshop.db, "us", &[], now).await.unwrap();
    assert_eq!(get(&workshop.db, all[0]).await.unwrap().unwrap().heartbeat_at, Some(now));
    assert_eq!(ids(list_abandoned(&workshop.db, now, 9).await.unwrap()), all[1..]);
}

#[both_engines]
async fn a_claim_leaves_out_the_jobs_that_it_names(place: Place) {
    let mut workshop = Workshop::open(&place).await;
    jobs(&mut workshop, 5).await;
    let all = claimed(&workshop, 9, &[]).await;
    // As after their ends were reported: they are pending again.
    Witness::of(&place).await.execute("UPDATE runner_jobs SET phase = 'pending', attempt = 0").await;
    assert_eq!(claimed(&workshop, 9, &all[1..]).await, all[..1]);
    assert_eq!(claimed(&workshop, 2, &all[..2]).await.len(), 2);
    assert_eq!(claimed(&workshop, 9, &all[..2]).await.len(), 1);
    assert_eq!(claimed(&workshop, 9, &[]).await, all[1..2]);
}

#[both_engines]
async fn jobs_of_an_unanswered_claim_are_found_by_its_time(place: Place) {
    let mut workshop = Workshop::open(&place).await;
    jobs(&mut workshop, 3).await;
    let before = claimed(&workshop, 1, &[]).await;
    workshop.host.advance_ms(1);
    let at = workshop.now();
    let lost = claimed(&workshop, 2, &[]).await;
    workshop.host.advance_ms(1);
    update_heartbeat(&workshop.db, "us", &lost, workshop.now()).await.unwrap();
    assert_eq!(ids(list_claimed(&workshop.db, "us", &[at, workshop.now()]).await.unwrap()), lost);
    assert!(!lost.contains(&before[0]));
    assert!(list_claimed(&workshop.db, "others", &[at]).await.unwrap().is_empty());
    assert!(list_claimed(&workshop.db, "us", &[]).await.unwrap().is_empty());
}

#[both_engines]
async fn a_pod_name_is_read_back_and_a_missing_one_stays_missing(place: Place) {
    let mut workshop = Workshop::open(&place).await;
    let run = workshop.run().await;
    let command = workshop.turn(&run).await;
    let mut op = workshop.mint.job(&run, Some(command), false, None, workshop.now());
    (op.job.pod_name, op.job.log_path) = (Some("pod-1".into()), None);
    let id = op.job.runner_job_id;
    workshop.ask(run.request(Op::CreateJob(Box::new(op)))).await;
    let stored = get(&workshop.db, id).await.unwrap().unwrap();
    assert_eq!((stored.pod_name.as_deref(), stored.log_path), (Some("pod-1"), None));
}
