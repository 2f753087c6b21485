//! Launchers: each claims runner jobs, starts a runner for each, and reports how it ended. None ever scans runs for work.
//! They differ only in where a runner runs.
//!
//! The store may fail at any moment, and it may carry out a write whose response is lost. So a launcher renews the heartbeat
//! only of jobs that it has in hand, repeats a report until the store has it, and looks for jobs of claims that got no
//! response. The rules are in `ostler_protocol::kernel::launching`.

pub(crate) mod bound_references;
mod bundles;
mod ending;
mod environment;
mod guard;
mod held_jobs;
pub(crate) mod isolation;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod places;
mod process;
#[cfg(feature = "kubernetes")]
pub(crate) mod ref_lookups;
mod resident;
pub(crate) mod shared_homes;
pub(crate) mod shell;
pub(crate) mod standalone;
pub(crate) mod workspaces;

use std::{sync::Arc, time::Duration};

use axum::Router;
use jiff::SignedDuration;
use ostler_client::InProcess;
use ostler_protocol::{
    Failure, FailureKind, RawJson, Timestamp,
    kernel::{
        launching::{AfterFinish, Owned, after_finish},
        leases::Claimed,
        operations::{DismissOp, FinishJobOp, StartedJob},
        runner_jobs::{Launcher, RunnerJob},
    },
};
use ostler_store::{self as store, kernel::runner_jobs::LaunchableJobs};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    app::App,
    launcher::{
        ending::{Ending, failed},
        held_jobs::HeldJob,
        places::ResidentJob,
    },
    recheck::Recheck,
    service::leases,
};

pub(crate) use ending::{STORE_PAUSE, longer};
pub(crate) use guard::guard;
pub(crate) use held_jobs::HeldJobs;
pub(crate) use places::ResidentPlaces;

/// Maximum number of jobs in one claim.
const TAKE_MAX: usize = 32;
/// Interval of heartbeats of jobs, unless the silence that would lose them is short; then several times within it.
const HEARTBEAT_MS_MAX: u64 = 5_000;
/// The shortest time that a heartbeat gets, however short the silence is.
const HEARTBEAT_PATIENCE_MS_MIN: u64 = 250;
/// For how long a stopping server tries to store how its runners ended. Another server finds out without it, later.
const STOP_REPORT: Duration = Duration::from_secs(5);
/// How often a stopping server looks whether a flush that has reserved a place is committed.
const RESERVATION_LOOK: Duration = Duration::from_millis(10);
/// How often the launcher looks for homes of jobs that no longer run.
const SWEEP_HOMES: Duration = Duration::from_secs(60);

/// Where runners run.
enum RunnerHost {
    Resident(InProcess),
    Process,
}

impl RunnerHost {
    /// `claimed` is the claim of the run, if it was made together with the start of the job.
    async fn run(&self, app: &App, owner: &str, job: &RunnerJob, claimed: Option<Claimed>) -> Ending {
        match self {
            Self::Resident(call) => resident::run(app, call.clone(), job, claimed).await,
            Self::Process => process::run(app, owner, job).await,
        }
    }
}

/// Runs jobs until the server stops. While the server drains, no job is claimed, and this returns after the last runner.
pub(crate) async fn run(app: App, router: Router) {
    sweep_homes(&app).await;
    if app.config.runner.slots == 0 {
        return;
    }
    #[cfg(feature = "kubernetes")]
    if app.config.runner.launcher == Launcher::Kubernetes {
        return kubernetes::run(&app).await;
    }
    let owner = format!("{}-{}", app.config.runner.launcher.as_str(), app.ids.body().simple());
    tokio::select! {
        () = run_jobs(&app, router, &owner) => {}
        () = keep_vouching(&app, &owner) => {}
    }
}

async fn sweep_homes(app: &App) {
    environment::sweep(app).await;
    standalone::sweep(app).await;
}

