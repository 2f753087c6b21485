//! Backends outside of a job: what a service needs to run one for work that is no turn of a run.

use std::path::Path;

use ostler_protocol::Failure;

use crate::{
    app::App,
    launcher::outside::{self, OutsideEnvironment},
};

/// Prepares the environment of a backend of this profile, as a run of the tenant would get it: home, credentials, guard and
/// outgoing rules. The backend works in `workspace`, which must be a directory that runs of the tenant may use, or in an empty
/// directory of its own. Dropping the result deletes the home. The caller of this function authorises.
pub async fn prepare(
    app: &App,
    tenant_id: &str,
    profile: &str,
    workspace: Option<&Path>,
) -> Result<OutsideEnvironment, Failure> {
    outside::make(app, tenant_id, profile, workspace).await
}
