//! Clients of a session. The server makes the id of each; a client that attaches again keeps its id if it is registered in the
//! session by the same caller.

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    daemon::clients::{CLIENT_ID_PREFIX, DaemonClient},
    ids::SessionId,
    kernel::{
        operations::{ChangeSessionOp, SessionChange},
        sessions::Session,
    },
};
use ostler_server::{app::App, auth::Principal};
use ostler_store::{self as store, lane::AttachedRows};

use super::lookup;
use crate::state::DaemonState;

/// Maximum number of clients of one session.
const CLIENTS_MAX: u32 = 200;
/// The time of a client's last request is stored this often within the time after which the client counts as absent.
const SEEN_WRITES: u64 = 4;

/// Registers a client in the session and returns its id. Of too many clients, those that were not seen for longest are unregistered,
/// first those that have left.
pub(crate) async fn register(
    app: &App,
    caller: &Principal,
    session: &Session,
    requested: Option<&str>,
) -> Result<String, Failure> {
    if let Some(client_id) = requested
        && lookup::check_client(app, caller, session, Some(client_id)).await.is_ok()
        && record_seen(app, client_id).await?
    {
        return Ok(client_id.to_owned());
    }
    let client = new_client(app, caller, session.session);
    let joined = join(app, &client, store::daemon::clients::rows_of_new(&client)).await?;
    joined.ok_or_else(|| Failure::internal("a new client has the id of another one"))?;
    // Clients that have left are registered, too.
    if store::daemon::clients::count(&app.db, session.session).await? > i64::from(CLIENTS_MAX) {
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

/// Records that a client was seen, if the request names one. Returns the time.
pub(crate) async fn record_activity(app: &App, client: Option<&str>) -> Result<Timestamp, Failure> {
    if let Some(client_id) = client {
        record_seen(app, client_id).await?;
    }
    Ok(app.now())
}

/// As [`seen`], for a request of any kind. A client that polls does not cause a write with each request.
pub(super) async fn seen_again(app: &App, client: &DaemonClient) -> Result<(), Failure> {
    if client.left_at.is_none() && is_recent(app, client.last_seen_at) {
        return Ok(());
    }
    record_seen(app, &client.client_id).await.map(drop)
}

/// Records that the client was seen. A client that had left votes again on later requests. False if it is not registered.
async fn record_seen(app: &App, client_id: &str) -> Result<bool, Failure> {
    let mut attempts = app.db.attempts(|| Failure::new(FailureKind::Overloaded, "the client was changed too often"));
    // Its request is not rejected if other requests change the row each time: they record that it was seen, too.
    while attempts.start_next().is_ok() {
        let Some(client) = store::daemon::clients::get(&app.db, client_id).await? else { return Ok(false) };
        let is_recorded = match client.left_at {
            Some(_) => {
                let rows = store::daemon::clients::rows_of_return(client_id, app.now());
                join(app, &client, rows).await?.is_some()
            }
            None => store::daemon::clients::update_seen(&app.db, client_id, app.now()).await?,
        };
        if is_recorded {
            return Ok(true);
        }
    }
    Ok(true)
}

/// Whether the stored time of a client's last request is recent enough.
fn is_recent(app: &App, last_seen_at: Timestamp) -> bool {
    let config = &DaemonState::of(app).config;
    let idle_ms = config.session_idle_ms.map_or(config.client_idle_ms, |idle_ms| idle_ms.min(config.client_idle_ms));
    let interval = SignedDuration::from_millis((idle_ms / SEEN_WRITES).try_into().unwrap_or(i64::MAX));
    app.now().duration_since(last_seen_at) < interval
}

/// Makes the client a participant of the session, in one commit with its row. `None` if the row was changed concurrently.
async fn join(app: &App, client: &DaemonClient, rows: AttachedRows) -> Result<Option<Session>, Failure> {
    let change = SessionChange::Join { participant: client.client_id.clone() };
    let op = ChangeSessionOp { change, by: client.principal.clone() };
    let joined = app.try_submit_with(client.session, None, op, rows).await?;
    if let Some(session) = &joined {
        remove_absent_participants(app, session, &client.principal).await?;
    }
    Ok(joined)
}

/// The last participant of a session stays one after it has left (see [`record_left`]). When another one joins, it no longer does.
async fn remove_absent_participants(app: &App, session: &Session, by: &str) -> Result<(), Failure> {
    if session.participants.len() < 2 {
        return Ok(());
    }
    let attached = store::daemon::clients::list_attached(&app.db, session.session).await?;
    let is_absent =
        |participant: &&String| participant.starts_with(CLIENT_ID_PREFIX) && !attached.contains(participant);
    for participant in session.participants.iter().filter(is_absent) {
        let change = SessionChange::LeaveUnlessLast { participant: participant.clone() };
        let op = ChangeSessionOp { change, by: by.to_owned() };
        let rows = match store::daemon::clients::get(&app.db, participant).await? {
            // Not if it comes back concurrently.
            Some(_) => store::daemon::clients::rows_if_left(participant),
            None => AttachedRows::default(),
        };
        app.try_submit_with(session.session, None, op, rows).await?;
    }
    Ok(())
}

/// Records that a client has left, unless it was seen after `since`. It stays registered, but no longer votes. The last participant
/// stays a participant, so that no caller outside of the session decides under `consensus`; its own vote counts when it is back.
pub(super) async fn record_left(app: &App, client: &DaemonClient, since: Timestamp) -> Result<(), Failure> {
    let change = SessionChange::LeaveUnlessLast { participant: client.client_id.clone() };
    let op = ChangeSessionOp { change, by: client.principal.clone() };
    let rows = store::daemon::clients::rows_of_leave(&client.client_id, since, app.now());
    match app.try_submit_with(client.session, None, op, rows).await {
        // The session was erased. Without their session, its clients are not found absent again and again.
        Err(failure) if failure.kind == FailureKind::NotFound => {
            store::daemon::clients::delete_by_session(&app.db, client.session, app.now()).await?;
            Ok(())
        }
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
        let op = ChangeSessionOp { change: SessionChange::Leave { participant }, by: by.to_owned() };
        app.try_submit(session, None, op).await?;
    }
    Ok(())
}
