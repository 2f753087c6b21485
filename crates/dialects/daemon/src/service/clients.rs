//! Clients of a session. The server makes the id of each; a client that attaches again keeps its id if it is registered in the
//! session by the same caller.

use ostler_protocol::{
    Failure, Timestamp,
    daemon::clients::{CLIENT_ID_PREFIX, DaemonClient},
    ids::SessionId,
    kernel::{operations::SessionChange, sessions::Session},
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
        && store::daemon::clients::update_seen(&app.db, client_id, now).await?
    {
        return Ok(client_id.to_owned());
    }
    let client = DaemonClient {
        client_id: format!("{CLIENT_ID_PREFIX}{}", app.ids.body()),
        session: session.session,
        principal: caller.name(),
        registered_at: now,
        last_seen_at: now,
    };
    store::daemon::clients::insert(&app.db, &client).await?;
    let removed = store::daemon::clients::delete_beyond(&app.db, session.session, CLIENTS_MAX).await?;
    leave(app, caller, session.session, removed).await?;
    let join = SessionChange::Join { participant: client.client_id.clone() };
    session_storage::submit(app, session.session, join, &caller.name()).await?;
    Ok(client.client_id)
}

/// Notes that a client was seen, if the request names one. Returns the time.
pub(crate) async fn seen(app: &App, client: Option<&str>) -> Result<Timestamp, Failure> {
    let now = app.now();
    if let Some(client_id) = client {
        store::daemon::clients::update_seen(&app.db, client_id, now).await?;
    }
    Ok(now)
}

/// Unregisters the clients that attached to a session before it was closed.
pub(crate) async fn unregister_all(
    app: &App,
    caller: &Principal,
    session: SessionId,
    closed_at: Timestamp,
) -> Result<(), Failure> {
    let removed = store::daemon::clients::delete_by_session(&app.db, session, closed_at).await?;
    leave(app, caller, session, removed).await
}

/// Clients that were unregistered no longer vote.
async fn leave(app: &App, caller: &Principal, session: SessionId, clients: Vec<String>) -> Result<(), Failure> {
    for participant in clients {
        session_storage::submit(app, session, SessionChange::Leave { participant }, &caller.name()).await?;
    }
    Ok(())
}
