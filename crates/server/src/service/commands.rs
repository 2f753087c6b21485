//! Commands: create, get, cancel; and the runner's poll, ack and status.

use std::time::Duration;

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    created::Created,
    cursors,
    ids::{CommandId, RunId},
    json::canonical_hash,
    kernel::{
        budgets::deadline_ms,
        commands::{
            AckCommand, Command, CommandPage, CommandState, CommandType, CreateCommand, PatchStatus, PollCommands,
            check_payload, news_mark, prompt,
        },
        events::{AppendEvent, AppendEvents, Event, EventType, NewEvent},
        facts::TerminalFacts,
        fold::CommandFold,
        operations::{AckOp, CancelCommandOp, CreateCommandOp},
        runs::Cancel,
        session_storage::MissingStorage,
        whole_payloads::{CommandPayload, WHOLE_PAYLOAD, WholePayload},
    },
};
use ostler_store as store;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    events, lookup, provider_profiles,
    requests::{attempt, check_key, check_reason, reason},
    session_storage,
};
use crate::{
    app::{App, RunRef},
    auth::Principal,
    recheck::SessionWatch,
    traces::note_session,
};

const POLL_LIMIT_DEFAULT: u32 = 20;

pub async fn create(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    request: CreateCommand,
) -> Result<Created<Command>, Failure> {
    app.accepting()?;
    let run = app.visible_run(caller, run_id).await?;
    caller.may_control(&run)?;
    let bytes = request.payload.as_str().len();
    let mut op = app.compute(bytes, || create_op(app, caller, &run, request)).await?;
    if op.command.command_type == CommandType::Turn {
        let checked = check_turn(app, &run).await;
        // A repeated request is not checked again: the kernel returns the first response.
        if checked.is_ok() || !is_repeated(app, &op.command).await? {
            op.storage_missing = checked?;
        }
    }
    let command_id = op.command.command_id;
    let submitted = app.submit(&run, op).await;
    let created = session_storage::record_loss(app, run.session, submitted).await?;
    if created.is_new {
        app.remember_command(command_id, &run);
    }
    Ok(created)
}

/// Checks what a new turn needs and what may vanish while its run exists: the profile with its secret, and the session's storage.
/// Returns what of the storage is missing, about which the kernel decides.
async fn check_turn(app: &App, run: &RunRef) -> Result<MissingStorage, Failure> {
    provider_profiles::check_turn(app, run).await?;
    session_storage::find_missing(app, run.session).await
}

/// Whether a command of the run was already submitted with this command's key.
async fn is_repeated(app: &App, command: &Command) -> Result<bool, Failure> {
    let Some(key) = command.idempotency_key.as_deref() else { return Ok(false) };
    Ok(store::kernel::commands::has_key(&app.db, command.run_id, key).await?)
}

/// The command that was submitted before with the request's key, to any run of the session that the tenant knows by this name.
/// `None` if there is none. Fails if it was another command.
pub async fn find_by_key(
    app: &App,
    caller: &Principal,
    tenant_id: &str,
    session_name: &str,
    request: &CreateCommand,
) -> Result<Option<Command>, Failure> {
    let Some(key) = request.idempotency_key.as_deref() else { return Ok(None) };
    check_key(app, key)?;
    app.name("sessionId", session_name)?;
    let Some(session) = store::kernel::sessions::find_by_name(&app.db, tenant_id, session_name).await? else {
        return Ok(None);
    };
    caller.may_control(&session)?;
    note_session(&session.tenant_id, session.session);
    let found = store::kernel::commands::find_by_key(&app.db, session.session, &session.public_id(), key).await?;
    let Some(found) = found else { return Ok(None) };
    let bytes = request.payload.as_str().len();
    let payload_hash = app.compute(bytes, || canonical_hash(&request.payload.to_value())).await;
    if found.payload_hash == payload_hash && found.command_type == request.command_type {
        return Ok(Some(found));
    }
    let message = "this idempotency key was used for another command";
    Err(Failure::rule(Rule::PayloadHash, message).detail("commandId", found.command_id.to_string()))
}

