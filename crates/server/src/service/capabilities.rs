//! What clients may rely on, as this server is configured.

use ostler_protocol::capabilities::Capabilities;

use super::health::version;
use crate::{app::App, auth::Principal, dialect::Dialects};

/// A path of this machine is shown to authenticated callers only.
pub async fn capabilities(app: &App, caller: Option<&Principal>) -> Capabilities {
    let workspace = app.config.server.workspace.as_ref().filter(|_| caller.is_some());
    let workspace = workspace.map(|path| path.to_string_lossy().into_owned());
    let (dialects, strategy) = (Dialects::of(app), app.config.policy.permission_strategy);
    let toggles = dialects.current_toggles(app).await;
    let envelope =
        Capabilities::new(dialects.capabilities(), toggles, strategy, workspace.unwrap_or_default(), version());
    match dialects.iter().find_map(|dialect| dialect.client_terms) {
        Some(terms) => envelope.with_terms(terms(&app.config)),
        None => envelope,
    }
}
