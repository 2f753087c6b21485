//! Finding the run or session that a request names.

use ostler_protocol::{
    Failure, Rule,
    ids::{CommandId, RunId},
    kernel::{commands::Command, runs::Run, sessions::Session},
};
use ostler_store as store;

use crate::{app::App, auth::Principal, traces::note_session};

/// The run, without a check of the caller. For the server's own work.
pub(crate) async fn run_unchecked(app: &App, run_id: RunId) -> Result<Run, Failure> {
    store::kernel::runs::get(&app.db, run_id).await?.ok_or_else(|| Failure::not_found("run"))
}

/// The run's command of this id, without a check of the caller. For the server's own work.
pub(crate) async fn command_of(app: &App, run_id: RunId, command_id: CommandId) -> Result<Command, Failure> {
    let found = store::kernel::commands::get(&app.db, command_id).await?;
    found.filter(|command| command.run_id == run_id).ok_or_else(|| Failure::not_found("command"))
}

/// The one session of this id that the caller may see.
pub async fn session(app: &App, caller: &Principal, id: &str, tenant_id: Option<&str>) -> Result<Session, Failure> {
    let tenants = caller.tenants_within(tenant_id)?;
    let mut found = store::kernel::sessions::find_in_tenants(&app.db, tenants.as_deref(), id).await?;
    // A thread of another user is reported like an absent one, whether or not other sessions have the same id.
    found.retain(|session| caller.may_see(session).is_ok());
    if found.len() > 1 {
        let message = "several tenants have a session of this id; name one with tenantId";
        return Err(Failure::rule(Rule::TenantAmbiguous, message));
    }
    let found = found.pop().ok_or_else(|| Failure::not_found("session"))?;
    note_session(&found.tenant_id, found.session);
    Ok(found)
}
