//! Requests of Codex while it works. Every request gets a reply: an approval by the decision on our permission request,
//! everything else by a refusal. Nothing is ever granted for longer than the one call.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ostler_protocol::{
    RawJson,
    json::canonical_hash,
    kernel::{
        events::EventType,
        permissions::{AskPermission, OptionKind, PermissionOption},
        policy,
    },
    rpc::{RpcError, RpcId},
    text::one_line,
};
use serde_json::{Value, json};

use super::wire::{ApprovalRequest, Elicitation, FileChange};
use crate::{
    backend::child::RpcReply,
    tool_gateway::GATEWAY,
    turn_sink::{DeclineReason, NEVER_ASKS, NOT_DISPLAYABLE, PermissionDecision, TurnSink},
};

const TITLE_CHARS_MAX: usize = 300;
/// The name of an unknown method may be any text.
const METHOD_CHARS_MAX: usize = 100;
const CANCEL: &str = "cancel";
const COMMAND: &str = "item/commandExecution/requestApproval";
const FILES: &str = "item/fileChange/requestApproval";
const ELICITATION: &str = "mcpServer/elicitation/request";
/// What Codex asks for with [`ELICITATION`] if the request is its own, and not that of an MCP server.
const TOOL_APPROVAL: &str = "mcp_tool_call";

/// Our decision on an approval request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewDecision {
    Accept,
    /// The call is not made. The turn continues.
    Decline,
    /// The call is not made, and the turn ends.
    Cancel,
    /// The same, because the permission request expired.
    Expired,
}

impl ReviewDecision {
    pub(super) fn reply(self) -> Value {
        let word = match self {
            Self::Accept => "accept",
            Self::Decline => "decline",
            Self::Cancel | Self::Expired => "cancel",
        };
        json!({ "decision": word })
    }
}

/// A decided approval request.
pub(super) struct CodexApproval {
    pub(super) id: RpcId,
    pub(super) decision: ReviewDecision,
}

/// Approvals that wait for a decision.
#[derive(Default)]
pub(super) struct Approvals {
    waiting: FuturesUnordered<BoxFuture<'static, CodexApproval>>,
}

impl Approvals {
    /// Handles a request. `Some` if the reply is known at once; otherwise the decision comes from [`Approvals::next`].
    pub(super) async fn handle(
        &mut self,
        sink: &mut TurnSink,
        policy: policy::Approval,
        id: &RpcId,
        method: &str,
        params: &RawJson,
        changes: &[FileChange],
        tool_call_id: Option<String>,
    ) -> Option<RpcReply> {
        if !matches!(method, COMMAND | FILES) {
            return Some(refuse(sink, method).await);
        }
        let readable = params.view::<ApprovalRequest>();
        let is_readable = readable.is_some();
        let request = readable.unwrap_or_default();
        let ask = permission_request(sink, method, params, &request, changes, tool_call_id);
        let declined = match policy {
            _ if !is_readable => Some(DeclineReason::new("the request cannot be read")),
            policy::Approval::Never => Some(NEVER_ASKS),
            _ if request.grant_root.is_some() => {
                Some(DeclineReason::new("nothing is granted for longer than one call"))
            }
            _ if !ask.can_be_asked() => Some(NOT_DISPLAYABLE),
            _ => None,
        };
        if let Some(reason) = declined {
            sink.report_declined(method, reason, &ask).await;
            return Some(Ok(ReviewDecision::Decline.reply()));
        }
        let pending = sink.ask_permission(&ask).await;
        let id = id.clone();
        self.waiting
            .push(async move { CodexApproval { id, decision: review_decision(&pending.decision().await) } }.boxed());
        None
    }

    /// The next decision. Never resolves if no request waits.
    pub(super) async fn next(&mut self) -> CodexApproval {
        match self.waiting.next().await {
            Some(approval) => approval,
            None => std::future::pending().await,
        }
    }
}

fn review_decision(decision: &PermissionDecision) -> ReviewDecision {
    match decision {
        PermissionDecision::Allowed { .. } => ReviewDecision::Accept,
        PermissionDecision::Denied { option_id } if option_id.as_deref() == Some(CANCEL) => ReviewDecision::Cancel,
        PermissionDecision::Denied { .. } => ReviewDecision::Decline,
        PermissionDecision::Cancelled => ReviewDecision::Expired,
    }
}

