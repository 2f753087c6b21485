//! What Codex asks of us while it works. Every request is answered: an approval by whoever may answer the kernel's
//! permission request, everything else by a refusal. Nothing is ever granted for longer than the one call.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ostler_protocol::{
    RawJson,
    events::{EventType, clip},
    json::canonical_hash,
    limits::TOOL_COMMAND_CHARS_MAX,
    permissions::{AskPermission, OptionKind, PermissionOption},
    policy::Approval,
    rpc::{RpcError, RpcId},
};
use serde_json::{Value, json};

use super::wire::ApprovalRequest;
use crate::link::{Answer, Link};

const TITLE_CHARS_MAX: usize = 300;
const CANCEL: &str = "cancel";

/// What is answered to an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Accept,
    /// The call is not made; the turn goes on.
    Decline,
    /// The call is not made, and the turn ends.
    Cancel,
    /// The same, because nobody answered.
    Unanswered,
}

/// The words of an answer differ between the current requests and those of an earlier protocol.
#[derive(Clone, Copy)]
enum Words {
    Current,
    Legacy,
}

impl Decision {
    fn answer(self, words: Words) -> Value {
        let word = match (self, words) {
            (Self::Accept, Words::Current) => "accept",
            (Self::Decline, Words::Current) => "decline",
            (Self::Cancel | Self::Unanswered, Words::Current) => "cancel",
            (Self::Accept, Words::Legacy) => "approved",
            (Self::Decline, Words::Legacy) => "denied",
            (Self::Cancel | Self::Unanswered, Words::Legacy) => "abort",
        };
        json!({ "decision": word })
    }
}

/// Approvals somebody was asked for.
#[derive(Default)]
pub struct Approvals {
    waiting: FuturesUnordered<BoxFuture<'static, (RpcId, Decision, Value)>>,
}

/// What to answer at once.
pub type Reply = Result<Value, RpcError>;

impl Approvals {
    /// Takes a request. `Some`: this is the answer; else it comes from [`Approvals::next`].
    pub async fn take(
        &mut self,
        link: &mut Link,
        approval: Approval,
        id: &RpcId,
        method: &str,
        params: &RawJson,
        tool_call_id: Option<String>,
    ) -> Option<Reply> {
        let words = match method {
            "item/commandExecution/requestApproval" | "item/fileChange/requestApproval" => Words::Current,
            "execCommandApproval" | "applyPatchApproval" => Words::Legacy,
            _ => return Some(refuse(link, method).await),
        };
        let Some(asked) = params.view::<ApprovalRequest>() else {
            said(link, "approval:declined", method, "the request cannot be read").await;
            return Some(Ok(Decision::Decline.answer(words)));
        };
        if approval == Approval::Never {
            said(link, "approval:declined", method, "the run's policy is never to ask").await;
            return Some(Ok(Decision::Decline.answer(words)));
        }
        let request = request(link, method, params, &asked, tool_call_id);
        let answer = link.ask(&request).await;
        let id = id.clone();
        self.waiting.push(
            async move {
                let decision = decided(answer.answer().await);
                (id, decision, decision.answer(words))
            }
            .boxed(),
        );
        None
    }

    /// The next decision; never, while nobody was asked.
    pub async fn next(&mut self) -> (RpcId, Decision, Value) {
        match self.waiting.next().await {
            Some(decided) => decided,
            None => std::future::pending().await,
        }
    }
}

fn decided(answer: Answer) -> Decision {
    match answer {
        Answer::Allowed { .. } => Decision::Accept,
        Answer::Denied { option_id } if option_id.as_deref() == Some(CANCEL) => Decision::Cancel,
        Answer::Denied { .. } => Decision::Decline,
        Answer::Cancelled => Decision::Unanswered,
    }
}

/// The digest is over the request as Codex made it: whatever an approval would let happen is in there.
fn request(
    link: &mut Link,
    method: &str,
    params: &RawJson,
    asked: &ApprovalRequest,
    tool_call_id: Option<String>,
) -> AskPermission {
    let what =
        if method.contains("ileChange") || method == "applyPatchApproval" { "change files" } else { "run a command" };
    let why = asked.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let option = |id: &str, name: &str, kind| PermissionOption { option_id: id.into(), name: name.into(), kind };
    AskPermission {
        permission_id: link.new_permission_id(),
        title: clip(&format!("Codex asks to {what}{why}"), TITLE_CHARS_MAX),
        command: asked.command.as_deref().map(|command| clip(command, TOOL_COMMAND_CHARS_MAX)),
        tool_call_id,
        options: vec![
            option("accept", "Allow once", OptionKind::AllowOnce),
            option("decline", "Refuse, and let it go on", OptionKind::RejectOnce),
            option(CANCEL, "Refuse, and end the turn", OptionKind::RejectOnce),
        ],
        digest: canonical_hash(&params.to_value()),
        wait_ms: None,
        deadline: None,
    }
}

/// Requests that no policy of ours covers: what asks for more rights gets none, the rest is not known here.
async fn refuse(link: &Link, method: &str) -> Reply {
    let (reply, why) = match method {
        "item/permissions/requestApproval" => (Ok(json!({"permissions": {}})), "no further rights are granted"),
        "item/tool/requestUserInput" => (Ok(json!({"answers": {}})), "nobody is there to answer"),
        "mcpServer/elicitation/request" => {
            (Ok(json!({"action": "decline", "content": null})), "nobody is there to answer")
        }
        _ => (Err(RpcError::unknown_method(method)), "this runner does not know the request"),
    };
    said(link, "server-request:declined", method, why).await;
    reply
}

async fn said(link: &Link, phase: &str, method: &str, reason: &str) {
    link.emit(EventType::BackendStatus, &json!({"phase": phase, "method": clip(method, 100), "reason": reason})).await;
}
