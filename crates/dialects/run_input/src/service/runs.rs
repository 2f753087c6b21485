//! Runs of chat front ends: accept, cancel, follow. A message becomes a turn of the caller's thread, which is created with its
//! first message; everything that a client then reads is translated from the thread's events.

mod earlier;
mod stream;
mod transcript;

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    ids::SessionId,
    kernel::{
        aliases::CommandAlias,
        commands::{CommandType, CreateCommand},
        context::{Context, Note, Remark, UsersClock},
        operations::{ACTIVE_COMMAND, CancelCommandOp, PermissionAnswer, Submission, SubmitOp},
        permissions::Voter,
        provider_profiles::secret_ref,
        runs::CreateRun,
        sessions::Session,
    },
    run_input::{
        agui::{
            input::{ClientTime, RunInput, UserMessage, UserPart, read_run_id, read_thread_id},
            messages::{InputContext as ContextEntry, InputMessage, ResumeEntry},
        },
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
        commands::Said,
        permissions, provider_profiles,
        runs::{self},
        session_storage, users,
    },
};

pub(crate) use stream::{NextEvent, Position, RunStream};

/// The project and provider of the kernel's runs of threads, unless the policy lists others.
const PROJECT: &str = "ostler/agent-runs";
const PROVIDER: &str = "local";

