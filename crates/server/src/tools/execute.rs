//! Executes one call: finds its tool, checks the arguments, decides, asks, records that it starts, calls the source once within the
//! deadline, and records its end.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use ostler_protocol::{
    Failure, Rule,
    json::text_of,
    kernel::{
        events::{Event, EventType},
        launching::is_worth_repeating,
        permissions::{EditedArguments, PermissionStatus},
    },
    limits::PERMISSION_WAIT_MS_MAX,
    tools::{
        Authorisation, CallAction, CallState, ToolDefinition, call_digest,
        wire::{CallTool, CalledTool},
    },
};
use ostler_store as store;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    call_redactor::CallRedactor,
    checks::check_arguments,
    edited_arguments::{Edits, read_edited},
    outcome::CallOutcome,
    record::Recorder,
    recover::{self, Recovered},
    reply_sets::ReplyCall,
    scopes::authorise_call,
    source::{Invocation, ToolContext, ToolError, ToolSource},
    toolkit::{FoundTool, Toolkit},
};
use crate::{
    app::{App, CallingCommand, RunRef},
    recheck::SessionWatch,
    service::{job_extras, lookup},
};

/// How often the end of a call is recorded again if the store does not respond, and the first pause. It doubles each time.
const RECORD_ATTEMPTS: u32 = 6;
const RECORD_PAUSE: Duration = Duration::from_millis(50);
/// Message for a call that is not repeated because its earlier outcome is unknown.
const UNKNOWN_BEFORE: &str =
    "an earlier attempt made this call, or may have made it, and its outcome is not known; it is not repeated";
/// How long a call that cannot have an effect may take until its start is recorded before its end.
const START_PATIENCE: Duration = Duration::from_millis(20);
/// How long a call is executed before the end of its command is watched for.
const WATCH_AFTER: Duration = Duration::from_millis(50);
/// The server resolves a permission request at its deadline. This bounds the wait of a call if that does not happen.
const PERMISSION_GRACE_MS: u64 = 60_000;

/// A call on its way, in its current state.
struct Execution<'a> {
    app: &'a App,
    run: &'a RunRef,
    request: &'a CallTool,
    /// `None` if the agent makes no other calls at the same time.
    reply: Option<&'a ReplyCall>,
    recorder: Recorder<'a>,
    context: ToolContext,
    state: CallState,
}

/// A call with complete arguments.
struct PreparedCall {
    arguments: Map<String, Value>,
    /// Before the source completed them.
    requested: Map<String, Value>,
    /// Of the complete call.
    digest: String,
}

/// How a call ends that is not executed, and why.
struct NotExecuted {
    action: CallAction,
    reason: String,
}

impl NotExecuted {
    fn declined(reason: impl Into<String>) -> Self {
        Self { action: CallAction::Decline, reason: reason.into() }
    }
}

/// Executes a call, or finds what became of it. An error means that nothing about the call was recorded by this attempt, or that its
/// end could not be.
///
/// `reply` is the reply of which this is one of several calls.
pub(super) async fn execute(
    app: &App,
    run: &RunRef,
    request: &CallTool,
    reply: Option<&ReplyCall>,
) -> Result<CalledTool, Failure> {
    if let Some(calling) = known_command(app, run, request) {
        match execute_unsearched(app, run, request, reply, calling).await {
            // The command has calls that this server does not know, or a person has to be asked: everything is read.
            Err(failure) if failure.broken_rule() == Some(Rule::ToolCallReused) => {}
            result => return result,
        }
    }
    match execute_unless_recorded(app, run, request, reply, false).await {
        // Another server has started the call since the fold was read: the log has what became of it.
        Err(failure) if failure.broken_rule() == Some(Rule::ToolCallReused) => {
            execute_unless_recorded(app, run, request, reply, true).await
        }
        result => result,
    }
}

/// The command, if this server knows its calls and the request is for another one.
fn known_command(app: &App, run: &RunRef, request: &CallTool) -> Option<Arc<CallingCommand>> {
    if request.repeated {
        return None;
    }
    let CallTool { command_id, lease_epoch, call_id, .. } = request;
    app.calling_commands.get(run.run_id, *command_id, *lease_epoch, call_id)
}

