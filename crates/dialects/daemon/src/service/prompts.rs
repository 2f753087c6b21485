//! Prompts: submit and cancel. A prompt is a turn of the session, under an alias that is its id. It waits in the session's run
//! for earlier prompts.

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    created::Created,
    daemon::{
        languages::reply_instruction,
        prompts::{PromptAccepted, PromptBlock, SubmitPrompt, prompt_text, short_blocks, short_text},
        sessions::frame_id,
    },
    ids::CommandId,
    json::canonical_hash,
    kernel::{
        commands::{Command, CommandType, CreateCommand, check_payload},
        context::{Context, Note as ContextNote},
        modes::ApprovalMode,
        operations::{CancelCommandOp, CreateRunOp, DismissOp, Submission, SubmitOp, UNFINISHED_TURNS},
        policy::Approval,
        provider_profiles::secret_ref,
        runs::CreateRun,
        sessions::Session,
        whole_payloads::{WHOLE_PAYLOAD, WholePayload},
    },
    limits::{COMMAND_PAYLOAD_BYTES_MAX, PERMISSIONS_OPEN_CEILING, PROMPT_BYTES_MAX, WHOLE_PAYLOAD_BYTES_MAX},
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::{commands::SubmittedMessage, provider_profiles, runs, session_storage},
};
use ostler_store::{self as store, lane::AttachedRows};
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;

use super::{
    clients,
    lookup::{self, OpenSession, not_found},
    mcp, memory, restores,
    sessions::{RETRY_AFTER_MS, current_model},
};
use crate::{replies::PendingReply, state::DaemonState};

/// The project and provider of the kernel's runs of sessions, unless the policy lists others.
const PROJECT: &str = "ostler/daemon";
const PROVIDER: &str = "local";

/// Submits a prompt. Its frames are sent when the returned guard is dropped, which is for the response to do.
pub(crate) async fn submit(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &SubmitPrompt,
) -> Result<(PromptAccepted, PendingReply), Failure> {
    app.accepting()?;
    let (blocks, state) = (request.blocks()?, DaemonState::of(app));
    let config = &state.config;
    let deadline_ms = request.deadline_ms(config.prompt_deadline_ms)?;
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let mode = open.daemon.approval_mode.as_ref().map(|_| open.daemon.approval_mode());
    let bytes: usize = blocks.iter().map(PromptBlock::bytes).sum();
    let _permit = admit_large(state, bytes)?;
    let context = context(app, &open).await;
    let prompt = app.compute(bytes, || PreparedPrompt::new(app, &blocks, deadline_ms, context, mode)).await?;
    let prompt_id = app.ids.body().to_string();
    let pending = DaemonState::of(app).replies.begin(&prompt_id);
    let mut attempts =
        app.db.attempts(|| Failure::new(FailureKind::Overloaded, "too many prompts of this session were sent at once"));
    loop {
        attempts.start_next()?;
        let session = store::kernel::sessions::get(&app.db, open.session.session).await?;
        let open = OpenSession { session: session.ok_or_else(|| not_found(id))?, daemon: open.daemon.clone() };
        // A rewind that begins after this check changes the session, and the submission is rejected.
        restores::check_none(app, &open.session).await?;
        let fresh = turn(app, caller, &open, client, &prompt).await?;
        let rows = prompt.rows(&fresh);
        let at_seq = open.session.last_seq;
        let work = Submission::QueuedTurn { fresh, turns_max: config.prompts_max as usize, at_seq };
        let request_hash = canonical_hash(&prompt.payload.to_value());
        let op = SubmitOp { alias: prompt_id.clone(), parent: None, request_hash, work, by: caller.name() };
        let session = &open.session;
        match app.try_submit_with(session.session, session.last_run_id, op, rows).await {
            Ok(Some(accepted)) => {
                if let Some(run) = &accepted.started {
                    app.metrics.run_started();
                    let run = app.created_run(run, session);
                    app.remember_command(accepted.alias.command_id, &run);
                }
                cancel_if_closed(app, caller, &open, accepted.alias.command_id).await?;
                mcp::discover_once(app, &session.public_id());
                let last_event_id = frame_id(accepted.alias.after_seq);
                return Ok((PromptAccepted { prompt_id, last_event_id }, pending));
            }
            // A concurrent request has continued the session.
            Ok(None) => {}
            Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => {}
            Err(failure) if failure.kind == FailureKind::SessionBusy && session.active_unfinished == 0 => {
                dismiss_idle(app, session, failure).await?;
            }
            Err(failure) => return Err(queue_failure(id, config.prompts_max, failure)),
        }
    }
}

