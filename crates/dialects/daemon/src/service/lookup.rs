//! Finding the session and the client that a request names.

use ostler_protocol::{
    Failure, Rule,
    daemon::{clients::DaemonClient, sessions::DaemonSession},
    kernel::sessions::Session,
};
use ostler_server::{app::App, auth::Principal, service::lookup};
use ostler_store as store;

use super::clients;

/// A session that is open for the daemon's clients.
#[derive(Clone, Debug)]
pub(crate) struct OpenSession {
    /// What the daemon stores of it.
    pub daemon: DaemonSession,
    /// The session of the kernel.
    pub session: Session,
}

pub(crate) fn not_found(id: &str) -> Failure {
    Failure::rule(Rule::SessionNotFound, "no such session").detail("sessionId", id)
}

/// The open session of this id, if the caller may see it. Others are reported like absent ones.
pub(crate) async fn open_session(app: &App, caller: &Principal, id: &str) -> Result<OpenSession, Failure> {
    let session = lookup::session(app, caller, id, None).await.map_err(|failure| match failure.kind.row().status {
        404 => not_found(id),
        _ => failure,
    })?;
    let daemon = store::daemon::sessions::get(&app.db, session.session).await?;
    let is_open = |daemon: &DaemonSession| daemon.closed_at.is_none() && session.closed_at.is_none();
    let daemon = daemon.filter(is_open).ok_or_else(|| not_found(id))?;
    Ok(OpenSession { daemon, session })
}

/// As [`open_session`], for a caller that changes something in it: the client that the request names, if it names one, must be
/// registered in the session by this caller. It is attached from then on.
pub(crate) async fn controlled_session(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
) -> Result<OpenSession, Failure> {
    let (open, client) = voted_session(app, caller, id, client).await?;
    if let Some(client) = client {
        clients::seen_again(app, &client).await?;
    }
    Ok(open)
}

/// As [`controlled_session`], for a caller that votes. A client that has left does not attach again by its vote.
pub(crate) async fn voted_session(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
) -> Result<(OpenSession, Option<DaemonClient>), Failure> {
    let open = open_session(app, caller, id).await?;
    caller.may_control(&open.session)?;
    let client = check_client(app, caller, &open.session, client).await?;
    Ok((open, client))
}

/// The client that the request names. Rejects a client id that this caller has not registered in the session. A request may name none.
pub(crate) async fn check_client(
    app: &App,
    caller: &Principal,
    session: &Session,
    client: Option<&str>,
) -> Result<Option<DaemonClient>, Failure> {
    let Some(client_id) = client else { return Ok(None) };
    let found = store::daemon::clients::get(&app.db, client_id).await?;
    let is_own = |found: &DaemonClient| found.session == session.session && found.principal == caller.name();
    if let Some(found) = found.filter(is_own) {
        return Ok(Some(found));
    }
    let message = "this client is not registered in the session";
    Err(Failure::invalid(Rule::InvalidClientId, message)
        .detail("sessionId", session.public_id())
        .detail("clientId", client_id))
}

/// Rejects a client id that this caller has registered in no session. For routes that are about the workspace and no session.
pub(crate) async fn check_any_client(app: &App, caller: &Principal, client: Option<&str>) -> Result<(), Failure> {
    let Some(client_id) = client else { return Ok(()) };
    let found = store::daemon::clients::get(&app.db, client_id).await?;
    if found.is_some_and(|found| found.principal == caller.name()) {
        return Ok(());
    }
    let message = "this client is registered in no session";
    Err(Failure::invalid(Rule::InvalidClientId, message).detail("clientId", client_id))
}
