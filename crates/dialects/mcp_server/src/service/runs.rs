//! Runs: submit, follow, result, list, cancel.

use ostler_protocol::{
    Failure, FailureKind, RawJson,
    created::Created,
    cursors,
    cursors::EventsQuery,
    ids::{CommandId, RunId},
    kernel::{
        commands::{CommandType, CreateCommand},
        events::EventPage,
        policy::Approval,
        provider_profiles::secret_ref,
        results::RunResult,
        run_views::RunView,
        runs::{Cancel, CreateRun, ListRuns, Run, SessionRef},
    },
    mcp_server::{
        arguments::{
            CancelRunArguments, FOLLOW_EVENTS_DEFAULT, FollowRunArguments, ListRunsArguments, RunResultArguments,
            SubmitRunArguments, WaitUntil, read_run_id,
        },
        event_ids::RunWait,
        results::{FOLLOW_BYTES_MAX, FollowedRun, ListedRun, SubmittedRun, within_bytes},
    },
};
use ostler_server::{app::App, auth::Principal, service};
use serde_json::{Value, json};

use super::context::RequestContext;

/// The project and provider of runs that name none, unless the policy lists others.
const PROJECT: &str = "ostler/mcp";
const PROVIDER: &str = "local";

/// Submits a turn. What is waited for then is its end.
pub(super) async fn submit(context: &RequestContext, arguments: SubmitRunArguments) -> Result<RunWait, Failure> {
    let RequestContext { app, caller, .. } = context;
    let wait_ms = cursors::wait_ms(arguments.wait_ms)?;
    let request = run_request(app, caller, arguments).await?;
    // A repeated call may be of a turn that continued a run which has ended since: it must not start another run.
    let (run_id, command_id, after_seq) = match find_repeated(app, caller, &request).await? {
        Some(repeated) => repeated,
        None => match service::runs::create(app, caller, request.clone()).await {
            Ok(Created { value: created, .. }) => {
                (created.run.run_id, created.command.map(|command| command.command_id), 0)
            }
            Err(busy) if busy.kind == FailureKind::SessionBusy => continue_run(app, caller, &request, busy).await?,
            Err(failure) => return Err(failure),
        },
    };
    let events_max = FOLLOW_EVENTS_DEFAULT;
    let deadline_ms = deadline_ms(app, wait_ms);
    Ok(RunWait { run_id, command_id, after_seq, events_max, until: WaitUntil::End, deadline_ms })
}

/// What is waited for by a call that follows a run. Whether the caller may see the run is checked when the wait begins.
pub(super) fn follow(context: &RequestContext, arguments: &FollowRunArguments) -> Result<RunWait, Failure> {
    Ok(RunWait {
        run_id: read_run_id(&arguments.run_id)?,
        command_id: None,
        after_seq: cursors::after_seq(arguments.after_seq)?,
        events_max: arguments.events_max()?,
        until: arguments.until,
        deadline_ms: deadline_ms(&context.app, arguments.wait_ms()?),
    })
}

fn deadline_ms(app: &App, wait_ms: u64) -> i64 {
    app.now().as_millisecond().saturating_add_unsigned(wait_ms)
}

/// The result of a call after its wait, from the store.
pub(crate) async fn result_of(context: &RequestContext, wait: &RunWait) -> Result<RawJson, Failure> {
    let RequestContext { app, caller, .. } = context;
    if wait.command_id.is_some() {
        let result = service::results::get(app, caller, wait.run_id, wait.command_id).await?;
        return Ok(RawJson::of(&SubmittedRun::of(result, wait.after_seq)));
    }
    // The state is read first, so that a run that is reported as ended has its last event in the page or behind it.
    let view = service::runs::get_view(app, caller, wait.run_id).await?;
    let page = events(context, wait.run_id, wait.after_seq, wait.events_max).await?;
    Ok(RawJson::of(&FollowedRun::of(view, page)))
}

/// Events of a run, within the bounds of a result.
pub(super) async fn events(
    context: &RequestContext,
    run_id: RunId,
    after_seq: i64,
    events_max: u32,
) -> Result<EventPage, Failure> {
    let query = EventsQuery { after_seq, limit: Some(events_max), wait_ms: None };
    let text = service::events::page(&context.app, &context.caller, run_id, query).await?;
    let read = || serde_json::from_str::<EventPage>(&text).map_err(Failure::internal);
    let page = context.app.compute(text.len(), read).await?;
    Ok(within_bytes(page, FOLLOW_BYTES_MAX))
}

pub(super) async fn result(context: &RequestContext, arguments: &RunResultArguments) -> Result<RunResult, Failure> {
    let run_id = read_run_id(&arguments.run_id)?;
    let unknown = |_| Failure::not_found("command");
    let command_id = arguments.command_id.as_deref().map(str::parse::<CommandId>).transpose().map_err(unknown)?;
    service::results::get(&context.app, &context.caller, run_id, command_id).await
}

