//! Runs of chat front ends: accept, cancel, follow. A message becomes a turn of the caller's thread, which is created with its
//! first message; everything that a client then reads is translated from the thread's events.

mod earlier;
mod edits;
mod front_end;
mod interrupts;
mod job_context;
mod open_calls;
mod pending_calls;
mod runtime;
mod stream;
mod transcript;

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    created::Created,
    ids::{PermissionId, RunId, SessionId},
    kernel::{
        aliases::CommandAlias,
        commands::{CommandType, CreateCommand},
        context::{Context, UsersClock},
        labels::Labels,
        operations::{ACTIVE_COMMAND, CancelCommandOp, Choice, PermissionAnswer, Submission, SubmitOp},
        permissions::Voter,
        provider_profiles::secret_ref,
        runs::CreateRun,
        sessions::Session,
    },
    limits::EVENT_BYTES_MAX,
    run_input::{
        agui::{
            input::{ClientTime, RunInput, RuntimeMode, UserPart, read_run_id, read_thread_id},
            messages::ResumeEntry,
        },
        automations::{AUTOMATION_LABEL, Automation},
        failures::submission_failure,
        runs::{CancelAccepted, TaskAccepted},
    },
    text::is_blank_text,
};
use ostler_store as store;
use serde_json::{Value, json};

use super::{attachments, threads};
use crate::state::RunInputState;
use ostler_server::{
    app::App,
    auth::Principal,
    net::Locality,
    service::{
        commands::SubmittedMessage,
        permissions, provider_profiles,
        runs::{self},
        session_storage, users,
    },
};

use front_end::AnsweredCall;
pub(crate) use stream::{NextEvent, Position, RunStream};

/// The project and provider of the kernel's runs of threads, unless the policy lists others.
const PROJECT: &str = "ostler/agent-runs";
const PROVIDER: &str = "local";
/// The rest of the event's limit is for the fields around them.
const MESSAGE_BYTES_MAX: usize = EVENT_BYTES_MAX - 16 * 1024;

/// A run that was accepted, now or before.
pub(crate) struct Accepted {
    pub thread_id: String,
    pub alias: CommandAlias,
    /// The thread was created for it.
    pub created: bool,
    /// The thread that was created for it, with its run.
    pub new_thread: Option<(SessionId, Option<RunId>)>,
}

impl Accepted {
    pub(crate) fn task(&self) -> TaskAccepted {
        TaskAccepted {
            task_id: self.alias.command_id.to_string(),
            thread_id: self.thread_id.clone(),
            run_id: self.alias.alias.clone(),
            created: self.created,
        }
    }
}

/// Accepts a run. Idempotent by the run's id; another body under the same id is rejected.
pub(crate) async fn accept(
    app: &App,
    caller: &Principal,
    locality: Locality,
    input: &RunInput,
) -> Result<Accepted, Failure> {
    app.accepting()?;
    let automation = automation_of(app, caller, input).await?;
    accept_of(app, caller, locality, input, automation.as_ref(), true).await
}

/// As [`accept`], for the start of an automation. `may_exist`: an earlier attempt may have created its thread, which has an id that
/// no client knows.
pub(crate) async fn accept_start(
    app: &App,
    owner: &Principal,
    input: &RunInput,
    automation: &Automation,
    may_exist: bool,
) -> Result<Accepted, Failure> {
    app.accepting()?;
    // The scheduler submits the run, so no caller on this machine can answer its permission requests.
    accept_of(app, owner, Locality(false), input, Some(automation), may_exist).await
}

