//! Runs: create, get, list, cancel.

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule, Timestamp,
    created::Created,
    cursors::{Cursor, Page, PageRequest},
    ids::{RunId, SessionId},
    json::{canonical_hash, value_of},
    kernel::{
        commands::{CommandType, CreateCommand, PatchStatus},
        events::{EventType, NewEvent},
        labels::{LabelPatch, Labels},
        operations::{CancelRunOp, CreateRunOp, LabelRunOp},
        policy::AdmittedRun,
        provider_profiles::AgentConfig,
        resource_bundles::ResourceBundle,
        run_views::{RunPage, RunStanding, RunView},
        runner_jobs::CreateRunnerJob,
        runs::{Cancel, CreateRun, CreatedRun, ListRuns, Run, RunSort, RunState, RunStatus, UpdateRun},
        sessions::Session,
        usage::RunUsage,
        workspaces::WorkspaceRef,
    },
    limits::EVENT_BYTES_MAX,
    problems::Problems,
};
use ostler_store::{self as store, kernel::runs::RunRow};
use serde_json::json;

use super::{
    commands::{self, SubmittedMessage},
    lookup, provider_profiles,
    requests::{check_chosen, check_key, id_range, reason},
    runner_jobs, session_storage,
};
use crate::{
    app::App,
    auth::Principal,
    dialect::Dialects,
    launcher::workspaces,
    traces::{note_run, note_session, note_tenant},
};

/// Creates a run. Idempotent: the same key and body return the same run.
pub async fn create(app: &App, caller: &Principal, request: CreateRun) -> Result<Created<CreatedRun>, Failure> {
    create_in(app, caller, request, false).await
}

/// As [`create`], for a run whose result is for another run of the server. Its session is never unread.
pub(crate) async fn create_in_background(
    app: &App,
    caller: &Principal,
    request: CreateRun,
) -> Result<Created<CreatedRun>, Failure> {
    create_in(app, caller, request, true).await
}

/// `background`: whether a session that is created for the run is one of the server's own.
async fn create_in(
    app: &App,
    caller: &Principal,
    request: CreateRun,
    background: bool,
) -> Result<Created<CreatedRun>, Failure> {
    app.accepting()?;
    // Check sizes first, so that a rejected request is neither hashed nor redacted.
    request.check_sizes()?;
    let profile = agent_profile(app, &request).await?;
    if let Some(failure) = find_problems(app, caller, &request, &profile).await? {
        return Err(failure);
    }
    let bytes = request.free_bytes();
    let request_hash = app.compute(bytes, || request_hash(&request)).await;
    let request = with_profile(request, profile?);
    let admitted = admit(app, caller, &request).await?;
    if let Some(repeated) = request.retry_of {
        app.readable_run(caller, repeated).await?;
    }
    let key = request.idempotency_key.as_deref().map(|key| check_key(app, key)).transpose()?;
    let mut attempts = app.db.attempts(|| {
        Failure::new(FailureKind::Overloaded, "too many runs were created under this key or session at once")
    });
    loop {
        attempts.start_next()?;
        if let Some(existing) = find_by_key(app, &admitted.tenant_id, key, &request_hash).await? {
            let run = app.run_ref(existing.run.run_id).await?;
            caller.may_read(&run)?;
            note_run(&run.tenant_id, run.session, run.run_id);
            return Ok(Created::existing(existing));
        }
        if request.command.is_some() {
            provider_profiles::check_ready(app, &admitted.tenant_id, &admitted.backend_profile).await?;
        }
        let mut session = session(app, caller, &request, &admitted).await?;
        session.value.background |= session.is_new && background;
        let make = || create_op(app, caller, &request, &admitted, &request_hash, &session, None);
        let op = app.compute(bytes, make).await?;
        if let Some(created) = app.try_submit(op.run.session, None, op).await? {
            app.metrics.run_started();
            let run = app.created_run(&created.run, &session.value);
            if let Some(command) = &created.command {
                app.remember_command(command.command_id, &run);
            }
            return Ok(Created::new(created));
        }
    }
}

