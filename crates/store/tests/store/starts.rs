//! Jobs that are started by the flush that makes them wait.

use ostler_protocol::kernel::{
    operations::{CreateJobOp, Op},
    runner_jobs::{JobPhase, RunnerJob},
};
use ostler_store::kernel::{leases, runner_jobs};

use crate::{
    store_process::{StoreProcess, refused_by},
    test_store::{TestStore, both_engines},
};

#[both_engines]
async fn a_started_job_is_handed_over_and_stored_with_its_lease(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    process.host.offer_places(1);
    let run = process.run().await;
    let command = process.turn(&run).await;
    let op = process.mint.job(&run, Some(command), false, None, process.now());
    let job_id = op.job.runner_job_id;
    process.ask(run.request(Op::CreateJob(Box::new(op)))).await;
    let [started] = process.host.started().try_into().unwrap();
    assert_eq!((started.job.runner_job_id, started.claimed.lease_epoch), (job_id, 1));
    let stored = runner_jobs::get(&process.db, job_id).await.unwrap().unwrap();
    assert_eq!((stored.phase, stored.starts, stored.owner), (JobPhase::Running, 1, started.job.owner));
    let lease = leases::get(&process.db, run.run_id).await.unwrap().unwrap();
    assert_eq!(lease.runner_id, stored.runner_id);
    assert_eq!(process.host.given_back(), []);
    // The next one finds no place, and waits.
    let other = process.run().await;
    let command = process.turn(&other).await;
    let op = process.mint.job(&other, Some(command), false, None, process.now());
    let job_id = op.job.runner_job_id;
    process.ask(other.request(Op::CreateJob(Box::new(op)))).await;
    assert_eq!(runner_jobs::get(&process.db, job_id).await.unwrap().unwrap().phase, JobPhase::Pending);
}

#[both_engines]
async fn a_flush_that_the_database_refuses_gives_its_places_back_for_certain(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let [one, two] = [process.run().await, process.run().await];
    let [first, second] = [process.turn(&one).await, process.turn(&two).await];
    let op = process.mint.job(&one, Some(first), false, None, process.now());
    let taken = op.job.runner_job_id;
    process.ask(one.request(Op::CreateJob(Box::new(op)))).await;
    process.host.offer_places(1);
    let op = process.mint.job(&two, Some(second), false, None, process.now());
    let op = CreateJobOp { job: RunnerJob { runner_job_id: taken, ..op.job }, ..op };
    let refused = process.lanes.submit(two.request(Op::CreateJob(Box::new(op)))).await;
    assert_eq!(refused_by(&refused), "taken");
    assert!(process.host.started().is_empty());
    let given_back = process.host.given_back();
    assert!(
        !given_back.is_empty() && given_back.iter().all(|(job, at)| *job == taken && at.is_none()),
        "{given_back:?}"
    );
    assert!(leases::get(&process.db, two.run_id).await.unwrap().is_none());
}
