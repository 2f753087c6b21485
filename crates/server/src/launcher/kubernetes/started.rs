//! Started jobs, as they are stored.

use ostler_protocol::{
    Failure,
    ids::RunnerJobId,
    kernel::runner_jobs::{JobPhase, Launcher, RunnerJob},
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
