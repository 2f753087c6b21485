//! The tools: the right that a caller of each needs, and the operation that it runs.

use ostler_protocol::{
    Failure, RawJson,
    mcp_server::{arguments, event_ids::RunWait, tools::ServedTool},
};
use ostler_server::auth::{Access, Principal};
use serde_json::Value;

use super::{context::RequestContext, permissions, runs};

/// What a call leads to.
pub(crate) enum ToolOutcome {
    Done(RawJson),
    /// The result is read when the wait is over.
    Waits(Box<RunWait>),
}

/// The access that the same operation requires over REST.
fn access(tool: ServedTool) -> Access {
    match tool {
        ServedTool::SubmitRun | ServedTool::CancelRun | ServedTool::AnswerPermissionRequest => Access::Submit,
        ServedTool::FollowRun | ServedTool::RunResult | ServedTool::ListPermissionRequests => Access::Read,
        ServedTool::ListRuns => Access::Browse,
    }
}

/// The tools that the caller may call.
pub(crate) fn list(caller: &Principal) -> Vec<Value> {
    let allowed = ServedTool::ALL.into_iter().filter(|tool| access(*tool).admit(caller).is_ok());
    allowed.map(ServedTool::describe).collect()
}

pub(crate) async fn call(
    context: &RequestContext,
    tool: ServedTool,
    arguments: Option<&RawJson>,
) -> Result<ToolOutcome, Failure> {
    access(tool).admit(&context.caller)?;
    let done = match tool {
        ServedTool::SubmitRun => return waits(runs::submit(context, arguments::read(arguments)?).await?),
        ServedTool::FollowRun => return waits(runs::follow(context, &arguments::read(arguments)?)?),
        ServedTool::RunResult => RawJson::of(&runs::result(context, &arguments::read(arguments)?).await?),
        ServedTool::ListRuns => runs::list(context, arguments::read(arguments)?).await?,
        ServedTool::CancelRun => RawJson::of(&runs::cancel(context, arguments::read(arguments)?).await?),
        ServedTool::ListPermissionRequests => {
            RawJson::of(&permissions::list(context, &arguments::read(arguments)?).await?)
        }
        ServedTool::AnswerPermissionRequest => {
            RawJson::of(&permissions::answer(context, arguments::read(arguments)?).await?)
        }
    };
    Ok(ToolOutcome::Done(done))
}

fn waits(wait: RunWait) -> Result<ToolOutcome, Failure> {
    Ok(ToolOutcome::Waits(Box::new(wait)))
}
