//! The jobs that this server's launcher has in hand. The launcher renews the heartbeat of these jobs only, and the sweeper of
//! the same server does not abandon them.

use std::{collections::BTreeSet, sync::Arc};

use ostler_protocol::{Timestamp, ids::RunnerJobId, kernel::launching::LauncherJobs};
use parking_lot::{Mutex, MutexGuard};

#[derive(Clone, Default)]
pub struct HeldJobs(Arc<Mutex<LauncherState>>);

#[derive(Default)]
struct LauncherState {
    jobs: LauncherJobs,
    /// Jobs in hand that a claim has left out. If one is pending when it is put down, no wake-up announces it again.
    passed_over: BTreeSet<RunnerJobId>,
    /// Jobs in hand that have become pending again, and would have been started at once if they had not been in hand.
    pending_again: BTreeSet<RunnerJobId>,
}

/// A job in hand. Dropping it removes the job, also when its task panics.
pub struct HeldJob {
    held_jobs: HeldJobs,
    /// `None` once it was put down.
    job_id: Option<RunnerJobId>,
}

impl HeldJobs {
    /// `None` if the job is in hand already.
    pub fn take_up(&self, job_id: RunnerJobId) -> Option<HeldJob> {
        let is_new = self.lock().jobs.take_up(job_id);
        is_new.then(|| HeldJob { held_jobs: self.clone(), job_id: Some(job_id) })
    }

    /// As [`Self::take_up`], for a job that has just become pending. If it is in hand, putting it down reports it.
    pub fn take_up_pending(&self, job_id: RunnerJobId) -> Option<HeldJob> {
        let mut launcher = self.lock();
        if launcher.jobs.take_up(job_id) {
            drop(launcher);
            return Some(HeldJob { held_jobs: self.clone(), job_id: Some(job_id) });
        }
        launcher.pending_again.insert(job_id);
        None
    }

    /// The jobs that a claim has to leave out.
    pub fn pass_over(&self) -> Vec<RunnerJobId> {
        let mut launcher = self.lock();
        let jobs = launcher.jobs.held_ids();
        launcher.passed_over.extend(&jobs);
        jobs
    }

    /// The job was not pending until now, so that claims which left it out have missed nothing.
    pub fn forget_passed_over(&self, job_id: RunnerJobId) {
        self.lock().passed_over.remove(&job_id);
    }

    pub fn claim_unanswered(&self, claimed_at: Timestamp) {
        self.lock().jobs.claim_unanswered(claimed_at);
    }

    pub fn forget_unanswered(&self, until: Timestamp) {
        self.lock().jobs.forget_unanswered(until);
    }

    /// Whether a claim got no response, so that its jobs have to be looked for.
    pub fn has_unanswered(&self) -> bool {
        !self.lock().jobs.unanswered().is_empty()
    }

    /// The current jobs in hand.
    pub fn snapshot(&self) -> LauncherJobs {
        self.lock().jobs.clone()
    }

    fn lock(&self) -> MutexGuard<'_, LauncherState> {
        // No change to the hand can panic half-way.
        self.0.lock()
    }
}

impl HeldJob {
    /// True if the job may wait: a claim has left it out since its launcher began to report its end, or it became pending while it was
    /// in hand.
    pub fn put_down(mut self) -> bool {
        self.release()
    }

    fn release(&mut self) -> bool {
        let Some(job_id) = self.job_id.take() else { return false };
        let mut launcher = self.held_jobs.lock();
        launcher.jobs.put_down(job_id);
        launcher.passed_over.remove(&job_id) | launcher.pending_again.remove(&job_id)
    }
}

impl Drop for HeldJob {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job_id(number: u128) -> RunnerJobId {
        format!("job_{number:032x}").parse().unwrap()
    }

    #[test]
    fn a_job_that_a_claim_left_out_is_reported_when_it_is_put_down() {
        let held_jobs = HeldJobs::default();
        let (first, second) = (held_jobs.take_up(job_id(1)).unwrap(), held_jobs.take_up(job_id(2)).unwrap());
        assert_eq!(held_jobs.pass_over(), [job_id(1), job_id(2)]);
        held_jobs.forget_passed_over(job_id(2));
        assert_eq!((first.put_down(), second.put_down()), (true, false));
        assert!(held_jobs.pass_over().is_empty());
    }

    #[test]
    fn a_job_that_is_put_down_can_be_taken_up_again_before_its_former_hold_is_gone() {
        let held_jobs = HeldJobs::default();
        assert!(!held_jobs.take_up(job_id(1)).unwrap().put_down());
        let again = held_jobs.take_up(job_id(1)).unwrap();
        assert!(held_jobs.take_up(job_id(1)).is_none());
        drop(again);
        assert!(held_jobs.take_up(job_id(1)).is_some());
    }

    #[test]
    fn a_job_that_becomes_pending_while_it_is_in_hand_is_reported_once() {
        let held_jobs = HeldJobs::default();
        let held = held_jobs.take_up_pending(job_id(1)).unwrap();
        assert!(held_jobs.take_up_pending(job_id(1)).is_none());
        assert!(held.put_down());
        assert!(!held_jobs.take_up_pending(job_id(1)).unwrap().put_down());
    }
}
