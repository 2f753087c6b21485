//! Closing a session for the daemon's clients.

use std::time::Duration;

use ostler_protocol::{
    Failure, Timestamp,
    ids::SessionId,
    kernel::{
        events::{Event, EventType},
        operations::{CancelRunOp, DismissOp},
    },
};
use ostler_server::{app::App, auth::Principal, recheck::SessionWatch};
use ostler_store as store;
use serde_json::json;
use tokio::time::Instant;

use crate::service::{
    clients,
    lookup::{self, not_found},
    notes::{self, Note},
};

/// How long the agent has to stop before followers receive the end of the session.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// Why a session is closed, as its followers learn it.
#[derive(Clone, Debug)]
pub(crate) enum CloseReason {
    /// A client closed it.
    Client(Option<String>),
    /// It was not used since then.
    Idle(Timestamp),
}

impl CloseReason {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Client(_) => "client_close",
            Self::Idle(_) => "idle_timeout",
        }
    }
}

/// The author of what the server does by itself.
const SERVER: &str = "daemon";

/// Closes the session, cancels its prompts and unregisters its clients. The conversation stays and can be loaded again.
pub(crate) async fn close(app: &App, caller: &Principal, id: &str, client: Option<&str>) -> Result<(), Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let (session, id) = (open.session.session, open.session.public_id());
    let (by, reason) = (caller.name(), CloseReason::Client(client.map(str::to_owned)));
    app.to_the_end(move |app| async move {
        match close_open(&app, &by, session, reason).await? {
            true => Ok(()),
            false => Err(not_found(&id)),
        }
    })
    .await
}

/// As [`close`], by the server itself. Does nothing if the session is closed, or is used again.
pub(crate) async fn close_for(app: &App, session: SessionId, reason: CloseReason) -> Result<(), Failure> {
    app.to_the_end(move |app| async move { close_open(&app, SERVER, session, reason).await.map(drop) }).await
}

/// False if the session was not open.
async fn close_open(app: &App, by: &str, session: SessionId, reason: CloseReason) -> Result<bool, Failure> {
    let closed_at = app.now();
    let is_closed = match reason {
        CloseReason::Client(_) => store::daemon::sessions::update_closed(&app.db, session, closed_at).await?,
        CloseReason::Idle(since) => {
            store::daemon::sessions::update_closed_idle(&app.db, session, since, closed_at).await?
        }
    };
    if !is_closed {
        return Ok(false);
    }
    // Clients that attach from now on belong to the session as it is opened again.
    clients::unregister_all(app, by, session, closed_at).await?;
    if let Err(failure) = stop(app, by, session).await {
        tracing::warn!(%failure, %session, "the prompts of a closed session could not be cancelled");
    }
    let daemon = store::daemon::sessions::get(&app.db, session).await?;
    if daemon.is_none_or(|daemon| daemon.closed_at != Some(closed_at)) {
        // Another request has opened it again; its streams go on.
        return Ok(true);
    }
    let Some(found) = store::kernel::sessions::get(&app.db, session).await? else { return Ok(true) };
    let mut data = json!({"sessionId": found.public_id(), "reason": reason.as_str()});
    let client = if let CloseReason::Client(client) = reason { client } else { None };
    if let Some(client) = &client {
        data["closedBy"] = client.as_str().into();
    }
    notes::record_by(app, by, session, &Note { frame: "session_closed", data, client }).await?;
    Ok(true)
}

/// Cancels what waits or runs, and waits a while for its end. A runner that waits for work is dismissed.
async fn stop(app: &App, by: &str, session: SessionId) -> Result<(), Failure> {
    let mut watch = SessionWatch::new(app, session);
    let Some(found) = store::kernel::sessions::get(&app.db, session).await? else { return Ok(()) };
    let Some(run_id) = found.active_run_id else { return Ok(()) };
    let run = app.run_ref(run_id).await?;
    if found.active_unfinished == 0 {
        return app.submit(&run, DismissOp { only_if_idle: true }).await;
    }
    let op = CancelRunOp { by: by.to_owned(), reason: Some("the session was closed".to_owned()) };
    app.submit(&run, op).await?;
    let until = Instant::now() + STOP_WAIT;
    let is_end = |event: &Event| event.event_type == EventType::TerminalStatus;
    while Instant::now() < until {
        let found = store::kernel::sessions::get(&app.db, session).await?;
        if found.is_none_or(|found| found.active_unfinished == 0) {
            break;
        }
        watch.changed(until, is_end).await;
    }
    Ok(())
}