async fn accept_of(
    app: &App,
    caller: &Principal,
    locality: Locality,
    input: &RunInput,
    automation: Option<&Automation>,
    mut may_exist: bool,
) -> Result<Accepted, Failure> {
    check_run_id(app, &input.run_id, "runId")?;
    if let Some(parent) = &input.parent_run_id {
        check_run_id(app, parent, "parentRunId")?;
    }
    let mut attempts =
        app.db.attempts(|| Failure::new(FailureKind::Overloaded, "too many runs of this thread were started at once"));
    let mut has_checked_tools = false;
    loop {
        attempts.start_next()?;
        let thread = if may_exist { threads::find(app, caller, &input.thread_id).await? } else { None };
        may_exist = true;
        // An accepted run stays accepted, even if its pictures were deleted or the server's policy has changed since.
        if let Some(alias) = accepted_before(app, thread.as_ref(), input).await? {
            return Ok(Accepted { thread_id: input.thread_id.clone(), alias, created: false, new_thread: None });
        }
        // The names of the tools do not depend on the thread, so that they are not checked again in the next attempt.
        if !has_checked_tools {
            front_end::check_tools(app, caller, input).await?;
            has_checked_tools = true;
        }
        transcript::check(app, thread.as_ref(), &input.transcript).await?;
        let exists = thread.is_some();
        let thread = match thread {
            Some(session) => Created::existing(session),
            None => Created::new(new_thread(app, caller, &input.thread_id, automation)?),
        };
        let work = match input.resume.as_slice() {
            [] => turn(app, caller, input, &thread, automation).await?,
            answers => {
                let (found, voter) = (exists.then_some(&thread.value), permissions::voter(caller, None, locality));
                resume(app, answers, found, voter).await.map_err(submission_failure)?
            }
        };
        let session = &thread.value;
        let (alias, request_hash) = (input.run_id.clone(), input.hash.clone());
        let parent = input.parent_run_id.clone();
        let answered = interrupts::answered_by(&work);
        let op = SubmitOp { alias, parent, request_hash, work, by: caller.name() };
        match app.try_submit(session.session, session.last_run_id, op).await {
            Ok(Some(accepted)) => {
                if let Some(run) = &accepted.started {
                    app.metrics.run_started();
                    let run = app.created_run(run, session);
                    app.remember_command(accepted.alias.command_id, &run);
                }
                let run_id = accepted.started.as_ref().map(|run| run.run_id);
                let (alias, created) = (accepted.alias, accepted.is_new_session);
                let new_thread = created.then_some((session.session, run_id));
                return Ok(Accepted { thread_id: input.thread_id.clone(), alias, created, new_thread });
            }
            // A concurrent request has created the thread, or continued it.
            Ok(None) => {}
            Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => {}
            Err(failure) => {
                // The next attempt may have begun between the search for its requests and the answer to them.
                if !interrupts::is_any_superseded(app, session, &answered).await? {
                    return Err(with_active_run(app, submission_failure(failure)).await);
                }
            }
        }
    }
}

/// The automation whose tools a run has. `None` for a chat. A run is one of an automation if the caller's automation has started
/// its thread.
async fn automation_of(app: &App, caller: &Principal, input: &RunInput) -> Result<Option<Automation>, Failure> {
    if input.mode == RuntimeMode::Chat {
        return Ok(None);
    }
    let owner = threads::owner(caller)?;
    let found = store::run_input::automations::find_by_thread(&app.db, &owner, &input.thread_id).await?;
    let invalid = || {
        let message = "invalid RunAgentInput.forwardedProps: runtime_mode is automation, and no automation of yours has \
            started this thread";
        Failure::rule(Rule::AgentRuntimeModeInvalid, message)
    };
    found.map(Some).ok_or_else(invalid)
}

/// Whether the input, as a transcript, only answers calls of tools, and its thread does not exist yet.
pub(crate) async fn only_answers_new_thread(app: &App, caller: &Principal, input: &RunInput) -> Result<bool, Failure> {
    let only_answers = input.user.is_none() && input.resume.is_empty() && !input.transcript.is_empty();
    Ok(only_answers && threads::find(app, caller, &input.thread_id).await?.is_none())
}

async fn accepted_before(
    app: &App,
    thread: Option<&Session>,
    input: &RunInput,
) -> Result<Option<CommandAlias>, Failure> {
    let Some(thread) = thread else { return Ok(None) };
    let found = store::kernel::aliases::get(&app.db, thread.session, &input.run_id).await?;
    found.map(|alias| alias.check_same(&input.hash).map(|()| alias)).transpose()
}

