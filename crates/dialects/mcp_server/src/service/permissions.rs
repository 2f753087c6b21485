//! Permission requests: list and answer.

use ostler_protocol::{
    Failure,
    kernel::permissions::{AnswerPermission, PermissionList, PermissionRequest, PermissionStatus},
    mcp_server::arguments::{AnswerPermissionRequestArguments, ListPermissionRequestsArguments, read_run_id},
};
use ostler_server::service::permissions;

use super::context::RequestContext;

pub(super) async fn list(
    context: &RequestContext,
    arguments: &ListPermissionRequestsArguments,
) -> Result<PermissionList, Failure> {
    let mut list = permissions::list(&context.app, &context.caller, read_run_id(&arguments.run_id)?).await?;
    list.permissions.retain(|request| arguments.all || request.status == PermissionStatus::Pending);
    Ok(list)
}

/// Votes on a request. The kernel's strategy decides whose votes count, as for every other client.
pub(super) async fn answer(
    context: &RequestContext,
    arguments: AnswerPermissionRequestArguments,
) -> Result<PermissionRequest, Failure> {
    let run_id = read_run_id(&arguments.run_id)?;
    let permission_id = arguments.permission_id.parse().map_err(|_| Failure::not_found("permission request"))?;
    let answer = AnswerPermission { option_id: arguments.option_id, digest: arguments.digest };
    permissions::answer(&context.app, &context.caller, context.locality, run_id, permission_id, answer).await
}
