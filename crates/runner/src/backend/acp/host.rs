//! The host: handles the requests of a backend while it works. Every request gets a reply: permissions by the decision on
//! our permission request, files and terminals inside the workspace and within the run's policy, the rest by a refusal.
//! Nothing is granted for longer than one call, if the backend offers that choice.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ostler_protocol::{
    RawJson,
    json::canonical_hash,
    kernel::{
        permissions::{AskPermission, OptionKind, PermissionOption},
        policy::{Approval, ExecutionPolicy, Sandbox},
    },
    limits::{PERMISSION_BYTES_MAX, PERMISSION_OPTIONS_MAX},
    rpc::{INTERNAL_ERROR, INVALID_PARAMS, RpcError, RpcId},
    text::one_line,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    details::call_details,
    files::Files,
    terminals::Terminals,
    updates::{self, ReportedCall, Updates},
    wire::{CreateTerminal, PermissionOffer, PermissionParams, ReadFile, TerminalRef, WriteFile},
};
use crate::{
    backend::child::RpcReply,
    text_cutter::TextCutter,
    turn_sink::{DeclineReason, NEVER_ASKS, NOT_DISPLAYABLE, PermissionDecision, TurnSink},
};

const TITLE_CHARS_MAX: usize = 300;
/// What the server adds to a permission request.
const DEADLINE_BYTES: usize = 128;
/// Permission requests and waits of one turn that are open at once.
const WAITING_MAX: usize = 64;

/// The reply to a request that could not be answered at once.
pub(super) struct LateReply {
    pub(super) id: RpcId,
    pub(super) reply: RpcReply,
    /// The tool call that was declined, by the backend's own id.
    pub(super) declined: Option<String>,
}

pub(super) struct AcpHost {
    approval: Approval,
    may_write: bool,
    files: Option<Files>,
    terminals: Terminals,
    /// Tools that are switched off.
    disabled_tools: Vec<String>,
    waiting: FuturesUnordered<BoxFuture<'static, LateReply>>,
    /// Permission requests without a decision.
    undecided: Vec<RpcId>,
}

impl AcpHost {
    pub(super) fn new(
        policy: &ExecutionPolicy,
        files: Option<Files>,
        terminals: Terminals,
        disabled_tools: &[String],
    ) -> Self {
        Self {
            approval: policy.approval,
            may_write: policy.sandbox > Sandbox::ReadOnly,
            files,
            terminals,
            disabled_tools: disabled_tools.to_vec(),
            waiting: FuturesUnordered::new(),
            undecided: vec![],
        }
    }

    /// Handles a request. `Some` if the reply is known at once; otherwise it comes from [`AcpHost::next_reply`].
    pub(super) async fn handle(
        &mut self,
        sink: &mut TurnSink,
        updates: &mut Updates,
        id: &RpcId,
        method: &str,
        params: &RawJson,
    ) -> Option<RpcReply> {
        if self.waiting.len() >= WAITING_MAX {
            return Some(Err(RpcError::new(INTERNAL_ERROR, "too many requests are open")));
        }
        match method {
            "session/request_permission" => self.ask_permission(sink, updates, id, params).await,
            "terminal/wait_for_exit" => self.wait_for_exit(id, params),
            "fs/read_text_file" => Some(self.read_file(params)),
            "fs/write_text_file" => Some(self.write_file(params)),
            "terminal/create" => Some(self.create_terminal(params)),
            "terminal/output" => Some(with_terminal(params, |id| self.terminals.output(id))),
            "terminal/kill" => Some(with_terminal(params, |id| self.terminals.kill(id).map(|()| json!({})))),
            "terminal/release" => Some(with_terminal(params, |id| self.terminals.release(id).map(|()| json!({})))),
            _ => Some(Err(RpcError::unknown_method(method))),
        }
    }

