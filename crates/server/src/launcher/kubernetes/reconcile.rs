//! Compares started jobs with the cluster, and carries out the step that follows for each. Runs on every server, without a leader.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use ostler_protocol::{
    Failure, RawJson, Timestamp,
    ids::RunnerJobId,
    kernel::{
        cluster_launching::{ClusterState, ClusterStep, StartFacts, StartLimits, next_step},
        operations::FinishJobOp,
        runner_jobs::{JobEnd, JobObservation, Launcher, ObservedPhase, RunnerJob, cluster_job_name},
    },
};
use ostler_store as store;
use serde_json::json;
use tokio::time::Instant;

use super::started::is_started;
use crate::{
    app::App,
    kubernetes::{
        Kubernetes,
        observe::{job_facts, pod_facts},
    },
    service::{job_extras, lookup},
};

/// Jobs that are looked at concurrently, so that their reports share commits.
const LOOKS_MAX: usize = 16;
/// Rows in one read.
const PAGE_ROWS_MAX: u32 = 500;
/// How long the server that claimed a job gets to create its Job before another one does.
const CREATE_PATIENCE: Duration = Duration::from_secs(10);
/// How long after the end of a start its Job is taken for unfinished only because this server's watch is late.
const WATCH_LAG_MAX: Duration = Duration::from_secs(5);
/// How long a runner may try to claim its run, beside the length of a lease.
const CLAIM_WAIT: Duration = Duration::from_secs(90);

/// The observed reason where the cluster gives none, because the Job does not exist any more.
const JOB_DELETED: &str = "JobDeleted";

pub(super) struct Reconciler {
    app: App,
    kubernetes: Kubernetes,
    /// What this server remembers of started jobs, by claim.
    notes: HashMap<RunnerJobId, StartNotes>,
}

#[derive(Clone, Default)]
struct StartNotes {
    /// The claim that this is about.
    owner: Option<String>,
    /// Whether the runner has held its run, and since when it is without it although its pod runs.
    was_held: bool,
    unheld_since: Option<Instant>,
    /// Whether the Secret of a pod that does not start was created once more.
    has_completed: bool,
}

/// What a look at a job leads to.
enum Outcome {
    Done,
    /// The job was claimed, and its Job does not exist.
    Create(Box<RunnerJob>),
}

impl Reconciler {
    pub(super) fn new(app: App, kubernetes: Kubernetes) -> Self {
        Self { app, kubernetes, notes: HashMap::new() }
    }

    /// Looks at jobs whose objects have changed. Returns those whose Jobs must be created.
    pub(super) async fn look_at(&mut self, job_ids: Vec<RunnerJobId>) -> Vec<RunnerJob> {
        if !self.kubernetes.cache.is_complete() {
            return vec![];
        }
        let mut jobs = vec![];
        for job_id in job_ids {
            match store::kernel::runner_jobs::get(&self.app.db, job_id).await {
                Ok(job) => jobs.extend(job.filter(is_started)),
                Err(error) => {
                    tracing::warn!(%error, "reading a job failed; it is looked at again");
                    return vec![];
                }
            }
        }
        self.look(jobs, None).await
    }

    /// Looks at every started job, and at Jobs that no start needs any more.
    pub(super) async fn look_at_all(&mut self) -> Vec<RunnerJob> {
        if !self.kubernetes.cache.is_complete() {
            return vec![];
        }
        match self.try_look_at_all().await {
            Ok(absent) => absent,
            Err(failure) => {
                tracing::warn!(%failure, cause = failure.cause.as_deref(), "comparing jobs with the cluster failed; trying again");
                vec![]
            }
        }
    }

    async fn try_look_at_all(&mut self) -> Result<Vec<RunnerJob>, Failure> {
        let now = self.app.now();
        let held = store::kernel::runner_jobs::list_started_and_held(&self.app.db, Launcher::Kubernetes, now).await?;
        let held: BTreeSet<_> = held.into_iter().collect();
        let (mut absent, mut after, mut names, mut started) = (vec![], None, BTreeSet::new(), BTreeSet::new());
        loop {
            let launcher = Launcher::Kubernetes;
            let jobs = store::kernel::runner_jobs::list_started(&self.app.db, launcher, after, PAGE_ROWS_MAX).await?;
            let is_last = jobs.len() < PAGE_ROWS_MAX as usize;
            after = jobs.last().map(|job| job.runner_job_id);
            names.extend(jobs.iter().map(|job| self.name_of(job)));
            started.extend(jobs.iter().map(|job| job.runner_job_id));
            absent.extend(self.look(jobs, Some(&held)).await);
            if is_last {
                break;
            }
        }
        self.notes.retain(|job_id, _| started.contains(job_id));
        remove_superseded(&self.app, &self.kubernetes, &names).await;
        Ok(absent)
    }

