//! `/api/v1/runs/{runId}/runner-jobs…`.

use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode};
use ostler_protocol::{
    failures::Problem,
    ids::{RunId, RunnerJobId},
    kernel::runner_jobs::{CreateRunnerJob, ListRunnerJobs, RunnerJob, RunnerJobPage},
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Caller, OptionalBody, Params, idempotency_key},
        problem::Refusal,
        responses::created_status,
    },
    service,
};

/// Order a runner for a run's command. Responds at once, before the runner starts.
#[utoipa::path(post, path = "/api/v1/runs/{runId}/runner-jobs", tag = "runner-jobs", security(("token" = ["submit"])),
    params(("runId" = RunId, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    request_body = Option<CreateRunnerJob>,
    responses((status = 201, body = RunnerJob), (status = 200, body = RunnerJob, description = "the same key again"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    headers: HeaderMap,
    OptionalBody(mut request): OptionalBody<CreateRunnerJob>,
) -> Result<(StatusCode, Json<RunnerJob>), Refusal> {
    request.idempotency_key = idempotency_key(&headers, request.idempotency_key)?;
    let (job, created) = service::runner_jobs::create(&app, &caller, run_id, request).await?;
    Ok((created_status(created), Json(job)))
}

/// List a run's runner jobs, newest first.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/runner-jobs", tag = "runner-jobs", security(("token" = ["read"])),
    params(("runId" = RunId, Path), ListRunnerJobs),
    responses((status = 200, body = RunnerJobPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    At(run_id): At<RunId>,
    Params(request): Params<ListRunnerJobs>,
) -> Result<Json<RunnerJobPage>, Refusal> {
    Ok(Json(service::runner_jobs::list(&app, &caller, run_id, request).await?))
}

/// Get a runner job.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/runner-jobs/{runnerJobId}", tag = "runner-jobs",
    security(("token" = ["read"])),
    params(("runId" = RunId, Path), ("runnerJobId" = RunnerJobId, Path)),
    responses((status = 200, body = RunnerJob), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At((run_id, job_id)): At<(RunId, RunnerJobId)>,
) -> Result<Json<RunnerJob>, Refusal> {
    Ok(Json(service::runner_jobs::get(&app, &caller, run_id, job_id).await?))
}
