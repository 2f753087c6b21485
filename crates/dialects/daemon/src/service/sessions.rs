//! Sessions: create, load, close, rename, list. A session of the daemon is a session of the kernel with a row beside it that
//! records whether clients can use it. Closing it leaves the conversation, so that a client can load it again.

mod close;
mod list;
mod state;

use ostler_protocol::{
    Failure, FailureKind, Rule,
    daemon::{
        clients::DaemonClient,
        frames::message_frames,
        sessions::{
            AttachedSession, DaemonSession, OpenDaemonSession, RestoreSession, RestoredSession, SessionHeartbeat,
            SessionMetadata, SessionScope, UpdateMetadata, check_cwd, display_name, frame_id,
        },
    },
    ids::SessionId,
    kernel::{
        modes::ApprovalMode,
        operations::{ChangeSessionOp, CreateSessionOp, SessionChange},
        sessions::Session,
    },
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::conversation,
    traces::{note_session, note_tenant},
};
use ostler_store as store;
use serde_json::{Value, json};

use super::{
    clients,
    lookup::{self, OpenSession, not_found},
    mcp,
    notes::{self, Note},
    settings,
};
use crate::state::DaemonState;

pub(crate) use close::{CloseReason, close, close_for};
pub(crate) use list::list;
pub(crate) use state::{current_model, state};

/// When a client should try again to open a session or to submit a prompt.
pub(crate) const RETRY_AFTER_MS: i64 = 5_000;

/// Opens a session, or attaches to the one that the caller's clients share.
pub(crate) async fn create(
    app: &App,
    caller: &Principal,
    client: Option<&str>,
    request: &OpenDaemonSession,
) -> Result<AttachedSession, Failure> {
    app.accepting()?;
    let scope = request.scope()?;
    let workspace = requested_workspace(app, request.cwd.as_deref()).await?;
    let tenant_id = app.config.policy.tenant(&DaemonState::of(app).config.tenant)?;
    caller.may_submit(tenant_id)?;
    note_tenant(tenant_id);
    let (open, first_client) = open_or_attach(app, caller, tenant_id, workspace, scope).await?;
    note_session(tenant_id, open.session.session);
    let is_new = first_client.is_some();
    let client_id = match first_client {
        Some(client) => client.client_id,
        None => clients::register(app, caller, &open.session, client).await?,
    };
    if let Some(model_id) = &request.model_service_id {
        choose_model(app, caller, &open, model_id, &client_id).await?;
    }
    match is_new {
        true => mcp::discover(app, &open.session.public_id()),
        false => mcp::discover_once(app, &open.session.public_id()),
    }
    Ok(attached(&open, client_id, is_new))
}

fn attached(open: &OpenSession, client_id: String, is_new: bool) -> AttachedSession {
    AttachedSession {
        session_id: open.session.public_id(),
        workspace_cwd: open.daemon.workspace.clone(),
        attached: !is_new,
        client_id,
        created_at: open.session.created_at,
        has_active_prompt: (!is_new).then_some(open.session.active_unfinished > 0),
    }
}

/// The workspace of the server, if it is the one that the client names, or the client names none. Empty if the server is
/// bound to none.
pub(crate) async fn requested_workspace(app: &App, cwd: Option<&str>) -> Result<String, Failure> {
    let bound = DaemonState::of(app).workspace().ok();
    let bound_text = bound.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(cwd) = cwd else { return Ok(bound_text) };
    let path = check_cwd(cwd)?;
    if bound.is_some_and(|bound| bound == path) {
        return Ok(bound_text);
    }
    let real = tokio::fs::canonicalize(path).await.unwrap_or_else(|_| path.to_owned());
    if bound.is_some_and(|bound| *bound == real) {
        return Ok(bound_text);
    }
    let failure = Failure::invalid(Rule::WorkspaceMismatch, "this server is not bound to the requested workspace");
    let requested = app.redactor.redact(cwd).into_owned();
    Err(failure.detail("boundWorkspace", bound_text).detail("requestedWorkspace", requested))
}

/// The owner of the sessions that a caller creates. Services share those of their tenant.
fn owner(caller: &Principal) -> String {
    caller.owner().unwrap_or_default()
}