/// Adds the id of the run that keeps the thread busy, by which the client can cancel it.
async fn with_active_run(app: &App, failure: Failure) -> Failure {
    let active = failure.details.as_ref().and_then(|details| details.get(ACTIVE_COMMAND)?.as_str()?.parse().ok());
    let Some(command_id) = active else { return failure };
    match store::kernel::aliases::find_by_command(&app.db, command_id).await {
        Ok(Some(run)) => failure.detail("activeRunId", run.alias),
        _ => failure,
    }
}

/// Checks a run's id, which is stored and displayed as it is.
fn check_run_id(app: &App, run_id: &str, field: &str) -> Result<(), Failure> {
    let fits = !run_id.chars().any(char::is_control) && app.redactor.redact(run_id) == run_id;
    if fits {
        Ok(())
    } else {
        Err(Failure::invalid(Rule::AgentInvalidRunId, format!("{field} must be printable, and no credential")))
    }
}

fn new_thread(
    app: &App,
    caller: &Principal,
    thread_id: &str,
    automation: Option<&Automation>,
) -> Result<Session, Failure> {
    // An automation's threads are in its tenant, also if its owner's new chats are in another one.
    let tenant = match automation {
        Some(automation) => {
            caller.may_submit(&automation.tenant_id)?;
            automation.tenant_id.clone()
        }
        None => threads::tenant(app, caller)?.to_owned(),
    };
    let profile = RunInputState::of(app).config.backend_profile.clone();
    let new = Session::new(SessionId::new(app.ids.body()), tenant, Some(thread_id.to_owned()), profile, app.now());
    Ok(Session { owner: Some(threads::owner(caller)?), background: automation.is_some(), ..new })
}

/// The message as a turn, with the run that it starts if the thread has no run that accepts it.
async fn turn(
    app: &App,
    caller: &Principal,
    input: &RunInput,
    thread: &Created<Session>,
    automation: Option<&Automation>,
) -> Result<Submission, Failure> {
    let Created { value: session, is_new } = thread;
    let existing = (!is_new).then_some(session);
    if !is_new {
        session_storage::check_there(app, session).await?;
    }
    let answers = front_end::answers(app, existing, input).await?;
    let (state, is_new_state) = front_end::state(app, existing, input).await?;
    let clock = clock(app, caller, input.client_time.as_ref()).await?;
    let mut context = Context { clock: Some(clock), ..front_end::context(input, &answers, state) };
    if let Some(automation) = automation {
        let mut messages = job_context::read(app, caller, automation, input.client_time.as_ref()).await?;
        messages.append(&mut context.messages);
        context.messages = messages;
    }
    let mut message = read_message(app, caller, input, &answers).await?;
    message.has_input = front_end::has_input(input, &context);
    message.state = context.state.clone().filter(|_| is_new_state);
    check_size(&message)?;
    let runtime = runtime::runtime_config(&RunInputState::of(app).system_agents, automation);
    let payload = payload(input, &answers, &message, &context, &runtime);
    let mut request = run_request(app, session, payload).await?;
    request.labels =
        automation.map(|automation| Labels::from_iter([(AUTOMATION_LABEL.to_owned(), automation.id.to_string())]));
    let admitted = runs::admit(app, caller, &request).await?;
    provider_profiles::check_ready(app, &admitted.tenant_id, &admitted.backend_profile).await?;
    let fresh = runs::create_op(app, caller, &request, &admitted, &input.hash, thread, Some(message))?;
    Ok(Submission::Turn { fresh: Box::new(fresh), on_busy: RunInputState::of(app).config.busy })
}