async fn run_jobs(app: &App, router: Router, owner: &str) {
    let host = match app.config.runner.launcher {
        Launcher::Resident => RunnerHost::Resident(resident::in_process(router)),
        // The configuration cannot name runners elsewhere, and Jobs are not started here.
        Launcher::Process | Launcher::External | Launcher::Kubernetes => RunnerHost::Process,
    };
    let slots = Arc::new(Semaphore::new(app.config.runner.slots));
    let mut started = match host {
        RunnerHost::Resident(_) => app.places.open((&app.config, app.placement.as_deref()), owner, &slots),
        RunnerHost::Process => mpsc::unbounded_channel().1,
    };
    let mut runners = Runners { app, host: Arc::new(host), owner, tasks: JoinSet::new() };
    let outlives = app.config.runner.keep_on_stop && app.config.runner.launcher.outlives_server();
    let mut homes = tokio::time::interval_at(Instant::now() + SWEEP_HOMES, SWEEP_HOMES);
    let mut recheck = Recheck::new(app);
    // A claim costs a transaction, so it is made only if there may be a job to claim: the launcher was woken, the interval is
    // over, or a runner has ended while it was short of slots or of a response.
    let (mut is_claim_due, mut is_short) = (true, false);
    loop {
        while runners.tasks.try_join_next().is_some() {
            is_claim_due |= is_short;
        }
        let draining = app.is_draining();
        if draining {
            // Otherwise a job would be started by a server that is about to stop.
            app.places.stop_reserving();
            if runners.tasks.is_empty() && slots.available_permits() == app.config.runner.slots {
                break;
            }
            if !outlives {
                let dismissed = dismiss_runners(app, owner, u32::MAX, DismissOp { only_if_idle: false });
                runners.start_reserved_during(&mut started, dismissed).await;
            }
        }
        if is_claim_due && !draining {
            let taken = runners.start_reserved_during(&mut started, take(app, owner, &slots)).await;
            app.places.note_waiting(taken.may_be_more);
            is_short = taken.may_be_more || app.held_jobs.has_unanswered();
            for (job, slot) in taken.jobs {
                runners.start_claimed(job, slot);
            }
            recheck.restart();
        }
        is_claim_due = false;
        tokio::select! {
            _ = recheck.or_woken(None, app.hub.jobs.notified()) => is_claim_due = true,
            Some(job) = started.recv() => runners.start_reserved(job),
            _ = homes.tick() => runners.start_reserved_during(&mut started, sweep_homes(app)).await,
            Some(_) = runners.tasks.join_next(), if !runners.tasks.is_empty() => is_claim_due = is_short,
            () = app.drained(), if !draining => {}
            () = app.stopped() => break,
        }
    }
    app.places.stop_reserving();
    let stopped_at = Instant::now();
    while app.places.has_reservations() && stopped_at.elapsed() < STOP_REPORT {
        tokio::time::sleep(RESERVATION_LOOK).await;
    }
    while let Ok(job) = started.try_recv() {
        runners.start_reserved(job);
    }
    // Each task notices the stop by itself and hands over its job.
    while runners.tasks.join_next().await.is_some() {}
}

/// The runners of this server.
struct Runners<'a> {
    app: &'a App,
    host: Arc<RunnerHost>,
    owner: &'a str,
    tasks: JoinSet<()>,
}

impl Runners<'_> {
    /// Starts the runner of a job that was claimed, unless it is in hand already.
    fn start_claimed(&mut self, job: RunnerJob, slot: OwnedSemaphorePermit) {
        if let Some(held) = self.app.held_jobs.take_up(job.runner_job_id) {
            self.start(job, None, (held, slot));
        }
    }

    /// Starts the runner of a job that was started where it was stored.
    fn start_reserved(&mut self, job: ResidentJob) {
        let ResidentJob { start: StartedJob { job, claimed }, held, slot } = job;
        self.start(job, Some(claimed), (held, slot));
    }

    /// Does some work that may wait for the store, and starts reserved runners at the same time, because their leases already run.
    async fn start_reserved_during<T>(
        &mut self,
        started: &mut mpsc::UnboundedReceiver<ResidentJob>,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(job) = started.recv() => self.start_reserved(job),
                done = &mut work => return done,
            }
        }
    }

    fn start(&mut self, job: RunnerJob, claimed: Option<Claimed>, (held, slot): (HeldJob, OwnedSemaphorePermit)) {
        let (app, host, owner) = (self.app.clone(), self.host.clone(), self.owner.to_owned());
        // On the heap: the future is large, and a task would be moved several times.
        self.tasks.spawn(Box::pin(async move {
            work(&app, &host, owner, (job, claimed), slot).await;
            // The job may be pending again, and a claim has left it out while it was in hand.
            if held.put_down() {
                app.hub.jobs.notify_one();
            }
        }));
    }
}

