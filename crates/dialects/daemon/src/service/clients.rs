//! Clients of a session. The server makes the id of each; a client that attaches again keeps its id if it is registered in the
//! session by the same caller.

use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    daemon::clients::{CLIENT_ID_PREFIX, DaemonClient},
    ids::SessionId,
    kernel::{
        operations::{ChangeSessionOp, SessionChange},
        sessions::Session,
    },
};
use ostler_server::{app::App, auth::Principal, service::session_storage};
use ostler_store as store;

use super::lookup;

/// Maximum number of clients of one session.
const CLIENTS_MAX: u32 = 200;

/// Registers a client in the session and returns its id. Of too many clients, those that were not seen for longest make room.
pub(crate) async fn register(
    app: &App,
    caller: &Principal,
    session: &Session,
    requested: Option<&str>,
) -> Result<String, Failure> {
    let now = app.now();
    if let Some(client_id) = requested
        && lookup::check_client(app, caller, session, Some(client_id)).await.is_ok()
        && attend(app, client_id, now).await?
    {
        return Ok(client_id.to_owned());
    }
    let client = new_client(app, caller, session.session);
    let join = SessionChange::Join { participant: client.client_id.clone() };
    let op = ChangeSessionOp { change: join, by: caller.name() };
    let rows = store::daemon::clients::rows_of_new(&client);
    let joined = app.try_submit_with(session.session, None, op, rows).await?;
    let joined = joined.ok_or_else(|| Failure::internal("a new client has the id of another one"))?;
    if joined.participants.len() > CLIENTS_MAX as usize {
        let removed = store::daemon::clients::delete_beyond(&app.db, session.session, CLIENTS_MAX).await?;
        leave(app, &caller.name(), session.session, removed).await?;
    }
    Ok(client.client_id)
}

/// A client that is not stored yet.
pub(crate) fn new_client(app: &App, caller: &Principal, session: SessionId) -> DaemonClient {
    let now = app.now();
    DaemonClient {
        client_id: format!("{CLIENT_ID_PREFIX}{}", app.ids.body()),
        session,
        principal: caller.name(),
        registered_at: now,
        last_seen_at: now,
        left_at: None,
    }
}

/// Notes that a client was seen, if the request names one. Returns the time.
pub(crate) async fn seen(app: &App, client: Option<&str>) -> Result<Timestamp, Failure> {
    let now = app.now();
    if let Some(client_id) = client {
        attend(app, client_id, now).await?;
    }
    Ok(now)
}

/// The client is there. One that had left votes again on later requests. False if it is not registered.
async fn attend(app: &App, client_id: &str, now: Timestamp) -> Result<bool, Failure> {
    let Some(client) = store::daemon::clients::get(&app.db, client_id).await? else { return Ok(false) };
    if !store::daemon::clients::update_seen(&app.db, client_id, now).await? {
        return Ok(false);
    }
    if client.left_at.is_some() {
        let join = SessionChange::Join { participant: client.client_id };
        session_storage::submit(app, client.session, join, &client.principal).await?;
    }
    Ok(true)
}

/// Notes that a client has left, unless it was seen since then. It stays registered, but no longer votes.
pub(super) async fn dismiss(app: &App, client: &DaemonClient, since: Timestamp) -> Result<(), Failure> {
    if !store::daemon::clients::update_left(&app.db, &client.client_id, since, app.now()).await? {
        return Ok(());
    }
    let leave = SessionChange::Leave { participant: client.client_id.clone() };
    match session_storage::submit(app, client.session, leave, &client.principal).await {
        // It was erased meanwhile.
        Err(failure) if failure.kind == FailureKind::NotFound => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Unregisters the clients that attached to a session before it was closed.
pub(crate) async fn unregister_all(
    app: &App,
    by: &str,
    session: SessionId,
    closed_at: Timestamp,
) -> Result<(), Failure> {
    let removed = store::daemon::clients::delete_by_session(&app.db, session, closed_at).await?;
    leave(app, by, session, removed).await
}

/// Clients that were unregistered no longer vote.
async fn leave(app: &App, by: &str, session: SessionId, clients: Vec<String>) -> Result<(), Failure> {
    for participant in clients {
        session_storage::submit(app, session, SessionChange::Leave { participant }, by).await?;
    }
    Ok(())
}