/// The session, and the client that was registered in it if this request has opened it. The session of the kernel, the daemon's
/// row and the client are stored by one commit, so that a crash leaves all of them or none.
async fn open_or_attach(
    app: &App,
    caller: &Principal,
    tenant_id: &str,
    workspace: String,
    scope: SessionScope,
) -> Result<(OpenSession, Option<DaemonClient>), Failure> {
    let (owner, sessions_max) = (owner(caller), DaemonState::of(app).config.sessions_max);
    let mut attempts =
        app.db.attempts(|| Failure::new(FailureKind::Overloaded, "too many sessions were opened and closed at once"));
    let settings = settings::effective(app).await;
    loop {
        attempts.start_next()?;
        if scope == SessionScope::Single
            && let Some(daemon) = store::daemon::sessions::find_single(&app.db, tenant_id, &owner, &workspace).await?
        {
            let session = store::kernel::sessions::get(&app.db, daemon.session).await?;
            match session.filter(|session| session.closed_at.is_none()) {
                Some(session) => return Ok((OpenSession { daemon, session }, None)),
                // It was closed for good, or erased, by another dialect.
                None => drop(store::daemon::sessions::update_closed(&app.db, daemon.session, app.now()).await?),
            }
            continue;
        }
        let daemon = DaemonSession {
            session: SessionId::new(app.ids.body()),
            tenant_id: tenant_id.to_owned(),
            owner: owner.clone(),
            workspace: workspace.clone(),
            scope,
            model_id: settings.model.clone(),
            language: Some(settings.language.clone()),
            output_language: Some(settings.output_language.clone()),
            approval_mode: default_mode(app, tenant_id, &workspace).await?,
            opened_at: app.now(),
            closed_at: None,
            followed_at: None,
        };
        let client = clients::new_client(app, caller, daemon.session);
        let rows = store::daemon::sessions::rows_of_new(&daemon, &client, sessions_max);
        let op = CreateSessionOp {
            session: new_session(app, &daemon),
            by: caller.name(),
            participant: Some(client.client_id.clone()),
        };
        if let Some(session) = app.try_submit_with(daemon.session, None, op, rows).await? {
            return Ok((OpenSession { daemon, session }, Some(client)));
        }
        check_room(app, tenant_id, &owner, &workspace).await?;
    }
}

/// The mode that a new session of the workspace starts with. `None` if none was chosen, or if the policy no longer allows it.
async fn default_mode(app: &App, tenant_id: &str, workspace: &str) -> Result<Option<String>, Failure> {
    let stored = store::daemon::workspaces::get_approval_mode(&app.db, tenant_id, workspace).await?;
    let mode = stored.as_deref().and_then(ApprovalMode::parse);
    let allowed = mode.filter(|mode| mode.needs() <= app.config.policy.ceiling.approval);
    Ok(allowed.map(|mode| mode.as_str().to_owned()))
}

/// Fails if the owner has as many open sessions in the workspace as may be.
pub(crate) async fn check_room(app: &App, tenant_id: &str, owner: &str, workspace: &str) -> Result<(), Failure> {
    let limit = DaemonState::of(app).config.sessions_max;
    if store::daemon::sessions::count_open(&app.db, tenant_id, owner, workspace).await? < i64::from(limit) {
        return Ok(());
    }
    let failure = Failure::rule(Rule::SessionLimitExceeded, format!("{limit} sessions are open; close one first"));
    Err(failure.detail("limit", limit).detail("retryAfterMs", RETRY_AFTER_MS))
}

/// The session of the kernel for a session of the daemon.
fn new_session(app: &App, daemon: &DaemonSession) -> Session {
    let profile = DaemonState::of(app).config.profile.clone();
    let new = Session::new(daemon.session, daemon.tenant_id.clone(), None, profile, app.now());
    Session { owner: daemon.owner().map(str::to_owned), ..new }
}

/// Gives the session the model that a client named. Followers receive a failure, and the session is opened in any case.
async fn choose_model(
    app: &App,
    caller: &Principal,
    open: &OpenSession,
    model_id: &str,
    client_id: &str,
) -> Result<(), Failure> {
    let session_id = open.session.public_id();
    let (current, available) = (current_model(app, open), state::models(app, &open.session.tenant_id).await?);
    let (frame, data) = if !available.iter().any(|model| model.model_id == model_id) {
        let requested = app.redactor.redact(model_id).into_owned();
        let data = json!({"sessionId": session_id, "requestedModelId": requested, "error": "no such model"});
        ("model_switch_failed", data)
    } else if current == model_id {
        return Ok(());
    } else {
        store::daemon::sessions::update_model(&app.db, open.session.session, model_id).await?;
        ("model_switched", json!({"sessionId": session_id, "modelId": model_id}))
    };
    let note = Note { frame, data, client: Some(client_id.to_owned()) };
    notes::record(app, caller, open.session.session, &note).await
}

