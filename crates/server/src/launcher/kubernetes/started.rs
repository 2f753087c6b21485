//! Started jobs, as they are stored.

use std::time::Duration;

use ostler_protocol::{
    Failure, Timestamp,
    ids::RunnerJobId,
    kernel::{
        cluster_launching::is_needed,
        runner_jobs::{JobPhase, Launcher, RunnerJob},
        runs::Run,
    },
};
use ostler_store as store;

use crate::app::App;

/// The job as it is stored, if this start has not ended.
pub(super) async fn current(app: &App, job_id: RunnerJobId, owner: &str) -> Result<Option<RunnerJob>, Failure> {
    let job = store::kernel::runner_jobs::get(&app.db, job_id).await?;
    Ok(job.filter(|job| is_started(job) && job.owner.as_deref() == Some(owner)))
}

/// Whether the job was claimed for a Job of a cluster, and has not ended.
pub(super) fn is_started(job: &RunnerJob) -> bool {
    job.phase == JobPhase::Running && job.launcher == Launcher::Kubernetes
}

/// Whether the job has anything to do: its run has unfinished commands, and the job is needed for them.
pub(super) async fn has_work(app: &App, run: &Run, job: &RunnerJob) -> Result<bool, Failure> {
    if run.unfinished_commands == 0 || run.status.is_terminal() {
        return Ok(false);
    }
    if job.standing {
        return Ok(true);
    }
    let state = store::kernel::commands::get_state(&app.db, job.command_id).await?;
    let is_open = state.is_some_and(|state| !state.is_terminal());
    let last_lease = match is_open {
        true => None,
        false => store::kernel::leases::get(&app.db, job.run_id).await?,
    };
    Ok(is_needed(job, is_open, last_lease.as_ref()))
}

/// How long ago the job was claimed. Only a claim changes this time of a started job.
pub(super) fn age(job: &RunnerJob, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(job.updated_at)).unwrap_or_default()
}
