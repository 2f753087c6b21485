//! Runner jobs: create, list, get.

use ostler_protocol::{
    Failure, RawJson,
    cursors::{Cursor, Page, PageRequest},
    ids::{AttemptId, CommandId, RunId, RunnerJobId},
    json::canonical_hash,
    kernel::{
        operations::CreateJobOp,
        runner_jobs::{CreateRunnerJob, JobPhase, JobPoll, ListRunnerJobs, RunnerJob, RunnerJobPage},
    },
};
use ostler_store as store;
use serde_json::json;

use super::{provider_profiles, requests::check_key, session_storage};
use crate::{
    app::{App, RunRef},
    auth::Principal,
};

/// Creates a job that starts a runner for the run. Returns at once; a launcher starts the runner later.
pub async fn create(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    request: CreateRunnerJob,
) -> Result<(RunnerJob, bool), Failure> {
    app.accepting()?;
    let run = app.visible_run(caller, run_id).await?;
    caller.may_control(&run)?;
    provider_profiles::check_ready(app, &run.tenant_id, &run.backend_profile).await?;
    let op = create_op(app, &run, &request)?;
    let submitted = app.submit(&run, op).await;
    session_storage::record_loss(app, run.session, submitted).await
}

pub fn create_op(app: &App, run: &RunRef, request: &CreateRunnerJob) -> Result<CreateJobOp, Failure> {
    if let Some(key) = &request.idempotency_key {
        check_key(app, key)?;
    }
    let command_id: Option<CommandId> = match request.command_id.as_deref() {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| Failure::not_found("command"))?),
    };
    let now = app.now();
    let runner_job_id = RunnerJobId::new(app.ids.body());
    let body = runner_job_id.to_string();
    let short = &body[body.len() - 16..];
    let placeholder = command_id.unwrap_or(CommandId::new(uuid::Uuid::nil()));
    let job = RunnerJob {
        runner_job_id,
        run_id: run.run_id,
        session: run.session,
        command_id: placeholder,
        attempt_id: AttemptId::new(app.ids.body()),
        attempt: 0,
        job_name: format!("ostler-runner-{short}"),
        namespace: app.config.runner.namespace.clone(),
        launcher: app.config.runner.launcher,
        runner_id: format!("runner-{short}"),
        // Neither launcher starts a pod or writes a log file.
        pod_name: None,
        log_path: None,
        standing: request.standing,
        phase: JobPhase::Pending,
        terminal_summary: RawJson::of(&json!({})),
        idempotency_key: request.idempotency_key.clone(),
        request_hash: canonical_hash(&json!({"commandId": request.command_id, "standing": request.standing})),
        owner: None,
        heartbeat_at: None,
        token_hash: None,
        poll: JobPoll::of(run.run_id, runner_job_id, placeholder),
        created_at: now,
        updated_at: now,
    };
    Ok(CreateJobOp { job, command_id, storage_missing: session_storage::is_absent(app, run.session)? })
}

pub async fn list(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    request: ListRunnerJobs,
) -> Result<RunnerJobPage, Failure> {
    app.visible_run(caller, run_id).await?;
    let filters = (run_id, &request.command_id);
    let page = PageRequest::new("runner-jobs", &filters, request.limit, request.cursor.as_deref())?;
    let command_id: Option<CommandId> = match request.command_id.as_deref().map(str::parse) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(_)) => return Ok(RunnerJobPage { runner_jobs: vec![], next_cursor: None }),
    };
    let (after, rows_max) = (page.after.as_ref(), page.rows_max());
    let jobs = store::kernel::runner_jobs::list(&app.db, run_id, command_id, after, rows_max).await?;
    let Page { items: runner_jobs, next_cursor } =
        page.page(jobs, |job| Cursor::after(job.created_at, job.runner_job_id));
    Ok(RunnerJobPage { runner_jobs, next_cursor })
}

pub async fn get(app: &App, caller: &Principal, run_id: RunId, job_id: RunnerJobId) -> Result<RunnerJob, Failure> {
    app.visible_run(caller, run_id).await?;
    let job = store::kernel::runner_jobs::get(&app.db, job_id).await?;
    job.filter(|job| job.run_id == run_id).ok_or_else(|| Failure::not_found("runner job"))
}
