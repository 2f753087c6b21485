//! Prepares the workspace of a run before its first turn, under the lease: checks out its repository and places its resource bundle.

use ostler_protocol::{Failure, Rule};

use crate::{
    environment::BackendEnvironment,
    lease_session::{Halt, LeaseSession},
    leave_order::LeaveOrder,
};

/// Checks out the run's repository, if the runner is to, and places the resource bundle. Returns why that is not possible: the
/// backend must not start without what the run names.
pub(crate) async fn prepare_workspace(
    environment: &BackendEnvironment,
    lease: &mut LeaseSession,
    leave: &LeaveOrder,
) -> Result<Option<Failure>, Halt> {
    // An environment that could not be prepared has its own reason.
    if environment.unavailable.is_some() {
        return Ok(None);
    }
    match check_out(environment, lease, leave).await? {
        None => place_bundle(environment, lease, leave).await,
        failure => Ok(failure),
    }
}

async fn check_out(
    environment: &BackendEnvironment,
    lease: &LeaseSession,
    leave: &LeaveOrder,
) -> Result<Option<Failure>, Halt> {
    let Some(checkout) = &environment.checkout else { return Ok(None) };
    let Some(workspace) = &environment.workspace else {
        let message = "the runner was given no workspace to check out the repository in";
        return Ok(Some(Failure::rule(Rule::WorkspaceGit, message)));
    };
    let checked_out = under_lease(lease, leave, checkout.check_out(workspace)).await?;
    let Err(failure) = checked_out else { return Ok(None) };
    let run_id = lease.run.run_id;
    tracing::warn!(%failure, %run_id, cause = failure.cause.as_deref(), "the workspace could not be checked out");
    Ok(Some(failure))
}

async fn place_bundle(
    environment: &BackendEnvironment,
    lease: &mut LeaseSession,
    leave: &LeaveOrder,
) -> Result<Option<Failure>, Halt> {
    if lease.run.resource_bundle_ref.is_none() {
        return Ok(None);
    }
    let (Some(bundle), Some(workspace)) = (&environment.resource_bundle, &environment.workspace) else {
        let message = "the runner was not given the resource bundle of the run, or has no workspace for it";
        return Ok(Some(Failure::rule(Rule::ResourceBundleUnavailable, message)));
    };
    let placed = under_lease(lease, leave, bundle.place(workspace)).await?;
    match placed {
        Ok(payload) => lease.report_status(&payload).await.map(|()| None),
        Err(failure) => {
            let run_id = lease.run.run_id;
            tracing::warn!(%failure, %run_id, cause = failure.cause.as_deref(), "the resource bundle could not be placed");
            Ok(Some(failure))
        }
    }
}

/// Awaits `work` and renews the lease in the meantime. Fails if the lease is lost, the run is cancelled or the runner is to leave.
async fn under_lease<T>(lease: &LeaseSession, leave: &LeaveOrder, work: impl Future<Output = T>) -> Result<T, Halt> {
    let rejection = tokio::select! {
        biased;
        () = leave.wait() => return Err(Halt::Stopped),
        done = work => return Ok(done),
        rejection = lease.renew_until_cancelled() => rejection,
    };
    if let Some(rejection) = rejection {
        return Err(rejection.into());
    }
    // The turns of a cancelled run end with its lease.
    lease.release(false).await?;
    let message = "the run was cancelled while its workspace was prepared";
    Err(Halt::RunEnded(Failure::rule(Rule::RunCancelling, message)))
}
