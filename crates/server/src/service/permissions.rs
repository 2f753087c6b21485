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

/// Answered once. The digest must be that of what will run.
pub async fn answer(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    permission_id: PermissionId,
    asked: AnswerPermission,
) -> Result<PermissionRequest, Failure> {
    let known = app.visible_run(caller, run_id).await?;
    caller.may_control(&known)?;
    let op = AnswerPermissionOp { permission_id, option_id: asked.option_id, digest: asked.digest, by: caller.name() };
    app.submit(&known, op).await
}
