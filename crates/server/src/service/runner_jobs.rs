//! Runner jobs: create, list, get; and the claim of a runner elsewhere.

use std::time::Duration;

use ostler_protocol::{
    Failure, RawJson, Rule,
    created::Created,
    cursors::{self, Cursor, Page, PageRequest},
    ids::{AttemptId, CommandId, RunId, RunnerJobId, slug},
    json::canonical_hash,
    kernel::{
        liveness::{Liveness, Phase},
        operations::{CreateJobOp, FinishJobOp},
        runner_jobs::{
            BackendImageRef, ClaimRunnerJob, ClaimedRunnerJob, CreateRunnerJob, JobEnd, JobExtras, JobObservation,
            JobPhase, JobPoll, Launcher, ListRunnerJobs, ObservedPhase, RunnerJob, RunnerJobPage, cluster_job_name,
        },
        session_storage::MissingStorage,
    },
    limits::JOB_PROFILES_MAX,
};
use ostler_store::{self as store, kernel::runner_jobs::ExternalJobs};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{job_extras, lookup, provider_profiles, requests::check_key, runner_logs, session_storage};
use crate::{
    app::{App, RunRef},
    auth::{Access, Principal},
    job_queues::WantedJobs,
    recheck::Recheck,
    traces::note_run,
};

/// Creates a job that starts a runner for the run. Returns at once; a launcher starts the runner later.
pub async fn create(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    request: CreateRunnerJob,
) -> Result<Created<RunnerJob>, Failure> {
    app.accepting()?;
    let run = app.visible_run(caller, run_id).await?;
    caller.may_control(&run)?;
    let mut op = create_op(app, &run, &request)?;
    let checked = check_startable(app, &run, &request, op.job.launcher).await;
    // A repeated order is not checked again: the kernel returns the first response.
    if checked.is_ok() || !is_repeated(app, &op.job).await? {
        op.storage_missing = checked?;
    }
    let submitted = app.submit(&run, op).await;
    let Created { value: job, is_new } = session_storage::record_loss(app, run.session, submitted).await?;
    job_extras::remember(app, &job);
    Ok(Created { value: with_retention(app, job), is_new })
}

/// Checks what a new job needs and what may change while its run exists: the profile with its secret, the image, the variables, the
/// session's storage, and the room in the cluster. Returns what of the storage is missing, about which the kernel decides.
async fn check_startable(
    app: &App,
    run: &RunRef,
    request: &CreateRunnerJob,
    launcher: Launcher,
) -> Result<MissingStorage, Failure> {
    provider_profiles::check_still_ready(app, run).await?;
    job_extras::check_image(app, request)?;
    job_extras::check_variables(app, run, request).await?;
    let missing = session_storage::find_missing(app, run.session).await?;
    check_room(app, launcher).await?;
    Ok(missing)
}

/// Whether a job of the run was already ordered with this job's key.
async fn is_repeated(app: &App, job: &RunnerJob) -> Result<bool, Failure> {
    let Some(key) = job.idempotency_key.as_deref() else { return Ok(false) };
    Ok(store::kernel::runner_jobs::has_key(&app.db, job.run_id, key).await?)
}

/// Rejects a new job if its cluster has as many unfinished ones as it may have.
async fn check_room(app: &App, launcher: Launcher) -> Result<(), Failure> {
    if launcher != Launcher::Kubernetes {
        return Ok(());
    }
    let active_jobs_max = app.config.kubernetes.active_jobs_max;
    let open = store::kernel::runner_jobs::count_open_of(&app.db, Launcher::Kubernetes).await?;
    if open < i64::from(active_jobs_max) {
        return Ok(());
    }
    let message = format!("there are {open} unfinished runner Jobs, the limit is {active_jobs_max}");
    Err(Failure::rule(Rule::ClusterRoom, message).detail("activeJobs", open).detail("activeJobsMax", active_jobs_max))
}

