//! The workspace that the server is bound to: who may read and change its documents, and how the clients of its sessions are
//! notified of a change.

use ostler_protocol::{
    Failure, FailureKind,
    daemon::{cells::PreflightCell, settings::SettingValues},
    kernel::provider_profiles::ProfileOwner,
};
use ostler_server::{
    app::App,
    auth::{Access, Principal},
    traces::note_tenant,
};
use tokio::sync::Mutex;

use super::{
    lookup,
    notes::{self, Note},
    settings_file::FileProblem,
};
use crate::state::DaemonState;

/// What this process remembers of the workspace.
#[derive(Default)]
pub(crate) struct WorkspaceState {
    /// Held while the workspace's memory is read and written.
    pub memory: Mutex<()>,
    /// The same for the server's own memory.
    pub global_memory: Mutex<()>,
    /// The settings in force. `None` until they are first needed.
    pub settings: Mutex<Option<LoadedSettings>>,
    /// The latest checks of the server.
    pub checks: Mutex<Option<Checks>>,
}

/// The settings as they were last read.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedSettings {
    pub values: SettingValues,
    pub problems: Vec<FileProblem>,
}

/// Checks of the server, and when they were made.
#[derive(Clone)]
pub(crate) struct Checks {
    pub at: ostler_protocol::Timestamp,
    pub cells: Vec<PreflightCell>,
}

impl WorkspaceState {
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }
}

/// The path of the workspace, as clients see it.
pub(crate) fn cwd(app: &App) -> Result<String, Failure> {
    Ok(DaemonState::of(app).workspace()?.to_string_lossy().into_owned())
}

pub(crate) fn tenant(app: &App) -> &str {
    &DaemonState::of(app).config.tenant
}

/// Checks that the caller may read documents of the workspace.
pub(crate) fn check_read(app: &App, caller: &Principal) -> Result<(), Failure> {
    Access::Browse.admit(caller)?;
    caller.is_of(tenant(app))?;
    note_tenant(tenant(app));
    cwd(app).map(drop)
}

/// Checks that the caller may change documents of the workspace, for this client.
pub(crate) async fn check_change(app: &App, caller: &Principal, client: Option<&str>) -> Result<(), Failure> {
    caller.may_submit(tenant(app))?;
    note_tenant(tenant(app));
    cwd(app)?;
    lookup::check_any_client(app, caller, client).await
}

/// Checks that the caller may change what new sessions start with. That takes the same right as changing provider profiles.
pub(crate) async fn check_configure(app: &App, caller: &Principal, client: Option<&str>) -> Result<(), Failure> {
    caller.may_provide(&ProfileOwner::of(Some(tenant(app))))?;
    note_tenant(tenant(app));
    cwd(app)?;
    lookup::check_any_client(app, caller, client).await
}

/// Checks that the caller may change provider profiles for sessions of the workspace, and returns their owner: the workspace's
/// tenant, or the operator if the caller may change the operator's profiles only.
pub(crate) async fn check_provide(
    app: &App,
    caller: &Principal,
    client: Option<&str>,
) -> Result<ProfileOwner, Failure> {
    let owner = provided_owner(app, caller)?;
    owner.tenant_id().into_iter().for_each(note_tenant);
    cwd(app)?;
    lookup::check_any_client(app, caller, client).await?;
    Ok(owner)
}

fn provided_owner(app: &App, caller: &Principal) -> Result<ProfileOwner, Failure> {
    let owner = ProfileOwner::of(Some(tenant(app)));
    match caller.may_provide(&owner) {
        Ok(()) => Ok(owner),
        Err(failure) => {
            caller.may_provide(&ProfileOwner::Operator).map(|()| ProfileOwner::Operator).map_err(|_| failure)
        }
    }
}

/// The failure of routes that the configuration switches off.
pub(crate) fn switched_off(what: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("{what} is switched off on this server"))
}

/// Notifies the clients of every open session. The change itself is done, so that a failure is only logged.
pub(crate) async fn announce(app: &App, caller: &Principal, note: &Note) {
    if let Err(failure) = notes::record_everywhere(app, caller, note).await {
        tracing::error!(%failure, frame = note.frame, "a change of the workspace could not be announced");
    }
}
