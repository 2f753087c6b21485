//! Creates the Job of a start and the Secret that belongs to it. Every step can be repeated, by this server or another one: the
//! name follows from the start, an object that exists is used, and the token is derived.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use ostler_protocol::{
    Failure, Rule,
    kernel::runner_jobs::{JobEnd, RUNNER_RELEASED, RunnerJob},
};
use ostler_store::{self as store, failures::is_of_store};
use tokio::time::sleep;

use super::{pod_contents::PodContents, reconcile, started::current, storage};
use crate::{
    app::App,
    kubernetes::{ClusterError, Kubernetes, is_of_cluster, observe::job_facts},
    launcher::ending::{STORE_PAUSE, longer, not_started},
    service::{lookup, session_storage::claims::ClaimError},
};

/// Why a start goes no further.
enum Halt {
    /// Try again, not earlier than after this time.
    Later(Option<Duration>),
    /// The runner cannot be started.
    Failed(Failure),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        match is_of_store(&failure) {
            true => {
                tracing::warn!(
                    cause = failure.cause.as_deref(),
                    "the store does not respond; a runner waits to be started"
                );
                Self::Later(None)
            }
            false => Self::Failed(failure),
        }
    }
}

impl From<store::StoreError> for Halt {
    fn from(error: store::StoreError) -> Self {
        Failure::from(error).into()
    }
}

impl From<ClusterError> for Halt {
    fn from(error: ClusterError) -> Self {
        match error {
            ClusterError::Refused(_) => Self::Failed(error.into()),
            error => {
                tracing::warn!(%error, "the cluster is not available; a runner waits to be started");
                Self::Later(match error {
                    ClusterError::Later { after, .. } => after,
                    _ => None,
                })
            }
        }
    }
}

impl From<ClaimError> for Halt {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Cluster(error) => error.into(),
            ClaimError::Failed(failure) => failure.into(),
        }
    }
}

/// Pause before a start whose predecessor released its run and lost its Job. Such a start does not count, so without a pause a
/// cluster that deletes every Job would get the next one at once, for ever.
const RELEASED_PAUSE: Duration = Duration::from_millis(500);

/// Creates the Job of a claimed job, as often as it takes. Returns early if the start is no longer wanted.
pub(super) async fn start(app: &App, kubernetes: &Kubernetes, job: &RunnerJob) {
    let Some(owner) = job.owner.clone() else { return };
    if job.terminal_summary.to_value()["status"] == RUNNER_RELEASED {
        sleep(RELEASED_PAUSE).await;
    }
    let mut pause = STORE_PAUSE.0;
    loop {
        let after = match create(app, kubernetes, job, &owner).await {
            Ok(()) => return,
            Err(Halt::Failed(failure)) => {
                let (end, summary) = not_started(&failure);
                return reconcile::finish(app, job, end, summary).await;
            }
            Err(Halt::Later(after)) => after.unwrap_or_default(),
        };
        sleep(longer(&mut pause).max(after)).await;
    }
}

async fn create(app: &App, kubernetes: &Kubernetes, job: &RunnerJob, owner: &str) -> Result<(), Halt> {
    let Some(job) = current(app, job.runner_job_id, owner).await? else { return Ok(()) };
    let stored_run = lookup::run_unchecked(app, job.run_id).await?;
    if stored_run.unfinished_commands == 0 || stored_run.status.is_terminal() {
        // Cancelled or finished by another runner since: no Job is created.
        let summary = reconcile::nothing_left();
        reconcile::finish(app, &job, JobEnd::Succeeded, summary).await;
        return Ok(());
    }
    let run = app.run_ref(job.run_id).await?;
    let contents = PodContents::make(app, &kubernetes.cluster, &stored_run, &job, owner).await.map_err(not_made)?;
    let storage = storage::claimed(app, kubernetes, run.session, contents.keeps_files()).await?;
    let order = contents.order(app, &run, &job, storage);
    let created = create_or_find(kubernetes, &order.job()?, &order.name).await?;
    let facts = job_facts(&created).filter(|facts| facts.runner_job_id == job.runner_job_id);
    let Some(facts) = facts else {
        let message = format!("the cluster has another object of the name {}", order.name);
        return Err(Halt::Failed(Failure::rule(Rule::ClusterCall, message)));
    };
    let uid = facts.uid.clone();
    // Before the Secret exists, no container starts: the token is valid when the runner uses it.
    let token_hash = contents.token_hash();
    if !store::kernel::runner_jobs::update_token(&app.db, job.runner_job_id, owner, &token_hash).await? {
        return Ok(());
    }
    match kubernetes.cluster.create_secret(&order.secret(&uid, &contents.secrets())?).await {
        Ok(()) | Err(ClusterError::Exists) => {}
        Err(error) => return Err(error.into()),
    }
    // What follows is recorded when the cache reports it as changed.
    kubernetes.cache.put_job(facts);
    tracing::debug!(job = %job.runner_job_id, name = order.name, "the Job of a runner exists");
    Ok(())
}

/// The credentials of a pod may be in the cluster: if it does not respond, the start waits for it.
fn not_made(failure: Failure) -> Halt {
    if !is_of_cluster(&failure) {
        return failure.into();
    }
    tracing::warn!(%failure, "the cluster is not available; a runner waits to be started");
    Halt::Later(None)
}

async fn create_or_find(kubernetes: &Kubernetes, job: &Job, name: &str) -> Result<Job, ClusterError> {
    match kubernetes.cluster.create_job(job).await {
        Err(ClusterError::Exists) => {
            let found = kubernetes.cluster.get_job(name).await?;
            found.ok_or_else(|| ClusterError::Later { after: None, message: "the Job was deleted meanwhile".into() })
        }
        outcome => outcome,
    }
}