/// The problems that the fields of a request show by themselves, and those of its agent. If there is one, the problems that the
/// policy finds are added, so that the caller gets all of them in one response; the other checks that read the store come later,
/// in [`admit`].
async fn find_problems(
    app: &App,
    caller: &Principal,
    request: &CreateRun,
    profile: &Result<Option<String>, Failure>,
) -> Result<Option<Failure>, Failure> {
    let mut problems = Problems::default();
    if let Some(Err(failure)) = request.command.as_ref().map(check_first) {
        if let Some(removed) = removed_input(app, caller, request).await? {
            return Ok(Some(removed));
        }
        problems.note(Err::<(), _>(failure));
    }
    problems.note(request.labels.as_ref().map_or(Ok(()), Labels::check));
    problems.note(request.idempotency_key.as_deref().map_or(Ok(()), |key| check_key(app, key).map(drop)));
    let profile = problems.note(profile.clone());
    if problems.is_empty() {
        return Ok(None);
    }
    match profile {
        Some(profile) => drop(problems.note(app.config.policy.admit(&with_profile(request.clone(), profile)))),
        None => drop(problems.note(app.config.policy.check_without_profile(request))),
    }
    Ok(Some(problems.into_failure()))
}

/// Applies the policy to a request, and checks that the caller may submit it.
pub async fn admit(app: &App, caller: &Principal, request: &CreateRun) -> Result<AdmittedRun, Failure> {
    let admitted = redacted(app, app.config.policy.admit(request)?)?;
    caller.may_submit(&admitted.tenant_id)?;
    note_tenant(&admitted.tenant_id);
    workspaces::check(app, &admitted.tenant_id, &WorkspaceRef::read(&admitted.workspace_ref)?)?;
    check_bundle(app, &admitted)?;
    app.name("projectId", &admitted.project_id)?;
    app.name("providerId", &admitted.provider_id)?;
    let credentials = &admitted.execution_policy.secret_scope.provider_credentials;
    provider_profiles::check_named(app, &admitted.tenant_id, &admitted.backend_profile, credentials).await?;
    Ok(admitted)
}

/// Rejects a resource bundle that this server does not fetch, or that the agent could not find.
fn check_bundle(app: &App, admitted: &AdmittedRun) -> Result<(), Failure> {
    let Some(reference) = &admitted.resource_bundle_ref else { return Ok(()) };
    let profile = &admitted.backend_profile;
    // Runners elsewhere do not know of bundles, and would start without one.
    let is_external = app.config.runner.external_profiles.contains(profile);
    if is_external || AgentConfig::of_profile(profile).is_some_and(|agent| !agent.is_program()) {
        let message = format!("the agent of the profile {profile:?} has no workspace for a resource bundle");
        return Err(Failure::invalid(Rule::ResourceBundleProfile, message));
    }
    workspaces::check_repository(app, &admitted.tenant_id, &ResourceBundle::read(reference)?.source)
}

/// The profile of the agent that a request names. `None` if it names none, or one without a profile. The inner failure is a
/// problem of the request, the outer one of the server.
async fn agent_profile(app: &App, request: &CreateRun) -> Result<Result<Option<String>, Failure>, Failure> {
    let Some(id) = request.agent_id else { return Ok(Ok(None)) };
    let find = Dialects::of(app).iter().find_map(|dialect| dialect.profile_of_agent.as_ref());
    let Some(find) = find else { return Ok(Err(Failure::not_found("agent"))) };
    let profile = match find(app.clone(), id).await {
        Ok(profile) => profile,
        Err(failure) if failure.kind.row().status < 500 => return Ok(Err(failure)),
        Err(failure) => return Err(failure),
    };
    Ok(match (&request.backend_profile, &profile) {
        (Some(named), Some(own)) if named != own => {
            let message = format!("backendProfile is {named:?}, but the agent is run by {own:?}");
            Err(Failure::invalid(Rule::AgentProfile, message))
        }
        _ => Ok(profile),
    })
}

/// The request with the profile of its agent, if the agent has one.
fn with_profile(request: CreateRun, profile: Option<String>) -> CreateRun {
    CreateRun { backend_profile: profile.or(request.backend_profile), ..request }
}