/// The results of tools and the user's message, as they are stored in one event.
async fn read_message(
    app: &App,
    caller: &Principal,
    input: &RunInput,
    answers: &[AnsweredCall],
) -> Result<SubmittedMessage, Failure> {
    let new_id = || format!("msg_{}", app.ids.body().simple());
    let mut content = answers.iter().map(|answered| answered.part(app)).collect::<Result<Vec<_>, _>>()?;
    let Some(user) = &input.user else { return Ok(SubmittedMessage::new(new_id(), content.into())) };
    let own = app.name("id", &user.id).ok().map(str::to_owned);
    for (at, part) in user.parts.iter().enumerate() {
        let mut stored = match part {
            UserPart::Text(text) => json!({"type": "text", "text": app.redactor.redact(text)}),
            UserPart::Image { mime_type, url } => {
                attachments::read_picture(app, caller, &input.thread_id, mime_type.as_deref(), url).await?
            }
        };
        if let Some(fields) = user.part_fields.get(at).filter(|fields| !fields.is_empty()) {
            stored["fields"] = app.redacted(&RawJson::of(fields))?.to_value();
        }
        content.push(stored);
    }
    let fields = app.redacted(&RawJson::of(&user.fields))?.to_value();
    let fields = fields.as_object().cloned().unwrap_or_default();
    Ok(SubmittedMessage { fields, ..SubmittedMessage::new(own.unwrap_or_else(new_id), content.into()) })
}

/// A message is stored as one event.
fn check_size(message: &SubmittedMessage) -> Result<(), Failure> {
    let bytes = RawJson::of(&json!([message.content, message.fields])).as_str().len();
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("the run's message and results of tools exceed {MESSAGE_BYTES_MAX} bytes");
    Err(Failure::invalid(Rule::AgentRunMessagesInvalid, detail))
}

/// The prompt: the results of tools, then the text of the message, or a note if it is only images. A message with neither was
/// rejected before.
fn prompt(input: &RunInput, answers: &[AnsweredCall]) -> String {
    let results = answers.iter().map(|answered| answered.answer.text());
    let words = input.user.iter().map(|user| {
        let text = user.text();
        if is_blank_text(&text) { "(an image)".to_owned() } else { text }
    });
    results.chain(words).collect::<Vec<_>>().join("\n\n")
}

/// The payload for the agent: the message, the context that is in no event, and the runtime config.
fn payload(
    input: &RunInput,
    answers: &[AnsweredCall],
    message: &SubmittedMessage,
    context: &Context,
    runtime: &Value,
) -> RawJson {
    let prompt = prompt(input, answers);
    let mut payload = json!({"prompt": prompt, "content": message.content, "runtimeConfig": runtime});
    if !context.is_empty() {
        payload["context"] = json!(context);
    }
    RawJson::of(&payload)
}

/// The time and zone of the client's device, if it sent them; else the server's time in the user's zone, or in UTC.
async fn clock(app: &App, caller: &Principal, sent: Option<&ClientTime>) -> Result<UsersClock, Failure> {
    if let Some(sent) = sent {
        let (now, timezone) = (sent.client_now_iso.clone(), sent.device_timezone.clone());
        return Ok(UsersClock { now, timezone, device: true });
    }
    let zone = users::time_zone(app, caller).await?;
    let timezone = zone.iana_name().unwrap_or("UTC").to_owned();
    let now = app.wall().to_zoned(zone).strftime("%FT%T%:z").to_string();
    Ok(UsersClock { now, timezone, device: false })
}

/// The request for a thread's run: with the configured backend profile, in an empty workspace.
async fn run_request(app: &App, session: &Session, payload: RawJson) -> Result<CreateRun, Failure> {
    let (policy, chosen) = (&app.config.policy, &RunInputState::of(app).config);
    let first = |list: &[String], default: &str| list.first().map_or(default, String::as_str).to_owned();
    let mut execution = json!({"approval": chosen.approval.min(policy.ceiling.approval)});
    if provider_profiles::has_credential(app, &session.tenant_id, &chosen.backend_profile).await? {
        let credential = json!({"profile": chosen.backend_profile, "secretRef": secret_ref(&chosen.backend_profile)});
        execution["secretScope"] = json!({"providerCredentials": [credential]});
    }
    Ok(CreateRun {
        tenant_id: Some(session.tenant_id.clone()),
        project_id: Some(first(&policy.projects, PROJECT)),
        workspace_ref: Some(RawJson::of(&json!({"kind": "none"}))),
        provider_id: Some(first(&policy.providers, PROVIDER)),
        backend_profile: Some(chosen.backend_profile.clone()),
        execution_policy: Some(RawJson::of(&execution)),
        trace_sink: Some(RawJson::null()),
        command: Some(CreateCommand { command_type: CommandType::Turn, payload, idempotency_key: None }),
        ..CreateRun::default()
    })
}

