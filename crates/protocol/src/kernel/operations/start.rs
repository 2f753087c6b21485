//! Starts jobs in the flush that made them wait: if this process has a place for the runner, the job gets its launcher and the
//! run its lease at once. Otherwise the job waits, and a launcher claims it later.

use super::{
    claim::{self, ClaimOp},
    desk::{Desk, RunDesk},
};
use crate::{
    Timestamp,
    ids::{AttemptId, RunId, RunnerJobId},
    kernel::{
        leases::Claimed,
        runner_jobs::{JobPhase, RunnerJob},
        runs::Run,
    },
};

/// A place for a job's runner.
#[derive(Clone, Debug)]
pub struct JobPlace {
    /// The launcher that starts the runner.
    pub owner: String,
    pub lease_ms: i64,
    /// Used unless the job has offered one.
    pub attempt_id: AttemptId,
    /// Acknowledge the next turn, too. Only for a runner that begins it at once: a turn that was acknowledged counts as begun.
    pub take_up: bool,
}

/// A job that was started, and the claim that was made for its runner.
#[derive(Clone, Debug)]
pub struct StartedJob {
    pub job: RunnerJob,
    pub claimed: Claimed,
}

impl Desk {
    /// Starts the jobs that this flush has made wait, where `reserve` has a place for one. Call it once, after the last operation.
    pub fn start_jobs(
        &mut self,
        now: Timestamp,
        mut reserve: impl FnMut(&RunnerJob, &Run) -> Option<JobPlace>,
    ) -> Vec<StartedJob> {
        let (mut started, mut waiting) = (vec![], vec![]);
        for (run_id, job_id) in std::mem::take(&mut self.waiting_jobs) {
            let startable = self.runs.get(&run_id).and_then(|rows| self.startable(rows, job_id, now));
            match startable.and_then(|(job, run)| reserve(job, run)) {
                Some(place) => started.push(start(self, run_id, job_id, place, now)),
                None => waiting.push((run_id, job_id)),
            }
        }
        self.waiting_jobs = waiting;
        started
    }

    /// `None` if the job no longer waits, pauses before another start, or its runner could not claim the run now.
    fn startable<'a>(
        &self,
        rows: &'a RunDesk,
        job_id: RunnerJobId,
        now: Timestamp,
    ) -> Option<(&'a RunnerJob, &'a Run)> {
        let job = rows.jobs.get(&job_id).filter(|job| job.phase == JobPhase::Pending && job.attempt <= 1)?;
        let is_free =
            rows.live_lease(now).is_none() && self.session.busy_with_other(Some(rows.run.run_id), now).is_none();
        let is_open = !rows.run.status.is_terminal() && rows.run.cancel_requested_at.is_none();
        (is_free && is_open && rows.unfinished().next().is_some()).then_some((&**job, &*rows.run))
    }
}

fn start(desk: &mut Desk, run_id: RunId, job_id: RunnerJobId, place: JobPlace, now: Timestamp) -> StartedJob {
    let JobPlace { owner, lease_ms, attempt_id, take_up } = place;
    let job = desk.run_mut(run_id).jobs.get_mut(&job_id).expect("startable");
    job.phase = JobPhase::Running;
    job.owner = Some(owner);
    job.heartbeat_at = Some(now);
    job.attempt += 1;
    job.starts += 1;
    job.updated_at = now;
    let job = (**job).clone();
    let op = ClaimOp { runner_id: job.runner_id.clone(), lease_ms, attempt_id, take_up };
    let claimed = claim::grant(desk, run_id, op, now);
    StartedJob { job, claimed }
}
