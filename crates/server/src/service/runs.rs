//! Runs: create, get, list, cancel.

use ostler_protocol::{
    Failure, FailureKind, RawJson, Timestamp,
    cursors::{self, Cursor},
    ids::{RunId, SessionId, prefix_range},
    json::canonical_hash,
    kernel::{
        commands::{CommandType, CreateCommand},
        events::{EventType, NewEvent, clip},
        operations::{CancelRunOp, CreateRunOp},
        policy::AdmittedRun,
        runner_jobs::CreateRunnerJob,
        runs::{Cancel, CreateRun, CreatedRun, ListRuns, Run, RunPage, RunStatus},
        sessions::Session,
        workspaces::WorkspaceRef,
    },
    limits::{BLOCKER_CHARS_MAX, EVENT_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, REASON_BYTES_MAX},
};
use ostler_store as store;
use serde_json::json;

use super::{
    commands::{self, Said},
    provider_profiles, runner_jobs, session_storage, sessions,
};
use crate::{app::App, auth::Principal, launcher::workspaces};

/// Creates a run; the same key and body again answer with the same run.
pub async fn create(app: &App, caller: &Principal, asked: CreateRun) -> Result<(CreatedRun, bool), Failure> {
    app.accepting()?;
    // Sizes first: hashing and redacting would be for nothing where one is refused.
    asked.check_sizes()?;
    if let Some(first) = &asked.command {
        check_first(first)?;
    }
    let bytes = asked.free_bytes();
    let request_hash = app.compute(bytes, || request_hash(&asked)).await;
    let asked = with_profile(app, asked).await?;
    let admitted = admit(app, caller, &asked).await?;
    let key = asked.idempotency_key.as_deref().map(|key| check_key(app, key)).transpose()?;
    let mut attempts = app.attempts(|| {
        Failure::new(FailureKind::Overloaded, "too many runs were created under this key or session at once")
    });
    loop {
        attempts.start_next()?;
        if let Some(known) = find_by_key(app, &admitted.tenant_id, key, &request_hash).await? {
            caller.may_read(&app.run_ref(known.run.run_id).await?)?;
            return Ok((known, false));
        }
        if asked.command.is_some() {
            provider_profiles::check_ready(app, &admitted.tenant_id, &admitted.backend_profile).await?;
        }
        let session = session(app, caller, &asked, &admitted).await?;
        let make = || create_op(app, caller, &asked, &admitted, &request_hash, &session, None);
        let op = app.compute(bytes, make).await?;
        if let Some(created) = app.try_submit(op.run.session, None, op).await? {
            app.metrics.run_started();
            let known = app.remember_run(&created.run, &session.0);
            if let Some(command) = &created.command {
                app.remember_command(command.command_id, &known);
            }
            return Ok((created, true));
        }
    }
}

/// What the policy makes of a request, if this caller may make it.
pub async fn admit(app: &App, caller: &Principal, asked: &CreateRun) -> Result<AdmittedRun, Failure> {
    let admitted = redacted(app, app.config.policy.admit(asked)?)?;
    caller.may_submit(&admitted.tenant_id)?;
    workspaces::check(app, &admitted.tenant_id, &WorkspaceRef::read(&admitted.workspace_ref)?)?;
    app.name("projectId", &admitted.project_id)?;
    app.name("providerId", &admitted.provider_id)?;
    let credentials = &admitted.execution_policy.secret_scope.provider_credentials;
    provider_profiles::check_named(app, &admitted.tenant_id, &admitted.backend_profile, credentials).await?;
    Ok(admitted)
}

/// The request with the profile of the agent that it names.
async fn with_profile(app: &App, mut asked: CreateRun) -> Result<CreateRun, Failure> {
    let Some(id) = asked.agent_id else { return Ok(asked) };
    let find = app.dialects.iter().find_map(|dialect| dialect.profile_of_agent.as_ref());
    let Some(find) = find else { return Err(Failure::not_found("agent")) };
    let Some(profile) = find(app.clone(), id).await? else { return Ok(asked) };
    match asked.backend_profile.replace(profile.clone()) {
        Some(named) if named != profile => {
            let message = format!("backendProfile is {named:?}, but the agent is run by {profile:?}");
            Err(Failure::invalid("agent-profile", message))
        }
        _ => Ok(asked),
    }
}