/// Cancels a prompt whose session a concurrent request has closed: no client could follow or cancel it.
async fn cancel_if_closed(
    app: &App,
    caller: &Principal,
    open: &OpenSession,
    command_id: CommandId,
) -> Result<(), Failure> {
    let daemon = store::daemon::sessions::get(&app.db, open.session.session).await?;
    if daemon.is_some_and(|daemon| daemon.closed_at.is_none()) {
        return Ok(());
    }
    let run = app.command_ref(command_id).await?;
    let reason = Some("the session was closed".to_owned());
    app.submit(&run, CancelCommandOp { command_id, by: caller.name(), reason, origin: None, with_jobs: false }).await?;
    Err(not_found(&open.session.public_id()))
}

/// The failure of a prompt that the queue has no room for, as clients know it.
fn queue_failure(id: &str, limit: u32, failure: Failure) -> Failure {
    let count = failure.details.as_ref().and_then(|details| details.get(UNFINISHED_TURNS)?.as_i64());
    let Some(count) = count else { return failure };
    let message = format!("the session has {count} prompts that wait or run; {limit} is the limit");
    let failure = Failure::rule(Rule::PromptQueueFull, message).detail("sessionId", id).detail("limit", limit);
    failure.detail("pendingCount", count).detail("retryAfterMs", RETRY_AFTER_MS)
}

/// Dismisses a runner that waits for work in the session: one of another backend profile, so that the prompt's own can start, or
/// one that knows turns which the session is rewound over.
pub(super) async fn dismiss_idle(app: &App, session: &Session, failure: Failure) -> Result<(), Failure> {
    let Some(run_id) = session.active_run_id else { return Err(failure) };
    let run = app.run_ref(run_id).await?;
    app.submit(&run, DismissOp { only_if_idle: true }).await
}

/// The prompt as a turn, with the run that it starts if the session has no run that accepts it.
async fn turn(
    app: &App,
    caller: &Principal,
    open: &OpenSession,
    client: Option<&str>,
    prompt: &PreparedPrompt,
) -> Result<Box<CreateRunOp>, Failure> {
    session_storage::check_there(app, &open.session).await?;
    let request = run_request(app, open, prompt.payload.clone()).await?;
    let admitted = runs::admit(app, caller, &request).await?;
    provider_profiles::check_ready(app, &admitted.tenant_id, &admitted.backend_profile).await?;
    let message_id = format!("msg_{}", app.ids.body().simple());
    let message = SubmittedMessage {
        origin: client.map(str::to_owned),
        ..SubmittedMessage::new(message_id, prompt.content.clone())
    };
    let (session, hash) = (Created::existing(open.session.clone()), canonical_hash(&prompt.payload.to_value()));
    runs::create_op(app, caller, &request, &admitted, &hash, &session, Some(message)).map(Box::new)
}

/// What the agent gets beside the prompt: the memory of the workspace, and the language to reply in.
async fn context(app: &App, open: &OpenSession) -> Context {
    let mut notes = memory::context(app).await;
    if let Some(value) = open.daemon.output_language.as_deref().and_then(reply_instruction) {
        notes.push(ContextNote { description: "Language".to_owned(), value });
    }
    Context { notes, ..Context::default() }
}

/// Fails if too many large prompts are being stored, because each is in memory several times until it is.
fn admit_large(state: &DaemonState, bytes: usize) -> Result<Option<SemaphorePermit<'_>>, Failure> {
    if bytes <= PROMPT_BYTES_MAX {
        return Ok(None);
    }
    let message = "too many large prompts are being stored at once";
    let full = |_| Failure::new(FailureKind::Overloaded, message).detail("retryAfterMs", RETRY_AFTER_MS);
    state.large_prompts.try_acquire().map(Some).map_err(full)
}

/// A prompt as it is stored.
struct PreparedPrompt {
    /// The payload of its command: all of the prompt, or a short form of it.
    payload: RawJson,
    /// The payload that the agent gets, if the command has a short form.
    whole: Option<RawJson>,
    /// The content of its event.
    content: Value,
}

impl PreparedPrompt {
    fn new(
        app: &App,
        blocks: &[PromptBlock],
        deadline_ms: Option<u64>,
        context: Context,
        mode: Option<ApprovalMode>,
    ) -> Result<Self, Failure> {
        let redact = |text: &str| app.redactor.redact(text).into_owned();
        let text = prompt_text(blocks);
        let is_long = text.len() > PROMPT_BYTES_MAX;
        let content: Value = match is_long {
            true => short_blocks(blocks, redact).into(),
            false => blocks.iter().map(|block| block.event_value(redact)).collect(),
        };
        let stored = blocks.iter().map(PromptBlock::stored).collect();
        let payload = payload((text, stored), deadline_ms, context, mode);
        if !is_long && payload.size() <= COMMAND_PAYLOAD_BYTES_MAX {
            check_payload(CommandType::Turn, &payload)?;
            return Ok(Self { payload, whole: None, content });
        }
        let whole = app.redacted(&payload)?;
        drop(payload);
        let bytes = whole.as_str().len();
        if bytes > WHOLE_PAYLOAD_BYTES_MAX {
            return Err(Failure::too_large(Rule::PayloadSize, "the prompt", bytes, WHOLE_PAYLOAD_BYTES_MAX));
        }
        let text = short_text(&redact(&prompt_text(blocks)));
        let mut short = short_form((text, short_blocks(blocks, redact)), deadline_ms, mode);
        short[WHOLE_PAYLOAD] = json!(WholePayload::describe(&whole));
        let payload = RawJson::of(&short);
        check_payload(CommandType::Turn, &payload)?;
        Ok(Self { payload, whole: Some(whole), content })
    }

