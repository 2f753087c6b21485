//! The sweeper: ends leases, permission requests and commands whose time has passed, and takes up jobs whose launcher is gone.
//! Every step is an ordinary operation of the kernel, so two sweepers do no harm, only duplicate work.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::SignedDuration;
use ostler_protocol::{
    Failure, RawJson, Timestamp,
    ids::{RunId, SessionId},
    kernel::{
        launching::is_abandoned,
        operations::{FinishJobOp, SweepOp},
        runner_jobs::{JOB_OBSERVE_FAILED, JobEnd, Launcher, RunnerJob},
    },
};
use ostler_store as store;
use serde_json::json;
use tokio::time::Instant;

use crate::app::App;

/// Maximum number of rows in one pass; the next pass takes the rest.
const PASS_MAX: u32 = 500;

pub(crate) async fn run(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(app.config.runner.sweep_interval_ms.max(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut judge_at = None;
    loop {
        let is_early = tokio::select! {
            _ = ticks.tick() => false,
            () = app.hub.deadlines.passed(&*app.clock) => true,
            () = app.stopped() => return,
        };
        let judges = !is_early && judge_at.is_none_or(|at| Instant::now() >= at);
        let swept = if is_early { sweep_due(&app, app.now()).await } else { pass(&app, judges).await };
        match swept {
            Ok(()) if judges => judge_at = None,
            Ok(()) => {}
            Err(failure) => {
                tracing::warn!(%failure, cause = failure.cause.as_deref(), "a sweep failed; the next one tries again");
                // Launchers could not renew heartbeats either. They get time for one before they count as gone.
                judge_at =
                    Some(Instant::now() + Duration::from_millis(app.config.runner.job_silence_ms.unsigned_abs() / 2));
            }
        }
    }
}

/// `judges`: whether jobs without a recent heartbeat count as abandoned.
async fn pass(app: &App, judges: bool) -> Result<(), Failure> {
    let now = app.now();
    sweep_due(app, now).await?;
    let silence = SignedDuration::from_millis(app.config.runner.job_silence_ms);
    let before = now.checked_sub(silence).unwrap_or(Timestamp::MIN);
    let silent = store::kernel::runner_jobs::list_abandoned(&app.db, before, PASS_MAX).await?;
    let launcher_jobs = app.held_jobs.snapshot();
    let abandoned: Vec<_> =
        silent.into_iter().filter(|job| judges && is_abandoned(job, before, &launcher_jobs)).collect();
    let mut restarted_jobs = 0;
    for job in abandoned {
        restarted_jobs += usize::from(abandon(app, &job).await && is_restarted(app, &job).await?);
    }
    if restarted_jobs > 0 {
        tracing::info!(restarted_jobs, "runner jobs of a launcher that stopped responding are started again");
    }
    Ok(())
}

/// Ends what is due by `now`, and announces what will be due soon: also what other servers, or this one before a restart, have
/// accepted.
async fn sweep_due(app: &App, now: Timestamp) -> Result<(), Failure> {
    let mut due = store::kernel::leases::list_expired(&app.db, now, PASS_MAX).await?;
    due.extend(store::kernel::permissions::list_overdue(&app.db, now, PASS_MAX).await?);
    due.extend(store::kernel::commands::list_overdue(&app.db, now, PASS_MAX).await?);
    sweep_all(app, due, SweepOp::default()).await;
    // What is due later is found by the next interval. Most commands have ended by then.
    let ahead_ms = app.config.runner.sweep_interval_ms.max(10).saturating_mul(2);
    let ahead = SignedDuration::from_millis(i64::try_from(ahead_ms).unwrap_or(i64::MAX));
    let horizon = now.checked_add(ahead).unwrap_or(Timestamp::MAX);
    app.hub.deadlines.forget_from(horizon);
    let of_requests = store::kernel::permissions::next_deadline(&app.db, now).await?;
    let of_commands = store::kernel::commands::next_deadline(&app.db, now).await?;
    let soon = of_requests.into_iter().chain(of_commands).filter(|at| *at < horizon);
    soon.for_each(|at| app.hub.deadlines.announce(at));
    Ok(())
}

/// Whether a job of one of the servers' launchers waits for another runner, or has been claimed again, since it was read.
async fn is_restarted(app: &App, job: &RunnerJob) -> Result<bool, Failure> {
    let stored = store::kernel::runner_jobs::get(&app.db, job.runner_job_id).await?;
    let is_changed = |stored: RunnerJob| stored.updated_at != job.updated_at && !stored.phase.is_finished();
    Ok(!job.launcher.is_elsewhere() && stored.is_some_and(is_changed))
}

/// After a restart: SQLite has one process, so everything that the previous process held is free at once. Runners elsewhere
/// did not end with it; they keep their leases and jobs for as long as these last.
pub(crate) async fn recover(app: &App) -> Result<(), Failure> {
    if app.db.multi_replica() {
        return Ok(());
    }
    if app.config.runner.keep_on_stop && app.config.runner.launcher.outlives_server() {
        // Its runners may still be at work; the lease of one that is not expires.
        return Ok(());
    }
    let held = store::kernel::leases::list_held(&app.db).await?;
    if !held.is_empty() {
        tracing::info!(runs = held.len(), "taking up the runs that the previous process left unfinished");
    }
    sweep_all(app, held, SweepOp { orphaned: true }).await;
    // One pass only: retrying in a loop would not fix what the next pass finds again.
    let left = store::kernel::runner_jobs::list_abandoned(&app.db, Timestamp::MAX, u32::MAX).await?;
    let left = left.into_iter().filter(|job| !job.launcher.is_elsewhere());
    join_all(left.map(async |job| abandon(app, &job).await)).await;
    Ok(())
}

/// Sweeps concurrently, so that the operations share commits.
async fn sweep_all(app: &App, runs: Vec<(SessionId, RunId)>, op: SweepOp) {
    join_all(runs.into_iter().map(|(session, run_id)| sweep(app, session, run_id, op))).await;
}

async fn sweep(app: &App, session: SessionId, run_id: RunId, op: SweepOp) {
    if let Err(failure) = app.try_submit(session, run_id, op).await {
        tracing::warn!(%failure, %run_id, "sweeping a run failed");
    }
}

/// Handles a job whose launcher is gone: the rest of the work is started again, or given up. False if that failed.
async fn abandon(app: &App, job: &RunnerJob) -> bool {
    let Some(owner) = job.owner.clone() else { return false };
    let message = match job.launcher {
        Launcher::External => "the runner that claimed the job does not hold its run",
        Launcher::Kubernetes => "the Job of the runner is gone, and the runner does not hold its run",
        Launcher::Resident | Launcher::Process => "the launcher is gone",
    };
    let summary = RawJson::of(&json!({"status": "lost", "failureKind": "infra-failed", "message": message,
        "category": JOB_OBSERVE_FAILED}));
    let (runner_job_id, heartbeat_at) = (job.runner_job_id, job.heartbeat_at);
    let op = FinishJobOp { runner_job_id, owner, end: JobEnd::Lost, heartbeat_at, summary };
    let outcome = app.try_submit(job.session, job.run_id, op).await;
    if let Err(failure) = &outcome {
        tracing::warn!(%failure, job = %job.runner_job_id, "reconciling a job failed");
    }
    outcome.is_ok()
}
