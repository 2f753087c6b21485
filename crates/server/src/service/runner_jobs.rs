//! Runner jobs: create, list, get.

use ostler_protocol::{
    Failure, RawJson,
    cursors::{self, Cursor},
    ids::{AttemptId, CommandId, RunId, RunnerJobId},
    json::canonical_hash,
    kernel::{
        operations::CreateJobOp,
        runner_jobs::{CreateRunnerJob, JobPhase, JobPoll, ListRunnerJobs, RunnerJob, RunnerJobPage},
    },
};
use ostler_store as store;
use serde_json::json;

use super::{provider_profiles, runs::check_key, session_storage};
use crate::{
    app::{App, RunRef},
    auth::Principal,
};

/// Orders a runner for the run. Answers at once; the runner starts in its own time.
pub async fn create(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    asked: CreateRunnerJob,
) -> Result<(RunnerJob, bool), Failure> {
    app.accepting()?;
    let known = app.visible_run(caller, run_id).await?;
    caller.may_control(&known)?;
    provider_profiles::check_ready(app, &known.tenant_id, &known.backend_profile).await?;
    let op = create_op(app, &known, &asked)?;
    let submitted = app.submit(&known, op).await;
    session_storage::record_loss(app, known.session, submitted).await
}

pub fn create_op(app: &App, run: &RunRef, asked: &CreateRunnerJob) -> Result<CreateJobOp, Failure> {
    if let Some(key) = &asked.idempotency_key {
        check_key(app, key)?;
    }
    let command_id: Option<CommandId> = match asked.command_id.as_deref() {
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
        standing: asked.standing,
        phase: JobPhase::Pending,
        terminal_summary: RawJson::of(&json!({})),
        idempotency_key: asked.idempotency_key.clone(),
        request_hash: canonical_hash(&json!({"commandId": asked.command_id, "standing": asked.standing})),
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
    asked: ListRunnerJobs,
) -> Result<RunnerJobPage, Failure> {
    app.visible_run(caller, run_id).await?;
    let limit = cursors::limit(asked.limit)?;
    let fingerprint = cursors::fingerprint("runner-jobs", &(run_id, &asked.command_id));
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let command_id: Option<CommandId> = match asked.command_id.as_deref().map(str::parse) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(_)) => return Ok(RunnerJobPage { runner_jobs: vec![], next_cursor: None }),
    };
    let found = store::kernel::runner_jobs::list(&app.db, run_id, command_id, after.as_ref(), limit + 1).await;
    let mut runner_jobs = found?;
    let more = runner_jobs.len() > limit as usize;
    runner_jobs.truncate(limit as usize);
    let next_cursor = runner_jobs.last().filter(|_| more).map(|job| {
        Cursor { created_at_us: job.created_at.as_microsecond(), id: job.runner_job_id.to_string() }
            .encode(&fingerprint)
    });
    Ok(RunnerJobPage { runner_jobs, next_cursor })
}

pub async fn get(app: &App, caller: &Principal, run_id: RunId, job_id: RunnerJobId) -> Result<RunnerJob, Failure> {
    app.visible_run(caller, run_id).await?;
    let job = store::kernel::runner_jobs::get(&app.db, job_id).await?;
    job.filter(|job| job.run_id == run_id).ok_or_else(|| Failure::not_found("runner job"))
}
