//! What clients may rely on, as this server is configured.

use ostler_protocol::capabilities::Capabilities;

use super::health::version;
use crate::{app::App, auth::Principal, dialect::Dialects};

/// A path of this machine is shown to authenticated callers only.
pub fn capabilities(app: &App, caller: Option<&Principal>) -> Capabilities {
    let workspace = app.config.server.workspace.as_ref().filter(|_| caller.is_some());
    let workspace = workspace.map(|path| path.to_string_lossy().into_owned());
    Capabilities::new(Dialects::of(app).capabilities(), app.config.toggles(), workspace.unwrap_or_default(), version())
}