/// Executes a call without reading what is known of its command, nor the log. Fails with [`Rule::ToolCallReused`], before anything is
/// recorded, if that does not suffice.
async fn execute_unsearched(
    app: &App,
    run: &RunRef,
    request: &CallTool,
    reply: Option<&ReplyCall>,
    calling: Arc<CallingCommand>,
) -> Result<CalledTool, Failure> {
    let mut recorder = Recorder::new(app, run, request)?;
    let context = ToolContext::of_run(run, calling.run.clone(), Some(calling.command.clone()));
    (recorder.calling, recorder.is_unsearched) = (Some(calling), true);
    let execution = Execution { app, run, request, reply, recorder, context, state: CallState::Requested };
    Ok(execution.run(Recovered::Unknown).await?.into_reply(&request.call_id))
}

async fn execute_unless_recorded(
    app: &App,
    run: &RunRef,
    request: &CallTool,
    reply: Option<&ReplyCall>,
    must_read_log: bool,
) -> Result<CalledTool, Failure> {
    let mut recorder = Recorder::new(app, run, request)?;
    let stored = Arc::new(lookup::run_unchecked(app, run.run_id).await?);
    let command = Arc::new(lookup::command_of(app, run.run_id, request.command_id).await?);
    // Before the command is remembered: its later calls are executed without reading anything.
    job_extras::remember_of_run(app, run.run_id).await?;
    recorder.calling = app.calling_commands.remember(stored.clone(), command.clone());
    let context = ToolContext::of_run(run, stored, Some(command));
    let recovered = recover::find(app, run, &context, request, must_read_log).await?;
    let execution = Execution { app, run, request, reply, recorder, context, state: CallState::Requested };
    Ok(execution.run(recovered).await?.into_reply(&request.call_id))
}

/// Calls a source once, within the deadline. A source that panics fails its call only.
pub(super) async fn call_source(
    app: &App,
    source: &dyn ToolSource,
    invocation: &Invocation,
) -> Result<String, ToolError> {
    let returned = timeout_at(invocation.deadline, catch_panic(app, source, invocation)).await;
    returned.unwrap_or_else(|_| Err(late(&invocation.tool)))
}

async fn catch_panic(app: &App, source: &dyn ToolSource, invocation: &Invocation) -> Result<String, ToolError> {
    let returned = AssertUnwindSafe(source.call(app, invocation)).catch_unwind().await;
    returned.unwrap_or_else(|_| {
        tracing::error!(tool = invocation.tool.name, "a tool panicked");
        Err(ToolError::OutcomeUnknown("the tool failed in an unexpected way".into()))
    })
}

fn late(tool: &ToolDefinition) -> ToolError {
    ToolError::OutcomeUnknown(format!("the tool did not respond within {} ms", tool.deadline_ms))
}

