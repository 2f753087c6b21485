//! Creates the Job of a start and the Secret that belongs to it. Every step can be repeated, by this server or another one: the
//! name follows from the start, an object that exists is used, and the token is derived.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use ostler_protocol::{
    Failure, Rule,
    kernel::{
        cluster_launching::{CLUSTER_UNAVAILABLE, QUOTA_EXCEEDED},
        runner_jobs::{JobEnd, JobObservation, RUNNER_RELEASED, RunnerJob, cluster_job_name},
    },
};
use ostler_store::{self as store, failures::is_of_store};
use tokio::time::{Instant, sleep};

use super::{
    places::StartPlaces,
    pod_contents::PodContents,
    reconcile::{self, CREATE_PATIENCE, start_timeout},
    started::{age, current, has_work},
    storage,
};
use crate::{
    app::App,
    kubernetes::{ClusterError, Kubernetes, is_of_cluster, observe::job_facts},
    launcher::ending::{STORE_PAUSE, longer, not_started},
    service::{lookup, session_storage::claims::ClaimError},
};

/// Why a start goes no further.
enum Halt {
    /// The store does not respond.
    NoStore,
    /// The cluster does not respond, or asks for a pause of this length.
    NoCluster { after: Option<Duration>, message: String },
    /// An object would exceed a quota of the cluster.
    Quota(ClusterError),
    /// The runner cannot be started.
    Failed(Failure),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        if is_of_store(&failure) {
            let cause = failure.cause.as_deref();
            tracing::warn!(cause, "the store does not respond; a runner waits to be started");
            return Self::NoStore;
        }
        Self::Failed(failure)
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
            ClusterError::Quota(_) => Self::Quota(error),
            error => {
                tracing::warn!(%error, "the cluster is not available; a runner waits to be started");
                let message = error.to_string();
                let after = match error {
                    ClusterError::Later { after, .. } => after,
                    _ => None,
                };
                Self::NoCluster { after, message }
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

/// The longest pause of a start whose objects exceed a quota. Each attempt costs several calls, and nothing shows when there is room.
const QUOTA_PAUSE_MAX: Duration = Duration::from_secs(15);
/// How long a start tries again whose calls are refused after an outage of the cluster.
const ROLES_PATIENCE: Duration = Duration::from_secs(10);
const ROLES_PAUSE: Duration = Duration::from_millis(500);
/// A start that has waited this long for the cluster gives back its place: others may be able to continue. Another server repeats it, too.
const PLACE_PATIENCE: Duration = CREATE_PATIENCE;

/// Creates the Job of a claimed job, as often as it takes. Returns early if the start is no longer wanted. A start that exceeds a quota
/// fails when its pod would have had to run by now. A cluster that is away fails no start: the time limits of commands still hold.
pub(super) async fn start(app: &App, kubernetes: &Kubernetes, places: &StartPlaces, job: &RunnerJob) {
    let Some(owner) = job.owner.clone() else { return };
    if job.terminal_summary.to_value()["status"] == RUNNER_RELEASED {
        sleep(RELEASED_PAUSE).await;
    }
    let (mut pause, mut quota_pause, mut has_given_back) = (STORE_PAUSE.0, STORE_PAUSE.0, false);
    let mut refused_at = None;
    loop {
        let halt = match create(app, kubernetes, job, &owner).await {
            Ok(()) => return,
            Err(halt) => halt,
        };
        let waited = age(job, app.now());
        let (wait, gives_back) = match halt {
            Halt::NoStore => (longer(&mut pause), false),
            Halt::NoCluster { after, message } => {
                refused_at = None;
                let has_waited = waited >= PLACE_PATIENCE;
                if has_waited {
                    show_wait(app, job, CLUSTER_UNAVAILABLE, message).await;
                }
                (longer(&mut pause).max(after.unwrap_or_default()), has_waited)
            }
            Halt::Quota(error) if waited <= start_timeout(app) => {
                show_wait(app, job, QUOTA_EXCEEDED, error.to_string()).await;
                let next = (quota_pause * 2).min(QUOTA_PAUSE_MAX);
                (std::mem::replace(&mut quota_pause, next), true)
            }
            Halt::Quota(error) => return fail(app, job, &error.into()).await,
            Halt::Failed(failure) => {
                let may_pass = refused_at.is_some() || kubernetes.cluster.has_recovered_lately();
                let since = *refused_at.get_or_insert_with(Instant::now);
                if !is_of_cluster(&failure) || !may_pass || since.elapsed() > ROLES_PATIENCE {
                    return fail(app, job, &failure).await;
                }
                (ROLES_PAUSE, false)
            }
        };
        let place = gives_back.then(|| places.give_back());
        if gives_back && !has_given_back {
            app.hub.jobs.notify_one();
            has_given_back = true;
        }
        sleep(wait).await;
        drop(place);
    }
}

async fn fail(app: &App, job: &RunnerJob, failure: &Failure) {
    let (end, summary) = not_started(failure);
    reconcile::finish(app, job, end, summary).await;
}

/// Shows why the Job does not exist yet. A Job that another server has created meanwhile, and recorded, stays recorded.
async fn show_wait(app: &App, job: &RunnerJob, reason: &str, message: String) {
    let job_name = cluster_job_name(&app.config.kubernetes.job_prefix, job.runner_job_id, job.starts);
    let (reason, message) = (Some(reason.to_owned()), Some(message));
    let observed = JobObservation { job_name, reason, message, ..JobObservation::default() };
    if let Err(failure) = reconcile::record_wait(app, job, &observed).await {
        tracing::warn!(%failure, job = %job.runner_job_id, "the reason why a start waits could not be stored");
    }
}

async fn create(app: &App, kubernetes: &Kubernetes, job: &RunnerJob, owner: &str) -> Result<(), Halt> {
    let Some(job) = current(app, job.runner_job_id, owner).await? else { return Ok(()) };
    let stored_run = lookup::run_unchecked(app, job.run_id).await?;
    if !has_work(app, &stored_run, &job).await? {
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
    kubernetes.cache.note_secret(&order.name);
    tracing::debug!(job = %job.runner_job_id, name = order.name, "the Job of a runner exists");
    Ok(())
}

/// The credentials of a pod may be in the cluster: if it does not respond, the start waits for it.
fn not_made(failure: Failure) -> Halt {
    if !is_of_cluster(&failure) {
        return failure.into();
    }
    tracing::warn!(%failure, "the cluster is not available; a runner waits to be started");
    Halt::NoCluster { after: None, message: failure.message }
}

async fn create_or_find(kubernetes: &Kubernetes, job: &Job, name: &str) -> Result<Job, ClusterError> {
    match kubernetes.cluster.create_job(job).await {
        Err(ClusterError::Exists) => {
            let found = kubernetes.cluster.get_job(name).await?;
            found.ok_or_else(|| ClusterError::Later { after: None, message: "the Job was deleted concurrently".into() })
        }
        outcome => outcome,
    }
}