    fn name_of(&self, job: &RunnerJob) -> String {
        cluster_job_name(&self.app.config.kubernetes.job_prefix, job.runner_job_id, job.starts)
    }

    /// `held`: the jobs whose runners hold their runs. `None` if that was not read: then no runner counts as without a lease.
    async fn look(&mut self, jobs: Vec<RunnerJob>, held: Option<&BTreeSet<RunnerJobId>>) -> Vec<RunnerJob> {
        let now = self.app.wall();
        let hand = self.app.in_hand.snapshot();
        let (mut looks, mut incomplete) = (vec![], vec![]);
        for job in jobs.into_iter().filter(|job| !hand.holds(job.runner_job_id)) {
            let state = self.kubernetes.cache.state(&self.name_of(&job), now);
            let facts = self.facts(&job, &state, held);
            if held.is_some() && self.may_be_incomplete(&job, &state, facts) && !self.has_secret(&job).await {
                incomplete.push(job);
                continue;
            }
            looks.push((job, state, facts));
        }
        let (app, kubernetes) = (&self.app, &self.kubernetes);
        let outcomes = stream::iter(looks).map(|(job, state, facts)| async move {
            let job_id = job.runner_job_id;
            match look_at(app, kubernetes, job, state, facts).await {
                Ok(outcome) => outcome,
                Err(failure) => {
                    let cause = failure.cause.as_deref();
                    tracing::warn!(%failure, cause, job = %job_id, "comparing a job with the cluster failed; trying again");
                    Outcome::Done
                }
            }
        });
        let outcomes: Vec<_> = outcomes.buffer_unordered(LOOKS_MAX).collect().await;
        let absent = outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Create(job) => Some(*job),
            Outcome::Done => None,
        });
        absent.chain(incomplete).collect()
    }

    /// Whether the Secret of a start exists. False if that is unknown: to create it again does no harm.
    async fn has_secret(&self, job: &RunnerJob) -> bool {
        self.kubernetes.cluster.has_secret(&self.name_of(job)).await.unwrap_or(false)
    }

    /// Whether the start may have been cut off between the Job and its Secret, without which no container starts. True once per
    /// start and server.
    fn may_be_incomplete(&mut self, job: &RunnerJob, state: &ClusterState, facts: StartFacts) -> bool {
        const WITHOUT_SECRET: [Option<&str>; 3] = [None, Some("ContainerCreating"), Some("CreateContainerConfigError")];
        let ClusterState::Active(seen) = state else { return false };
        let can_lack_it = seen.phase == ObservedPhase::Pending && WITHOUT_SECRET.contains(&seen.reason.as_deref());
        let Some(notes) = self.notes.get_mut(&job.runner_job_id) else { return false };
        can_lack_it && facts.age >= CREATE_PATIENCE && !std::mem::replace(&mut notes.has_completed, true)
    }

    fn facts(&mut self, job: &RunnerJob, state: &ClusterState, held: Option<&BTreeSet<RunnerJobId>>) -> StartFacts {
        let is_held = held.is_none_or(|held| held.contains(&job.runner_job_id));
        let is_running = matches!(state, ClusterState::Active(seen) if seen.phase == ObservedPhase::Running);
        let notes = self.notes.entry(job.runner_job_id).or_default();
        if notes.owner != job.owner {
            *notes = StartNotes { owner: job.owner.clone(), ..StartNotes::default() };
        }
        if held.is_some() {
            notes.was_held |= is_held;
            notes.unheld_since = match is_held || !is_running {
                true => None,
                false => notes.unheld_since.or_else(|| Some(Instant::now())),
            };
        }
        StartFacts {
            is_recorded: !recorded(job).job_uid.is_empty(),
            has_pod: job.pod_name.is_some(),
            is_held,
            // Read when it matters.
            has_work: true,
            age: age(job, self.app.now()),
            was_held: notes.was_held,
            unheld_for: notes.unheld_since.map(|since| since.elapsed()).unwrap_or_default(),
        }
    }
}

