//! A launcher's rules about the jobs it has claimed, pure: which of them it vouches for, what it does with a job that
//! is its own according to the store, and what it does after a report that got no response from the store. The launcher
//! follows them, and the model check of the kernel explores them (`kernel/operations/tests/model`).
//!
//! The store can carry out a write whose response is lost. So the rows that name a launcher as their owner are not
//! evidence of what it runs: only the launcher itself knows that.

use std::collections::BTreeSet;

use crate::{
    Failure, FailureKind, Rule, Timestamp,
    ids::RunnerJobId,
    kernel::runner_jobs::{JobPhase, RunnerJob},
};

/// Unanswered claims that a launcher remembers. Jobs of older ones are left to the sweeper.
const UNANSWERED_MAX: usize = 64;

/// The jobs one launcher has in hand, and its claims that were not answered.
#[derive(Clone, Debug, Default)]
pub struct LauncherJobs {
    jobs: BTreeSet<RunnerJobId>,
    unanswered: BTreeSet<Timestamp>,
}

/// What a launcher does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// Its runner is running, or its end is being reported.
    Held,
    /// The claim's answer was lost: start its runner now. The start was counted by the claim.
    TakeUp,
    /// It is not ours to start. If the row names us all the same, the sweeper returns it, because no launcher vouches
    /// for it.
    LeaveToSweeper,
}

/// What a launcher does after it has reported a runner's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFinish {
    /// The report was stored, or can never be: the job is no longer in hand.
    PutDown,
    /// The store did not respond. The job stays in hand and the report is repeated.
    Repeat,
}

impl LauncherJobs {
    /// A job's runner is about to be started. False if it is in hand already; then no second runner may be started.
    pub fn take_up(&mut self, job_id: RunnerJobId) -> bool {
        self.jobs.insert(job_id)
    }

    /// The job's runner is gone and its end is stored, or another server has taken over.
    pub fn put_down(&mut self, job_id: RunnerJobId) {
        self.jobs.remove(&job_id);
    }

    pub fn holds(&self, job_id: RunnerJobId) -> bool {
        self.jobs.contains(&job_id)
    }

    /// The jobs to vouch for: those in hand and no others. They are also not to be claimed, because a repeated report
    /// about the earlier start would end the later one.
    pub fn held_ids(&self) -> Vec<RunnerJobId> {
        self.jobs.iter().copied().collect()
    }

    /// A claim made at this time was not answered: the store may have carried it out.
    pub fn claim_unanswered(&mut self, claimed_at: Timestamp) {
        self.unanswered.insert(claimed_at);
        if self.unanswered.len() > UNANSWERED_MAX {
            self.unanswered.pop_first();
        }
    }

    /// The times of the unanswered claims.
    pub fn unanswered(&self) -> Vec<Timestamp> {
        self.unanswered.iter().copied().collect()
    }

    /// Forgets unanswered claims of this time and earlier: the sweeper has returned what they took.
    pub fn forget_unanswered(&mut self, until: Timestamp) {
        self.unanswered.retain(|claimed_at| *claimed_at > until);
    }

    /// What to do with a job that `owner` runs according to the store. Read the row after the hand: a job whose end is
    /// stored in between must not be started again.
    pub fn on_owned(&self, job: &RunnerJob, owner: &str) -> Owned {
        let ours = job.phase == JobPhase::Running && job.owner.as_deref() == Some(owner);
        // Only a claim changes `updated_at` of a running job, so this is the start that the unanswered claim made.
        match (self.holds(job.runner_job_id), ours && self.unanswered.contains(&job.updated_at)) {
            (true, _) => Owned::Held,
            (false, true) => Owned::TakeUp,
            (false, false) => Owned::LeaveToSweeper,
        }
    }
}

/// What follows from the response to a report of a runner's end. A refusal is final, for example because the session
/// was erased.
pub fn after_finish<T>(answer: &Result<T, Failure>) -> AfterFinish {
    match answer {
        Err(failure) if is_worth_repeating(failure) => AfterFinish::Repeat,
        _ => AfterFinish::PutDown,
    }
}

/// Whether the same request may succeed later, because the store or its queue could not carry it out this time, or the server
/// could not be reached. A stored row that cannot be read stays unreadable.
pub fn is_worth_repeating(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::InfraFailed | FailureKind::Overloaded | FailureKind::ServerUnreachable)
        && failure.broken_rule() != Some(Rule::StoreCorrupt)
}

/// Whether a sweeper gives up a running job: no launcher has vouched for it since `before`, and the sweeper's own server
/// does not have it in hand. Its launcher may be alive all the same, cut off from the store for a while.
pub fn is_abandoned(job: &RunnerJob, before: Timestamp, launcher_jobs: &LauncherJobs) -> bool {
    job.phase == JobPhase::Running
        && job.heartbeat_at.is_some_and(|at| at < before)
        && !launcher_jobs.holds(job.runner_job_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_store_could_not_do_this_time_is_repeated() {
        let of = |rule| after_finish::<()>(&Err(Failure::rule(rule, "…")));
        assert_eq!(of(Rule::StoreFailed), AfterFinish::Repeat);
        assert_eq!(of(Rule::StoreDiskFull), AfterFinish::Repeat);
        assert_eq!(of(Rule::LaneQueue), AfterFinish::Repeat);
        assert_eq!(of(Rule::StoreCorrupt), AfterFinish::PutDown);
        assert_eq!(of(Rule::AidUnknown), AfterFinish::PutDown);
    }
}
