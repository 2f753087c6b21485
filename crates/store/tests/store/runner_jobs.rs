//! What a launcher asks of the store about its jobs.

use ostler_protocol::{
    ids::RunnerJobId,
    kernel::{operations::Op, runner_jobs::RunnerJob},
};
use ostler_store::kernel::runner_jobs::{claim, get, list_abandoned, list_claimed, update_heartbeat};

use crate::{
    build::LAUNCHER,
    rows::Witness,
    store_process::StoreProcess,
    test_store::{TestStore, both_engines},
};

async fn jobs(process: &mut StoreProcess, count: usize) {
    for _ in 0..count {
        let run = process.run().await;
        let command = process.turn(&run).await;
        let job = process.mint.job(&run, Some(command), false, None, process.now());
        process.ask(run.request(Op::CreateJob(Box::new(job)))).await;
    }
}

async fn claimed(process: &StoreProcess, limit: u32, except: &[RunnerJobId]) -> Vec<RunnerJobId> {
    let jobs = claim(
        &process.db,
        LAUNCHER,
        "us",
        process.now(),
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
async fn a_heartbeat_is_for_the_named_jobs_of_its_owner(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    jobs(&mut process, 3).await;
    let all = claimed(&process, 3, &[]).await;
    process.host.advance_ms(1_000);
    let now = process.now();
    update_heartbeat(&process.db, "us", &all[..1], now).await.unwrap();
    update_heartbeat(&process.db, "others", &all, now).await.unwrap();
    update_heartbeat(&process.db, "us", &[], now).await.unwrap();
    assert_eq!(get(&process.db, all[0]).await.unwrap().unwrap().heartbeat_at, Some(now));
    assert_eq!(ids(list_abandoned(&process.db, now, 9).await.unwrap()), all[1..]);
}

#[both_engines]
async fn a_claim_leaves_out_the_jobs_that_it_names(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    jobs(&mut process, 5).await;
    let all = claimed(&process, 9, &[]).await;
    // As after their ends were reported: they are pending again.
    Witness::of(&test_store).await.execute("UPDATE runner_jobs SET phase = 'pending', attempt = 0").await;
    assert_eq!(claimed(&process, 9, &all[1..]).await, all[..1]);
    assert_eq!(claimed(&process, 2, &all[..2]).await.len(), 2);
    assert_eq!(claimed(&process, 9, &all[..2]).await.len(), 1);
    assert_eq!(claimed(&process, 9, &[]).await, all[1..2]);
}

#[both_engines]
async fn jobs_of_an_unanswered_claim_are_found_by_its_time(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    jobs(&mut process, 3).await;
    let before = claimed(&process, 1, &[]).await;
    process.host.advance_ms(1);
    let at = process.now();
    let lost = claimed(&process, 2, &[]).await;
    process.host.advance_ms(1);
    update_heartbeat(&process.db, "us", &lost, process.now()).await.unwrap();
    assert_eq!(ids(list_claimed(&process.db, "us", &[at, process.now()]).await.unwrap()), lost);
    assert!(!lost.contains(&before[0]));
    assert!(list_claimed(&process.db, "others", &[at]).await.unwrap().is_empty());
    assert!(list_claimed(&process.db, "us", &[]).await.unwrap().is_empty());
}

#[both_engines]
async fn a_pod_name_is_read_back_and_a_missing_one_stays_missing(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    let command = process.turn(&run).await;
    let mut op = process.mint.job(&run, Some(command), false, None, process.now());
    (op.job.pod_name, op.job.log_path) = (Some("pod-1".into()), None);
    let id = op.job.runner_job_id;
    process.ask(run.request(Op::CreateJob(Box::new(op)))).await;
    let stored = get(&process.db, id).await.unwrap().unwrap();
    assert_eq!((stored.pod_name.as_deref(), stored.log_path), (Some("pod-1"), None));
}
