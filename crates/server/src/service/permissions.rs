//! Permission requests: list and vote. Runners ask through an event. Whose vote counts is the kernel's rule, for every
//! dialect.

use ostler_protocol::{
    Failure,
    ids::{PermissionId, RunId},
    kernel::{
        operations::AnswerPermissionOp,
        permissions::{AnswerPermission, Choice, PermissionList, PermissionRequest, Voter},
    },
};
use ostler_store as store;

use crate::{app::App, auth::Principal, net::Locality};

pub async fn list(app: &App, caller: &Principal, run_id: RunId) -> Result<PermissionList, Failure> {
    app.visible_run(caller, run_id).await?;
    let permissions = store::kernel::permissions::list(&app.db, run_id).await?;
    Ok(PermissionList { permissions })
}

/// Votes on a request. The digest must be that of the action that will run. The request that is returned is still pending if
/// more votes are needed.
pub async fn answer(
    app: &App,
    caller: &Principal,
    locality: Locality,
    run_id: RunId,
    permission_id: PermissionId,
    request: AnswerPermission,
) -> Result<PermissionRequest, Failure> {
    let (choice, digest) = (Choice::Option(request.option_id), Some(request.digest));
    vote(
        app,
        caller,
        run_id,
        AnswerPermissionOp { permission_id, choice, digest, voter: voter(caller, None, locality) },
    )
    .await
}

/// As [`answer`], for any choice, of a client that the dialect knows.
pub async fn vote(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    op: AnswerPermissionOp,
) -> Result<PermissionRequest, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    caller.may_control(&run)?;
    app.submit(&run, op).await
}

/// The caller as a voter. `client` is the client of it that the dialect has checked, if it knows one.
pub fn voter(caller: &Principal, client: Option<String>, Locality(is_local): Locality) -> Voter {
    Voter { principal: caller.name(), client, is_local }
}
