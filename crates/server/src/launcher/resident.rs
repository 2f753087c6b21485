//! The resident launcher: runs agents inside this process. Its runners still speak through `client`, over the router
//! itself, with a token of their own, so there is one path for every runner.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use bytes::Bytes;
use http_body_util::BodyExt;
use ostler_client::{Client, InProcess};
use ostler_protocol::{
    Failure, RawJson,
    kernel::{FinishJobOp, Op},
    runner_jobs::RunnerJob,
};
use ostler_runner::{RunnerOrder, RunnerOutcome};
use ostler_store as store;
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};
use tower::ServiceExt;

use super::RESIDENT;
use crate::{
    app::{App, store_failure},
    http,
};

/// Jobs taken in one go.
const TAKE_MAX: u32 = 32;
/// Jobs are vouched for this often, or several times within the silence that would cost them.
const HEARTBEAT_MS_MAX: u64 = 5_000;

pub async fn run(app: App, router: Router) {
    let owner = format!("{RESIDENT}-{}", app.ids.body().simple());
    let call = in_process(router);
    let places = Arc::new(Semaphore::new(app.config.runner.resident_slots.max(1)));
    let mut runners = JoinSet::new();
    let silence = app.config.runner.job_silence_ms.unsigned_abs();
    let mut heartbeat = tokio::time::interval(Duration::from_millis((silence / 4).clamp(10, HEARTBEAT_MS_MAX)));
    loop {
        match take(&app, &owner, &places).await {
            Ok(jobs) => {
                for job in jobs {
                    let place = places.clone().acquire_owned().await.expect("never closed");
                    let (app, call, owner) = (app.clone(), call.clone(), owner.clone());
                    runners.spawn(async move {
                        work(&app, call, owner, job).await;
                        drop(place);
                        // A place has come free: somebody may be waiting for it.
                        app.hub.jobs.notify_one();
                    });
                }
            }
            Err(failure) => tracing::warn!(%failure, cause = failure.cause.as_deref(), "taking jobs failed"),
        }
        tokio::select! {
            () = app.hub.jobs.notified() => {}
            () = tokio::time::sleep(app.recheck()) => {}
            _ = heartbeat.tick() => {
                if let Err(error) = store::runner_jobs::update_heartbeat(&app.db, &owner, app.now()).await {
                    tracing::warn!(%error, "vouching for jobs failed");
                }
            }
            Some(_) = runners.join_next(), if !runners.is_empty() => {}
            () = app.stopped() => break,
        }
        while runners.try_join_next().is_some() {}
    }
    // What is cut off here is taken up again after the next start: leases end, jobs are reconciled.
    runners.shutdown().await;
}

async fn take(app: &App, owner: &str, places: &Semaphore) -> Result<Vec<RunnerJob>, Failure> {
    let free = (places.available_permits() as u32).min(TAKE_MAX);
    if free == 0 {
        return Ok(vec![]);
    }
    let jobs = store::runner_jobs::claim(&app.db, RESIDENT, owner, app.now(), free).await.map_err(store_failure)?;
    if jobs.len() as u32 == free {
        app.hub.jobs.notify_one();
    }
    Ok(jobs)
}

/// Runs one job to its end and says how it ended.
async fn work(app: &App, call: InProcess, owner: String, job: RunnerJob) {
    let token = app.auth.admit_resident(job.run_id, job.runner_job_id);
    let client = Client::in_process(call, Some(token.token.clone()));
    let order = order(app, &job).await;
    // In a task of its own, so that an agent that panics ends as a lost runner and nothing else; in a set, so that it
    // stops when this does.
    let mut alone = JoinSet::new();
    let outcome = match order {
        Ok(order) => {
            alone.spawn(ostler_runner::run(order, client));
            let joined = alone.join_next().await.expect("one was spawned");
            joined.map_err(|error| error.to_string())
        }
        Err(failure) => Err(failure.to_string()),
    };
    app.auth.dismiss_resident(&token);
    let (succeeded, summary) = summary(&outcome);
    let summary = app.redacted(&summary).unwrap_or_else(|_| RawJson::null());
    let op = FinishJobOp { runner_job_id: job.runner_job_id, owner, succeeded, summary };
    if let Err(failure) = app.try_submit(job.session, job.run_id, Op::FinishJob(op)).await {
        tracing::warn!(%failure, job = %job.runner_job_id, "finishing a job failed; the sweeper will");
    }
}

async fn order(app: &App, job: &RunnerJob) -> Result<RunnerOrder, Failure> {
    let run = app.run_ref(job.run_id).await?;
    let order = RunnerOrder::resident(job.run_id, job.runner_id.clone(), run.backend_profile.to_string());
    Ok(RunnerOrder { lease_ms: app.config.runner.lease_ms, ..order })
}

fn summary(outcome: &Result<RunnerOutcome, String>) -> (bool, RawJson) {
    match outcome {
        Ok(outcome) => (outcome.succeeded(), outcome.summary()),
        Err(error) => {
            let message = ostler_protocol::events::clip(error, 300);
            (false, RawJson::of(&json!({"status": "crashed", "failureKind": "infra-failed", "message": message})))
        }
    }
}

/// The router, called as a service.
fn in_process(router: Router) -> InProcess {
    Arc::new(move |request: ::http::Request<Bytes>| {
        let router = router.clone();
        Box::pin(async move {
            let mut request = request.map(Body::from);
            request.extensions_mut().insert(http::InProcess);
            let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    })
}
