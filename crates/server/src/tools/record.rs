//! The events of a call. They are appended under the lease of the runner that made the call, so that a runner that was replaced
//! records nothing.

use std::sync::Arc;

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    ids::{AttemptId, PermissionId},
    json::{canonical_hash, text_of},
    kernel::{
        events::{EventType, NewEvent},
        fold::KnownCalls,
        launching::is_worth_repeating,
        operations::AppendOp,
        permissions::{ASKED_TOOL, AskPermission, EditableArguments, OptionKind, PermissionOption},
    },
    limits::{PERMISSION_BYTES_MAX, TOOL_COMMAND_CHARS_MAX},
    text::clip,
    tools::{CallState, ToolDefinition, calls::TOOLKIT, wire::CallTool},
};
use ostler_store as store;
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{call_redactor::CallRedactor, outcome::CallOutcome, reply_sets::ReplyCall};
use crate::{
    app::{App, CallingCommand, RunRef},
    service::requests::attempt,
};

/// Bytes of arguments that are recorded as an object. Longer ones are recorded as a text that is cut.
const RECORDED_ARGUMENTS_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a member of a JSON object beside its name and its text.
const JSON_MEMBER_BYTES: usize = 6;
/// The options of a permission request.
const ALLOW: &str = "allow";
const DENY: &str = "deny";