    /// The rows that are stored together with the prompt's command.
    fn rows(&self, fresh: &CreateRunOp) -> AttachedRows {
        let (Some(whole), Some((first, _))) = (&self.whole, &fresh.start) else { return AttachedRows::default() };
        let Command { command_id, session, .. } = first.command;
        store::kernel::whole_payloads::rows_of_new(command_id, session, whole.clone())
    }
}

/// The payload of the prompt's command.
fn payload(
    said: (String, Vec<Value>),
    deadline_ms: Option<u64>,
    context: Context,
    mode: Option<ApprovalMode>,
) -> RawJson {
    let mut payload = short_form(said, deadline_ms, mode);
    if !context.is_empty() {
        payload["context"] = json!(context);
    }
    RawJson::of(&payload)
}

/// The part of the payload that the server itself needs.
fn short_form((text, content): (String, Vec<Value>), deadline_ms: Option<u64>, mode: Option<ApprovalMode>) -> Value {
    let mut payload = json!({"prompt": text, "content": content});
    if let Some(mode) = mode {
        payload["mode"] = mode.as_str().into();
    }
    if let Some(deadline_ms) = deadline_ms {
        payload["budgets"] = json!({"deadlineMs": deadline_ms});
    }
    payload
}

/// The policy of the run that a prompt waits in. `None` if it starts one. A mode that needs more than that run allows is used by
/// later prompts.
async fn policy_of_run(app: &App, open: &OpenSession) -> Result<Option<RawJson>, Failure> {
    let Some(run_id) = open.session.active_run_id.filter(|_| open.session.active_unfinished > 0) else {
        return Ok(None);
    };
    Ok(store::kernel::runs::get(&app.db, run_id).await?.map(|run| RawJson::of(&run.execution_policy)))
}

/// The request for a session's run: with the session's model, in the workspace that the server is bound to.
async fn run_request(app: &App, open: &OpenSession, payload: RawJson) -> Result<CreateRun, Failure> {
    let policy = &app.config.policy;
    let first = |list: &[String], default: &str| list.first().map_or(default, String::as_str).to_owned();
    // A prompt that waits for others goes to their run. A model that is chosen before that handles later ones.
    let profile = match open.session.active_unfinished {
        0 => current_model(app, open),
        _ => open.session.backend_profile.clone(),
    };
    let approval = Approval::OnRequest.max(open.daemon.approval_mode().needs()).min(policy.ceiling.approval);
    let mut execution = json!({"approval": approval,
        "permissionTimeoutMs": DaemonState::of(app).config.permission_timeout_ms,
        "maxOpenPermissions": PERMISSIONS_OPEN_CEILING});
    if provider_profiles::has_credential(app, &open.session.tenant_id, &profile).await? {
        let credential = json!({"profile": profile, "secretRef": secret_ref(&profile)});
        execution["secretScope"] = json!({"providerCredentials": [credential]});
    }
    let workspace = match open.daemon.workspace.as_str() {
        "" => json!({"kind": "none"}),
        path => json!({"kind": "local", "path": path}),
    };
    Ok(CreateRun {
        tenant_id: Some(open.session.tenant_id.clone()),
        project_id: Some(first(&policy.projects, PROJECT)),
        workspace_ref: Some(RawJson::of(&workspace)),
        provider_id: Some(first(&policy.providers, PROVIDER)),
        backend_profile: Some(profile),
        execution_policy: Some(policy_of_run(app, open).await?.unwrap_or_else(|| RawJson::of(&execution))),
        trace_sink: Some(RawJson::null()),
        command: Some(CreateCommand { command_type: CommandType::Turn, payload, idempotency_key: None }),
        ..CreateRun::default()
    })
}

/// Cancels the prompt that runs, or that is the next to run. Later ones go on. Does nothing if there is none.
pub(crate) async fn cancel(app: &App, caller: &Principal, id: &str, client: Option<&str>) -> Result<(), Failure> {
    let open = lookup::open_session(app, caller, id).await?;
    caller.may_cancel(&open.session)?;
    if let Some(client) = lookup::check_client(app, caller, &open.session, client).await? {
        clients::seen_again(app, &client).await?;
    }
    let Some(command_id) = open.session.active_command_id else { return Ok(()) };
    let run = app.command_ref(command_id).await?;
    let origin = client.map(str::to_owned);
    app.submit(&run, CancelCommandOp { command_id, by: caller.name(), reason: None, origin, with_jobs: false })
        .await
        .map(drop)
}