/// Redacts the fields that a caller fills freely. Credentials belong in the secret scope, by reference.
fn redacted(app: &App, admitted: AdmittedRun) -> Result<AdmittedRun, Failure> {
    let mut execution_policy = admitted.execution_policy;
    // Its other texts are not free: the policy has compared each with a list. One that reads like a known value stays what it is.
    for credential in &mut execution_policy.secret_scope.tool_credentials {
        for key in credential.secret_ref.iter_mut().flat_map(|secret| &mut secret.keys) {
            *key = app.redactor.redact(key).into_owned();
        }
    }
    Ok(AdmittedRun {
        workspace_ref: app.redacted_payload(&admitted.workspace_ref)?,
        trace_sink: app.redacted(&admitted.trace_sink)?,
        resource_bundle_ref: admitted
            .resource_bundle_ref
            .as_ref()
            .map(|bundle| app.redacted_payload(bundle))
            .transpose()?,
        execution_policy,
        ..admitted
    })
}

#[expect(clippy::expect_used, reason = "a struct serialises as an object")]
fn request_hash(request: &CreateRun) -> String {
    let mut body = value_of(request);
    body.as_object_mut().expect("a struct").remove("idempotencyKey");
    canonical_hash(&body)
}

fn check_first(first: &CreateCommand) -> Result<(), Failure> {
    if first.command_type != CommandType::Turn {
        return Err(Failure::invalid(Rule::FirstCommand, "a run's first command must be a turn"));
    }
    ostler_protocol::kernel::commands::check_payload(first.command_type, &first.payload)
}

/// Why a run that repeats another one has no input: retention removed it. `None` if it did not, or nothing is repeated.
async fn removed_input(app: &App, caller: &Principal, request: &CreateRun) -> Result<Option<Failure>, Failure> {
    let Some(repeated) = request.retry_of else { return Ok(None) };
    app.readable_run(caller, repeated).await?;
    let row = store::kernel::results::get(&app.db, repeated, None).await?;
    let removed_at = row.and_then(|row| row.payloads_removed_at);
    Ok(removed_at.map(|at| CreateRun::input_removed(repeated, at)))
}

async fn find_by_key(app: &App, tenant_id: &str, key: Option<&str>, hash: &str) -> Result<Option<CreatedRun>, Failure> {
    let Some(key) = key else { return Ok(None) };
    let Some(run) = store::kernel::runs::find_by_key(&app.db, tenant_id, key).await? else {
        return Ok(None);
    };
    if run.request_hash != hash {
        let message = "this idempotency key was used for another run";
        return Err(Failure::rule(Rule::PayloadHash, message).detail("runId", run.run_id.to_string()));
    }
    let first = store::kernel::commands::get_first(&app.db, run.run_id).await?;
    let runner_job = match run.standing_job_id {
        Some(id) => store::kernel::runner_jobs::get(&app.db, id).await?,
        None => None,
    };
    let command = first.filter(|_| runner_job.is_some());
    Ok(Some(CreatedRun { run, command, runner_job }))
}

/// The session the run belongs to. A new one is created with the run.
async fn session(
    app: &App,
    caller: &Principal,
    request: &CreateRun,
    admitted: &AdmittedRun,
) -> Result<Created<Session>, Failure> {
    let chosen = request
        .session_ref
        .as_ref()
        .map(|session| app.name("sessionRef.sessionId", &session.session_id))
        .transpose()?;
    if let Some(chosen) = chosen {
        let existing = store::kernel::sessions::find_by_name(&app.db, &admitted.tenant_id, chosen).await?;
        if let Some(session) = existing {
            caller.may_control(&session)?;
            note_session(&session.tenant_id, session.session);
            session_storage::check_there(app, &session).await?;
            return Ok(Created::existing(session));
        }
        check_chosen(chosen)?;
    }
    let (tenant, profile) = (admitted.tenant_id.clone(), admitted.backend_profile.clone());
    let new = Session::new(SessionId::new(app.ids.body()), tenant, chosen.map(str::to_owned), profile, app.now());
    Ok(Created::new(new))
}

