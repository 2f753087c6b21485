//! Jobs that are started by the flush that makes them wait.

use ostler_protocol::kernel::{
    operations::{CreateJobOp, Op},
    runner_jobs::{JobPhase, RunnerJob},
};
use ostler_store::kernel::{leases, runner_jobs};

use crate::{
    place::{Place, both_engines},
    workshop::{Workshop, refused_by},
};

#[both_engines]
async fn a_started_job_is_handed_over_and_stored_with_its_lease(place: Place) {
    let mut workshop = Workshop::open(&place).await;
    workshop.host.offer_places(1);
    let run = workshop.run().await;
    let command = workshop.turn(&run).await;
    let op = workshop.mint.job(&run, Some(command), false, None, workshop.now());
    let job_id = op.job.runner_job_id;
    workshop.ask(run.request(Op::CreateJob(Box::new(op)))).await;
    let [started] = workshop.host.started().try_into().unwrap();
    assert_eq!((started.job.runner_job_id, started.claimed.lease_epoch), (job_id, 1));
    let stored = runner_jobs::get(&workshop.db, job_id).await.unwrap().unwrap();
    assert_eq!((stored.phase, stored.starts, stored.owner), (JobPhase::Running, 1, started.job.owner));
    let lease = leases::get(&workshop.db, run.run_id).await.unwrap().unwrap();
    assert_eq!(lease.runner_id, stored.runner_id);
    assert_eq!(workshop.host.given_back(), []);
    // The next one finds no place, and waits.
    let other = workshop.run().await;
    let command = workshop.turn(&other).await;
    let op = workshop.mint.job(&other, Some(command), false, None, workshop.now());
    let job_id = op.job.runner_job_id;
    workshop.ask(other.request(Op::CreateJob(Box::new(op)))).await;
    assert_eq!(runner_jobs::get(&workshop.db, job_id).await.unwrap().unwrap().phase, JobPhase::Pending);
}

#[both_engines]
async fn a_flush_that_the_database_refuses_gives_its_places_back_for_certain(place: Place) {
    let mut workshop = Workshop::open(&place).await;
    let [one, two] = [workshop.run().await, workshop.run().await];
    let [first, second] = [workshop.turn(&one).await, workshop.turn(&two).await];
    let op = workshop.mint.job(&one, Some(first), false, None, workshop.now());
    let taken = op.job.runner_job_id;
    workshop.ask(one.request(Op::CreateJob(Box::new(op)))).await;
    workshop.host.offer_places(1);
    let op = workshop.mint.job(&two, Some(second), false, None, workshop.now());
    let op = CreateJobOp { job: RunnerJob { runner_job_id: taken, ..op.job }, ..op };
    let refused = workshop.lanes.submit(two.request(Op::CreateJob(Box::new(op)))).await;
    assert_eq!(refused_by(&refused), "taken");
    assert!(workshop.host.started().is_empty());
    let given_back = workshop.host.given_back();
    assert!(
        !given_back.is_empty() && given_back.iter().all(|(job, at)| *job == taken && at.is_none()),
        "{given_back:?}"
    );
    assert!(leases::get(&workshop.db, two.run_id).await.unwrap().is_none());
}
