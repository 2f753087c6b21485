//! The backend's side of a turn's connection.

use std::sync::Arc;

use ostler_protocol::{
    Failure, RawJson, Rule,
    failures::RULE,
    ids::{CommandId, PermissionId},
    json::canonical_hash,
    kernel::{
        context::Context,
        events::{EventType, PHASE_APPROVAL_DECLINED, PHASE_COST_UNKNOWN},
        permissions::{self, AskPermission},
    },
    tools::wire::{CalledTool, RunTools},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use super::{permission::PendingPermission, shared::SinkShared, steer::Steer, turn_tools::TurnTools};
use crate::{backend::turn::TurnAbort, budgets::StopReason, text_cutter::TextCutter, tool_port::ToolPort};

/// Escaped bytes of the text of one message or output. The rest of the event's limit is for the fields around it.
pub(crate) const TEXT_BYTES_MAX: usize = 240 * 1024;
/// The server resolves a request at its deadline. Should it not, the backend still does not wait for ever.
const DECISION_GRACE_MS: u64 = 60_000;
pub(crate) const NEVER_ASKS: DeclineReason =
    DeclineReason { rule: Some(Rule::PermissionNever), text: "the run's policy is never to ask" };
pub(crate) const NOT_DISPLAYABLE: DeclineReason =
    DeclineReason::new("the request does not state its action, or is too long to display");
/// Characters of a declined command that are reported.
const DECLINED_CHARS_MAX: usize = 300;

/// Why a request is declined without asking anyone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeclineReason {
    rule: Option<Rule>,
    text: &'static str,
}

impl DeclineReason {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { rule: None, text }
    }
}

/// The backend's side of a turn's connection.
pub struct TurnSink {
    shared: Arc<SinkShared>,
    stop: watch::Receiver<Option<StopReason>>,
    steers: mpsc::Receiver<Steer>,
    ids_issued: u32,
    /// `None` if there is no server, in tests of backends.
    tools: Option<ToolPort>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessagePayload<'a> {
    message_id: &'a str,
    text: &'a str,
    #[serde(rename = "final")]
    is_final: bool,
    reply_authority: bool,
    text_truncated: bool,
    output_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ui_hints: Option<&'a Value>,
}

impl TurnSink {
    pub(super) fn new(
        shared: Arc<SinkShared>,
        stop: watch::Receiver<Option<StopReason>>,
        steers: mpsc::Receiver<Steer>,
    ) -> Self {
        Self { shared, stop, steers, ids_issued: 0, tools: None }
    }

    pub(crate) fn attach_tools(&mut self, tools: ToolPort) {
        self.tools = Some(tools);
    }

    /// Cuts texts that are too long for their place in an event.
    pub(crate) fn cutter(&self) -> &TextCutter {
        &self.shared.cutter
    }

    /// Emits one event of the turn's command. Waits only while the server is far behind.
    pub async fn emit<T: Serialize>(&self, event_type: EventType, payload: &T) {
        self.shared.wait_for_room().await;
        self.shared.push(event_type, RawJson::of(payload));
    }

    /// Reports the usage of one model call. If the backend does not report its cost, the profile's prices give it.
    pub async fn emit_usage(&self, mut used: Map<String, Value>) {
        let cost_unknown = self.shared.state().meter.price(&mut used);
        self.emit(EventType::Usage, &used).await;
        if cost_unknown {
            let message =
                "the profile has no price for this model, or no tokens were counted: maxCostUsd does not stop it";
            let phase = json!({"phase": PHASE_COST_UNKNOWN, "model": used.get("model"), "message": message});
            self.emit(EventType::BackendStatus, &phase).await;
        }
    }

    /// Emits a piece of a message that is being written: `assistant_delta` or `reasoning_delta`.
    pub async fn emit_delta(&self, event_type: EventType, message_id: &str, text: &str) {
        self.shared.wait_for_room().await;
        self.shared.state().outbox.push_delta(event_type, &self.shared.command, message_id, text);
        self.shared.queued.notify_one();
    }

    /// Emits a whole message. A final one is the turn's reply.
    pub async fn emit_message(&self, message_id: &str, text: &str, is_final: bool) {
        self.emit_message_with(message_id, text, is_final, None).await;
    }

    /// Emits a whole message with hints on how to display it.
    pub async fn emit_message_with(&self, message_id: &str, text: &str, is_final: bool, ui_hints: Option<&Value>) {
        let (text, text_truncated) = self.shared.cutter.cut_escaped(text, TEXT_BYTES_MAX);
        let payload = MessagePayload {
            message_id,
            text: &text,
            is_final,
            reply_authority: is_final,
            text_truncated,
            output_truncated: false,
            ui_hints,
        };
        self.emit(EventType::AssistantMessage, &payload).await;
    }

    /// Emits a whole thought.
    pub async fn emit_reasoning(&self, message_id: &str, text: &str) {
        let (text, text_truncated) = self.shared.cutter.cut_escaped(text, TEXT_BYTES_MAX);
        let payload = json!({"messageId": message_id, "text": text, "textTruncated": text_truncated});
        self.emit(EventType::Reasoning, &payload).await;
    }

    /// Emits output of a tool.
    pub async fn emit_output(&self, tool_call_id: &str, stream: &str, text: &str) {
        let (text, cut) = self.shared.cutter.cut_escaped(text, TEXT_BYTES_MAX);
        let payload = json!({"toolCallId": tool_call_id, "stream": stream, "text": text, "textTruncated": cut, "outputTruncated": cut});
        self.emit(EventType::CommandOutput, &payload).await;
    }

