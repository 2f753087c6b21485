//! Launchers: each takes runner jobs, starts a runner for each, and says how it ended. None ever scans runs for work. Where
//! a runner lives is the only thing that differs between them.

mod git;
mod outfit;
mod process;
mod resident;
pub mod workspaces;

use std::{sync::Arc, time::Duration};

use axum::Router;
use ostler_client::InProcess;
use ostler_protocol::{
    Failure, RawJson,
    kernel::{DismissOp, FinishJobOp, Op},
    runner_jobs::{JobEnd, Launcher, RunnerJob},
};
use ostler_store as store;
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use crate::{
    app::{App, store_failure},
    service::leases,
};

/// Jobs taken in one go.
const TAKE_MAX: u32 = 32;
/// Jobs are vouched for this often, or several times within the silence that would cost them.
const HEARTBEAT_MS_MAX: u64 = 5_000;
/// How often homes that nobody lives in any more are looked for.
const SWEEP_HOMES: Duration = Duration::from_secs(60);
const MESSAGE_CHARS_MAX: usize = 300;

/// How a runner ended, and what there is to say about it. `None`: it goes on without us.
type Ending = Option<(JobEnd, RawJson)>;

/// Where runners live.
enum Stable {
    Resident(InProcess),
    Process,
}

impl Stable {
    async fn run(&self, app: &App, owner: &str, job: &RunnerJob) -> Ending {
        match self {
            Self::Resident(call) => Some(resident::run(app, call.clone(), job).await),
            Self::Process => process::run(app, owner, job).await,
        }
    }
}

/// Runs jobs until the server stops. While it drains no job is taken, and this ends with the last runner.
pub async fn run(app: App, router: Router) {
    outfit::sweep(&app).await;
    let slots = app.config.runner.slots;
    if slots == 0 {
        return;
    }
    let stable = Arc::new(match app.config.runner.launcher {
        Launcher::Resident => Stable::Resident(resident::in_process(router)),
        Launcher::Process => Stable::Process,
    });
    let owner = format!("{}-{}", app.config.runner.launcher.as_str(), app.ids.body().simple());
    let places = Arc::new(Semaphore::new(slots));
    let mut runners = JoinSet::new();
    let outlives = app.config.runner.keep_on_stop && app.config.runner.launcher.outlives_server();
    let silence = app.config.runner.job_silence_ms.unsigned_abs();
    let mut homes = tokio::time::interval_at(Instant::now() + SWEEP_HOMES, SWEEP_HOMES);
    let mut heartbeat = tokio::time::interval(Duration::from_millis((silence / 4).clamp(10, HEARTBEAT_MS_MAX)));
    loop {
        while runners.try_join_next().is_some() {}
        let draining = app.is_draining();
        if draining && runners.is_empty() {
            break;
        }
        if draining && !outlives {
            let_go(&app, &owner, u32::MAX, DismissOp { only_if_idle: false }).await;
        }
        for job in if draining { vec![] } else { take(&app, &owner, &places).await } {
            let place = places.clone().acquire_owned().await.expect("never closed");
            let (app, stable, owner) = (app.clone(), stable.clone(), owner.clone());
            runners.spawn(async move {
                work(&app, &stable, owner, job).await;
                drop(place);
                // A place has come free: somebody may be waiting for it.
                app.hub.jobs.notify_one();
            });
        }
        tokio::select! {
            () = app.hub.jobs.notified() => {}
            () = tokio::time::sleep(app.recheck()) => {}
            _ = heartbeat.tick() => {
                if let Err(error) = store::runner_jobs::update_heartbeat(&app.db, &owner, app.now()).await {
                    tracing::warn!(%error, "vouching for jobs failed");
                }
            }
            _ = homes.tick() => outfit::sweep(&app).await,
            Some(_) = runners.join_next(), if !runners.is_empty() => {}
            () = app.drained(), if !draining => {}
            () = app.stopped() => break,
        }
    }
    // Each hears of the stop by itself and hands its job on.
    while runners.join_next().await.is_some() {}
}

async fn take(app: &App, owner: &str, places: &Semaphore) -> Vec<RunnerJob> {
    let free = (places.available_permits() as u32).min(TAKE_MAX);
    if free == 0 {
        make_room(app, owner).await;
        return vec![];
    }
    let launcher = app.config.runner.launcher;
    match store::runner_jobs::claim(&app.db, launcher, owner, app.now(), free).await.map_err(store_failure) {
        Ok(jobs) => {
            if jobs.len() as u32 == free {
                app.hub.jobs.notify_one();
            }
            jobs
        }
        Err(failure) => {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "taking jobs failed");
            vec![]
        }
    }
}

/// With every place taken, runners that only wait for another turn give way to jobs that wait for a runner.
async fn make_room(app: &App, owner: &str) {
    let counts = async {
        let waiting = store::runner_jobs::count_waiting(&app.db, app.now()).await?;
        Ok::<_, store::StoreError>(waiting - store::leases::count_leaving(&app.db, owner).await?)
    };
    match counts.await.map(u32::try_from) {
        Ok(Ok(lacking)) if lacking > 0 => let_go(app, owner, lacking, DismissOp { only_if_idle: true }).await,
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "counting the jobs that wait failed"),
    }
}

/// Lets runners of ours go, the longest idle first.
async fn let_go(app: &App, owner: &str, limit: u32, op: DismissOp) {
    match store::leases::list_by_launcher(&app.db, owner, limit).await {
        Ok(held) => leases::dismiss(app, held, op).await,
        Err(error) => tracing::warn!(%error, "looking for idle runners failed"),
    }
}

/// Runs one job to its end and says how it ended.
async fn work(app: &App, stable: &Stable, owner: String, job: RunnerJob) {
    let Some((end, summary)) = stable.run(app, &owner, &job).await else { return };
    outfit::clear(app, &job).await;
    app.metrics.job_ended(end);
    let summary = app.redacted(&summary).unwrap_or_else(|_| RawJson::null());
    let op = FinishJobOp { runner_job_id: job.runner_job_id, owner, end, summary };
    if let Err(failure) = app.try_submit(job.session, job.run_id, Op::FinishJob(op)).await {
        tracing::warn!(%failure, job = %job.runner_job_id, "finishing a job failed; the sweeper will");
    }
}

fn failed(status: &str, message: &str) -> (JobEnd, RawJson) {
    let message = ostler_protocol::events::clip(message, MESSAGE_CHARS_MAX);
    (JobEnd::Failed, RawJson::of(&json!({"status": status, "failureKind": "infra-failed", "message": message})))
}

fn not_started(failure: &Failure) -> (JobEnd, RawJson) {
    tracing::warn!(%failure, cause = failure.cause.as_deref(), "a runner could not be started");
    failed("not-started", &failure.message)
}

/// The server stops before the runner was done.
fn returned() -> (JobEnd, RawJson) {
    (JobEnd::Returned, RawJson::of(&json!({"status": "returned", "message": "its server stopped"})))
}
