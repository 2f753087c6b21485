//! The list of a workspace's sessions, open and closed.

use ostler_protocol::{
    Failure, Rule,
    cursors::{Cursor, Page, fingerprint},
    daemon::sessions::{ListDaemonSessions, ListedSession, ListedSessions},
};
use ostler_server::{app::App, auth::Principal};
use ostler_store::{
    self as store,
    daemon::sessions::{DaemonSessionFilter, DaemonSessionRow},
};

use super::requested_workspace;
use crate::state::DaemonState;

/// The sessions that the caller may see, newest first.
pub(crate) async fn list(
    app: &App,
    caller: &Principal,
    cwd: &str,
    request: &ListDaemonSessions,
) -> Result<ListedSessions, Failure> {
    DaemonState::of(app).workspace()?;
    let workspace = requested_workspace(app, Some(cwd)).await?;
    let size = request.page_size()?;
    let filter =
        DaemonSessionFilter { workspace, tenants: caller.tenants_within(None)?, owner: caller.sees_threads_of() };
    let fingerprint = fingerprint("daemon-sessions", &(&filter.workspace, &filter.tenants, &filter.owner));
    let unknown = |_| Failure::invalid(Rule::InvalidCursor, "the cursor does not belong to this list");
    let after =
        request.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint).map_err(unknown)).transpose()?;
    let before = after.as_ref().map(|cursor| cursor.id.as_str());
    let rows = store::daemon::sessions::list(&app.db, &filter, before, size + 1).await?;
    let cursor_of = |row: &DaemonSessionRow| Cursor::after(row.session.created_at, row.session.session);
    let Page { items, next_cursor } = Page::new(rows, size, &fingerprint, cursor_of);
    Ok(ListedSessions { sessions: items.into_iter().map(listed).collect(), next_cursor })
}

fn listed(row: DaemonSessionRow) -> ListedSession {
    let DaemonSessionRow { daemon, session, client_count } = row;
    ListedSession {
        session_id: session.public_id(),
        workspace_cwd: daemon.workspace,
        created_at: session.created_at,
        updated_at: session.updated_at,
        display_name: session.title,
        client_count,
        has_active_prompt: session.active_unfinished > 0,
    }
}
