//! The resident launcher: runs runners inside this process. They still use `client`, directly over the router and with their own
//! token, so all runners use the same path.

use std::sync::Arc;

use axum::{Router, body::Body};
use bytes::Bytes;
use http_body_util::BodyExt;
use ostler_client::{Client, InProcess};
use ostler_protocol::{
    Failure, RawJson,
    kernel::runner_jobs::{JobEnd, RunnerJob},
};
use ostler_runner::RunnerOrder;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::{ending, environment};
use crate::{app::App, net as http};

#[expect(clippy::expect_used, reason = "one was spawned")]
pub(super) async fn run(app: &App, call: InProcess, job: &RunnerJob) -> (JobEnd, RawJson) {
    let order = match ending::once_stored(app, || order(app, job)).await {
        Some(Ok(order)) => order,
        Some(Err(failure)) => return ending::not_started(&failure),
        None => return ending::returned(),
    };
    let token = app.auth.admit_resident(job.run_id, job.runner_job_id);
    let client = Client::in_process(call, Some(token.token.clone()));
    // In its own task, so that a panic of the backend only loses this runner; in a set, so that dropping this future stops it.
    let mut alone = JoinSet::new();
    // On the heap: the future is large, and a task would be moved several times.
    alone.spawn(Box::pin(ostler_runner::run(order, client)));
    let ending = tokio::select! {
        joined = alone.join_next() => match joined.expect("one was spawned") {
            Ok(outcome) if outcome.succeeded() => (JobEnd::Succeeded, outcome.summary()),
            Ok(outcome) => (JobEnd::Failed, outcome.summary()),
            Err(error) => super::failed("crashed", &error.to_string()),
        },
        () = app.stopped() => {
            alone.shutdown().await;
            ending::returned()
        }
    };
    app.auth.dismiss_resident(&token);
    ending
}

async fn order(app: &App, job: &RunnerJob) -> Result<RunnerOrder, Failure> {
    let run = app.run_ref(job.run_id).await?;
    let environment = environment::make(app, &run, job).await?;
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
