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
mod hand;
pub(crate) mod isolation;
#[cfg(feature = "kubernetes")]
mod kubernetes;
pub(crate) mod outside;
mod process;
#[cfg(feature = "kubernetes")]
pub(crate) mod ref_lookups;
mod resident;
pub(crate) mod shared_homes;
pub(crate) mod shell;
pub(crate) mod workspaces;

use std::{sync::Arc, time::Duration};

use axum::Router;
use jiff::SignedDuration;
use ostler_client::InProcess;
use ostler_protocol::{
    Failure, FailureKind, RawJson, Timestamp,
    kernel::{
        launching::{AfterFinish, Owned, after_finish},
        operations::{DismissOp, FinishJobOp},
        runner_jobs::{Launcher, RunnerJob},
    },
};
use ostler_store::{self as store, kernel::runner_jobs::LaunchableJobs};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    app::App,
    launcher::ending::{Ending, STORE_PAUSE, failed, longer},
    recheck::Recheck,
    service::leases,
};

pub(crate) use guard::guard;
pub(crate) use hand::InHand;

/// Maximum number of jobs in one claim.
const TAKE_MAX: usize = 32;
/// Interval of heartbeats of jobs, unless the silence that would lose them is short; then several times within it.
const HEARTBEAT_MS_MAX: u64 = 5_000;
/// The shortest time that a heartbeat gets, however short the silence is.
const HEARTBEAT_PATIENCE_MS_MIN: u64 = 250;
/// For how long a stopping server tries to store how its runners ended. Another server finds out without it, later.
const STOP_REPORT: Duration = Duration::from_secs(5);
/// How often the launcher looks for homes of jobs that no longer run.
const SWEEP_HOMES: Duration = Duration::from_secs(60);

/// Where runners run.
enum RunnerHost {
    Resident(InProcess),
    Process,
}

impl RunnerHost {
    async fn run(&self, app: &App, owner: &str, job: &RunnerJob) -> Ending {
        match self {
            Self::Resident(call) => Some(resident::run(app, call.clone(), job).await),
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
    outside::sweep(app).await;
}

#[expect(clippy::expect_used, reason = "never closed")]
async fn run_jobs(app: &App, router: Router, owner: &str) {
    let host = Arc::new(match app.config.runner.launcher {
        Launcher::Resident => RunnerHost::Resident(resident::in_process(router)),
        // The configuration cannot name runners elsewhere, and Jobs are not started here.
        Launcher::Process | Launcher::External | Launcher::Kubernetes => RunnerHost::Process,
    });
    let places = Arc::new(Semaphore::new(app.config.runner.slots));
    let mut runners = JoinSet::new();
    let outlives = app.config.runner.keep_on_stop && app.config.runner.launcher.outlives_server();
    let mut homes = tokio::time::interval_at(Instant::now() + SWEEP_HOMES, SWEEP_HOMES);
    let mut recheck = Recheck::new(app);
    // A claim costs a transaction, so it is made only if there may be a job to claim: the launcher was woken, the interval is
    // over, or a runner has ended while it was short of places or of a response.
    let (mut is_claim_due, mut is_short) = (true, false);
    loop {
        while runners.try_join_next().is_some() {
            is_claim_due |= is_short;
        }
        let draining = app.is_draining();
        if draining && runners.is_empty() {
            break;
        }
        if draining && !outlives {
            dismiss_runners(app, owner, u32::MAX, DismissOp { only_if_idle: false }).await;
        }
        let mut jobs = vec![];
        if is_claim_due && !draining {
            let free = places.available_permits();
            jobs = take(app, owner, &places).await;
            is_short = jobs.len() >= free || app.in_hand.has_unanswered();
            recheck.restart();
        }
        for job in jobs {
            let Some(held) = app.in_hand.take_up(job.runner_job_id) else { continue };
            let place = places.clone().acquire_owned().await.expect("never closed");
            let (app, host, owner) = (app.clone(), host.clone(), owner.to_owned());
            // On the heap: the future is large, and a task would be moved several times.
            runners.spawn(Box::pin(async move {
                work(&app, &host, owner, job, place).await;
                // The job may be pending again, and a claim has left it out while it was in hand.
                if held.put_down() {
                    app.hub.jobs.notify_one();
                }
            }));
        }
        is_claim_due = false;
        tokio::select! {
            _ = recheck.or_woken(None, app.hub.jobs.notified()) => is_claim_due = true,
            _ = homes.tick() => sweep_homes(app).await,
            Some(_) = runners.join_next(), if !runners.is_empty() => is_claim_due = is_short,
            () = app.drained(), if !draining => {}
            () = app.stopped() => break,
        }
    }
    // Each task notices the stop by itself and hands over its job.
    while runners.join_next().await.is_some() {}
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
    let jobs = app.in_hand.snapshot().jobs();
    store::kernel::runner_jobs::update_heartbeat(&app.db, owner, &jobs, app.now()).await
}

async fn take(app: &App, owner: &str, places: &Semaphore) -> Vec<RunnerJob> {
    let free = places.available_permits().min(TAKE_MAX);
    if free == 0 {
        make_room(app, owner).await;
        return vec![];
    }
    let mut jobs = recover_claimed(app, owner).await;
    jobs.truncate(free);
    let wanted = (free - jobs.len()) as u32;
    if wanted == 0 {
        return jobs;
    }
    let (launcher, now, in_hand) = (app.config.runner.launcher, app.now(), app.in_hand.pass_over());
    match store::kernel::runner_jobs::claim(&app.db, launcher, owner, now, wanted, &in_hand, launchable(app))
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
            app.in_hand.claim_unanswered(now);
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
    app.in_hand.forget_unanswered(app.now().checked_sub(silence).unwrap_or(Timestamp::MIN));
    // Before the rows are read: a job whose end is stored in between must not look like one that was never started.
    let hand = app.in_hand.snapshot();
    let unanswered = hand.unanswered();
    if unanswered.is_empty() {
        return vec![];
    }
    match store::kernel::runner_jobs::list_claimed(&app.db, owner, &unanswered).await {
        Ok(mut jobs) => {
            jobs.retain(|job| hand.on_owned(job, owner) == Owned::TakeUp);
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

/// If all places are in use, dismisses runners that only wait for another turn, in favour of jobs that wait for a runner.
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
async fn work(app: &App, host: &RunnerHost, owner: String, job: RunnerJob, place: OwnedSemaphorePermit) {
    let Some((end, summary)) = host.run(app, &owner, &job).await else { return };
    environment::clear(app, &job).await;
    let summary = app.redacted_payload(&summary).unwrap_or_else(|_| RawJson::null());
    let op = FinishJobOp { runner_job_id: job.runner_job_id, owner, end, heartbeat_at: None, summary };
    // Until now the job was running, so that earlier claims have not missed it.
    app.in_hand.forget_passed_over(job.runner_job_id);
    tokio::select! {
        () = finish(app, &job, op, place) => {}
        () = stopped_for(app, STOP_REPORT) => {
            tracing::warn!(job = %job.runner_job_id, "the server stops before the end of a job is stored; another server finds out");
        }
    }
}

/// Reports a runner's end until the store has it. If the store does not respond, the runner's place is released first.
async fn finish(app: &App, job: &RunnerJob, op: FinishJobOp, place: OwnedSemaphorePermit) {
    let (mut pause, mut place) = (STORE_PAUSE.0, Some(place));
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
        if place.take().is_some() {
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
