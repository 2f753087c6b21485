//! Compares started jobs with the cluster, and carries out the step that follows for each. Runs on every server, without a leader.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use ostler_protocol::{
    Failure, RawJson,
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

use super::{
    clean_up,
    started::{age, current, has_work, is_started},
};
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
pub(super) const CREATE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a pod may take to pull its image before this server looks whether it lacks its Secret.
const VOLUME_PATIENCE: Duration = Duration::from_secs(30);
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
        for page in job_ids.chunks(PAGE_ROWS_MAX as usize) {
            match store::kernel::runner_jobs::list_by_ids(&self.app.db, page).await {
                Ok(found) => jobs.extend(found.into_iter().filter(is_started)),
                Err(error) => {
                    tracing::warn!(%error, "reading jobs failed; they are looked at again");
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
        clean_up::remove_superseded(&self.app, &self.kubernetes, &names).await;
        Ok(absent)
    }

    fn name_of(&self, job: &RunnerJob) -> String {
        cluster_job_name(&self.app.config.kubernetes.job_prefix, job.runner_job_id, job.starts)
    }

    /// `held`: the jobs whose runners hold their runs. `None` if that was not read: then no runner counts as without a lease.
    async fn look(&mut self, jobs: Vec<RunnerJob>, held: Option<&BTreeSet<RunnerJobId>>) -> Vec<RunnerJob> {
        let now = self.app.wall();
        let launcher_jobs = self.app.held_jobs.snapshot();
        let (mut looks, mut suspects) = (vec![], vec![]);
        for job in jobs.into_iter().filter(|job| !launcher_jobs.holds(job.runner_job_id)) {
            let state = self.kubernetes.cache.state(&self.name_of(&job), now);
            let facts = self.facts(&job, &state, held);
            match held.is_some() && self.may_be_incomplete(&job, &state, facts) {
                true => suspects.push((job, state, facts)),
                false => looks.push((job, state, facts)),
            }
        }
        let reconciler = &*self;
        let lookups = stream::iter(suspects).map(|look| async move { (reconciler.has_secret(&look.0).await, look) });
        let mut incomplete = vec![];
        for (has_secret, look) in lookups.buffer_unordered(LOOKS_MAX).collect::<Vec<_>>().await {
            match has_secret {
                true => looks.push(look),
                false => incomplete.push(look.0),
            }
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

    /// Whether the Secret of a start exists. If that is unknown, true: it is looked up again.
    async fn has_secret(&self, job: &RunnerJob) -> bool {
        let name = self.name_of(job);
        match self.kubernetes.cluster.has_secret(&name).await {
            Ok(true) => self.kubernetes.cache.note_secret(&name),
            Ok(false) => return false,
            Err(error) => {
                tracing::warn!(%error, name, "the Secret of a Job could not be looked up; trying again");
            }
        }
        true
    }

    /// Whether the start may have been cut off between the Job and its Secret, without which no container starts. The lookup that
    /// follows costs a call, so the pod must have waited for long, for a reason that can be a missing Secret.
    fn may_be_incomplete(&self, job: &RunnerJob, state: &ClusterState, facts: StartFacts) -> bool {
        let ClusterState::Active(seen) = state else { return false };
        let patience = match seen.reason.as_deref() {
            Some("CreateContainerConfigError") => CREATE_PATIENCE,
            // Shown for missing volumes of a Secret, and for images that take long.
            Some("ContainerCreating") => VOLUME_PATIENCE,
            _ => return false,
        };
        let is_late = seen.phase == ObservedPhase::Pending && facts.age >= patience;
        is_late && !self.kubernetes.cache.has_secret(&self.name_of(job))
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
        facts.has_work = has_work(app, &run, &job).await?;
        // What is seen of a pod may be late: its runner may have had the run already, and exits by itself.
        facts.has_work |= is_waiting && (facts.was_held || facts.age < CREATE_PATIENCE);
    }
    let state = state.with_reason_of_wait(&recorded(&job), facts.was_held);
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
        start: start_timeout(app),
        until_lease: CLAIM_WAIT + Duration::from_millis(app.config.runner.lease_ms.unsigned_abs()),
        after_lease: Duration::from_secs(app.config.kubernetes.grace_s.into()),
    }
}

/// How long a start may take from the claim of its job until its runner runs.
pub(super) fn start_timeout(app: &App) -> Duration {
    Duration::from_millis(app.config.kubernetes.start_timeout_ms)
}

fn recorded(job: &RunnerJob) -> JobObservation {
    serde_json::from_str(job.observed.as_str()).unwrap_or_default()
}

/// Stores what was observed, if it is new.
pub(super) async fn record(app: &App, job: &RunnerJob, observed: &JobObservation) -> Result<(), Failure> {
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

/// Stores why a start has no Job yet, unless a Job of it is recorded: another server may have created it, although this one cannot
/// reach the cluster.
pub(super) async fn record_wait(app: &App, job: &RunnerJob, observed: &JobObservation) -> Result<(), Failure> {
    let owner = job.owner.as_deref().unwrap_or_default();
    let Some(job) = current(app, job.runner_job_id, owner).await? else { return Ok(()) };
    let message = observed.message.as_deref().map(|message| job_extras::redact(app, &job, message));
    let observed = JobObservation { message, ..observed.clone() };
    let stored = recorded(&job);
    if stored == observed || !stored.job_uid.is_empty() {
        return Ok(());
    }
    let text = RawJson::of(&observed);
    let (job_id, stored) = (job.runner_job_id, job.observed.as_str());
    store::kernel::runner_jobs::replace_observed(&app.db, job_id, owner, stored, text.as_str()).await?;
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