/// Whether Codex asks if it may call a tool of the server, in a process that was given these tools.
pub(super) fn is_for_toolkit(method: &str, params: &RawJson) -> bool {
    let is_ours = |request: Elicitation| {
        request.server_name == GATEWAY && request.meta.codex_approval_kind.as_deref() == Some(TOOL_APPROVAL)
    };
    method == ELICITATION && params.view().is_some_and(is_ours)
}

/// Lets Codex call a tool of the server, which then decides about the call, and asks a person where the run's policy wants that.
pub(super) fn accepted_for_toolkit() -> Value {
    json!({"action": "accept", "content": {}})
}

/// What the request would do, in full. `None` if it does not say.
fn requested_action(method: &str, request: &ApprovalRequest, changes: &[FileChange]) -> Option<String> {
    let files =
        || changes.iter().map(|change| format!("{}\n{}", change.path, change.diff)).collect::<Vec<_>>().join("\n");
    let action = if method == COMMAND { request.command.clone().unwrap_or_default() } else { files() };
    Some(action).filter(|action| !action.is_empty())
}

/// Our permission request. Its digest is over the request as Codex made it, and over the changes it is about.
fn permission_request(
    sink: &mut TurnSink,
    method: &str,
    params: &RawJson,
    request: &ApprovalRequest,
    changes: &[FileChange],
    tool_call_id: Option<String>,
) -> AskPermission {
    let verb = if method == COMMAND { "run a command" } else { "change files" };
    let directory = request.cwd.as_deref().map(|cwd| format!(" in {cwd}")).unwrap_or_default();
    let reason = request.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let option = |id: &str, name: &str, kind| PermissionOption { option_id: id.into(), name: name.into(), kind };
    let title = one_line(&format!("Codex asks to {verb}{directory}{reason}"));
    AskPermission {
        permission_id: sink.new_permission_id(),
        title: sink.cutter().cut(&title, TITLE_CHARS_MAX),
        command: requested_action(method, request, changes),
        tool_call_id,
        options: vec![
            option("accept", "Allow once", OptionKind::AllowOnce),
            option("decline", "Refuse, and let it go on", OptionKind::RejectOnce),
            option(CANCEL, "Refuse, and end the turn", OptionKind::RejectOnce),
        ],
        digest: canonical_hash(&json!({"request": params, "changes": changes})),
        server_digest: None,
        editable: None,
        call_details: None,
        with_next: false,
        wait_ms: None,
        deadline: None,
    }
}

/// Refuses a request that no policy covers: requests for more rights get none, and other methods are unknown.
async fn refuse(sink: &TurnSink, method: &str) -> RpcReply {
    let (reply, reason) = match method {
        "item/permissions/requestApproval" => (Ok(json!({"permissions": {}})), "no further rights are granted"),
        "item/tool/requestUserInput" => (Ok(json!({"answers": {}})), "no user is there to answer"),
        ELICITATION => (Ok(json!({"action": "decline", "content": null})), "no user is there to answer"),
        _ => (Err(RpcError::unknown_method(method)), "this runner does not support the request"),
    };
    let method = sink.cutter().cut(method, METHOD_CHARS_MAX);
    let phase = json!({"phase": "server-request:declined", "method": method, "reason": reason});
    sink.emit(EventType::BackendStatus, &phase).await;
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codexs_own_question_about_a_tool_of_the_gateway_is_for_the_toolkit() {
        let question = |server: &str, meta: Value| {
            RawJson::of(
                &json!({"threadId": "t", "serverName": server, "mode": "form", "_meta": meta, "message": "Allow?",
                "requestedSchema": {"type": "object", "properties": {}}}),
            )
        };
        let approval = json!({"codex_approval_kind": "mcp_tool_call", "persist": ["session", "always"]});
        assert!(is_for_toolkit(ELICITATION, &question(GATEWAY, approval.clone())));
        assert!(!is_for_toolkit(ELICITATION, &question("ostler2", approval.clone())));
        assert!(!is_for_toolkit(FILES, &question(GATEWAY, approval)));
        for other in [Value::Null, json!({}), json!({"codex_approval_kind": "other"})] {
            assert!(!is_for_toolkit(ELICITATION, &question(GATEWAY, other)), "an MCP server asks for something else");
        }
    }
}
