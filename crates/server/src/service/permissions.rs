//! Permission requests: list and answer. Runners ask through an event.

use ostler_protocol::{
    Failure,
    ids::{PermissionId, RunId},
    kernel::{
        operations::AnswerPermissionOp,
        permissions::{AnswerPermission, PermissionList, PermissionRequest},
    },
};
use ostler_store as store;

use crate::{app::App, auth::Principal};

pub async fn list(app: &App, caller: &Principal, run_id: RunId) -> Result<PermissionList, Failure> {
    app.visible_run(caller, run_id).await?;
    let permissions = store::kernel::permissions::list(&app.db, run_id).await?;
    Ok(PermissionList { permissions })
}

/// A request can be answered once. The digest must be that of the action that will run.
pub async fn answer(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    permission_id: PermissionId,
    request: AnswerPermission,
) -> Result<PermissionRequest, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_control(&run)?;
    let op =
        AnswerPermissionOp { permission_id, option_id: request.option_id, digest: request.digest, by: caller.name() };
    app.submit(&run, op).await
}