/// Renews the heartbeat of the jobs in hand, concurrently with everything else that the launcher does: a claim on a
/// connection that hangs must not cost it the jobs that it runs. Never returns.
async fn keep_vouching(app: &App, owner: &str) {
    let silence_ms = app.config.runner.job_silence_ms.unsigned_abs();
    let mut heartbeat = tokio::time::interval(Duration::from_millis((silence_ms / 4).clamp(10, HEARTBEAT_MS_MAX)));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A heartbeat on a connection that hangs is given up early enough for another one.
    let patience = Duration::from_millis((silence_ms / 4).max(HEARTBEAT_PATIENCE_MS_MIN));
    loop {
        heartbeat.tick().await;
        match tokio::time::timeout(patience, vouch(app, owner)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the heartbeat of jobs failed; the next one tries again"),
            Err(_) => tracing::warn!("the heartbeat of jobs took too long; the next one tries again"),
        }
    }
}

/// A job whose heartbeat is not renewed is given to another launcher.
async fn vouch(app: &App, owner: &str) -> Result<(), store::StoreError> {
    let jobs = app.held_jobs.snapshot().held_ids();
    store::kernel::runner_jobs::update_heartbeat(&app.db, owner, &jobs, app.now()).await
}

/// Claimed jobs, each with a slot for its runner.
struct TakenJobs {
    jobs: Vec<(RunnerJob, OwnedSemaphorePermit)>,
    may_be_more: bool,
}

async fn take(app: &App, owner: &str, slots: &Arc<Semaphore>) -> TakenJobs {
    // Some slots are left to jobs that are started where they are stored, so that those do not depend on claims for long.
    let wanted = slots.available_permits().div_ceil(2).min(TAKE_MAX) as u32;
    let taken = (wanted > 0).then(|| slots.clone().try_acquire_many_owned(wanted).ok()).flatten();
    let Some(mut taken) = taken else {
        // Otherwise flushes have taken slots in this moment, and what they leave is claimed when one of their runners ends.
        if wanted == 0 {
            make_room(app, owner).await;
        }
        return TakenJobs { jobs: vec![], may_be_more: true };
    };
    let jobs = claim(app, owner, wanted).await;
    let may_be_more = jobs.len() >= wanted as usize;
    TakenJobs { jobs: jobs.into_iter().filter_map(|job| Some((job, taken.split(1)?))).collect(), may_be_more }
}

async fn claim(app: &App, owner: &str, limit: u32) -> Vec<RunnerJob> {
    let mut jobs = recover_claimed(app, owner).await;
    jobs.truncate(limit as usize);
    let wanted = limit - jobs.len() as u32;
    if wanted == 0 {
        return jobs;
    }
    let (launcher, now, held_ids) = (app.config.runner.launcher, app.now(), app.held_jobs.pass_over());
    match store::kernel::runner_jobs::claim(&app.db, launcher, owner, now, wanted, &held_ids, launchable(app))
        .await
        .map_err(Failure::from)
    {
        Ok(claimed) => {
            if claimed.len() as u32 == wanted {
                app.hub.jobs.notify_one();
            }
            jobs.extend(claimed);
        }
        Err(failure) => {
            app.held_jobs.claim_unanswered(now);
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "claiming jobs failed; they are looked for again");
        }
    }
    jobs
}

/// The jobs that this server may start runners for.
fn launchable(app: &App) -> LaunchableJobs<'_> {
    LaunchableJobs { external: &app.config.runner.external_profiles, placement: app.placement.as_deref() }
}

/// Jobs of earlier claims that the store carried out and whose response was lost.
async fn recover_claimed(app: &App, owner: &str) -> Vec<RunnerJob> {
    let silence = SignedDuration::from_millis(app.config.runner.job_silence_ms);
    // By then the sweeper has returned them.
    app.held_jobs.forget_unanswered(app.now().checked_sub(silence).unwrap_or(Timestamp::MIN));
    // Before the rows are read: a job whose end is stored in between must not look like one that was never started.
    let launcher_jobs = app.held_jobs.snapshot();
    let unanswered = launcher_jobs.unanswered();
    if unanswered.is_empty() {
        return vec![];
    }
    match store::kernel::runner_jobs::list_claimed(&app.db, owner, &unanswered).await {
        Ok(mut jobs) => {
            jobs.retain(|job| launcher_jobs.on_owned(job, owner) == Owned::TakeUp);
            if !jobs.is_empty() {
                tracing::info!(jobs = jobs.len(), "jobs of a claim whose response was lost are started now");
            }
            jobs
        }
        Err(error) => {
            tracing::warn!(%error, "looking for jobs of a claim without a response failed; the next look tries again");
            vec![]
        }
    }
}