pub(super) async fn list(context: &RequestContext, arguments: ListRunsArguments) -> Result<RawJson, Failure> {
    let limit = Some(arguments.runs_max()?);
    let ListRunsArguments { tenant_id, session: session_id, state, label, cursor, .. } = arguments;
    let request = ListRuns { tenant_id, session_id, state, label, cursor, limit, ..ListRuns::default() };
    let page = service::runs::list(&context.app, &context.caller, request).await?;
    let runs: Vec<ListedRun> = page.runs.into_iter().map(ListedRun::from).collect();
    Ok(RawJson::of(&json!({"runs": runs, "nextCursor": page.next_cursor})))
}

pub(super) async fn cancel(context: &RequestContext, arguments: CancelRunArguments) -> Result<ListedRun, Failure> {
    let run_id = read_run_id(&arguments.run_id)?;
    let reason = Cancel { reason: arguments.reason };
    service::runs::cancel(&context.app, &context.caller, run_id, reason).await?;
    Ok(service::runs::get_view(&context.app, &context.caller, run_id).await?.into())
}

/// The request for a new run, as it would be sent over REST. Its fields are checked there.
async fn run_request(app: &App, caller: &Principal, arguments: SubmitRunArguments) -> Result<CreateRun, Failure> {
    let policy = &app.config.policy;
    let first = |list: &[String], default: &str| list.first().map_or(default, String::as_str).to_owned();
    let tenant_id = arguments.tenant_id.or_else(|| service::callers::get(app, caller).default_tenant);
    let approval = arguments.approval.unwrap_or_else(|| Approval::OnRequest.min(policy.ceiling.approval));
    let mut execution = json!({"approval": approval});
    if let Some(tenant_id) = &tenant_id {
        caller.may_submit(tenant_id)?;
        if service::provider_profiles::has_credential(app, tenant_id, &arguments.profile).await? {
            let credential = json!({"profile": arguments.profile, "secretRef": secret_ref(&arguments.profile)});
            execution["secretScope"] = json!({"providerCredentials": [credential]});
        }
    }
    let payload = RawJson::of(&json!({"prompt": arguments.prompt}));
    Ok(CreateRun {
        tenant_id,
        project_id: Some(arguments.project_id.unwrap_or_else(|| first(&policy.projects, PROJECT))),
        workspace_ref: Some(arguments.workspace.unwrap_or_else(|| RawJson::of(&json!({"kind": "none"})))),
        provider_id: Some(first(&policy.providers, PROVIDER)),
        backend_profile: Some(arguments.profile),
        execution_policy: Some(RawJson::of(&execution)),
        trace_sink: Some(RawJson::null()),
        session_ref: arguments.session.map(|session_id| SessionRef { session_id }),
        labels: arguments.labels,
        idempotency_key: arguments.idempotency_key,
        command: Some(CreateCommand { command_type: CommandType::Turn, payload, idempotency_key: None }),
        ..CreateRun::default()
    })
}

/// The turn that was submitted with the request's key before, to a run that it continued. `None` if there is none. The call waits
/// from the start of the run.
async fn find_repeated(
    app: &App,
    caller: &Principal,
    request: &CreateRun,
) -> Result<Option<(RunId, Option<CommandId>, i64)>, Failure> {
    let (Some(tenant_id), Some(session), Some(first)) = (&request.tenant_id, &request.session_ref, &request.command)
    else {
        return Ok(None);
    };
    let turn = CreateCommand { idempotency_key: request.idempotency_key.clone(), ..first.clone() };
    let found = service::commands::find_by_key(app, caller, tenant_id, &session.session_id, &turn).await?;
    Ok(found.map(|command| (command.run_id, Some(command.command_id), 0)))
}

/// Submits the turn to the session's active run, which its runner keeps for a while. Fails with `busy` if that run has other work,
/// or is of another kind than the request.
async fn continue_run(
    app: &App,
    caller: &Principal,
    request: &CreateRun,
    busy: Failure,
) -> Result<(RunId, Option<CommandId>, i64), Failure> {
    let active = busy.details.as_ref().and_then(|details| details.get("activeRunId")?.as_str()?.parse::<RunId>().ok());
    let (Some(run_id), Some(first)) = (active, &request.command) else { return Err(busy) };
    let Ok(RunView { run, .. }) = service::runs::get_view(app, caller, run_id).await else { return Err(busy) };
    if !takes_turn(&run, request) {
        return Err(busy);
    }
    let turn = CreateCommand { idempotency_key: request.idempotency_key.clone(), ..first.clone() };
    let command = service::commands::create(app, caller, run_id, turn).await?.value;
    Ok((run_id, Some(command.command_id), run.last_seq))
}

fn takes_turn(run: &Run, request: &CreateRun) -> bool {
    let is = |requested: &Option<String>, current: &str| requested.as_deref() == Some(current);
    let policy = request.execution_policy.as_ref().map(RawJson::to_value).unwrap_or_default();
    let workspace = request.workspace_ref.as_ref().map(RawJson::to_value).unwrap_or(Value::Null);
    run.unfinished_commands == 0
        && run.cancel_requested_at.is_none()
        && is(&request.backend_profile, &run.backend_profile)
        && is(&request.project_id, &run.project_id)
        && is(&request.provider_id, &run.provider_id)
        && policy["approval"] == json!(run.execution_policy.approval)
        && (workspace["kind"] == "none" || workspace == run.workspace_ref.to_value())
}
