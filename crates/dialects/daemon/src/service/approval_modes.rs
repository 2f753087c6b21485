//! Approval modes of sessions. A mode changes who is asked, and never what the server's policy allows.

use ostler_protocol::{
    Failure, Rule,
    daemon::approval_modes::{ApprovalModeSet, SetApprovalMode},
};
use ostler_server::{app::App, auth::Principal};
use ostler_store as store;
use serde_json::json;

use super::{
    companion, lookup,
    notes::{self, Note},
    workspace,
};

/// Sets how much the agent does without asking, from the session's next prompt on.
pub(crate) async fn set(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &SetApprovalMode,
) -> Result<ApprovalModeSet, Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let (mode, persist) = request.read()?;
    companion::of_session(app, &open).await?;
    let ceiling = app.config.policy.ceiling.approval;
    if mode.needs() > ceiling {
        let message = format!("the mode {} grants more than this server's policy allows", mode.as_str());
        return Err(Failure::rule(Rule::TrustGate, message).detail("mode", mode.as_str()));
    }
    if persist {
        workspace::check_configure(app, caller, None).await?;
    }
    let (session, previous) = (open.session.session, open.daemon.approval_mode());
    store::daemon::sessions::update_approval_mode(&app.db, session, mode.as_str()).await?;
    if persist {
        let place = (open.session.tenant_id.as_str(), open.daemon.workspace.as_str());
        store::daemon::workspaces::update_approval_mode(&app.db, place, mode.as_str(), app.now()).await?;
    }
    let data = json!({"sessionId": id, "previous": previous.as_str(), "next": mode.as_str(), "persisted": persist});
    let note = Note { frame: "approval_mode_changed", data, client: client.map(str::to_owned) };
    notes::record(app, caller, session, &note).await?;
    let (mode, previous) = (mode.as_str().to_owned(), previous.as_str().to_owned());
    Ok(ApprovalModeSet { session_id: open.session.public_id(), mode, previous, persisted: persist })
}