/// The message of a user, as its event stores it: redacted, in parts.
pub struct SubmittedMessage {
    pub message_id: String,
    pub content: Value,
    /// The client that submits it, where the dialect knows one.
    pub origin: Option<String>,
    /// Other fields of the message, as the client sent them.
    pub fields: Map<String, Value>,
    /// More came with the message, which the command's payload has.
    pub has_input: bool,
    /// The state that the front end shares with the agent, if the message changes it.
    pub state: Option<Value>,
}

impl SubmittedMessage {
    pub fn new(message_id: String, content: Value) -> Self {
        Self { message_id, content, origin: None, fields: Map::new(), has_input: false, state: None }
    }

    /// The message's event, and the events of what came with it.
    fn into_events(
        self,
        command_id: CommandId,
        command_type: CommandType,
        record_digest: &str,
    ) -> (NewEvent, Vec<NewEvent>) {
        let Self { message_id, content, origin, fields, has_input, state } = self;
        let mut payload = json!({"messageId": message_id, "commandType": command_type, "content": content,
            "recordDigest": record_digest});
        if let Some(origin) = origin {
            payload["origin"] = origin.into();
        }
        if !fields.is_empty() {
            payload["fields"] = fields.into();
        }
        if has_input {
            payload["hasInput"] = true.into();
        }
        let snapshot = state.map(|state| json!({"snapshot": state}));
        let facts = snapshot.iter().map(|snapshot| NewEvent::written(EventType::State, Some(command_id), snapshot));
        (NewEvent::written(EventType::UserMessage, Some(command_id), &payload), facts.collect())
    }
}

/// Checks a new command and completes it, except for its number and target.
pub fn create_op(
    app: &App,
    caller: &Principal,
    run: &RunRef,
    request: CreateCommand,
) -> Result<CreateCommandOp, Failure> {
    check_payload(request.command_type, &request.payload)?;
    if request.payload.to_value().get(WHOLE_PAYLOAD).is_some() {
        let message = format!("the member {WHOLE_PAYLOAD:?} of a payload is reserved for the server");
        return Err(Failure::invalid(Rule::PayloadReserved, message));
    }
    if let Some(key) = &request.idempotency_key {
        check_key(app, key)?;
    }
    compose(app, caller, run, request, None)
}

/// Completes a checked command. Without `message`, the command's prompt is its message.
pub fn compose(
    app: &App,
    caller: &Principal,
    run: &RunRef,
    request: CreateCommand,
    message: Option<SubmittedMessage>,
) -> Result<CreateCommandOp, Failure> {
    // The hash covers the payload as it was sent; the stored payload is redacted.
    let payload_hash = canonical_hash(&request.payload.to_value());
    let payload = app.redacted_payload(&request.payload)?;
    let command_id = CommandId::new(app.ids.body());
    let prompted = || {
        let content = json!([{"type": "text", "text": prompt(&payload)?}]);
        Some(SubmittedMessage::new(format!("msg_{}", app.ids.body().simple()), content))
    };
    let message = message.or_else(prompted);
    let now = app.now();
    let command = Command {
        command_id,
        run_id: run.run_id,
        session: run.session,
        seq: 0,
        command_type: request.command_type,
        payload: payload.clone(),
        payload_hash,
        idempotency_key: request.idempotency_key,
        origin: message.as_ref().and_then(|message| message.origin.clone()),
        submitted_by: Some(caller.name()),
        state: CommandState::Pending,
        target_command_id: None,
        cancel_requested_at: None,
        cancel_reason: None,
        rolled_back_at: None,
        acked_at: None,
        deadline_at: deadline_ms(&payload).and_then(|ms| now.checked_add(SignedDuration::from_millis(ms)).ok()),
        attempt_id: None,
        terminal: None,
        fold: CommandFold::default(),
        created_at: now,
        updated_at: now,
    };
    let record_digest = command.record_digest();
    let (message, facts) = match message {
        Some(said) => said.into_events(command_id, request.command_type, &record_digest),
        None => {
            let fact =
                json!({"action": format!("command.{}", request.command_type.as_str()), "recordDigest": record_digest});
            (NewEvent::written(EventType::Audit, Some(command_id), &fact), vec![])
        }
    };
    Ok(CreateCommandOp {
        command,
        message,
        facts,
        storage_missing: session_storage::missing_directory(app, run.session)?,
        unsteerable: unsteerable(app, caller, run),
    })
}

