//! What Codex asks of us while it works. Every request is answered: an approval by whoever may answer the kernel's
//! permission request, everything else by a refusal. Nothing is ever granted for longer than the one call.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ostler_protocol::{
    RawJson,
    events::EventType,
    json::canonical_hash,
    permissions::{AskPermission, OptionKind, PermissionOption},
    policy::Approval,
    rpc::{RpcError, RpcId},
};
use serde_json::{Value, json};

use super::wire::{ApprovalRequest, FileChange};
use crate::{
    holdback::clip,
    link::{Answer, CANNOT_BE_SHOWN, Link, NEVER_ASKS},
};

const TITLE_CHARS_MAX: usize = 300;
/// A method nobody here knows may be any text.
const METHOD_CHARS_MAX: usize = 100;
const CANCEL: &str = "cancel";
const COMMAND: &str = "item/commandExecution/requestApproval";
const FILES: &str = "item/fileChange/requestApproval";

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

impl Decision {
    fn answer(self) -> Value {
        let word = match self {
            Self::Accept => "accept",
            Self::Decline => "decline",
            Self::Cancel | Self::Unanswered => "cancel",
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
        changes: &[FileChange],
        tool_call_id: Option<String>,
    ) -> Option<Reply> {
        if !matches!(method, COMMAND | FILES) {
            return Some(refuse(link, method).await);
        }
        let readable = params.view::<ApprovalRequest>();
        let is_readable = readable.is_some();
        let asked = readable.unwrap_or_default();
        let request = request(link, method, params, &asked, changes, tool_call_id);
        let declined = match approval {
            _ if !is_readable => Some("the request cannot be read"),
            Approval::Never => Some(NEVER_ASKS),
            _ if asked.grant_root.is_some() => Some("nothing is granted for longer than one call"),
            _ if !request.can_be_asked() => Some(CANNOT_BE_SHOWN),
            _ => None,
        };
        if let Some(reason) = declined {
            link.declined(method, reason, &request).await;
            return Some(Ok(Decision::Decline.answer()));
        }
        let answer = link.ask(&request).await;
        let id = id.clone();
        self.waiting.push(
            async move {
                let decision = decided(answer.answer().await);
                (id, decision, decision.answer())
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

/// What will happen, in full.
fn what(method: &str, asked: &ApprovalRequest, changes: &[FileChange]) -> Option<String> {
    let files =
        || changes.iter().map(|change| format!("{}\n{}", change.path, change.diff)).collect::<Vec<_>>().join("\n");
    let what = if method == COMMAND { asked.command.clone().unwrap_or_default() } else { files() };
    Some(what).filter(|what| !what.is_empty())
}

/// The digest is over the request as Codex made it, and over the changes it is about.
fn request(
    link: &mut Link,
    method: &str,
    params: &RawJson,
    asked: &ApprovalRequest,
    changes: &[FileChange],
    tool_call_id: Option<String>,
) -> AskPermission {
    let verb = if method == COMMAND { "run a command" } else { "change files" };
    let place = asked.cwd.as_deref().map(|cwd| format!(" in {cwd}")).unwrap_or_default();
    let why = asked.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let option = |id: &str, name: &str, kind| PermissionOption { option_id: id.into(), name: name.into(), kind };
    AskPermission {
        permission_id: link.new_permission_id(),
        title: clip(&format!("Codex asks to {verb}{place}{why}"), TITLE_CHARS_MAX),
        command: what(method, asked, changes),
        tool_call_id,
        options: vec![
            option("accept", "Allow once", OptionKind::AllowOnce),
            option("decline", "Refuse, and let it go on", OptionKind::RejectOnce),
            option(CANCEL, "Refuse, and end the turn", OptionKind::RejectOnce),
        ],
        digest: canonical_hash(&json!({"request": params, "changes": changes})),
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
    let told = json!({"phase": "server-request:declined", "method": clip(method, METHOD_CHARS_MAX), "reason": why});
    link.emit(EventType::BackendStatus, &told).await;
    reply
}