/// The job as it is sent: with the name of its current Job, how long its cluster keeps it, and what its order added.
fn with_retention(app: &App, mut job: RunnerJob) -> RunnerJob {
    let is_kept = job.launcher == Launcher::Kubernetes;
    if is_kept && job.starts > 1 {
        // What was observed is true whatever the prefix is now.
        let observed = job.observed.view::<JobObservation>().map(|observed| observed.job_name);
        let named = || cluster_job_name(&app.config.kubernetes.job_prefix, job.runner_job_id, job.starts);
        job.job_name = observed.filter(|name| !name.is_empty()).unwrap_or_else(named);
    }
    let retention = is_kept.then(|| app.config.kubernetes.retention(&app.config.runner));
    let JobExtras { image, variables: transient_env, .. } = JobExtras::read(&job.extras);
    let backend_image_ref = image.map(|image| BackendImageRef { image });
    RunnerJob { retention, backend_image_ref, transient_env, ..job }
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
    let launcher = match provider_profiles::is_external(app, &run.backend_profile) {
        true => Launcher::External,
        false => app.config.runner.launcher,
    };
    let in_cluster = launcher == Launcher::Kubernetes;
    request.check_extras(launcher)?;
    let extras = job_extras::seal(app, run.run_id, runner_job_id, request)?;
    let mut hashed = json!({"commandId": request.command_id, "standing": request.standing});
    if extras != JobExtras::default() {
        hashed["backendImageRef"] = json!(extras.image);
        hashed["transientEnv"] = json!(extras.variables);
    }
    let job = RunnerJob {
        runner_job_id,
        run_id: run.run_id,
        session: run.session,
        command_id: placeholder,
        attempt_id: AttemptId::new(app.ids.body()),
        attempt: 0,
        job_name: match in_cluster {
            true => cluster_job_name(&app.config.kubernetes.job_prefix, runner_job_id, 1),
            false => format!("ostler-runner-{short}"),
        },
        namespace: match in_cluster {
            true => runner_logs::cluster_namespace(app),
            false => app.config.runner.namespace.clone(),
        },
        launcher,
        runner_id: format!("runner-{short}"),
        // Only a cluster makes a pod, and names it itself. No launcher writes a log file.
        pod_name: None,
        log_path: in_cluster.then(|| format!("/api/v1/runs/{}/runner-jobs/{runner_job_id}/log", run.run_id)),
        standing: request.standing,
        phase: JobPhase::Pending,
        terminal_summary: RawJson::of(&json!({})),
        observed: RawJson::empty_object(),
        retention: None,
        backend_image_ref: None,
        transient_env: vec![],
        extras: RawJson::of(&extras),
        starts: 0,
        idempotency_key: request.idempotency_key.clone(),
        request_hash: canonical_hash(&hashed),
        owner: None,
        heartbeat_at: None,
        token_hash: None,
        placement: None,
        poll: JobPoll::of(run.run_id, runner_job_id, placeholder),
        created_at: now,
        updated_at: now,
    };
    Ok(CreateJobOp { job, command_id, storage_missing: session_storage::missing_directory(app, run.session)? })
}

/// Gives the oldest job of these profiles to a runner elsewhere. With `waitMs`, waits until there is one; `None` if none came.
/// Runners that want the same jobs get them in the order in which they came.
pub async fn claim(
    app: &App,
    caller: &Principal,
    request: ClaimRunnerJob,
) -> Result<Option<ClaimedRunnerJob>, Failure> {
    Access::Run.admit(caller)?;
    if matches!(caller, Principal::Runner { .. }) {
        return Err(Failure::rule(Rule::Run, "this token is for the runner of one run, which has its job"));
    }
    app.accepting()?;
    app.name("runnerId", &request.runner_id)?;
    let profiles = check_profiles(app, request.profiles)?;
    let deadline = Instant::now() + Duration::from_millis(cursors::wait_ms(request.wait_ms)?);
    let wanted = WantedJobs { profiles, tenants: caller.tenants().map(<[String]>::to_vec) };
    app.job_queues.record_claim(&wanted, app.now());
    let _turn = tokio::select! {
        biased;
        turn = app.job_queues.wait_for_turn(&wanted) => turn,
        () = sleep_until(deadline) => return Ok(None),
        () = app.drained() => return Ok(None),
    };
    let mut woken = app.hub.external_jobs.subscribe();
    loop {
        woken.mark_unchanged();
        // Never cancelled in the middle: a claim whose response is not sent keeps its job from others for a while.
        let claimed = take(app, &wanted, &request.runner_id).await?;
        if claimed.is_some() || Instant::now() >= deadline {
            return Ok(claimed);
        }
        let mut recheck = Recheck::new(app);
        tokio::select! {
            _ = recheck.or_woken(Some(deadline), woken.changed()) => {}
            () = app.drained() => return Ok(None),
        }
    }
}

