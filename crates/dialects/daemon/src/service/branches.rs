//! Branches: a new session that continues the conversation of another one. It refers to the other session's events and copies
//! none, so that what is erased there is gone here, too.

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        branches::{BranchSession, BranchedSession, ForkedFrom, base_name, short_name, unique_name},
        sessions::{DaemonSession, SessionScope},
    },
    ids::SessionId,
    kernel::{
        operations::CreateSessionOp,
        sessions::{ParentSession, Session},
    },
};
use ostler_server::{app::App, auth::Principal};
use ostler_store as store;
use serde_json::json;

use super::{
    clients,
    lookup::{self, OpenSession},
    notes::{self, Note},
    restores, sessions,
};
use crate::state::DaemonState;

/// Names of other sessions that are read to find a free one.
const TITLES_MAX: u32 = 1_000;

/// Opens a session that continues the conversation of this one.
pub(crate) async fn create(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &BranchSession,
) -> Result<BranchedSession, Failure> {
    app.accepting()?;
    let open = lookup::controlled_session(app, caller, id, client).await?;
    caller.may_submit(&open.session.tenant_id)?;
    let source_id = open.session.public_id();
    if open.session.active_unfinished > 0 {
        let failure = Failure::rule(Rule::BranchWhilePromptActive, "the session works on a prompt");
        return Err(failure.detail("sessionId", source_id));
    }
    restores::check_none(app, &open.session).await?;
    let requested = request.name.as_deref().map(|name| app.redactor.redact(name));
    let base = base_name(requested.as_deref(), open.session.title.as_deref(), &source_id);
    let taken = store::daemon::sessions::list_titles(&app.db, &open.daemon, &format!("{base}("), TITLES_MAX).await?;
    let display_name = unique_name(&base, &taken);
    let (branch, client_id) = open_branch(app, caller, &open, &display_name).await?;
    let data = json!({"sourceSessionId": source_id, "newSessionId": branch.session.public_id(),
        "displayName": display_name});
    let note = Note { frame: "session_branched", data, client: client.map(str::to_owned) };
    notes::record(app, caller, branch.session.session, &note).await?;
    let source_name = open.session.title.clone().unwrap_or_else(|| short_name(&source_id));
    Ok(BranchedSession {
        restored: sessions::attach_new(app, &branch, client_id).await?,
        display_name,
        forked_from: ForkedFrom { session_id: source_id, display_name: source_name },
    })
}

/// Opens the branch, and returns it with the id of its first client. The session of the kernel belongs to the owner of the one
/// that it continues: an erasure of the owner's data covers both.
async fn open_branch(
    app: &App,
    caller: &Principal,
    from: &OpenSession,
    display_name: &str,
) -> Result<(OpenSession, String), Failure> {
    let daemon = DaemonSession {
        session: SessionId::new(app.ids.body()),
        scope: SessionScope::Thread,
        opened_at: app.now(),
        closed_at: None,
        followed_at: None,
        ..from.daemon.clone()
    };
    let (source, profile) = (&from.session, from.session.backend_profile.clone());
    let session = Session {
        owner: source.owner.clone(),
        title: Some(display_name.to_owned()),
        parent: Some(ParentSession { session: source.session, seq: source.last_seq }),
        ..Session::new(daemon.session, source.tenant_id.clone(), None, profile, app.now())
    };
    let client = clients::new_client(app, caller, daemon.session);
    let op = CreateSessionOp { session, by: caller.name(), participant: Some(client.client_id.clone()) };
    let rows = store::daemon::sessions::rows_of_new(&daemon, &client, DaemonState::of(app).config.sessions_max);
    if let Some(session) = app.try_submit_with(daemon.session, None, op, rows).await? {
        return Ok((OpenSession { daemon, session }, client.client_id));
    }
    sessions::check_room(app, &daemon.tenant_id, &daemon.owner, &daemon.workspace).await?;
    Err(Failure::internal("a new session has the id of another one"))
}
