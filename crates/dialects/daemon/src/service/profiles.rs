//! Backend profiles that sessions of the workspace can use, which are the models of its clients.

use ostler_protocol::{Failure, kernel::backends::Backend};
use ostler_server::{app::App, auth::Principal, service::backends};

use crate::state::DaemonState;

/// The profiles of the workspace's tenant, as far as the caller sees them: the operator's, which shadow those of the tenant of
/// the same name, and the tenant's own.
pub(crate) async fn list(app: &App, caller: &Principal) -> Result<Vec<Backend>, Failure> {
    let tenant = DaemonState::of(app).config.tenant.as_str();
    let mut found: Vec<Backend> = vec![];
    for backend in backends::list(app, caller).await?.backends {
        let is_ours = backend.tenant_id.as_deref().is_none_or(|owner| owner == tenant);
        let is_shadowed = found.iter().any(|other| other.profile == backend.profile);
        if is_ours && !is_shadowed && app.config.policy.profile(&backend.profile).is_ok() {
            found.push(backend);
        }
    }
    Ok(found)
}

/// Whether a run of the profile can start.
pub(crate) fn is_usable(backend: &Backend) -> bool {
    backend.available && backend.ready
}