/// If all slots are in use, dismisses runners that only wait for another turn, in favour of jobs that wait for a runner.
async fn make_room(app: &App, owner: &str) {
    let counts = async {
        let waiting = store::kernel::runner_jobs::count_waiting(&app.db, launchable(app), app.now()).await?;
        Ok::<_, store::StoreError>(waiting - store::kernel::leases::count_leaving(&app.db, owner).await?)
    };
    match counts.await.map(u32::try_from) {
        Ok(Ok(lacking)) if lacking > 0 => dismiss_runners(app, owner, lacking, DismissOp { only_if_idle: true }).await,
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "counting the jobs that wait failed"),
    }
}

/// Dismisses runners of this server, the longest idle first.
async fn dismiss_runners(app: &App, owner: &str, limit: u32, op: DismissOp) {
    match store::kernel::leases::list_by_launcher(&app.db, owner, limit).await {
        Ok(held) => {
            // A runner that was not reached is found again by the next pass.
            let _ = leases::dismiss(app, held, op).await;
        }
        Err(error) => tracing::warn!(%error, "looking for idle runners failed; the next look tries again"),
    }
}

/// Runs one job to its end and reports how it ended.
async fn work(
    app: &App,
    host: &RunnerHost,
    owner: String,
    (job, claimed): (RunnerJob, Option<Claimed>),
    slot: OwnedSemaphorePermit,
) {
    let (end, summary) = match host.run(app, &owner, &job, claimed).await {
        Ending::Continues => return,
        Ending::Reported(end) => {
            environment::clear(app, &job).await;
            return app.metrics.job_ended(end);
        }
        Ending::Report(end, summary) => (end, summary),
    };
    environment::clear(app, &job).await;
    let summary = app.redacted_payload(&summary).unwrap_or_else(|_| RawJson::null());
    let op = FinishJobOp { runner_job_id: job.runner_job_id, owner, end, heartbeat_at: None, summary };
    // Until now the job was running, so that earlier claims have not missed it.
    app.held_jobs.forget_passed_over(job.runner_job_id);
    tokio::select! {
        () = finish(app, &job, op, slot) => {}
        () = stopped_for(app, STOP_REPORT) => {
            tracing::warn!(job = %job.runner_job_id, "the server stops before the end of a job is stored; another server finds out");
        }
    }
}

/// Reports a runner's end until the store has it. If the store does not respond, the runner's slot is released first.
async fn finish(app: &App, job: &RunnerJob, op: FinishJobOp, slot: OwnedSemaphorePermit) {
    let (mut pause, mut slot) = (STORE_PAUSE.0, Some(slot));
    // Whether an earlier attempt may have recorded the end, although its response was lost.
    let mut is_uncertain = false;
    loop {
        let reply = app.try_submit(job.session, job.run_id, op.clone()).await;
        let reply = reply.and_then(|reply| reply.ok_or_else(|| Failure::new(FailureKind::Overloaded, "a key clashed")));
        match (after_finish(&reply), reply) {
            (AfterFinish::PutDown, Ok(is_recorded)) => {
                if is_recorded || is_uncertain {
                    app.metrics.job_ended(op.end);
                }
                return;
            }
            (AfterFinish::PutDown, Err(failure)) => {
                return tracing::warn!(%failure, job = %job.runner_job_id, "the end of a job was refused");
            }
            (AfterFinish::Repeat, reply) => {
                let cause = reply.err().and_then(|failure| failure.cause);
                tracing::warn!(cause = cause.as_deref(), job = %job.runner_job_id, "the end of a job could not be stored; trying again");
                is_uncertain = true;
            }
        }
        if slot.take().is_some() {
            app.hub.jobs.notify_one();
        }
        tokio::time::sleep(longer(&mut pause)).await;
    }
}

/// Resolves when the server has been stopping for this long.
async fn stopped_for(app: &App, time: Duration) {
    app.stopped().await;
    tokio::time::sleep(time).await;
}
