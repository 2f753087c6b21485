//! The Kubernetes launcher: a Job for each runner job. No server owns a Job. Each server watches the cluster and carries out what
//! `kernel::cluster_launching` decides about each started job; every step can be repeated and can be taken by several servers at
//! once. A Job outlives the server that created it.

mod clean_up;
mod places;
mod pod_contents;
mod reconcile;
mod start;
mod started;
mod storage;

use std::time::Duration;

use ostler_protocol::kernel::runner_jobs::RunnerJob;
use ostler_store as store;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

use crate::{
    app::App,
    kubernetes::{Kubernetes, KubernetesState, watch},
    recheck::Recheck,
};

use clean_up::FinishedJobs;
use places::{STARTS_MAX, StartPlaces};
use reconcile::Reconciler;

/// Runs jobs until the server drains. Their runners continue without it.
pub(super) async fn run(app: &App) {
    let Some(kubernetes) = app.state::<KubernetesState>().get().cloned() else { return };
    tokio::select! {
        () = watch(&kubernetes.cluster, &kubernetes.cache) => {}
        () = run_jobs(app, &kubernetes) => {}
    }
}

async fn run_jobs(app: &App, kubernetes: &Kubernetes) {
    let (mut starts, mut finished_jobs) = (Starts::new(app, kubernetes), FinishedJobs::default());
    let mut reconciler = Reconciler::new(app.clone(), kubernetes.clone());
    let pause = Duration::from_millis(app.config.kubernetes.resync_ms);
    let mut resync = interval_at(Instant::now() + pause, pause);
    resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut recheck = Recheck::new(app);
    // A claim costs a transaction, so it is made only if there may be a job to claim: the launcher was woken, the interval is over, or
    // something has changed while the last claim was short of places, of room in the cluster, or of a response.
    let (mut is_claim_due, mut is_short) = (true, false);
    loop {
        while starts.tasks.try_join_next().is_some() {
            is_claim_due |= is_short;
        }
        if app.is_draining() {
            break;
        }
        if is_claim_due {
            let claim = claim(app, kubernetes, starts.count_free()).await;
            is_short = claim.is_short;
            finished_jobs.make_room(app, kubernetes, claim.jobs.len());
            claim.jobs.into_iter().for_each(|job| starts.spawn(job));
            recheck.restart();
        }
        tokio::select! {
            _ = recheck.or_woken(None, app.hub.jobs.notified()) => is_claim_due = true,
            changed = kubernetes.cache.changed() => {
                let absent = reconciler.look_at(changed.into_iter().collect()).await;
                absent.into_iter().for_each(|job| starts.spawn(job));
                is_claim_due = is_short;
            }
            _ = resync.tick() => {
                let absent = reconciler.look_at_all().await;
                absent.into_iter().for_each(|job| starts.spawn(job));
                finished_jobs.make_room(app, kubernetes, 0);
                is_claim_due = is_short;
            }
            Some(_) = starts.tasks.join_next(), if starts.tasks.len() >= STARTS_MAX => is_claim_due = is_short,
            () = app.drained() => break,
            () = app.stopped() => break,
        }
    }
    // A start that is cut off is continued by another server, or by this one after its restart.
    starts.tasks.shutdown().await;
}

/// The starts that are under way on this server.
struct Starts<'a> {
    app: &'a App,
    kubernetes: &'a Kubernetes,
    tasks: JoinSet<()>,
    places: StartPlaces,
}

impl<'a> Starts<'a> {
    fn new(app: &'a App, kubernetes: &'a Kubernetes) -> Self {
        Self { app, kubernetes, tasks: JoinSet::new(), places: StartPlaces::default() }
    }

    /// How many more starts this server takes on.
    fn count_free(&self) -> usize {
        self.places.count_free(self.app, self.tasks.len())
    }

    /// Creates the Job of a claimed job in its own task, unless that is under way.
    fn spawn(&mut self, job: RunnerJob) {
        let Some(held) = self.app.held_jobs.take_up(job.runner_job_id) else { return };
        let (app, kubernetes, places) = (self.app.clone(), self.kubernetes.clone(), self.places.clone());
        self.tasks.spawn(async move {
            start::start(&app, &kubernetes, &places, &job).await;
            drop(held);
            // It was not looked at while it was in hand.
            kubernetes.cache.touch(job.runner_job_id);
        });
    }
}

/// The jobs of a claim, and whether more may wait that could not be claimed now.
struct JobClaim {
    jobs: Vec<RunnerJob>,
    is_short: bool,
}

/// Claims jobs that wait. Only while the cluster has been listed: otherwise finished Jobs could not be counted.
async fn claim(app: &App, kubernetes: &Kubernetes, places: usize) -> JobClaim {
    let nothing = JobClaim { jobs: vec![], is_short: true };
    if places == 0 || !kubernetes.cache.is_complete() {
        return nothing;
    }
    let section = &app.config.kubernetes;
    let room = (section.active_jobs_max as usize).saturating_sub(kubernetes.cache.count_active(&section.job_prefix));
    let places = places.min(room).min(super::TAKE_MAX) as u32;
    if places == 0 {
        return nothing;
    }
    // Names this claim, so that a report about an earlier one changes nothing.
    let owner = format!("kubernetes-{}", app.ids.body().simple());
    let jobs = super::launchable(app);
    match store::kernel::runner_jobs::claim_for_cluster(&app.db, &owner, app.now(), places, jobs).await {
        Ok(claimed) => {
            let is_short = claimed.len() as u32 == places;
            if is_short {
                app.hub.jobs.notify_one();
            }
            JobClaim { jobs: claimed, is_short }
        }
        Err(error) => {
            // The store may have carried it out all the same. Such jobs are found by the next comparison with the cluster.
            tracing::warn!(%error, "claiming jobs failed; they are looked for again");
            nothing
        }
    }
}