/// Answers to interrupts, each to the current request of its interrupt. Fails if the thread does not exist.
async fn resume(
    app: &App,
    entries: &[ResumeEntry],
    thread: Option<&Session>,
    voter: Voter,
) -> Result<Submission, Failure> {
    let unknown = || Failure::rule(Rule::InterruptUnknown, "the thread has no such interrupt");
    let thread = thread.ok_or_else(unknown)?;
    let run_id = thread.last_run_id.ok_or_else(unknown)?;
    let (mut answers, until) = (vec![], interrupts::wait_until());
    for entry in entries {
        let permission_id: PermissionId = entry.interrupt_id.parse().map_err(|_| unknown())?;
        let request =
            interrupts::current_request(app, thread, (run_id, permission_id), until).await?.ok_or_else(unknown)?;
        let choice = entry.choice();
        if interrupts::is_superseded(&request) && choice != Choice::Cancel {
            return Err(interrupts::not_requested_again(app, &request).await?);
        }
        let edited = match entry.edited_args() {
            None => None,
            Some(edited) => Some(edits::read(app, &request, edited).await?),
        };
        answers.push(PermissionAnswer { permission_id: request.permission_id, choice, edited });
    }
    Ok(Submission::Answers { answers, voter })
}

/// Requests the cancellation of a run. Idempotent, also for a run that has ended.
pub(crate) async fn cancel(
    app: &App,
    caller: &Principal,
    thread_id: &str,
    run_id: &str,
) -> Result<CancelAccepted, Failure> {
    let (session, alias) = find(app, caller, thread_id, run_id).await?;
    let command = app.command_ref(alias.command_id).await?;
    let op = CancelCommandOp {
        command_id: alias.command_id,
        by: caller.name(),
        reason: None,
        origin: None,
        with_jobs: false,
    };
    app.submit(&command, op).await?;
    Ok(CancelAccepted { thread_id: name_of(&session, thread_id), run_id: alias.alias, accepted: true })
}

/// A run of the caller's own thread, by the client's names for both.
async fn find(
    app: &App,
    caller: &Principal,
    thread_id: &str,
    run_id: &str,
) -> Result<(Session, CommandAlias), Failure> {
    let (thread_id, run_id) = (read_thread_id(thread_id)?, read_run_id(run_id)?);
    let session = threads::get(app, caller, &thread_id).await?;
    let alias = store::kernel::aliases::get(&app.db, session.session, &run_id).await?;
    let alias = alias.ok_or_else(|| Failure::invalid(Rule::AgentInvalidRunId, "the thread has no such run"))?;
    Ok((session, alias))
}

/// Follows a run of the caller after a given event, or from its start.
pub(crate) async fn follow(
    app: &App,
    caller: &Principal,
    thread_id: &str,
    run_id: &str,
    after: Option<Position>,
) -> Result<RunStream, Failure> {
    let (session, alias) = find(app, caller, thread_id, run_id).await?;
    let permit = stream::permit(app, caller)?;
    stream::open(app, permit, &name_of(&session, thread_id), alias, None, after).await
}

/// The name of a thread that was found by `thread_id`.
fn name_of(session: &Session, thread_id: &str) -> String {
    session.external_id.clone().unwrap_or_else(|| thread_id.to_owned())
}

/// Accepts a run and follows it. A client that disconnects does not stop the run.
pub(crate) async fn accept_and_follow(
    app: &App,
    caller: &Principal,
    locality: Locality,
    input: &RunInput,
    after: Option<Position>,
) -> Result<RunStream, Failure> {
    // Acquire the permit first: a run that cannot be followed is not started.
    let permit = stream::permit(app, caller)?;
    let accepted = accept(app, caller, locality, input).await?;
    // A message begins its turn; only a resumed turn has to find its beginning.
    let begins = input.resume.is_empty().then_some(accepted.alias.after_seq);
    stream::open(app, permit, &accepted.thread_id, accepted.alias, begins, after).await
}