    /// The next late reply. Never resolves if no request waits.
    pub(super) async fn next_reply(&mut self) -> LateReply {
        match self.waiting.next().await {
            Some(reply) => {
                self.undecided.retain(|id| *id != reply.id);
                reply
            }
            None => std::future::pending().await,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Drops all waiting requests, because the turn is cancelled. Returns the replies to the permission requests.
    pub(super) fn cancel_waiting(&mut self) -> Vec<(RpcId, Value)> {
        self.waiting.clear();
        self.undecided.drain(..).map(|id| (id, cancelled_outcome())).collect()
    }

    async fn ask_permission(
        &mut self,
        sink: &mut TurnSink,
        updates: &mut Updates,
        id: &RpcId,
        params: &RawJson,
    ) -> Option<RpcReply> {
        let requested: PermissionParams = match read_params(params) {
            Ok(requested) => requested,
            Err(error) => return Some(Err(error)),
        };
        let backend_id = requested.tool_call.call.tool_call_id.as_ref();
        if updates.is_of_gateway(backend_id) {
            // The server decides about the call when it is made, and asks a person where the run's policy wants that.
            return Some(Ok(allowed_outcome(&requested.options)));
        }
        let reported = updates.report_for_permission(sink, &requested.tool_call.call).await;
        let request = permission_request(sink, params, &requested, reported.as_ref());
        let is_disabled = self.disabled_tools.iter().any(|tool| requested.tool_call.call.is_of(tool));
        let backend_id = requested.tool_call.call.tool_call_id;
        let declined = match self.approval {
            _ if is_disabled => Some(DeclineReason::new("this tool is switched off in the workspace")),
            Approval::Never => Some(NEVER_ASKS),
            _ if !request.options.iter().any(|option| option.kind.allows()) => {
                Some(DeclineReason::new("there is nothing to allow"))
            }
            _ if !request.can_be_asked() => Some(NOT_DISPLAYABLE),
            _ => None,
        };
        if let Some(reason) = declined {
            updates.mark_declined(backend_id.as_ref());
            sink.report_declined("session/request_permission", reason, &request).await;
            return Some(Ok(rejected_outcome(&requested.options, None)));
        }
        let pending = sink.ask_permission(&request).await;
        self.undecided.push(id.clone());
        let (id, offers) = (id.clone(), requested.options);
        let decide = async move {
            let (outcome, declined) = match pending.decision().await {
                PermissionDecision::Allowed { option_id, .. } => {
                    (selected_outcome(option_id.unwrap_or_default()), None)
                }
                PermissionDecision::Denied { option_id } => (rejected_outcome(&offers, option_id), backend_id),
                PermissionDecision::Cancelled => (cancelled_outcome(), backend_id),
            };
            LateReply { id, reply: Ok(outcome), declined }
        };
        self.waiting.push(decide.boxed());
        None
    }

    fn wait_for_exit(&mut self, id: &RpcId, params: &RawJson) -> Option<RpcReply> {
        let ended = read_params::<TerminalRef>(params)
            .and_then(|terminal| self.terminals.exit_status(&terminal.terminal_id).map_err(invalid_params));
        match ended {
            Ok(ended) => {
                let id = id.clone();
                self.waiting.push(async move { LateReply { id, reply: Ok(ended.await), declined: None } }.boxed());
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn read_file(&self, params: &RawJson) -> RpcReply {
        let params: ReadFile = read_params(params)?;
        let text = self.files()?.read(&params).map_err(invalid_params)?;
        Ok(json!({ "content": text }))
    }

    fn write_file(&self, params: &RawJson) -> RpcReply {
        let params: WriteFile = read_params(params)?;
        self.writable_files()?.write(&params).map_err(invalid_params)?;
        Ok(json!({}))
    }

    fn create_terminal(&mut self, params: &RawJson) -> RpcReply {
        let params: CreateTerminal = read_params(params)?;
        let directory = self.writable_files()?.directory(params.cwd.as_deref()).map_err(invalid_params)?;
        let id = self.terminals.create(params, directory).map_err(invalid_params)?;
        Ok(json!({ "terminalId": id }))
    }

    fn files(&self) -> Result<&Files, RpcError> {
        self.files.as_ref().ok_or_else(|| invalid_params("this run has no workspace".into()))
    }

    fn writable_files(&self) -> Result<&Files, RpcError> {
        match self.may_write {
            true => self.files(),
            false => Err(invalid_params("the run's policy is read-only".into())),
        }
    }
}

fn with_terminal(params: &RawJson, work: impl FnOnce(&str) -> Result<Value, String>) -> RpcReply {
    work(&read_params::<TerminalRef>(params)?.terminal_id).map_err(invalid_params)
}

fn read_params<T: DeserializeOwned>(params: &RawJson) -> Result<T, RpcError> {
    params.view().ok_or_else(|| RpcError::new(INVALID_PARAMS, "the parameters cannot be read"))
}

fn invalid_params(reason: String) -> RpcError {
    RpcError::new(INVALID_PARAMS, reason)
}

/// The options of our permission request: for one call only, if the backend lets us choose.
fn permission_options(cutter: &TextCutter, offers: &[PermissionOffer]) -> Vec<PermissionOption> {
    let once = offers.iter().any(|offer| offer.kind == OptionKind::AllowOnce);
    let fits = |offer: &&PermissionOffer| !(once && offer.kind == OptionKind::AllowAlways);
    let option = |offer: &PermissionOffer| PermissionOption {
        option_id: offer.option_id.clone(),
        name: cutter.cut(&offer.name, TITLE_CHARS_MAX),
        kind: offer.kind,
    };
    offers.iter().filter(fits).take(PERMISSION_OPTIONS_MAX).map(option).collect()
}

/// Our permission request. Its digest is over the call as the backend described it, which contains everything that the
/// permission would allow.
fn permission_request(
    sink: &mut TurnSink,
    params: &RawJson,
    requested: &PermissionParams,
    reported: Option<&ReportedCall>,
) -> AskPermission {
    let described = &requested.tool_call;
    let call = reported.map_or(&described.call, |reported| &reported.call);
    let name = reported.and_then(|reported| reported.name.as_deref());
    let title = call.title.as_deref().filter(|title| !title.is_empty()).unwrap_or("The agent asks for permission");
    let mut ask = AskPermission {
        permission_id: sink.new_permission_id(),
        title: sink.cutter().cut(&one_line(title), TITLE_CHARS_MAX),
        command: Some(updates::call_action(call, &described.content)).filter(|action| !action.is_empty()),
        tool_call_id: reported.map(|reported| reported.id.clone()),
        options: permission_options(sink.cutter(), &requested.options),
        digest: canonical_hash(&params.to_value()["toolCall"]),
        server_digest: None,
        editable: None,
        call_details: None,
        with_next: false,
        wait_ms: None,
        deadline: None,
    };
    let room = PERMISSION_BYTES_MAX.saturating_sub(RawJson::of(&ask).size() + DEADLINE_BYTES);
    let name = name.or(described.call.tool_name());
    ask.call_details = call_details(sink.cutter(), call, name, &described.content, room);
    ask
}

/// The outcome that allows one call. A backend that offers no such option gets none of its options.
fn allowed_outcome(offers: &[PermissionOffer]) -> Value {
    let once = offers.iter().find(|offer| offer.kind == OptionKind::AllowOnce);
    once.map_or_else(cancelled_outcome, |offer| selected_outcome(offer.option_id.clone()))
}

fn selected_outcome(option_id: String) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": option_id}})
}

pub(super) fn cancelled_outcome() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

/// The outcome of a denied request: the backend's own option to reject, or a cancel if it offers none.
pub(super) fn rejected_outcome(offers: &[PermissionOffer], chosen: Option<String>) -> Value {
    let of_kind = |kind| offers.iter().find(|offer| offer.kind == kind).map(|offer| offer.option_id.clone());
    let option = chosen.or_else(|| of_kind(OptionKind::RejectOnce)).or_else(|| of_kind(OptionKind::RejectAlways));
    option.map_or_else(cancelled_outcome, selected_outcome)
}