async fn look_at(
    app: &App,
    kubernetes: &Kubernetes,
    job: RunnerJob,
    mut state: ClusterState,
    mut facts: StartFacts,
) -> Result<Outcome, Failure> {
    if state == ClusterState::Absent {
        if !facts.is_recorded && facts.age < CREATE_PATIENCE {
            return Ok(Outcome::Done);
        }
        state = confirm_absence(app, kubernetes, &job).await?;
    }
    if facts.has_pod && matches!(&state, ClusterState::Active(seen) if seen.pod_name.is_none()) {
        state = confirm_pods_absence(app, kubernetes, &job).await?;
    }
    let is_waiting = matches!(&state, ClusterState::Active(seen) if seen.phase == ObservedPhase::Pending);
    if is_waiting || state == ClusterState::Absent {
        let run = lookup::run_unchecked(app, job.run_id).await?;
        facts.has_work = run.unfinished_commands > 0 && !run.status.is_terminal();
        // What is seen of a pod may be late: its runner may have had the run already, and exits by itself.
        facts.has_work |= is_waiting && (facts.was_held || facts.age < CREATE_PATIENCE);
    }
    // What a deleted Job last showed is not true any more.
    let is_deleted = state == ClusterState::Absent && facts.is_recorded;
    let seen = match is_deleted {
        true => Some(after_deletion(&job)),
        false => observation_of(&state),
    };
    match next_step(state, facts, limits(app)) {
        ClusterStep::Wait => {}
        ClusterStep::Create => return Ok(Outcome::Create(Box::new(job))),
        ClusterStep::Record(observed) => record(app, &job, &observed).await?,
        ClusterStep::Finish { end, summary } => {
            if let Some(observed) = &seen {
                record(app, &job, observed).await?;
            }
            finish(app, &job, end, summary).await;
        }
        ClusterStep::Remove { end, summary } => {
            if let Some(observed) = &seen {
                record(app, &job, observed).await?;
                kubernetes.cluster.delete_job(&observed.job_name, &observed.job_uid).await?;
            }
            finish(app, &job, end, summary).await;
        }
    }
    Ok(Outcome::Done)
}

/// The cache may lag behind: another server may have created the Job a moment ago. The API server knows.
async fn confirm_absence(app: &App, kubernetes: &Kubernetes, job: &RunnerJob) -> Result<ClusterState, Failure> {
    let name = cluster_job_name(&app.config.kubernetes.job_prefix, job.runner_job_id, job.starts);
    let found = kubernetes.cluster.get_job(&name).await?;
    if let Some(facts) = found.as_ref().and_then(job_facts) {
        kubernetes.cache.put_job(facts);
    }
    Ok(kubernetes.cache.state(&name, app.wall()))
}

/// As [`confirm_absence`], for the pod of a Job: another server's watch may have seen it first.
async fn confirm_pods_absence(app: &App, kubernetes: &Kubernetes, job: &RunnerJob) -> Result<ClusterState, Failure> {
    let name = cluster_job_name(&app.config.kubernetes.job_prefix, job.runner_job_id, job.starts);
    for pod in kubernetes.cluster.pods_of(&name).await?.iter().filter_map(pod_facts) {
        kubernetes.cache.put_pod(pod);
    }
    Ok(kubernetes.cache.state(&name, app.wall()))
}

/// The last observation of a start whose Job was deleted: nothing shows how its runner ended.
fn after_deletion(job: &RunnerJob) -> JobObservation {
    let reason = Some(JOB_DELETED.to_owned());
    JobObservation { phase: ObservedPhase::Unknown, reason, message: None, ..recorded(job) }
}

fn observation_of(state: &ClusterState) -> Option<JobObservation> {
    match state {
        ClusterState::Absent | ClusterState::Ending => None,
        ClusterState::Active(observed) | ClusterState::Terminated(observed) | ClusterState::Vanished(observed) => {
            Some(observed.clone())
        }
    }
}

fn limits(app: &App) -> StartLimits {
    StartLimits {
        start: Duration::from_millis(app.config.kubernetes.start_timeout_ms),
        until_lease: CLAIM_WAIT + Duration::from_millis(app.config.runner.lease_ms.unsigned_abs()),
        after_lease: Duration::from_secs(app.config.kubernetes.grace_s.into()),
    }
}

fn age(job: &RunnerJob, now: Timestamp) -> Duration {
    // Only a claim changes this time of a running job.
    Duration::try_from(now.duration_since(job.updated_at)).unwrap_or_default()
}

fn recorded(job: &RunnerJob) -> JobObservation {
    serde_json::from_str(job.observed.as_str()).unwrap_or_default()
}