/// A new run and its first command, if the request has one. Without `message`, the command's prompt is its message.
pub fn create_op(
    app: &App,
    caller: &Principal,
    request: &CreateRun,
    admitted: &AdmittedRun,
    request_hash: &str,
    Created { value: session, is_new }: &Created<Session>,
    message: Option<SubmittedMessage>,
) -> Result<CreateRunOp, Failure> {
    let now = app.now();
    let mut run = new_run(app, request, admitted, session, request_hash, now);
    run.labels = request.labels.as_ref().map_or(Ok(Labels::default()), |labels| redacted_labels(app, labels))?;
    // Only in what the caller sent may a key be a secret.
    let intents = request.business_intents.as_ref().map(|intents| app.redacted(intents)).transpose()?;
    let audit = json!({
        "action": "run.create", "by": caller.name(), "createdBy": creator(caller), "labels": run.labels, "tenantId": admitted.tenant_id, "projectId": admitted.project_id,
        "executionPolicy": admitted.execution_policy, "businessIntents": intents,
        "retryOf": request.retry_of,
        "recordDigest": run.record_digest(), "sessionDigest": is_new.then(|| session.record_digest()),
    });
    let audit = app.redacted_values(&RawJson::of(&audit))?;
    // As the event has it, so that the one can be compared with the other.
    run.created_by = audit.view::<AuditedRun>().and_then(|audited| audited.created_by);
    if audit.size() > EVENT_BYTES_MAX {
        let what = "executionPolicy and businessIntents, as the audit event keeps them";
        return Err(Failure::too_large(Rule::AuditSize, what, audit.size(), EVENT_BYTES_MAX));
    }
    let start = match &request.command {
        None => None,
        Some(first) => {
            let order = CreateRunnerJob { standing: true, ..CreateRunnerJob::default() };
            let run_ref = crate::app::RunRef::of(&run, session);
            let command = match message {
                None => commands::create_op(app, caller, &run_ref, first.clone())?,
                message => commands::compose(app, caller, &run_ref, first.clone(), message)?,
            };
            let command = Box::new(command);
            let mut job = runner_jobs::create_op(app, &run_ref, &order)?;
            job.job.placement = workspaces::placement_of(app, &run.workspace_ref);
            Some((command, Box::new(job)))
        }
    };
    Ok(CreateRunOp {
        run,
        session: is_new.then(|| session.clone()),
        audit: NewEvent::written(EventType::Audit, None, &audit),
        start,
    })
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditedRun {
    created_by: Option<String>,
}

/// Who a run is counted for, unless its session has an owner: a user by their id, any other caller by its name.
fn creator(caller: &Principal) -> String {
    match caller {
        Principal::User { user_id, .. } => user_id.to_string(),
        _ => caller.name(),
    }
}

/// Labels, redacted. A value that is redacted stays within its bounds, or is rejected.
pub(super) fn redacted_labels(app: &App, labels: &Labels) -> Result<Labels, Failure> {
    let labels: Labels = redacted_as(app, labels)?;
    labels.check()?;
    Ok(labels)
}

/// As [`redacted_labels`], for a change.
pub(super) fn redacted_patch(app: &App, patch: &LabelPatch) -> Result<LabelPatch, Failure> {
    patch.check()?;
    let patch: LabelPatch = redacted_as(app, patch)?;
    patch.check()?;
    Ok(patch)
}

fn redacted_as<T: serde::Serialize + serde::de::DeserializeOwned>(app: &App, value: &T) -> Result<T, Failure> {
    let redacted = app.redacted(&RawJson::of(value))?;
    serde_json::from_str(redacted.as_str()).map_err(Failure::internal)
}

fn new_run(
    app: &App,
    request: &CreateRun,
    admitted: &AdmittedRun,
    session: &Session,
    hash: &str,
    now: Timestamp,
) -> Run {
    Run {
        run_id: RunId::new(app.ids.body()),
        session_id: session.public_id(),
        session: session.session,
        tenant_id: admitted.tenant_id.clone(),
        project_id: admitted.project_id.clone(),
        workspace_ref: admitted.workspace_ref.clone(),
        provider_id: admitted.provider_id.clone(),
        backend_profile: admitted.backend_profile.clone(),
        execution_policy: admitted.execution_policy.clone(),
        trace_sink: admitted.trace_sink.clone(),
        agent_id: request.agent_id,
        idempotency_key: request.idempotency_key.clone(),
        request_hash: hash.to_owned(),
        created_by: None,
        retry_of: request.retry_of,
        resource_bundle_ref: admitted.resource_bundle_ref.clone(),
        status: RunStatus::Pending,
        terminal: None,
        cancel_requested_at: None,
        cancel_reason: None,
        last_seq: 0,
        command_count: 0,
        unfinished_commands: 0,
        lease_epoch: 0,
        open_permissions: 0,
        offered_attempt_id: None,
        attempt_id: None,
        standing_job_id: None,
        labels: Labels::default(),
        usage: RunUsage::default(),
        created_at: now,
        updated_at: now,
    }
}

pub async fn get(app: &App, caller: &Principal, run_id: RunId) -> Result<Run, Failure> {
    app.visible_run(caller, run_id).await?;
    lookup::run_unchecked(app, run_id).await
}

/// The run with its state for people.
pub async fn get_view(app: &App, caller: &Principal, run_id: RunId) -> Result<RunView, Failure> {
    app.visible_run(caller, run_id).await?;
    let row = store::kernel::runs::get_row(&app.db, run_id).await?;
    row.map(view).ok_or_else(|| Failure::not_found("run"))
}

fn view(row: RunRow) -> RunView {
    let RunRow { run, turn_end } = row;
    let standing = RunStanding {
        state: RunState::of(run.status, run.open_permissions, turn_end),
        open_permissions: run.open_permissions,
    };
    RunView { run, standing }
}

pub async fn list(app: &App, caller: &Principal, request: ListRuns) -> Result<RunPage, Failure> {
    let tenants = caller.tenants_within(request.tenant_id.as_deref())?;
    let status = match request.status.as_deref() {
        None => None,
        Some(text) => {
            Some(RunStatus::parse(text).ok_or_else(|| Failure::invalid(Rule::RunStatus, "no such run status"))?)
        }
    };
    let sort = request.sort.as_deref().map_or(Some(RunSort::Created), RunSort::parse);
    let sort = sort.ok_or_else(|| Failure::invalid(Rule::RunSort, "sort must be created, cost, tokens or duration"))?;
    let labels = request.label.as_deref().map(Labels::parse_filter).transpose()?.unwrap_or_default();
    let no_such_state = || {
        let words = RunState::ALL.map(RunState::as_str).join(", ");
        Failure::invalid(Rule::RunStatus, format!("state must be one of {words}, or several between commas"))
    };
    let states = request.state.as_deref().map(|words| RunState::parse_list(words).ok_or_else(no_such_state));
    let states = states.transpose()?.unwrap_or_default();
    let ids = id_range(RunId::PREFIX, request.id_prefix.as_deref())?;
    let names = (&request.project_id, &request.provider_id, &request.backend_profile, &request.session_id);
    let sees_threads_of = caller.sees_threads_of();
    let narrowed = (&request.created_after, &labels, sort);
    let filters = (&tenants, names, (&request.status, &request.state), &ids, &sees_threads_of, narrowed);
    let page = PageRequest::new("runs", &filters, request.limit, request.cursor.as_deref())?;
    let filter = store::kernel::runs::RunFilter {
        tenants,
        threads_of: sees_threads_of,
        project_id: request.project_id,
        provider_id: request.provider_id,
        backend_profile: request.backend_profile,
        session_id: request.session_id,
        status,
        states,
        created_after: request.created_after,
        labels,
        sort,
        ids,
    };
    let db = app.db.tolerating_lag();
    let runs = store::kernel::runs::list(&db, &filter, page.after.as_ref(), page.rows_max()).await?;
    let behind = |row: &RunRow| Cursor::behind(sort.position(&row.run), row.run.run_id);
    let Page { items: runs, next_cursor } = page.page(runs, behind);
    Ok(RunPage { runs: runs.into_iter().map(view).collect(), next_cursor })
}

/// Changes the labels of a run, also of one that has ended.
pub async fn update(app: &App, caller: &Principal, run_id: RunId, request: UpdateRun) -> Result<Run, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_control(&run)?;
    let patch = request.labels.ok_or_else(|| Failure::invalid(Rule::LabelsRequired, "labels are required"))?;
    let patch = redacted_patch(app, &patch)?;
    app.submit(&run, LabelRunOp { patch, by: caller.name() }).await
}

/// Idempotent: cancelling a finished run returns how it ended.
pub async fn cancel(app: &App, caller: &Principal, run_id: RunId, request: Cancel) -> Result<Run, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_cancel(&run)?;
    let op = CancelRunOp { by: caller.name(), reason: reason(app, request)? };
    app.submit(&run, op).await
}

/// `PATCH …/status` and an appended `terminal_status` are one verb.
pub async fn patch_status(app: &App, caller: &Principal, run_id: RunId, request: PatchStatus) -> Result<Run, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    commands::record_status(app, caller, &run, None, request).await?;
    get(app, caller, run_id).await
}
