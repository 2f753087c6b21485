//! Closing a session for the daemon's clients.

use std::time::Duration;

use ostler_protocol::{
    Failure,
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

/// Closes the session, cancels its prompts and unregisters its clients. The conversation stays and can be loaded again.
pub(crate) async fn close(app: &App, caller: &Principal, id: &str, client: Option<&str>) -> Result<(), Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let (session, id) = (open.session.session, open.session.public_id());
    let (caller, client) = (caller.clone(), client.map(str::to_owned));
    app.to_the_end(move |app| async move {
        let closed_at = app.now();
        if !store::daemon::sessions::update_closed(&app.db, session, closed_at).await? {
            return Err(not_found(&id));
        }
        // Clients that attach from now on belong to the session as it is opened again.
        clients::unregister_all(&app, &caller, session, closed_at).await?;
        if let Err(failure) = stop(&app, &caller, session).await {
            tracing::warn!(%failure, session = id, "the prompts of a closed session could not be cancelled");
        }
        let daemon = store::daemon::sessions::get(&app.db, session).await?;
        if daemon.is_none_or(|daemon| daemon.closed_at != Some(closed_at)) {
            // Another request has opened it again; its streams go on.
            return Ok(());
        }
        let mut data = json!({"sessionId": id, "reason": "client_close"});
        if let Some(client) = &client {
            data["closedBy"] = client.as_str().into();
        }
        notes::record(&app, &caller, session, &Note { frame: "session_closed", data, client }).await
    })
    .await
}

/// Cancels what waits or runs, and waits a while for its end. A runner that waits for work is dismissed.
async fn stop(app: &App, caller: &Principal, session: SessionId) -> Result<(), Failure> {
    let mut watch = SessionWatch::new(app, session);
    let Some(found) = store::kernel::sessions::get(&app.db, session).await? else { return Ok(()) };
    let Some(run_id) = found.active_run_id else { return Ok(()) };
    let run = app.run_ref(run_id).await?;
    if found.active_unfinished == 0 {
        return app.submit(&run, DismissOp { only_if_idle: true }).await;
    }
    let op = CancelRunOp { by: caller.name(), reason: Some("the session was closed".to_owned()) };
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
