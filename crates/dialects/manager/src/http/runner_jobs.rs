//! `/api/v1/runs/{runId}/runner-jobs…` and `/api/v1/runner-jobs/claim`.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use ostler_protocol::{
    failures::Problem,
    ids::{RunId, RunnerJobId},
    kernel::runner_jobs::{
        ClaimRunnerJob, ClaimedRunnerJob, CreateRunnerJob, JobLogQuery, ListRunnerJobs, RunnerJob, RunnerJobLog,
        RunnerJobPage,
    },
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params, idempotency_key},
        problem::Refusal,
        responses::created,
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
    Ok(created(service::runner_jobs::create(&app, &caller, run_id, request).await?))
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

/// Read the end of the log of a job's runner, or what was added since `after`. Secrets that the server knows are redacted.
#[utoipa::path(get, path = "/api/v1/runs/{runId}/runner-jobs/{runnerJobId}/log", tag = "runner-jobs",
    security(("token" = ["read"])),
    params(("runId" = RunId, Path), ("runnerJobId" = RunnerJobId, Path), JobLogQuery),
    responses((status = 200, body = RunnerJobLog), (status = "4XX", body = Problem)))]
pub(crate) async fn log(
    State(app): State<App>,
    Caller(caller): Caller,
    At((run_id, job_id)): At<(RunId, RunnerJobId)>,
    Params(query): Params<JobLogQuery>,
) -> Result<Json<RunnerJobLog>, Refusal> {
    let job = service::runner_jobs::get(&app, &caller, run_id, job_id).await?;
    Ok(Json(service::runner_logs::read(&app, job, query).await?))
}

/// Claim a job as a runner elsewhere: the oldest job of the profiles, which must be in `runner.external_profiles`. The run is then
/// claimed with `POST /api/v1/runs/{runId}/claim` under the same `runnerId`; if that does not happen within
/// `runner.job_silence_ms`, the job is given to another runner.
#[utoipa::path(post, path = "/api/v1/runner-jobs/claim", tag = "runner", security(("token" = ["run"])),
    request_body = ClaimRunnerJob,
    responses((status = 200, body = ClaimedRunnerJob), (status = 204, description = "no job was available within `waitMs`"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn claim(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(request): Body<ClaimRunnerJob>,
) -> Result<Response, Refusal> {
    Ok(match service::runner_jobs::claim(&app, &caller, request).await? {
        Some(claimed) => Json(claimed).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}