/// The payload of a `tool_call` event of the toolkit. Written from its parts: each call has two of them. Fields are in alphabetical
/// order, as those of all JSON objects that the server makes.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordedCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    /// A person has replaced the arguments of the request by these.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    edited: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    executed_again: bool,
    /// The lease of a call whose tool gave no answer. The agent that made the call under this lease knows that.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_epoch: Option<i64>,
    method: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    status: &'static str,
    tool_call_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_tokens: Option<i64>,
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Writes the events of one call.
pub(super) struct Recorder<'a> {
    app: &'a App,
    run: &'a RunRef,
    request: &'a CallTool,
    attempt_id: Option<AttemptId>,
    /// The command, if this server knows all of its calls.
    pub calling: Option<Arc<CallingCommand>>,
    /// The log was not searched for the call: that it is new follows from the calls that this server knows, which the kernel checks.
    pub is_unsearched: bool,
    /// An earlier execution of the call was lost, and its tool is idempotent.
    pub is_executed_again: bool,
    /// A person has replaced the arguments of the call.
    pub is_edited: bool,
    /// The call was executed by this process, and its outcome is not known.
    pub is_unanswered: bool,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(app: &'a App, run: &'a RunRef, request: &'a CallTool) -> Result<Self, Failure> {
        let attempt_id = attempt(request.attempt_id.as_deref())?;
        Ok(Self {
            app,
            run,
            request,
            attempt_id,
            calling: None,
            is_unsearched: false,
            is_executed_again: false,
            is_edited: false,
            is_unanswered: false,
        })
    }

    /// Appends events of which the first is the start of the call.
    async fn append_start(&self, facts: &[RecordedCall<'_>]) -> Result<(), Failure> {
        let pending = self.calling.as_ref().map(|calling| calling.begin(&self.request.call_id));
        let known_calls = pending.as_ref().filter(|_| self.is_unsearched).map(|pending| pending.known.clone());
        self.append_calls(facts, known_calls).await?;
        if let Some(pending) = pending {
            pending.recorded();
        }
        Ok(())
    }

    async fn append_calls(&self, facts: &[RecordedCall<'_>], known_calls: Option<KnownCalls>) -> Result<(), Failure> {
        let payloads = facts.iter().map(RawJson::of).collect();
        self.append(EventType::ToolCall, payloads, known_calls).await
    }

    async fn append(
        &self,
        event_type: EventType,
        payloads: Vec<RawJson>,
        known_calls: Option<KnownCalls>,
    ) -> Result<(), Failure> {
        let (app, request) = (self.app, self.request);
        let of_jobs = app.job_redactors.of_run(self.run.run_id);
        let received = payloads.into_iter().map(|payload| {
            let payload = of_jobs.redact_json(payload);
            NewEvent::receive_payload(event_type, Some(request.command_id), payload, &app.redactor)
        });
        let op = AppendOp {
            runner_id: request.runner_id.clone(),
            lease_epoch: request.lease_epoch,
            attempt_id: self.attempt_id,
            batch_no: None,
            release_if_idle: false,
            ends_job: None,
            voting: app.config.policy.voting_rules(),
            known_calls,
            events: received.collect::<Result<_, _>>()?,
        };
        app.submit(self.run, op).await.map(drop)
    }

    /// Arguments as they are recorded: an object, or a text that is cut. Long ones are redacted before they are cut, short ones when
    /// they are appended.
    async fn recorded_arguments(&self, arguments: &impl Serialize) -> RawJson {
        let whole = RawJson::of(arguments);
        if whole.as_str().len() <= RECORDED_ARGUMENTS_BYTES_MAX {
            return whole;
        }
        let clean = CallRedactor::of_run(self.app, self.run.run_id).redact_json(whole.as_str().to_owned()).await;
        if clean.len() <= RECORDED_ARGUMENTS_BYTES_MAX {
            return RawJson::parse(clean).unwrap_or_else(|_| RawJson::empty_object());
        }
        RawJson::of(&format!("{}…", &clean[..clean.floor_char_boundary(RECORDED_ARGUMENTS_BYTES_MAX)]))
    }

    fn fact(&self, state: CallState) -> RecordedCall<'_> {
        RecordedCall {
            tool_call_id: &self.request.call_id,
            name: &self.request.name,
            method: "function",
            kind: TOOLKIT,
            status: state.status().unwrap_or_default(),
            ..RecordedCall::default()
        }
    }

    fn start_fact(&self, arguments: RawJson) -> RecordedCall<'_> {
        RecordedCall {
            arguments: Some(arguments),
            executed_again: self.is_executed_again,
            ..self.fact(CallState::Started)
        }
    }

    fn end_fact<'b>(&'b self, outcome: &'b CallOutcome) -> RecordedCall<'b> {
        let delegated = (!outcome.delegated.is_none()).then_some(outcome.delegated);
        RecordedCall {
            result_summary: Some(clip(&outcome.text, TOOL_COMMAND_CHARS_MAX)),
            result: Some(&outcome.text),
            result_truncated: Some(outcome.is_truncated),
            lease_epoch: self.is_unanswered.then_some(self.request.lease_epoch),
            total_tokens: delegated.map(|delegated| delegated.tokens),
            cost_usd: delegated.map(|delegated| delegated.cost_usd),
            tool_calls: delegated.map(|delegated| delegated.tool_calls),
            ..self.fact(outcome.state)
        }
    }

    /// The start of a call that is executed.
    async fn execution<'b>(
        &'b self,
        arguments: &Map<String, Value>,
        tool: &ToolDefinition,
        digest: &'b str,
    ) -> RecordedCall<'b> {
        RecordedCall {
            source: Some(tool.origin.to_string()),
            digest: Some(digest),
            changes: Some(tool.changes),
            deadline_ms: Some(tool.deadline_ms),
            edited: self.is_edited,
            ..self.start_fact(self.recorded_arguments(arguments).await)
        }
    }

    pub(super) async fn started(
        &self,
        arguments: &Map<String, Value>,
        tool: &ToolDefinition,
        digest: &str,
    ) -> Result<(), Failure> {
        self.append_start(&[self.execution(arguments, tool, digest).await]).await
    }

    /// Records the start of a call together with its end.
    pub(super) async fn started_and_ended(
        &self,
        arguments: &Map<String, Value>,
        tool: &ToolDefinition,
        digest: &str,
        outcome: &CallOutcome,
    ) -> Result<(), Failure> {
        self.append_start(&[self.execution(arguments, tool, digest).await, self.end_fact(outcome)]).await
    }

    pub(super) async fn ended(&self, outcome: &CallOutcome) -> Result<(), Failure> {
        self.append_calls(&[self.end_fact(outcome)], None).await
    }

    /// Records a call that was never executed: its request and its end.
    pub(super) async fn not_executed(&self, outcome: &CallOutcome) -> Result<(), Failure> {
        let arguments = match serde_json::from_str::<Map<String, Value>>(&self.request.arguments) {
            Ok(arguments) => self.recorded_arguments(&arguments).await,
            Err(_) => self.recorded_arguments(&self.request.arguments).await,
        };
        self.append_start(&[self.start_fact(arguments), self.end_fact(outcome)]).await
    }

    /// The id of the permission request for exactly this call. Derived, so that another server that got the same request finds it. A
    /// runner with a new lease sends a request of its own, because claiming the lease cancels the earlier ones.
    fn permission_id(&self, tool: &ToolDefinition, digest: &str) -> PermissionId {
        let (run_id, server_fingerprint) = (self.run.run_id, &tool.server_fingerprint);
        let CallTool { lease_epoch, command_id, call_id, .. } = self.request;
        let call = json!([run_id, lease_epoch, command_id, call_id, digest, server_fingerprint]);
        let hash = canonical_hash(&json!(["toolkit permission", call]));
        let body = hash.get(..32).and_then(|half| u128::from_str_radix(half, 16).ok()).unwrap_or_default();
        PermissionId::new(Uuid::from_u128(body))
    }

    /// The MCP server whose tool is called, for [`AskPermission::server_digest`]. The fingerprint itself is not shown.
    fn server_digest(&self, tool: &ToolDefinition) -> Option<String> {
        let fingerprint = tool.server_fingerprint.as_ref()?;
        Some(canonical_hash(&json!(["toolkit server", self.run.run_id, self.request.command_id, fingerprint])))
    }

    /// Whether permission to execute exactly this call was requested before, by this server or another one.
    pub(super) async fn is_requested(&self, tool: &ToolDefinition, digest: &str) -> Result<bool, Failure> {
        let permission_id = self.permission_id(tool, digest);
        let found = store::kernel::permissions::get(&self.app.db, self.run.run_id, permission_id).await?;
        Ok(found.is_some())
    }

    /// Appends permission requests that people are asked together.
    async fn append_requests(&self, payloads: Vec<RawJson>) -> Result<(), Failure> {
        let last = payloads.len().saturating_sub(1);
        let linked = payloads.into_iter().enumerate().map(|(at, payload)| {
            let mut value = payload.to_value();
            value["withNext"] = true.into();
            let linked = RawJson::of(&value);
            if at < last && linked.size() <= PERMISSION_BYTES_MAX { linked } else { payload }
        });
        self.append(EventType::PermissionRequest, linked.collect(), None).await
    }

    /// Appends a permission request, together with those for the other calls of the reply.
    async fn append_request(&self, payload: RawJson, reply: Option<&ReplyCall>) -> Result<(), Failure> {
        let Some(reply) = reply else { return self.append_requests(vec![payload]).await };
        let (queued, own) = reply.queue(payload).await;
        let payloads: Vec<_> = queued.iter().map(|queued| queued.payload.clone()).collect();
        if !payloads.is_empty() {
            let appended = self.append_requests(payloads).await;
            let is_refused_as_set =
                queued.len() > 1 && appended.as_ref().is_err_and(|failure| !is_worth_repeating(failure));
            for queued in queued {
                // One of them may be what the others were refused for.
                let appended = match is_refused_as_set {
                    true => self.append_requests(vec![queued.payload.clone()]).await,
                    false => appended.clone(),
                };
                queued.report(appended);
            }
        }
        own.await.unwrap_or_else(|_| {
            Err(Failure::new(FailureKind::Draining, "the server stopped before a person was asked"))
        })
    }

    /// Asks for permission to execute exactly this call, unless the request exists. `None` if the call cannot be shown to a person as
    /// it is. `reply`: the reply of which the call is one of several.
    pub(super) async fn ask(
        &self,
        tool: &ToolDefinition,
        arguments: &Map<String, Value>,
        digest: &str,
        reply: Option<&ReplyCall>,
    ) -> Result<Option<PermissionId>, Failure> {
        let request = self.request;
        let permission_id = self.permission_id(tool, digest);
        let option = |option_id: &str, name: &str, kind| PermissionOption {
            option_id: option_id.into(),
            name: name.into(),
            kind,
        };
        let mut ask = AskPermission {
            permission_id,
            title: format!("Call the tool {}", request.name),
            command: Some(format!("{} {}", request.name, text_of(arguments))),
            tool_call_id: Some(request.call_id.clone()),
            options: vec![option(ALLOW, "Allow", OptionKind::AllowOnce), option(DENY, "Deny", OptionKind::RejectOnce)],
            digest: digest.to_owned(),
            server_digest: self.server_digest(tool),
            editable: self.editable(tool, arguments),
            call_details: None,
            with_next: false,
            wait_ms: None,
            deadline: None,
        };
        if !ask.can_be_asked() {
            // The schema may be too long, or of a kind that answers cannot be checked against.
            ask.editable = None;
        }
        if !ask.can_be_asked() {
            return Ok(None);
        }
        match self.existing_request(&ask).await? {
            Some(true) => {
                reply.into_iter().for_each(ReplyCall::mark_no_request);
                return Ok(Some(permission_id));
            }
            // The runner has used the id for a request that shows something else. What it shows must not permit this call.
            Some(false) => ask.permission_id = PermissionId::new(self.app.ids.body()),
            None => {}
        }
        let mut payload = ostler_protocol::json::value_of(&ask);
        // A front end announces the call before it is started.
        let added_bytes = ASKED_TOOL.len() + request.name.len() + JSON_MEMBER_BYTES;
        if text_of(&payload).len() + added_bytes <= PERMISSION_BYTES_MAX {
            payload[ASKED_TOOL] = request.name.as_str().into();
        }
        match self.append_request(RawJson::of(&payload), reply).await {
            Ok(()) => Ok(Some(ask.permission_id)),
            // Another server may just have asked.
            Err(failure) if failure.broken_rule() == Some(Rule::PermissionIdUsed) => {
                match self.existing_request(&ask).await? {
                    Some(true) => Ok(Some(permission_id)),
                    _ => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }

    /// The arguments that an answer may replace. `None` if they have secrets: the answer would have what they are redacted to.
    fn editable(&self, tool: &ToolDefinition, arguments: &Map<String, Value>) -> Option<EditableArguments> {
        let editable =
            EditableArguments { arguments: arguments.clone().into(), schema: tool.parameters.clone().into() };
        let raw = RawJson::of(&editable);
        let of_jobs = self.app.job_redactors.of_run(self.run.run_id).redact_json(raw.clone());
        let is_plain = self.app.redacted(&of_jobs).is_ok_and(|redacted| redacted.as_str() == raw.as_str());
        is_plain.then_some(editable)
    }

    /// Whether the request with this id, if there is one, shows the same as `ask`.
    async fn existing_request(&self, ask: &AskPermission) -> Result<Option<bool>, Failure> {
        let found = store::kernel::permissions::get(&self.app.db, self.run.run_id, ask.permission_id).await?;
        let Some(found) = found else { return Ok(None) };
        // Requests are stored without secrets.
        let of_jobs = self.app.job_redactors.of_run(self.run.run_id).redact_json(RawJson::of(ask));
        let stored = self.app.redacted_values(&of_jobs)?.view::<AskPermission>();
        Ok(Some(stored.is_some_and(|stored| {
            found.command_id == self.request.command_id
                && found.title == stored.title
                && found.command == stored.command
                && found.tool_call_id == stored.tool_call_id
                && found.options == stored.options
                && found.editable == stored.editable
        })))
    }
}
