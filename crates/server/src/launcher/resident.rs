//! The resident launcher: runs runners inside this process. They still use `client`, directly over the router and with their own
//! token, so all runners use the same path.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use bytes::Bytes;
use http_body_util::BodyExt;
use ostler_client::{Client, InProcess};
use ostler_protocol::{
    Failure,
    kernel::{
        leases::Claimed,
        operations::PatchLeaseOp,
        runner_jobs::{JobEnd, RunnerJob},
    },
};
use ostler_runner::RunnerOrder;
use ostler_store::failures::is_of_store;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::{
    ending::{self, Ending},
    environment,
};
use crate::{app::App, net as http, tools::settle_lost_runs};

/// Runs the job's runner to its end. `claimed` is the claim of the run, if it was made together with the start of the job.
#[expect(clippy::expect_used, reason = "one was spawned")]
pub(super) async fn run(app: &App, call: InProcess, job: &RunnerJob, mut claimed: Option<Claimed>) -> Ending {
    let ordered = tokio::select! {
        biased;
        ordered = ending::once_stored(app, || order(app, job)) => ordered,
        () = renew(app, job, &mut claimed) => None,
    };
    let order = match ordered {
        Some(Ok(order)) => order,
        Some(Err(failure)) => return ending::not_started(&failure).into(),
        None => return ending::returned().into(),
    };
    let token = app.auth.admit_resident(job.run_id, job.runner_job_id);
    let client = Client::in_process(call, Some(token.token.clone()));
    // In its own task, so that a panic of the backend only loses this runner; in a set, so that dropping this future stops it.
    let mut alone = JoinSet::new();
    // On the heap: the future is large, and a task would be moved several times.
    let claimed = claimed.filter(|claimed| is_fresh(app, claimed, order.lease_ms));
    claimed.iter().for_each(|claimed| settle_lost_runs(app, claimed));
    match claimed {
        Some(claimed) => alone.spawn(Box::pin(ostler_runner::run_claimed(order, client, claimed))),
        None => alone.spawn(Box::pin(ostler_runner::run(order, client))),
    };
    let ending = tokio::select! {
        joined = alone.join_next() => match joined.expect("one was spawned") {
            Ok(outcome) if outcome.is_job_ended => Ending::Reported(JobEnd::Succeeded),
            Ok(outcome) if outcome.succeeded() => Ending::Report(JobEnd::Succeeded, outcome.summary()),
            Ok(outcome) => Ending::Report(JobEnd::Failed, outcome.summary()),
            Err(error) => super::failed("crashed", &error.to_string()).into(),
        },
        () = app.stopped() => {
            alone.shutdown().await;
            ending::returned().into()
        }
    };
    app.auth.dismiss_resident(&token);
    ending
}

/// Renews the lease while the environment is prepared, which may wait for the store or for other servers. A lease that is lost is
/// forgotten: the runner claims the run itself then. Never returns.
async fn renew(app: &App, job: &RunnerJob, claimed: &mut Option<Claimed>) {
    let interval = Duration::from_millis((app.config.runner.lease_ms / 4).unsigned_abs());
    while let Some(lease) = claimed {
        tokio::time::sleep(interval).await;
        let op = PatchLeaseOp {
            runner_id: job.runner_id.clone(),
            lease_epoch: lease.lease_epoch,
            lease_ms: None,
            release: false,
            only_if_idle: false,
        };
        match app.try_submit(job.session, job.run_id, op).await {
            Ok(Some(renewed)) => lease.lease_expires_at = renewed.lease_expires_at,
            Err(failure) if !is_of_store(&failure) => *claimed = None,
            // The next renewal follows before the lease expires.
            Ok(None) | Err(_) => {}
        }
    }
    std::future::pending().await
}

/// Whether the lease is as good as new. Otherwise the runner claims the run again before it begins.
fn is_fresh(app: &App, claimed: &Claimed, lease_ms: i64) -> bool {
    claimed.lease_expires_at.duration_since(app.now()).as_millis() > i128::from(lease_ms / 2)
}

async fn order(app: &App, job: &RunnerJob) -> Result<RunnerOrder, Failure> {
    let run = app.run_ref(job.run_id).await?;
    let environment = environment::make(app, &run, job).await?;
    app.places.note_backend(&run, environment.backend.is_program());
    let order = RunnerOrder::resident(job.run_id, job.runner_id.clone(), run.backend_profile.to_string(), environment);
    let section = &app.config.runner;
    Ok(RunnerOrder { lease_ms: section.lease_ms, idle_timeout_ms: section.idle_ms, ..order })
}

/// The router, called as a service.
pub(super) fn in_process(router: Router) -> InProcess {
    Arc::new(move |request: ::http::Request<Bytes>| {
        let router = router.clone();
        Box::pin(async move {
            let mut request = request.map(Body::from);
            request.extensions_mut().insert(http::InProcess);
            // In its own task, as a request over a socket is: a runner that waits for something else does not poll this
            // future, and a connection to the database that it was opening would stay half open.
            let mut alone = JoinSet::new();
            alone.spawn(router.oneshot(request));
            let response = match alone.join_next().await {
                Some(Ok(response)) => response.unwrap_or_else(|never| match never {}),
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime is being shut down.
                _ => std::future::pending().await,
            };
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use axum::routing::get;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_request_continues_while_its_caller_waits_for_something_else() {
        let (started, done) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let handler = {
            let (started, done) = (started.clone(), done.clone());
            move || async move {
                started.notify_one();
                tokio::task::yield_now().await;
                done.notify_one();
            }
        };
        let call = in_process(Router::new().route("/", get(handler)));
        let mut response = call(::http::Request::new(Bytes::new()));
        assert!(futures_util::poll!(&mut response).is_pending());
        let continued = async {
            started.notified().await;
            done.notified().await;
        };
        tokio::time::timeout(Duration::from_secs(10), continued).await.expect("the handler runs by itself");
        assert_eq!(response.await.status(), 200);
    }
}
