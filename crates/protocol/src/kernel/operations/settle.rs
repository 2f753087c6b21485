//! What is derived from a run's rows is brought up to date after each operation.

use super::{
    desk::{Desk, RunDesk},
    ending, job, lease,
};
use crate::{
    Timestamp,
    ids::{RunId, RunnerJobId},
    kernel::{commands::CommandState, runner_jobs::JobPhase, runs::RunStatus, sessions::ExecutionState},
};

impl Desk {
    /// Brings what is derived up to date after an operation: the run's status, the session's projection, and the
    /// standing job that must start a runner again when a command waits and no lease is live.
    pub fn settle(&mut self, run_id: RunId, now: Timestamp) {
        ending::close_cancelled_run(self, run_id, now);
        lease::release_if_dismissed(self, run_id, now);
        job::end_external(self, run_id, now);
        let desk = self.runs.get_mut(&run_id).expect("settled after an operation on it");
        let unfinished = desk.unfinished_ids();
        if desk.run.unfinished_commands != unfinished.len() as i64 {
            desk.run.unfinished_commands = unfinished.len() as i64;
        }
        let held = desk.lease.as_deref().filter(|lease| !lease.ended).map(|lease| lease.expires_at);
        set_status(desk, held.is_some());
        let first = unfinished.first().copied();
        let other = self.session.busy_with_other(Some(run_id), now).is_some();
        let session = &mut self.session;
        if other {
            // An old lease of this run that has not been swept yet does not make it the active one.
        } else if !unfinished.is_empty() || held.is_some() {
            session.active_run_id = Some(run_id);
            session.active_command_id = first;
            session.active_unfinished = unfinished.len() as i64;
            session.active_lease_until = held;
        } else if session.active_run_id == Some(run_id) {
            session.active_run_id = None;
            session.active_command_id = None;
            session.active_unfinished = 0;
            session.active_lease_until = None;
        }
        session.execution_state = match (session.active_unfinished > 0, session.version > 0) {
            (true, _) => ExecutionState::Running,
            (false, true) => ExecutionState::Terminal,
            (false, false) => ExecutionState::Idle,
        };
        let lease_live = held.is_some_and(|until| until > now);
        if !unfinished.is_empty()
            && !lease_live
            && let Some(job_id) = wake_standing(desk, now)
        {
            self.waiting_jobs.push((run_id, job_id));
        }
    }
}

fn set_status(desk: &mut RunDesk, leased: bool) {
    if desk.run.status.is_terminal() {
        return;
    }
    let working = desk.unfinished().any(|c| c.state == CommandState::Running);
    let status = match (leased, working) {
        (true, true) => RunStatus::Running,
        (true, false) => RunStatus::Claimed,
        (false, _) => RunStatus::Pending,
    };
    if desk.run.status != status {
        desk.run.status = status;
    }
}

/// A standing job starts a runner again. The job, if a launcher should look for it.
fn wake_standing(desk: &mut RunDesk, now: Timestamp) -> Option<RunnerJobId> {
    let is_cancelled = desk.run.cancel_requested_at.is_some();
    let job_id = desk.run.standing_job_id?;
    let job = desk.jobs.get_mut(&job_id)?;
    if !job.phase.is_finished() || (job.phase == JobPhase::Cancelled && is_cancelled) {
        return None;
    }
    job.phase = JobPhase::Pending;
    job.attempt = 0;
    job.updated_at = now;
    Some(job_id)
}