/// The caller whose turns this caller may not steer: on a server without a workspace, the operator's own turns in no thread have
/// all tools of MCP servers.
fn unsteerable(app: &App, caller: &Principal, run: &RunRef) -> Option<String> {
    let may_have_tools = app.config.server.workspace.is_none() && run.owner.is_none();
    (may_have_tools && !matches!(caller, Principal::Operator)).then(|| Principal::Operator.name())
}

pub async fn get(app: &App, caller: &Principal, run_id: RunId, command_id: CommandId) -> Result<Command, Failure> {
    app.visible_run(caller, run_id).await?;
    let command = store::kernel::commands::get(&app.db, command_id).await?;
    command.filter(|command| command.run_id == run_id).ok_or_else(|| Failure::not_found("command"))
}

/// The whole payload of a command. If it was removed, or nothing is stored beside the command, this is the command's own. Fails if the
/// stored payload is missing, or is not the one that the command was created with.
pub async fn payload(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    command_id: CommandId,
) -> Result<CommandPayload, Failure> {
    let command = get(app, caller, run_id, command_id).await?;
    let Some(described) = WholePayload::of(&command.payload) else {
        return Ok(CommandPayload { command_id, payload: command.payload });
    };
    let _permit = app.whole_payloads.acquire().await;
    let whole = store::kernel::whole_payloads::get(&app.db, command_id).await?;
    let bytes = whole.as_ref().map_or(0, RawJson::size);
    let intact = app.compute(bytes, || whole.filter(|whole| WholePayload::describe(whole) == described)).await;
    let damaged = || Failure::new(FailureKind::Internal, "the stored payload of the command is missing or was changed");
    Ok(CommandPayload { command_id, payload: intact.ok_or_else(damaged)? })
}

/// Idempotent: cancelling a finished command returns how it ended.
pub async fn cancel(app: &App, caller: &Principal, command_id: CommandId, request: Cancel) -> Result<Command, Failure> {
    cancel_with(app, caller, command_id, request, false).await
}

/// As [`cancel`]. `with_jobs`: jobs of the run that no runner has claimed are cancelled too, if no command is left for them.
pub(super) async fn cancel_with(
    app: &App,
    caller: &Principal,
    command_id: CommandId,
    request: Cancel,
    with_jobs: bool,
) -> Result<Command, Failure> {
    let run = app.visible_command(caller, command_id).await?;
    caller.may_cancel(&run)?;
    let op = CancelCommandOp { command_id, by: caller.name(), reason: reason(app, request)?, origin: None, with_jobs };
    app.submit(&run, op).await
}

/// The commands and the news that a runner has not seen. With `waitMs`, waits until there are some.
pub async fn poll(app: &App, caller: &Principal, run_id: RunId, request: PollCommands) -> Result<CommandPage, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_run(&run)?;
    let limit = cursors::limit(request.limit.or(Some(POLL_LIMIT_DEFAULT)))?;
    let after = cursors::after_seq(request.after_seq)?;
    let wait = Duration::from_millis(cursors::wait_ms(request.wait_ms)?);
    if wait.is_zero() {
        return read_page(app, run_id, after, limit).await.map(|(page, _)| page);
    }
    let mut watch = SessionWatch::new(app, run.session);
    let deadline = Instant::now() + wait;
    loop {
        let (page, ended) = read_page(app, run_id, after, limit).await?;
        let news = !page.commands.is_empty() || page.news_mark != request.known_news.as_deref().unwrap_or_default();
        if news || ended || Instant::now() >= deadline {
            return Ok(page);
        }
        let is_relevant = |event: &Event| event.run.is_some_and(|(id, _)| id == run_id) && wakes_runner(event);
        tokio::select! {
            () = watch.changed(deadline, is_relevant) => {}
            () = app.stopped() => return Ok(page),
        }
    }
}