/// The fields a caller fills freely, as they may be kept. Credentials belong into the secret scope, by reference.
fn redacted(app: &App, admitted: AdmittedRun) -> Result<AdmittedRun, Failure> {
    let policy = app.redacted(&RawJson::of(&admitted.execution_policy))?;
    Ok(AdmittedRun {
        workspace_ref: app.redacted(&admitted.workspace_ref)?,
        trace_sink: app.redacted(&admitted.trace_sink)?,
        execution_policy: serde_json::from_str(policy.as_str()).map_err(Failure::internal)?,
        ..admitted
    })
}

fn request_hash(asked: &CreateRun) -> String {
    let mut body = serde_json::to_value(asked).expect("our own types serialise");
    body.as_object_mut().expect("a struct").remove("idempotencyKey");
    canonical_hash(&body)
}

/// Checks a key that a caller chose for a create.
pub fn check_key<'a>(app: &App, key: &'a str) -> Result<&'a str, Failure> {
    app.name("idempotencyKey", key)?;
    if key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        return Err(Failure::invalid("idempotency-key-size", "idempotencyKey is too long"));
    }
    Ok(key)
}

fn check_first(first: &CreateCommand) -> Result<(), Failure> {
    if first.command_type != CommandType::Turn {
        return Err(Failure::invalid("first-command", "a run's first command must be a turn"));
    }
    ostler_protocol::kernel::commands::check_payload(first.command_type, &first.payload)
}

async fn find_by_key(app: &App, tenant_id: &str, key: Option<&str>, hash: &str) -> Result<Option<CreatedRun>, Failure> {
    let Some(key) = key else { return Ok(None) };
    let Some(run) = store::kernel::runs::find_by_key(&app.db, tenant_id, key).await? else {
        return Ok(None);
    };
    if run.request_hash != hash {
        let message = "this idempotency key was used for another run";
        return Err(Failure::rule(FailureKind::IdempotencyConflict, "payload-hash", message)
            .detail("runId", run.run_id.to_string()));
    }
    let first = store::kernel::commands::get_first(&app.db, run.run_id).await?;
    let runner_job = match run.standing_job_id {
        Some(id) => store::kernel::runner_jobs::get(&app.db, id).await?,
        None => None,
    };
    let command = first.filter(|_| runner_job.is_some());
    Ok(Some(CreatedRun { run, command, runner_job }))
}

/// The session the run belongs to, and whether it is new.
async fn session(
    app: &App,
    caller: &Principal,
    asked: &CreateRun,
    admitted: &AdmittedRun,
) -> Result<(Session, bool), Failure> {
    let chosen =
        asked.session_ref.as_ref().map(|session| app.name("sessionRef.sessionId", &session.session_id)).transpose()?;
    if let Some(chosen) = chosen {
        let known = store::kernel::sessions::find_by_name(&app.db, &admitted.tenant_id, chosen).await?;
        if let Some(session) = known {
            caller.may_control(&session)?;
            session_storage::check_there(app, &session).await?;
            return Ok((session, false));
        }
        sessions::check_chosen(chosen)?;
    }
    let (tenant, profile) = (admitted.tenant_id.clone(), admitted.backend_profile.clone());
    let new = Session::new(SessionId::new(app.ids.body()), tenant, chosen.map(str::to_owned), profile, app.now());
    Ok((new, true))
}

/// A run and what it is started with. What was said is the first command's prompt, unless it is given.
pub fn create_op(
    app: &App,
    caller: &Principal,
    asked: &CreateRun,
    admitted: &AdmittedRun,
    request_hash: &str,
    (session, is_new): &(Session, bool),
    said: Option<Said>,
) -> Result<CreateRunOp, Failure> {
    let now = app.now();
    let run = new_run(app, asked, admitted, session, request_hash, now);
    let audit = json!({
        "action": "run.create", "by": caller.name(), "tenantId": admitted.tenant_id, "projectId": admitted.project_id,
        "executionPolicy": admitted.execution_policy, "businessIntents": asked.business_intents,
        "recordDigest": run.record_digest(), "sessionDigest": is_new.then(|| session.record_digest()),
    });
    let audit = app.redacted(&RawJson::of(&audit))?;
    if audit.size() > EVENT_BYTES_MAX {
        let what = "executionPolicy and businessIntents, as the audit event keeps them";
        return Err(Failure::too_large("audit-size", what, audit.size(), EVENT_BYTES_MAX));
    }
    let start = match &asked.command {
        None => None,
        Some(first) => {
            let order = CreateRunnerJob { standing: true, ..CreateRunnerJob::default() };
            let known = crate::app::RunRef::of(&run, session);
            let command = match said {
                None => commands::create_op(app, &known, first.clone())?,
                said => commands::compose(app, &known, first.clone(), said)?,
            };
            let command = Box::new(command);
            Some((command, Box::new(runner_jobs::create_op(app, &known, &order)?)))
        }
    };
    Ok(CreateRunOp {
        run,
        session: is_new.then(|| session.clone()),
        audit: NewEvent::written(EventType::Audit, None, &audit),
        start,
    })
}

