//! Deletes Jobs that no start needs any more: active ones whose start has ended, and the oldest finished ones.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use ostler_protocol::{
    Failure,
    ids::RunnerJobId,
    kernel::runner_jobs::{RunnerJob, cluster_job_name},
};
use ostler_store as store;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::started::{age, is_started};
use crate::{
    app::App,
    kubernetes::{FinishedJob, Kubernetes, observe::JobFacts},
};

/// Jobs that are deleted concurrently.
const DELETIONS_MAX: usize = 16;
/// Rows in one read.
const PAGE_ROWS_MAX: usize = 500;
/// How long after the end of a start its Job is taken for unfinished only because this server's watch is late.
const WATCH_LAG_MAX: Duration = Duration::from_secs(5);

/// Deletes active Jobs of starts that have ended: their nodes may come back. `needed`: the names of the Jobs of current starts. A Job
/// that cannot be deleted is tried again by the next comparison.
pub(super) async fn remove_superseded(app: &App, kubernetes: &Kubernetes, needed: &BTreeSet<String>) {
    let active = kubernetes.cache.active_except(&app.config.kubernetes.job_prefix, needed, app.wall());
    for page in active.chunks(PAGE_ROWS_MAX) {
        let stored = match StoredJobs::read(app, page.iter().map(|seen| seen.runner_job_id)).await {
            Ok(stored) => stored,
            Err(failure) => {
                tracing::warn!(%failure, "reading the jobs of active Jobs failed; trying again");
                return;
            }
        };
        let has_ended = |seen: &&JobFacts| {
            stored.get(seen.runner_job_id).is_some_and(|job| is_over(app, job, &seen.name, WATCH_LAG_MAX))
        };
        let ended: Vec<JobFacts> = page.iter().filter(has_ended).cloned().collect();
        let deletions = stream::iter(ended).for_each_concurrent(DELETIONS_MAX, |seen| async move {
            tracing::info!(name = seen.name, "deleting a Job whose start has ended");
            if let Err(error) = kubernetes.cluster.delete_job(&seen.name, &seen.uid).await {
                tracing::warn!(%error, name = seen.name, "a Job whose start has ended could not be deleted; trying again");
            }
        });
        deletions.await;
    }
}

/// Whether the start that created the Job of this name ended at least `since` ago.
fn is_over(app: &App, job: &RunnerJob, name: &str, since: Duration) -> bool {
    let current = cluster_job_name(&app.config.kubernetes.job_prefix, job.runner_job_id, job.starts);
    (!is_started(job) || current != name) && age(job, app.now()) >= since
}

/// Runner jobs as they are stored, by their ids.
struct StoredJobs(HashMap<RunnerJobId, RunnerJob>);

impl StoredJobs {
    async fn read(app: &App, job_ids: impl Iterator<Item = RunnerJobId>) -> Result<Self, Failure> {
        let job_ids: Vec<_> = job_ids.collect::<BTreeSet<_>>().into_iter().collect();
        if job_ids.is_empty() {
            return Ok(Self(HashMap::new()));
        }
        let jobs = store::kernel::runner_jobs::list_by_ids(&app.db, &job_ids).await?;
        Ok(Self(jobs.into_iter().map(|job| (job.runner_job_id, job)).collect()))
    }

    /// `None` if the runner job is not one of this store.
    fn get(&self, job_id: RunnerJobId) -> Option<&RunnerJob> {
        self.0.get(&job_id)
    }
}

/// Deletes finished Jobs, one pass at a time, while the launcher continues.
#[derive(Default)]
pub(super) struct FinishedJobs {
    /// The uids of Jobs whose runner jobs this store does not have. They are not read again.
    foreign: Arc<Mutex<BTreeSet<String>>>,
    pass: Option<JoinHandle<()>>,
}

impl FinishedJobs {
    /// Deletes the oldest finished Jobs if there are too many with the `wanted` ones that are about to be created. Active ones are
    /// never deleted to make room.
    pub(super) fn make_room(&mut self, app: &App, kubernetes: &Kubernetes, wanted: usize) {
        if self.pass.as_ref().is_some_and(|pass| !pass.is_finished()) {
            return;
        }
        let section = &app.config.kubernetes;
        let finished = take_known(&mut self.foreign.lock(), kubernetes.cache.finished(&section.job_prefix));
        let stay = (section.finished_jobs_max as usize).saturating_sub(wanted);
        if finished.len() <= stay {
            return;
        }
        let (app, kubernetes, foreign) = (app.clone(), kubernetes.clone(), self.foreign.clone());
        self.pass = Some(tokio::spawn(async move {
            if let Err(failure) = delete_oldest(&app, &kubernetes, &foreign, finished, stay).await {
                tracing::warn!(%failure, "reading the jobs of finished Jobs failed; trying again");
            }
        }));
    }
}

impl Drop for FinishedJobs {
    fn drop(&mut self) {
        if let Some(pass) = &self.pass {
            pass.abort();
        }
    }
}

/// Deletes the oldest of the finished Jobs, which are ordered by age, so that this many stay.
async fn delete_oldest(
    app: &App,
    kubernetes: &Kubernetes,
    foreign: &Mutex<BTreeSet<String>>,
    finished: Vec<FinishedJob>,
    stay: usize,
) -> Result<(), Failure> {
    let (mut count, mut deletable) = (0_usize, vec![]);
    for page in finished.chunks(PAGE_ROWS_MAX) {
        let stored = StoredJobs::read(app, page.iter().map(|seen| seen.runner_job_id)).await?;
        for seen in page {
            let Some(job) = stored.get(seen.runner_job_id) else {
                foreign.lock().insert(seen.uid.clone());
                continue;
            };
            count += 1;
            // A Job whose end is not stored yet is needed. A younger one is deleted in its place.
            if is_over(app, job, &seen.name, Duration::ZERO) {
                deletable.push(seen.clone());
            }
        }
    }
    deletable.truncate(count.saturating_sub(stay));
    let deletions = stream::iter(deletable).for_each_concurrent(DELETIONS_MAX, |job| async move {
        match kubernetes.cluster.delete_job(&job.name, &job.uid).await {
            Ok(()) => kubernetes.cache.remove_job(&job.name),
            Err(error) => tracing::warn!(%error, name = job.name, "a finished Job could not be deleted"),
        }
    });
    deletions.await;
    Ok(())
}

/// The Jobs that are not known to be foreign. Foreign ones that are gone are forgotten.
fn take_known(foreign: &mut BTreeSet<String>, finished: Vec<FinishedJob>) -> Vec<FinishedJob> {
    let uids: BTreeSet<&str> = finished.iter().map(|job| job.uid.as_str()).collect();
    foreign.retain(|uid| uids.contains(uid.as_str()));
    finished.into_iter().filter(|job| !foreign.contains(&job.uid)).collect()
}