/// A run that was accepted, now or before.
pub(crate) struct Accepted {
    pub thread_id: String,
    pub alias: CommandAlias,
    /// The thread was created for it.
    pub created: bool,
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
    check_run_id(app, &input.run_id)?;
    let mut attempts =
        app.attempts(|| Failure::new(FailureKind::Overloaded, "too many runs of this thread were started at once"));
    loop {
        attempts.start_next()?;
        let thread = threads::find(app, caller, &input.thread_id).await?;
        // An accepted run stays accepted, even if its pictures were deleted or the server's policy has changed since.
        if let Some(alias) = accepted_before(app, thread.as_ref(), input).await? {
            return Ok(Accepted { thread_id: input.thread_id.clone(), alias, created: false });
        }
        transcript::check(app, thread.as_ref(), &input.transcript).await?;
        let exists = thread.is_some();
        let thread = match thread {
            Some(session) => (session, false),
            None => (new_thread(app, caller, &input.thread_id)?, true),
        };
        let work = match input.resume.as_slice() {
            [] => turn(app, caller, input, &thread).await?,
            answers => resume(answers, exists, permissions::voter(caller, None, locality))?,
        };
        let session = &thread.0;
        let (alias, request_hash) = (input.run_id.clone(), input.hash.clone());
        let op = SubmitOp { alias, request_hash, work, by: caller.name() };
        match app.try_submit(session.session, session.last_run_id, op).await {
            Ok(Some(accepted)) => {
                if let Some(run) = &accepted.started {
                    app.metrics.run_started();
                    let run = app.created_run(run, session);
                    app.remember_command(accepted.alias.command_id, &run);
                }
                let (alias, created) = (accepted.alias, accepted.is_new_session);
                return Ok(Accepted { thread_id: input.thread_id.clone(), alias, created });
            }
            // A concurrent request has created the thread, or continued it.
            Ok(None) => {}
            Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => {}
            Err(failure) => return Err(with_active_run(app, submission_failure(failure)).await),
        }
    }
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
fn check_run_id(app: &App, run_id: &str) -> Result<(), Failure> {
    let fits = !run_id.chars().any(char::is_control) && app.redactor.redact(run_id) == run_id;
    if fits {
        Ok(())
    } else {
        Err(Failure::invalid(Rule::AgentInvalidRunId, "runId must be printable, and no credential"))
    }
}

fn new_thread(app: &App, caller: &Principal, thread_id: &str) -> Result<Session, Failure> {
    let tenant = threads::tenant(app, caller)?.to_owned();
    let profile = RunInputState::of(app).config.backend_profile.clone();
    let new = Session::new(SessionId::new(app.ids.body()), tenant, Some(thread_id.to_owned()), profile, app.now());
    Ok(Session { owner: Some(threads::owner(caller)?), ..new })
}

/// The message as a turn, with the run that it starts if the thread has no run that accepts it.
async fn turn(
    app: &App,
    caller: &Principal,
    input: &RunInput,
    thread: &(Session, bool),
) -> Result<Submission, Failure> {
    let user = input.user.as_ref().ok_or_else(|| Failure::internal("an input without resume has a user message"))?;
    let (session, is_new) = thread;
    if !is_new {
        session_storage::check_there(app, session).await?;
    }
    let message = read_message(app, caller, &input.thread_id, user).await?;
    let request = run_request(app, session, payload(user, &message, &context(app, caller, input).await?)).await?;
    let admitted = runs::admit(app, caller, &request).await?;
    provider_profiles::check_ready(app, &admitted.tenant_id, &admitted.backend_profile).await?;
    let fresh = runs::create_op(app, caller, &request, &admitted, &input.hash, thread, Some(message))?;
    Ok(Submission::Turn { fresh: Box::new(fresh), on_busy: RunInputState::of(app).config.busy })
}

/// The user's message as it is stored in its event.
async fn read_message(app: &App, caller: &Principal, thread_id: &str, user: &UserMessage) -> Result<Said, Failure> {
    let own = app.name("id", &user.id).ok().map(str::to_owned);
    let message_id = own.unwrap_or_else(|| format!("msg_{}", app.ids.body().simple()));
    let mut content: Vec<Value> = vec![];
    for part in &user.parts {
        content.push(match part {
            UserPart::Text(text) => json!({"type": "text", "text": app.redactor.redact(text)}),
            UserPart::Image { mime_type, url } => {
                attachments::read_picture(app, caller, thread_id, mime_type.as_deref(), url).await?
            }
        });
    }
    Ok(Said { message_id, content: content.into(), origin: None })
}

/// The prompt: the text of the message, or a note if it is only images. A message with neither was rejected before.
fn prompt(user: &UserMessage) -> String {
    let text = user.text();
    if is_blank_text(&text) { "(an image)".to_owned() } else { text }
}

/// The payload for the agent: the message, and the context that is in no event.
fn payload(user: &UserMessage, message: &Said, context: &Context) -> RawJson {
    let mut payload = json!({"prompt": prompt(user), "content": message.content});
    if !context.is_empty() {
        payload["context"] = json!(context);
    }
    RawJson::of(&payload)
}

async fn context(app: &App, caller: &Principal, input: &RunInput) -> Result<Context, Failure> {
    let remark = |message: &InputMessage| Remark { role: message.role().to_owned(), text: message.text() };
    let note = |note: &ContextEntry| Note { description: note.description.clone(), value: note.value.clone() };
    Ok(Context {
        messages: input.others.iter().map(remark).collect(),
        notes: input.context.iter().map(note).collect(),
        clock: Some(clock(app, caller, input.client_time.as_ref()).await?),
    })
}

/// The time and zone of the client's device, if it sent them; else the server's time in the user's zone, or in UTC.
async fn clock(app: &App, caller: &Principal, sent: Option<&ClientTime>) -> Result<UsersClock, Failure> {
    if let Some(sent) = sent {
        return Ok(UsersClock { now: sent.client_now_iso.clone(), timezone: sent.device_timezone.clone() });
    }
    let zone = users::time_zone(app, caller).await?;
    let timezone = zone.iana_name().unwrap_or("UTC").to_owned();
    Ok(UsersClock { now: app.wall().to_zoned(zone).strftime("%FT%T%:z").to_string(), timezone })
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

/// Answers to interrupts. Fails if the thread does not exist.
fn resume(answers: &[ResumeEntry], exists: bool, voter: Voter) -> Result<Submission, Failure> {
    let unknown = || Failure::rule(Rule::InterruptUnknown, "the thread has no such interrupt");
    let resumed = |entry: &ResumeEntry| {
        let permission_id = entry.interrupt_id.parse().map_err(|_| unknown())?;
        Ok(PermissionAnswer { permission_id, choice: entry.choice() })
    };
    if !exists {
        return Err(unknown());
    }
    Ok(Submission::Answers { answers: answers.iter().map(resumed).collect::<Result<_, Failure>>()?, voter })
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
    let op = CancelCommandOp { command_id: alias.command_id, by: caller.name(), reason: None, origin: None };
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