/// The profiles that a runner names, sorted. Each must be one that this server leaves to runners elsewhere.
fn check_profiles(app: &App, mut profiles: Vec<String>) -> Result<Vec<String>, Failure> {
    if !(1..=JOB_PROFILES_MAX).contains(&profiles.len()) {
        let message = format!("profiles must name 1 to {JOB_PROFILES_MAX} profiles");
        return Err(Failure::invalid(Rule::RunnerProfiles, message));
    }
    for profile in &profiles {
        slug("profiles", profile)?;
        if !provider_profiles::is_external(app, profile) {
            let message = format!(
                "this server starts the runners of {profile:?} itself; list it in runner.external_profiles to claim its jobs"
            );
            return Err(Failure::rule(Rule::ProfileNotExternal, message).detail("profile", profile.as_str()));
        }
    }
    profiles.sort_unstable();
    profiles.dedup();
    Ok(profiles)
}

/// Claims the oldest job that has something to do. Jobs whose work is over are finished on the way.
async fn take(app: &App, wanted: &WantedJobs, runner_id: &str) -> Result<Option<ClaimedRunnerJob>, Failure> {
    let jobs = ExternalJobs { profiles: &wanted.profiles, tenants: wanted.tenants.as_deref() };
    loop {
        // Names this claim, so that a report about an earlier one changes nothing.
        let owner = format!("external-{}", app.ids.body().simple());
        let claimed = store::kernel::runner_jobs::claim_external(&app.db, jobs, runner_id, &owner, app.now()).await?;
        let Some(runner_job) = claimed else { return Ok(None) };
        let run = lookup::run_unchecked(app, runner_job.run_id).await?;
        if run.unfinished_commands > 0 && !run.status.is_terminal() {
            note_run(&run.tenant_id, run.session, run.run_id);
            return Ok(Some(ClaimedRunnerJob { runner_job, run }));
        }
        let summary = RawJson::of(&json!({"status": "idle", "message": "there was nothing left to do"}));
        let (runner_job_id, end) = (runner_job.runner_job_id, JobEnd::Succeeded);
        let op = FinishJobOp { runner_job_id, owner, end, heartbeat_at: None, summary };
        app.try_submit(runner_job.session, runner_job.run_id, op).await?;
    }
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
    let runner_jobs = runner_jobs.into_iter().map(|job| with_retention(app, job)).collect();
    Ok(RunnerJobPage { runner_jobs, next_cursor })
}

pub async fn get(app: &App, caller: &Principal, run_id: RunId, job_id: RunnerJobId) -> Result<RunnerJob, Failure> {
    app.visible_run(caller, run_id).await?;
    let job = store::kernel::runner_jobs::get(&app.db, job_id).await?;
    let job = job.filter(|job| job.run_id == run_id).ok_or_else(|| Failure::not_found("runner job"))?;
    Ok(with_retention(app, job))
}

/// Marks the liveness of a run as waiting for the pod of its runner, if the cluster shows why that does not start.
pub(super) async fn set_pod_reason(app: &App, run_id: RunId, liveness: &mut Liveness) -> Result<(), Failure> {
    let can_wait = app.config.runner.launcher == Launcher::Kubernetes && liveness.phase == Phase::WaitingRunner;
    if !can_wait || liveness.external_profile.is_some() {
        return Ok(());
    }
    let latest = store::kernel::runner_jobs::list(&app.db, run_id, None, None, 1).await?.pop();
    let started = latest.filter(|job| job.phase == JobPhase::Running);
    let observed = started.and_then(|job| job.observed.view::<JobObservation>());
    let waiting = observed.filter(|observed| observed.phase == ObservedPhase::Pending);
    if let Some(JobObservation { reason: Some(reason), message, .. }) = waiting {
        liveness.wait_for_pod(&reason, message.as_deref());
    }
    Ok(())
}

/// Marks the liveness of a run as waiting for a server of another workspace, if the run's standing job names one.
pub(super) async fn set_other_workspace(
    app: &App,
    job_id: Option<RunnerJobId>,
    liveness: &mut Liveness,
) -> Result<(), Failure> {
    // Only jobs of a store that servers share name a workspace.
    let can_wait = app.db.multi_replica() && liveness.phase == Phase::WaitingRunner;
    let Some(job_id) = job_id.filter(|_| can_wait) else { return Ok(()) };
    let job = store::kernel::runner_jobs::get(&app.db, job_id).await?;
    let placement = job.filter(|job| job.phase == JobPhase::Pending).and_then(|job| job.placement);
    if let Some(workspace) = placement.filter(|workspace| app.placement.as_ref() != Some(workspace)) {
        liveness.wait_for_server_of(&workspace);
    }
    Ok(())
}