/// Stores what was observed, if it is new.
async fn record(app: &App, job: &RunnerJob, observed: &JobObservation) -> Result<(), Failure> {
    // The summary of a runner that has ended is stored as such.
    let message = observed.message.as_deref().map(|message| job_extras::redact(app, job, message));
    let message = message.filter(|_| observed.exit_code.is_none());
    let observed = JobObservation { message, ..observed.clone() };
    if recorded(job) == observed {
        return Ok(());
    }
    let (text, owner) = (RawJson::of(&observed), job.owner.as_deref().unwrap_or_default());
    let pod_name = observed.pod_name.as_deref().unwrap_or_default();
    store::kernel::runner_jobs::update_observed(&app.db, job.runner_job_id, owner, text.as_str(), pod_name).await?;
    Ok(())
}

/// Reports the end of a start. If the store does not respond, the next comparison reports it again.
pub(super) async fn finish(app: &App, job: &RunnerJob, end: JobEnd, summary: RawJson) {
    let Some(owner) = job.owner.clone() else { return };
    let summary = job_extras::redact_json(app, job, &summary).unwrap_or_else(|_| RawJson::null());
    let (runner_job_id, heartbeat_at) = (job.runner_job_id, job.heartbeat_at);
    let op = FinishJobOp { runner_job_id, owner, end, heartbeat_at, summary };
    match app.try_submit(job.session, job.run_id, op).await {
        // Every server that watches the cluster reports the end; only one of the reports is recorded.
        Ok(Some(true)) => app.metrics.job_ended(end),
        Ok(_) => {}
        Err(failure) => {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), job = %job.runner_job_id,
                "the end of a job could not be stored; trying again");
        }
    }
}

pub(super) fn nothing_left() -> RawJson {
    RawJson::of(&json!({"status": "idle", "message": "there was nothing left to do"}))
}

/// Deletes active Jobs of starts that have ended: their nodes may come back. `needed`: the names of the Jobs of current starts. A Job
/// that cannot be deleted is tried again by the next comparison.
async fn remove_superseded(app: &App, kubernetes: &Kubernetes, needed: &BTreeSet<String>) {
    for seen in kubernetes.cache.active_except(&app.config.kubernetes.job_prefix, needed, app.wall()) {
        let removed = async {
            if !is_over(app, seen.runner_job_id, &seen.name, WATCH_LAG_MAX).await? {
                return Ok(());
            }
            tracing::info!(name = seen.name, "deleting a Job whose start has ended");
            kubernetes.cluster.delete_job(&seen.name, &seen.uid).await?;
            Ok::<_, Failure>(())
        };
        if let Err(failure) = removed.await {
            tracing::warn!(%failure, name = seen.name, "a Job whose start has ended could not be deleted; trying again");
        }
    }
}

/// Whether the Job is one of a start that has ended at least this long ago. False if the runner job is not one of this store.
async fn is_over(app: &App, job_id: RunnerJobId, name: &str, since: Duration) -> Result<bool, Failure> {
    let Some(job) = store::kernel::runner_jobs::get(&app.db, job_id).await? else { return Ok(false) };
    let current = cluster_job_name(&app.config.kubernetes.job_prefix, job_id, job.starts);
    Ok((!is_started(&job) || current != name) && age(&job, app.now()) >= since)
}

/// Deletes the oldest finished Jobs if there are too many with those that are about to be created. Active ones are never deleted
/// to make room.
pub(super) async fn clean_up(app: &App, kubernetes: &Kubernetes, wanted: usize) {
    if wanted == 0 {
        return;
    }
    let section = &app.config.kubernetes;
    let finished = kubernetes.cache.finished(&section.job_prefix);
    let over = (finished.len() + wanted).saturating_sub(section.finished_jobs_max as usize);
    if over == 0 {
        return;
    }
    // A Job whose end is not stored yet is needed. A younger one is deleted in its place.
    let deletable = stream::iter(finished).filter_map(|job| async move {
        match is_over(app, job.runner_job_id, &job.name, Duration::ZERO).await {
            Ok(is_over) => is_over.then_some(job),
            Err(failure) => {
                tracing::warn!(%failure, name = job.name, "reading the job of a finished Job failed");
                None
            }
        }
    });
    let deletions = deletable.take(over).for_each_concurrent(LOOKS_MAX, |job| async move {
        match kubernetes.cluster.delete_job(&job.name, &job.uid).await {
            Ok(()) => kubernetes.cache.remove_job(&job.name),
            Err(error) => tracing::warn!(%error, name = job.name, "a finished Job could not be deleted"),
        }
    });
    deletions.await;
}