/// A runner's own output must not wake its poll; requests of other callers must.
fn wakes_runner(event: &Event) -> bool {
    matches!(
        event.event_type,
        EventType::UserMessage | EventType::Audit | EventType::PermissionResolved | EventType::Lease
    ) || (event.event_type == EventType::TerminalStatus && event.command_id.is_none())
}

async fn read_page(app: &App, run_id: RunId, after: i64, limit: u32) -> Result<(CommandPage, bool), Failure> {
    let run = lookup::run_unchecked(app, run_id).await?;
    let mut unfinished = store::kernel::commands::list_unfinished(&app.db, run_id).await?;
    let resolved_permissions = match unfinished.is_empty() {
        true => vec![],
        false => store::kernel::permissions::list_resolved(&app.db, run_id).await?,
    };
    if !resolved_permissions.is_empty() {
        // A cancel resolves the permission requests of its command. The commands are read after them, so that a runner never
        // receives such a resolution without the cancel.
        unfinished = store::kernel::commands::list_unfinished(&app.db, run_id).await?;
    }
    let cancel_requested =
        unfinished.iter().filter(|c| c.cancel_requested_at.is_some()).map(|c| c.command_id).collect::<Vec<_>>();
    let commands: Vec<_> = unfinished.into_iter().filter(|c| c.seq > after).take(limit as usize).collect();
    let page = CommandPage {
        next_after_seq: commands.last().map_or(after, |c| c.seq),
        commands,
        news_mark: news_mark(&run, &cancel_requested, &resolved_permissions),
        cancel_requested,
        run_cancel_requested: run.cancel_requested_at.is_some(),
        resolved_permissions,
    };
    Ok((page, run.status.is_terminal()))
}

pub async fn ack(
    app: &App,
    caller: &Principal,
    command_id: CommandId,
    request: AckCommand,
) -> Result<Command, Failure> {
    let run = app.visible_command(caller, command_id).await?;
    caller.may_run(&run)?;
    let attempt_id = attempt(request.attempt_id.as_deref())?;
    let op = AckOp { command_id, runner_id: request.runner_id, lease_epoch: request.lease_epoch, attempt_id };
    app.submit(&run, op).await
}

/// `PATCH …/status` and an appended `terminal_status` are one verb.
pub async fn patch_status(
    app: &App,
    caller: &Principal,
    command_id: CommandId,
    request: PatchStatus,
) -> Result<Command, Failure> {
    let run = app.visible_command(caller, command_id).await?;
    record_status(app, caller, &run, Some(command_id), request).await?;
    get(app, caller, run.run_id, command_id).await
}

/// Records a status that a runner has stated, as an event.
pub(super) async fn record_status(
    app: &App,
    caller: &Principal,
    run: &RunRef,
    command_id: Option<CommandId>,
    request: PatchStatus,
) -> Result<(), Failure> {
    if let Some(message) = &request.message {
        check_reason("message", message)?;
    }
    let (event_type, payload) = if request.status == "running" {
        ("backend_status", json!({"phase": "running"}))
    } else {
        TerminalFacts::checked(Some(&request.status), request.failure_kind.as_deref(), None)?;
        let mut payload = json!({"status": request.status, "source": "runner"});
        payload["failureKind"] = request.failure_kind.map_or(Value::Null, Value::from);
        payload["message"] = request.message.map_or(Value::Null, Value::from);
        ("terminal_status", payload)
    };
    let event = AppendEvent {
        event_type: event_type.into(),
        command_id: command_id.map(|id| id.to_string()),
        payload: RawJson::of(&payload),
    };
    let append = AppendEvents {
        runner_id: request.runner_id,
        lease_epoch: request.lease_epoch,
        attempt_id: request.attempt_id,
        batch_no: None,
        release_if_idle: false,
        job_summary: None,
        events: vec![event],
    };
    events::append(app, caller, run.run_id, append).await.map(drop)
}
