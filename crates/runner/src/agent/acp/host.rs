//! The host: what an agent asks of us while it works. Every request is answered: permissions by whoever may answer the
//! kernel's permission request, files and terminals inside the workspace and within the run's policy, the rest by a
//! refusal. Nothing is ever granted for longer than one call where the agent offers that.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ostler_protocol::{
    RawJson,
    json::canonical_hash,
    limits::PERMISSION_OPTIONS_MAX,
    permissions::{AskPermission, OptionKind, PermissionOption},
    policy::{Approval, ExecutionPolicy, Sandbox},
    rpc::{INTERNAL_ERROR, INVALID_PARAMS, RpcError, RpcId},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    files::Files,
    terminals::Terminals,
    updates::{self, Updates},
    wire::{CreateTerminal, OfTerminal, PermissionAsked, PermissionOffer, ReadFile, ToolCall, WriteFile},
};
use crate::{
    holdback::clip,
    link::{Answer, CANNOT_BE_SHOWN, Link, NEVER_ASKS},
};

const TITLE_CHARS_MAX: usize = 300;
/// Questions and waits of one turn that are open at once.
const WAITING_MAX: usize = 64;

pub type Reply = Result<Value, RpcError>;

/// A request whose answer took its time.
pub struct Settled {
    pub id: RpcId,
    pub reply: Reply,
    /// The call that was refused, by the agent's own id.
    pub declined: Option<String>,
}

pub struct Host {
    approval: Approval,
    may_write: bool,
    files: Option<Files>,
    terminals: Terminals,
    waiting: FuturesUnordered<BoxFuture<'static, Settled>>,
    /// Permission requests that nobody has answered yet.
    asked: Vec<RpcId>,
}

impl Host {
    pub fn new(policy: &ExecutionPolicy, files: Option<Files>, terminals: Terminals) -> Self {
        Self {
            approval: policy.approval,
            may_write: policy.sandbox > Sandbox::ReadOnly,
            files,
            terminals,
            waiting: FuturesUnordered::new(),
            asked: vec![],
        }
    }

    /// Takes a request. `Some`: this is the answer; else it comes from [`Host::next`].
    pub async fn take(
        &mut self,
        link: &mut Link,
        updates: &mut Updates,
        id: &RpcId,
        method: &str,
        params: &RawJson,
    ) -> Option<Reply> {
        if self.waiting.len() >= WAITING_MAX {
            return Some(Err(RpcError::new(INTERNAL_ERROR, "too many requests are open")));
        }
        match method {
            "session/request_permission" => self.permission(link, updates, id, params).await,
            "terminal/wait_for_exit" => self.wait(id, params),
            "fs/read_text_file" => Some(self.read(params)),
            "fs/write_text_file" => Some(self.write(params)),
            "terminal/create" => Some(self.terminal(params)),
            "terminal/output" => Some(of_terminal(params, |id| self.terminals.output(id))),
            "terminal/kill" => Some(of_terminal(params, |id| self.terminals.kill(id).map(|()| json!({})))),
            "terminal/release" => Some(of_terminal(params, |id| self.terminals.release(id).map(|()| json!({})))),
            _ => Some(Err(RpcError::unknown_method(method))),
        }
    }