/// Attaches to a session that was opened before, and opens it again if it was closed. A client that follows the session from the
/// frame that the response names gets all of its history.
pub(crate) async fn load(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &RestoreSession,
) -> Result<RestoredSession, Failure> {
    let restored = resume(app, caller, id, client, request).await?;
    let open = lookup::open_session(app, caller, id).await?;
    Ok(RestoredSession { last_event_id: 0, compacted_replay: inherited(app, &open.session).await?, ..restored })
}

/// The response for a client whose request has just opened the session, as if it were loaded.
pub(crate) async fn attach_new(app: &App, open: &OpenSession, client_id: String) -> Result<RestoredSession, Failure> {
    Ok(RestoredSession {
        attached: attached(open, client_id, true),
        state: state(app, open).await?,
        compacted_replay: inherited(app, &open.session).await?,
        last_event_id: 0,
    })
}

/// The messages of the session that this one continues, which are not on its own stream.
async fn inherited(app: &App, session: &Session) -> Result<Option<Vec<Value>>, Failure> {
    let Some(conversation) = conversation::inherited(app, session).await? else { return Ok(None) };
    let (session_id, at) = (session.public_id(), session.created_at);
    Ok(Some(message_frames(&conversation.messages, &session_id, at)))
}

/// As [`load`], for a client that needs no history.
pub(crate) async fn resume(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &RestoreSession,
) -> Result<RestoredSession, Failure> {
    app.accepting()?;
    let workspace = requested_workspace(app, request.cwd.as_deref()).await?;
    let found = find(app, caller, id).await?.filter(|found| found.daemon.workspace == workspace);
    // Clients expect the limit first, also for a session that does not exist.
    if found.as_ref().is_none_or(|found| found.daemon.closed_at.is_some()) {
        let tenant_id = &DaemonState::of(app).config.tenant;
        check_room(app, tenant_id, &owner(caller), &workspace).await?;
    }
    let found = found.ok_or_else(|| not_found(id))?;
    caller.may_control(&found.session)?;
    let reopened = found.daemon.closed_at.is_some()
        && store::daemon::sessions::update_opened(&app.db, &found.daemon, app.now()).await?;
    let open = lookup::open_session(app, caller, id).await?;
    let client_id = clients::register(app, caller, &open.session, client).await?;
    match reopened {
        true => mcp::discover(app, &open.session.public_id()),
        false => mcp::discover_once(app, &open.session.public_id()),
    }
    Ok(RestoredSession {
        attached: attached(&open, client_id, reopened),
        state: state(app, &open).await?,
        compacted_replay: None,
        last_event_id: frame_id(open.session.last_seq),
    })
}

/// The session of this id, open or closed, if the caller may see it. `None` if it is closed for good.
async fn find(app: &App, caller: &Principal, id: &str) -> Result<Option<OpenSession>, Failure> {
    let session = match ostler_server::service::lookup::session(app, caller, id, None).await {
        Ok(session) => session,
        Err(failure) if failure.kind.row().status == 404 => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let daemon = store::daemon::sessions::get(&app.db, session.session).await?;
    Ok(daemon.filter(|_| session.closed_at.is_none()).map(|daemon| OpenSession { daemon, session }))
}

/// Renames a session. Its followers see the new name as an event of the session.
pub(crate) async fn update_metadata(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &UpdateMetadata,
) -> Result<SessionMetadata, Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let mut title = open.session.title.clone();
    if let Some(text) = &request.display_name {
        title = display_name(&app.redactor.redact(text))?;
        let change = SessionChange::Rename { title: title.clone(), origin: client.map(str::to_owned) };
        let op = ChangeSessionOp { change, by: caller.name() };
        app.try_submit(open.session.session, None, op).await?;
    }
    Ok(SessionMetadata { session_id: open.session.public_id(), display_name: title })
}

/// Notes that a client is still there.
pub(crate) async fn heartbeat(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
) -> Result<SessionHeartbeat, Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let seen_at = clients::record_activity(app, client).await?;
    Ok(SessionHeartbeat {
        session_id: open.session.public_id(),
        client_id: client.map(str::to_owned),
        last_seen_at: seen_at.as_millisecond(),
    })
}