impl Execution<'_> {
    async fn run(mut self, recovered: Recovered) -> Result<CallOutcome, Failure> {
        if let Recovered::Ended(outcome) = recovered {
            return Ok(outcome);
        }
        let found = Toolkit::of(self.app).find(self.app, &self.context, &self.request.name).await?;
        if let Recovered::Lost = recovered {
            // A tool that is not there any more may have changed something.
            let may_repeat = found.as_ref().is_some_and(|found| found.tool.is_idempotent || found.tool.is_resumable);
            if !CallState::Started.may_execute(may_repeat) {
                self.state = CallState::Started;
                return self.end(CallAction::Lose, CallOutcome::unknown()).await;
            }
            self.recorder.is_executed_again = true;
        }
        let Some(mut found) = found else {
            let reason = self.unavailable().await?;
            let message = reason.unwrap_or_else(|| format!("there is no tool {:?}", self.request.name));
            return self.end_unexecuted(CallAction::Fail, &message).await;
        };
        let arguments = match check_arguments(self.app, &found.tool, &self.request.arguments).await {
            Ok(arguments) => arguments,
            Err(problem) => {
                let message = format!("invalid arguments: {problem}");
                return self.end_unexecuted(CallAction::Fail, &message).await;
            }
        };
        let mut prepared = self.prepare(&found, arguments).await?;
        if self.has_unknown(&found.tool, &prepared.digest).await? {
            return self.end_unexecuted(CallAction::Decline, UNKNOWN_BEFORE).await;
        }
        let edited = match self.decide(&found, &prepared).await? {
            Ok(edited) => edited,
            Err(NotExecuted { action, reason }) => return self.end_unexecuted(action, &reason).await,
        };
        if self.state == CallState::Waiting {
            let arguments = edited.as_ref().map_or(&prepared.requested, |edits| &edits.arguments);
            found = match self.find_again(&found.tool, arguments).await? {
                Ok(found) => found,
                Err(reason) => return self.end_unexecuted(CallAction::Decline, &reason).await,
            };
        }
        let is_edited = edited.is_some();
        if let Some(edited) = edited {
            prepared = self.prepare(&found, edited.arguments).await?;
            if prepared.arguments != prepared.requested {
                let message = "the call would be executed with other arguments than those that were permitted";
                return self.end_unexecuted(CallAction::Decline, message).await;
            }
            if self.has_unknown(&found.tool, &prepared.digest).await? {
                return self.end_unexecuted(CallAction::Decline, UNKNOWN_BEFORE).await;
            }
            // The source reports what it has added, and not the person.
            prepared.requested.retain(|name, _| !edited.added.contains(name));
        }
        self.recorder.is_edited = is_edited;
        let edited = is_edited.then(|| prepared.arguments.clone());
        let outcome = self.call(found, prepared).await?;
        Ok(CallOutcome { edited, ..outcome })
    }

    /// Completes checked arguments. Their digest is that of the complete call.
    async fn prepare(&self, found: &FoundTool, requested: Map<String, Value>) -> Result<PreparedCall, Failure> {
        let FoundTool { tool, source } = found;
        let arguments = source.complete(self.app, &self.context, tool, requested.clone()).await?;
        let digest = call_digest(&tool.name, &arguments);
        Ok(PreparedCall { arguments, requested, digest })
    }

    /// Whether an earlier attempt made the same call and its outcome is not known, so that it must not be repeated.
    async fn has_unknown(&self, tool: &ToolDefinition, digest: &str) -> Result<bool, Failure> {
        let lease_epoch = self.request.lease_epoch;
        Ok(!tool.is_idempotent && recover::has_unknown(self.app, self.run, &self.context, digest, lease_epoch).await?)
    }

    /// Calls the source, and records the start and the end. The start is recorded before the call, unless the call cannot have an
    /// effect: then both are recorded together if it ends soon.
    async fn call(mut self, found: FoundTool, prepared: PreparedCall) -> Result<CallOutcome, Failure> {
        let FoundTool { tool, source } = found;
        let PreparedCall { arguments, requested, digest } = prepared;
        let deadline = Instant::now() + Duration::from_millis(tool.deadline_ms);
        let (context, delegated) = (self.context.clone(), Default::default());
        let (call_id, reply_calls) = (self.request.call_id.clone(), self.request.reply_calls.clone());
        let invocation =
            Invocation { tool: tool.clone(), arguments, requested, context, call_id, reply_calls, deadline, delegated };
        let (result, is_start_recorded) = {
            let called = self.call_until_end(source.as_ref(), &invocation);
            tokio::pin!(called);
            let early = match tool.has_no_effect() {
                true => timeout(START_PATIENCE, &mut called).await.ok(),
                false => None,
            };
            match early {
                Some(result) => (result, false),
                None => {
                    self.recorder.started(&invocation.arguments, &tool, &digest).await?;
                    (called.await, true)
                }
            }
        };
        self.advance(CallAction::Start)?;
        let Some(result) = result else {
            return Ok(CallOutcome::interrupted());
        };
        let delegated = invocation.delegated.into_inner();
        let redactor = CallRedactor::of_run(self.app, self.run.run_id);
        let outcome = CallOutcome { delegated, ..CallOutcome::executed(&redactor, &tool, result).await };
        self.recorder.is_unanswered = outcome.state == CallState::OutcomeUnknown;
        let action = match outcome.state {
            CallState::Completed => CallAction::Complete,
            CallState::OutcomeUnknown => CallAction::Lose,
            _ => CallAction::Fail,
        };
        if is_start_recorded {
            return self.end(action, outcome).await;
        }
        self.advance(action)?;
        self.recorder.started_and_ended(&invocation.arguments, &tool, &digest, &outcome).await?;
        Ok(outcome)
    }

    /// Calls a source once, within the deadline. `None` if the command ended before. The source drops what it does then: a request to
    /// an MCP server is cancelled.
    async fn call_until_end(
        &self,
        source: &dyn ToolSource,
        invocation: &Invocation,
    ) -> Option<Result<String, ToolError>> {
        if source.ends_with_command(&invocation.tool) {
            return Some(call_source(self.app, source, invocation).await);
        }
        let called = catch_panic(self.app, source, invocation);
        tokio::pin!(called);
        // Most calls end before the command is looked at for the first time, and need no other timer.
        let first_look = invocation.deadline.min(Instant::now() + WATCH_AFTER);
        if let Ok(result) = timeout_at(first_look, &mut called).await {
            return Some(result);
        }
        tokio::select! {
            biased;
            result = timeout_at(invocation.deadline, called) => {
                Some(result.unwrap_or_else(|_| Err(late(&invocation.tool))))
            }
            () = self.command_ended(invocation.deadline) => None,
        }
    }

    /// Resolves when the command has ended: its runner stopped it, or its time was over. Never resolves after the deadline of the call.
    async fn command_ended(&self, deadline: Instant) {
        let mut watch = SessionWatch::new(self.app, self.run.session);
        while Instant::now() < deadline {
            match store::kernel::commands::get_state(&self.app.db, self.request.command_id).await {
                Ok(Some(state)) if state.is_terminal() => return,
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "the state of a call's command could not be read"),
            }
            let command_id = Some(self.request.command_id);
            let is_end = |event: &Event| {
                event.event_type == EventType::TerminalStatus
                    && (event.command_id == command_id || event.command_id.is_none())
            };
            watch.changed(deadline, is_end).await;
        }
        std::future::pending().await
    }

    /// Decides whether the call may be executed, and asks a person if the policy wants it. Returns the arguments with which the
    /// person has replaced those of the call, if any.
    async fn decide(
        &mut self,
        found: &FoundTool,
        prepared: &PreparedCall,
    ) -> Result<Result<Option<Edits>, NotExecuted>, Failure> {
        let FoundTool { tool, source } = found;
        let authorised = self.authorise(tool).await?;
        if let Some(reply) = self.reply.filter(|_| !matches!(authorised, Authorisation::Ask)) {
            reply.mark_no_request();
        }
        match authorised {
            Authorisation::Allow => return Ok(Ok(None)),
            Authorisation::Refuse(failure) => return Ok(Err(NotExecuted::declined(failure.message))),
            // A call that may have been executed makes no permission request.
            Authorisation::Ask if self.recorder.is_unsearched => return Err(recover::reused(&self.request.call_id)),
            Authorisation::Ask => {}
        }
        // Nor about one that cannot work. A request that exists is left to its answer. A call that needs no permission is checked by its
        // source when it is executed.
        if !self.recorder.is_requested(tool, &prepared.digest).await?
            && let Err(problem) = source.check(self.app, &self.context, tool, &prepared.arguments).await?
        {
            let reason = format!("invalid arguments: {problem}");
            return Ok(Err(NotExecuted { action: CallAction::Fail, reason }));
        }
        let edits = match self.ask(tool, prepared).await? {
            Ok(Some(edited)) => read_edited(self.app, tool, edited).await.map(Some),
            Ok(None) => Ok(None),
            Err(reason) => Err(reason.to_owned()),
        };
        Ok(edits.map_err(NotExecuted::declined))
    }

    /// Why the tool was not found, if it may exist.
    async fn unavailable(&self) -> Result<Option<String>, Failure> {
        Toolkit::of(self.app).unavailable(self.app, &self.context, &self.request.name).await
    }

    async fn authorise(&self, tool: &ToolDefinition) -> Result<Authorisation, Failure> {
        authorise_call(self.app, &self.context, tool).await
    }

    /// Finds the tool and authorises the call again after a person has permitted it: since the request, the tool may have been disabled, a scope
    /// revoked, or the MCP server replaced by another one of its name, which no person has approved. The inner error is the reason for
    /// which the call may not be executed.
    async fn find_again(
        &self,
        permitted: &ToolDefinition,
        arguments: &Map<String, Value>,
    ) -> Result<Result<FoundTool, String>, Failure> {
        // Another server that waited for the same permission may have been faster.
        if !self.recorder.is_executed_again {
            let recovered = recover::find(self.app, self.run, &self.context, self.request, true).await?;
            if !matches!(recovered, Recovered::Unknown) {
                return Err(recover::reused(&self.request.call_id));
            }
        }
        let found = Toolkit::of(self.app).find(self.app, &self.context, &self.request.name).await?;
        let Some(found) = found.filter(|found| found.tool.server_fingerprint == permitted.server_fingerprint) else {
            let reason = self.unavailable().await?;
            return Ok(Err(
                reason.unwrap_or_else(|| format!("the tool {:?} is no longer available", self.request.name))
            ));
        };
        if let Err(problem) = check_arguments(self.app, &found.tool, &text_of(arguments)).await {
            return Ok(Err(format!("invalid arguments: {problem}")));
        }
        Ok(match self.authorise(&found.tool).await? {
            Authorisation::Refuse(failure) => Err(failure.message),
            Authorisation::Allow | Authorisation::Ask => Ok(found),
        })
    }

    fn advance(&mut self, action: CallAction) -> Result<(), Failure> {
        let next = self.state.after(action);
        self.state = next.ok_or_else(|| Failure::internal(format!("{action:?} of a call that is {:?}", self.state)))?;
        Ok(())
    }

    async fn end_unexecuted(mut self, action: CallAction, message: &str) -> Result<CallOutcome, Failure> {
        self.advance(action)?;
        let redactor = CallRedactor::of_run(self.app, self.run.run_id);
        let outcome = match self.state {
            CallState::Declined => CallOutcome::declined(&redactor, message).await,
            _ => CallOutcome::failed(&redactor, message).await,
        };
        self.recorder.not_executed(&outcome).await?;
        Ok(outcome)
    }

    /// Records the end of a call that was started. The source has done its work, so that the store gets some time to respond.
    async fn end(mut self, action: CallAction, outcome: CallOutcome) -> Result<CallOutcome, Failure> {
        self.advance(action)?;
        let mut pause = RECORD_PAUSE;
        for _ in 1..RECORD_ATTEMPTS {
            match self.recorder.ended(&outcome).await {
                Ok(()) => return Ok(outcome),
                Err(failure) if is_worth_repeating(&failure) => {
                    tracing::warn!(%failure, "the end of a call was not stored")
                }
                Err(failure) => return Err(failure),
            }
            sleep(pause).await;
            pause *= 2;
            // The store may have recorded the end, and only its answer was lost.
            match recover::is_ended(self.app, self.run, self.request).await {
                Ok(true) => return Ok(outcome),
                Ok(false) => {}
                Err(failure) => tracing::warn!(%failure, "the events of a call could not be read"),
            }
        }
        self.recorder.ended(&outcome).await.map(|()| outcome)
    }

    /// Asks a person, and waits for the answer. Returns the arguments with which the answer has replaced those of the call, if any.
    /// The inner error is the reason for which the call may not be executed.
    async fn ask(
        &mut self,
        tool: &ToolDefinition,
        prepared: &PreparedCall,
    ) -> Result<Result<Option<EditedArguments>, &'static str>, Failure> {
        let digest = prepared.digest.as_str();
        let mut watch = SessionWatch::new(self.app, self.run.session);
        let Some(permission_id) = self.recorder.ask(tool, &prepared.arguments, digest, self.reply).await? else {
            return Ok(Err("the call is too long to be shown to a person, or has characters that cannot be shown"));
        };
        self.advance(CallAction::Ask)?;
        let until = Instant::now() + Duration::from_millis(PERMISSION_WAIT_MS_MAX.unsigned_abs() + PERMISSION_GRACE_MS);
        loop {
            let found = store::kernel::permissions::get(&self.app.db, self.run.run_id, permission_id).await?;
            let resolved = found.filter(|found| found.status != PermissionStatus::Pending);
            if let Some(resolved) = resolved {
                let is_same = resolved.digest.eq_ignore_ascii_case(digest);
                return Ok(match resolved.status {
                    PermissionStatus::Allowed if is_same => Ok(resolved.edited),
                    PermissionStatus::Cancelled => Err("the permission request expired or was cancelled"),
                    _ => Err("permission was denied"),
                });
            }
            if Instant::now() >= until {
                return Ok(Err("the permission request expired"));
            }
            tokio::select! {
                () = watch.changed(until, |event| event.event_type == EventType::PermissionResolved) => {}
                () = self.app.stopped() => return Err(self.app.accepting().err().unwrap_or_else(|| Failure::internal("stopped"))),
            }
        }
    }
}