    /// The next answer; never, while none is due.
    pub async fn next(&mut self) -> Settled {
        match self.waiting.next().await {
            Some(settled) => {
                self.asked.retain(|id| *id != settled.id);
                settled
            }
            None => std::future::pending().await,
        }
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The turn is cancelled: whoever still waits for a permission is told so.
    pub fn give_up(&mut self) -> Vec<(RpcId, Value)> {
        self.waiting.clear();
        self.asked.drain(..).map(|id| (id, cancelled())).collect()
    }

    async fn permission(
        &mut self,
        link: &mut Link,
        updates: &mut Updates,
        id: &RpcId,
        params: &RawJson,
    ) -> Option<Reply> {
        let asked: PermissionAsked = match read(params) {
            Ok(asked) => asked,
            Err(error) => return Some(Err(error)),
        };
        let known = updates.asked_about(link, &asked.tool_call.call).await;
        let request = request(link, params, &asked, known);
        let theirs = asked.tool_call.call.tool_call_id;
        let declined = match self.approval {
            Approval::Never => Some(NEVER_ASKS),
            _ if !request.options.iter().any(|option| option.kind.allows()) => Some("there is nothing to allow"),
            _ if !request.can_be_asked() => Some(CANNOT_BE_SHOWN),
            _ => None,
        };
        if let Some(reason) = declined {
            updates.declined(theirs.as_ref());
            link.declined("session/request_permission", reason, &request).await;
            return Some(Ok(refused(&asked.options, None)));
        }
        let answer = link.ask(&request).await;
        self.asked.push(id.clone());
        let (id, offers) = (id.clone(), asked.options);
        let settle = async move {
            let (outcome, declined) = match answer.answer().await {
                Answer::Allowed { option_id } => (selected(option_id.unwrap_or_default()), None),
                Answer::Denied { option_id } => (refused(&offers, option_id), theirs),
                Answer::Cancelled => (cancelled(), theirs),
            };
            Settled { id, reply: Ok(outcome), declined }
        };
        self.waiting.push(settle.boxed());
        None
    }

    fn wait(&mut self, id: &RpcId, params: &RawJson) -> Option<Reply> {
        let ended = read::<OfTerminal>(params).and_then(|of| self.terminals.ended(&of.terminal_id).map_err(refusal));
        match ended {
            Ok(ended) => {
                let id = id.clone();
                self.waiting.push(async move { Settled { id, reply: Ok(ended.await), declined: None } }.boxed());
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn read(&self, params: &RawJson) -> Reply {
        let asked: ReadFile = read(params)?;
        let text = self.files()?.read(&asked).map_err(refusal)?;
        Ok(json!({ "content": text }))
    }

    fn write(&self, params: &RawJson) -> Reply {
        let asked: WriteFile = read(params)?;
        self.writable()?.write(&asked).map_err(refusal)?;
        Ok(json!({}))
    }

    fn terminal(&mut self, params: &RawJson) -> Reply {
        let asked: CreateTerminal = read(params)?;
        let directory = self.writable()?.directory(asked.cwd.as_deref()).map_err(refusal)?;
        let id = self.terminals.create(asked, directory).map_err(refusal)?;
        Ok(json!({ "terminalId": id }))
    }

    fn files(&self) -> Result<&Files, RpcError> {
        self.files.as_ref().ok_or_else(|| refusal("this run has no workspace".into()))
    }

    fn writable(&self) -> Result<&Files, RpcError> {
        match self.may_write {
            true => self.files(),
            false => Err(refusal("the run's policy is to read only".into())),
        }
    }
}

fn of_terminal(params: &RawJson, work: impl FnOnce(&str) -> Result<Value, String>) -> Reply {
    work(&read::<OfTerminal>(params)?.terminal_id).map_err(refusal)
}

fn read<T: DeserializeOwned>(params: &RawJson) -> Result<T, RpcError> {
    params.view().ok_or_else(|| RpcError::new(INVALID_PARAMS, "the parameters make no sense"))
}

fn refusal(why: String) -> RpcError {
    RpcError::new(INVALID_PARAMS, why)
}

/// What is offered to whoever answers: for once only, where the agent lets us choose.
fn offered(offers: &[PermissionOffer]) -> Vec<PermissionOption> {
    let once = offers.iter().any(|offer| offer.kind == OptionKind::AllowOnce);
    let fits = |offer: &&PermissionOffer| !(once && offer.kind == OptionKind::AllowAlways);
    let option = |offer: &PermissionOffer| PermissionOption {
        option_id: offer.option_id.clone(),
        name: clip(&offer.name, TITLE_CHARS_MAX),
        kind: offer.kind,
    };
    offers.iter().filter(fits).take(PERMISSION_OPTIONS_MAX).map(option).collect()
}

/// The digest is over the call as the agent described it: whatever a permission would let happen is in there.
fn request(
    link: &mut Link,
    params: &RawJson,
    asked: &PermissionAsked,
    known: Option<(String, ToolCall)>,
) -> AskPermission {
    let (tool_call_id, call) = known.unzip();
    let call = call.as_ref().unwrap_or(&asked.tool_call.call);
    let title = call.title.as_deref().filter(|title| !title.is_empty()).unwrap_or("The agent asks for leave");
    AskPermission {
        permission_id: link.new_permission_id(),
        title: clip(title, TITLE_CHARS_MAX),
        command: Some(updates::what(call, &asked.tool_call.content)).filter(|what| !what.is_empty()),
        tool_call_id,
        options: offered(&asked.options),
        digest: canonical_hash(&params.to_value()["toolCall"]),
        wait_ms: None,
        deadline: None,
    }
}

fn selected(option_id: String) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": option_id}})
}

fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

/// The agent's own way to hear no; where it offers none, the question is void.
fn refused(offers: &[PermissionOffer], chosen: Option<String>) -> Value {
    let of_kind = |kind| offers.iter().find(|offer| offer.kind == kind).map(|offer| offer.option_id.clone());
    let option = chosen.or_else(|| of_kind(OptionKind::RejectOnce)).or_else(|| of_kind(OptionKind::RejectAlways));
    option.map_or_else(cancelled, selected)
}