    /// Reports that a tool starts. If the budget has no room for it, nothing is emitted and the turn stops.
    pub async fn start_tool<T: Serialize>(&self, payload: &T) -> Result<(), TurnAbort> {
        self.check_stop()?;
        let spent = self.shared.state().meter.check_next_tool();
        if let Some(spent) = spent {
            self.shared.stop(spent);
            return Err(TurnAbort::Stopped);
        }
        self.emit(EventType::ToolCall, payload).await;
        Ok(())
    }

    /// The tools of the server that the turn is offered, and the calls that earlier attempts made.
    pub(crate) fn server_tools(&self) -> impl Future<Output = Result<RunTools, Failure>> + Send + 'static {
        let tools = self.tools.clone();
        async move {
            match tools {
                Some(tools) => tools.list().await,
                None => Ok(RunTools::default()),
            }
        }
    }

    /// Counts a call of a server's tool, which the server records. If the budget has no room for it, the turn stops.
    pub(crate) fn count_tool(&self) -> Result<(), TurnAbort> {
        self.check_stop()?;
        if self.shared.count_tool() { Ok(()) } else { Err(TurnAbort::Stopped) }
    }

    /// The server's tools and those of the front end, for a backend that calls them through the gateway. `None` if there is no
    /// server.
    pub(crate) fn turn_tools(&self, context: Context) -> Option<TurnTools> {
        Some(TurnTools::new(self.shared.clone(), self.stop.clone(), self.tools.clone()?, context))
    }

    /// Calls a tool of the server, which checks, authorises, executes and records the call. Everything that was emitted before is
    /// durable first, so that the log has it in order. `reply_calls`: all such calls that the agent makes at once.
    pub(crate) fn call_server_tool(
        &self,
        call_id: String,
        name: String,
        arguments: String,
        reply_calls: Arc<[String]>,
    ) -> impl Future<Output = Result<CalledTool, Failure>> + Send + 'static {
        let (tools, shared) = (self.tools.clone(), self.shared.clone());
        async move {
            match tools {
                Some(tools) => {
                    let called = tools.call(&call_id, &name, &arguments, &reply_calls).await;
                    called.inspect(|called| shared.charge_call(called))
                }
                None => Err(Failure::rule(Rule::ToolUnknown, format!("there is no tool {name:?}"))),
            }
        }
    }

    /// An id for a message or tool call. The same attempt that makes the same steps gets the same ids.
    pub fn new_id(&mut self, prefix: &str) -> String {
        self.ids_issued += 1;
        format!("{prefix}_{}_{}", self.shared.id_base(), self.ids_issued)
    }

    /// An id for a permission request, sorted by time like its command.
    #[expect(clippy::expect_used, reason = "32 hexadecimal digits, 12 of a command id and 20 of a hash, are an id")]
    pub fn new_permission_id(&mut self) -> PermissionId {
        self.ids_issued += 1;
        let seed = canonical_hash(&json!([self.shared.command, self.shared.lease_epoch, self.ids_issued]));
        let time = &self.shared.command[CommandId::PREFIX.len()..][..12];
        format!("{}{time}{}", PermissionId::PREFIX, &seed[..20]).parse().expect("a permission id")
    }

    /// Asks for permission. The request is queued when this returns; the decision is awaited on the returned value.
    pub async fn ask_permission(&self, ask: &AskPermission) -> PendingPermission {
        let payload = RawJson::of(ask);
        let well_formed = matches!(AskPermission::read(&payload), permissions::ParsedPermission::Valid(_));
        let (sender, resolved) = oneshot::channel();
        if well_formed {
            self.shared.state().undecided.insert(ask.permission_id, sender);
        }
        self.shared.wait_for_room().await;
        self.shared.push(EventType::PermissionRequest, payload);
        let wait_ms = ask.wait_ms().unsigned_abs() + DECISION_GRACE_MS;
        PendingPermission::new(ask, well_formed.then_some(resolved), wait_ms)
    }

    /// Reports that a request was declined without asking anyone.
    pub(crate) async fn report_declined(&self, method: &str, reason: DeclineReason, ask: &AskPermission) {
        let command = ask.command.as_deref().map(|command| self.shared.cutter.cut(command, DECLINED_CHARS_MAX));
        let phase = json!({"phase": PHASE_APPROVAL_DECLINED, "method": method, "reason": reason.text,
            (RULE): reason.rule, "toolCallId": ask.tool_call_id, "command": command});
        self.emit(EventType::BackendStatus, &phase).await;
    }

    /// The next steer. One that is dropped without being accepted counts as undelivered and ends as blocked.
    pub async fn next_steer(&mut self) -> Steer {
        match self.steers.recv().await {
            Some(steer) => steer,
            // The runner's side is gone, so there will be none.
            None => std::future::pending().await,
        }
    }

    /// Resolves when the backend must stop.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.clone();
        async move {
            if stop.wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Fails if the backend must stop.
    pub fn check_stop(&self) -> Result<(), TurnAbort> {
        if self.stop.borrow().is_some() { Err(TurnAbort::Stopped) } else { Ok(()) }
    }

    /// Waits until everything emitted so far is durable.
    pub async fn flush(&self) {
        self.shared.flush().await;
    }
}