fn new_run(app: &App, asked: &CreateRun, admitted: &AdmittedRun, session: &Session, hash: &str, now: Timestamp) -> Run {
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
        agent_id: asked.agent_id,
        idempotency_key: asked.idempotency_key.clone(),
        request_hash: hash.to_owned(),
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
        created_at: now,
        updated_at: now,
    }
}

pub async fn get(app: &App, caller: &Principal, run_id: RunId) -> Result<Run, Failure> {
    app.visible_run(caller, run_id).await?;
    read(app, run_id).await
}

/// The run, for whoever works for it.
pub async fn read(app: &App, run_id: RunId) -> Result<Run, Failure> {
    store::kernel::runs::get(&app.db, run_id).await?.ok_or_else(|| Failure::not_found("run"))
}

pub async fn list(app: &App, caller: &Principal, asked: ListRuns) -> Result<RunPage, Failure> {
    let limit = cursors::limit(asked.limit)?;
    let tenants = caller.tenants_within(asked.tenant_id.as_deref())?;
    let status = match asked.status.as_deref() {
        None => None,
        Some(text) => Some(RunStatus::parse(text).ok_or_else(|| Failure::invalid("run-status", "no such run status"))?),
    };
    let ids = id_range(RunId::PREFIX, asked.id_prefix.as_deref())?;
    let names = (&asked.project_id, &asked.provider_id, &asked.backend_profile, &asked.session_id);
    let sees_threads_of = caller.sees_threads_of();
    let filters = (&tenants, names, &asked.status, &ids, &sees_threads_of);
    let fingerprint = cursors::fingerprint("runs", &filters);
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let filter = store::kernel::runs::Filter {
        tenants,
        threads_of: sees_threads_of,
        project_id: asked.project_id,
        provider_id: asked.provider_id,
        backend_profile: asked.backend_profile,
        session_id: asked.session_id,
        status,
        ids,
    };
    let mut runs = store::kernel::runs::list(&app.db, &filter, after.as_ref(), limit + 1).await?;
    let more = runs.len() > limit as usize;
    runs.truncate(limit as usize);
    let next_cursor = runs.last().filter(|_| more).map(|run| {
        Cursor { created_at_us: run.created_at.as_microsecond(), id: run.run_id.to_string() }.encode(&fingerprint)
    });
    Ok(RunPage { runs, next_cursor })
}

/// The ids that begin like this.
pub fn id_range(kind: &str, asked: Option<&str>) -> Result<Option<(String, String)>, Failure> {
    let Some(text) = asked else { return Ok(None) };
    let range = prefix_range(kind, text);
    let message = format!("idPrefix must be {kind} and up to 32 hexadecimal digits");
    range.map(Some).ok_or_else(|| Failure::invalid("id-prefix", message))
}

/// Idempotent: cancelling a finished run answers how it ended.
pub async fn cancel(app: &App, caller: &Principal, run_id: RunId, asked: Cancel) -> Result<Run, Failure> {
    let known = app.visible_run(caller, run_id).await?;
    caller.may_cancel(&known)?;
    let op = CancelRunOp { by: caller.name(), reason: reason(app, asked)? };
    app.submit(&known, op).await
}

/// A caller's reason, redacted and clipped.
pub fn reason(app: &App, asked: Cancel) -> Result<Option<String>, Failure> {
    let Some(text) = asked.reason else { return Ok(None) };
    check_reason("reason", &text)?;
    Ok(Some(clip(&app.redactor.redact(&text), BLOCKER_CHARS_MAX)))
}

pub fn check_reason(field: &str, text: &str) -> Result<(), Failure> {
    if text.len() > REASON_BYTES_MAX {
        return Err(Failure::too_large("reason-size", field, text.len(), REASON_BYTES_MAX));
    }
    Ok(())
}
