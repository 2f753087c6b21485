//! Which clients are attached, and which sessions are idle. A client that has no event stream and sends nothing for
//! `daemon.client_idle_ms` has left: its votes do not count, until it is seen again. A session without clients, streams and
//! prompts is closed after `daemon.session_idle_ms`; it can be loaded again.

use std::time::Duration;

use jiff::SignedDuration;
use ostler_protocol::{Failure, Timestamp, daemon::clients::DaemonClient};
use ostler_server::app::App;
use ostler_store as store;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    clients,
    sessions::{CloseReason, close_for},
    stream::Streams,
};
use crate::state::DaemonState;

/// How often both are checked: so many times within the shorter of the two times, but within these bounds.
const CHECKS: u64 = 4;
const CHECK_MS_MIN: u64 = 100;
const CHECK_MS_MAX: u64 = 30_000;
/// How many clients or sessions are read at once. The rest follows later.
const PAGE: u32 = 500;

/// Works until the server stops.
pub(crate) async fn watch(app: App) {
    let config = &DaemonState::of(&app).config;
    let shortest = config.session_idle_ms.map_or(config.client_idle_ms, |idle| idle.min(config.client_idle_ms));
    let every = Duration::from_millis((shortest / CHECKS).clamp(CHECK_MS_MIN, CHECK_MS_MAX));
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stopped() => return,
        }
        check_presence(&app).await;
    }
}

/// Logs the failure of one item. The next check repeats it, and it does not keep the others from being handled.
fn log_failure(outcome: Result<(), Failure>, message: &'static str) {
    if let Err(failure) = outcome {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), "{message}");
    }
}

async fn check_presence(app: &App) {
    let now = app.now();
    for (session, clients) in app.state::<Streams>().followed() {
        let followed = store::daemon::sessions::update_followed(&app.db, session, now).await;
        log_failure(followed.map_err(Failure::from), "the event stream of a session was not recorded");
        for client_id in clients {
            let seen = clients::record_activity(app, Some(client_id.as_str())).await;
            log_failure(seen.map(drop), "a client with an event stream was not recorded as attached");
        }
    }
    log_failure(record_absent(app).await, "absent clients could not be listed");
    log_failure(close_idle(app).await, "idle sessions could not be listed");
}

/// The time before which a client that was last seen has left.
fn absent_since(app: &App) -> Timestamp {
    before(app, DaemonState::of(app).config.client_idle_ms)
}

fn before(app: &App, ms: u64) -> Timestamp {
    let age = SignedDuration::from_millis(ms.try_into().unwrap_or(i64::MAX));
    app.now().checked_sub(age).unwrap_or(Timestamp::MIN)
}

async fn record_absent(app: &App) -> Result<(), Failure> {
    for client in store::daemon::clients::list_absent(&app.db, absent_since(app), PAGE).await? {
        if has_left(app, &client) {
            let left = clients::record_left(app, &client, absent_since(app)).await;
            log_failure(left, "an absent client could not leave its session");
        }
    }
    Ok(())
}

/// Whether the client has left the session, also if no server has recorded it yet.
pub(super) fn has_left(app: &App, client: &DaemonClient) -> bool {
    let is_following = || app.state::<Streams>().is_followed_by(client.session, &client.client_id);
    client.left_at.is_some() || client.last_seen_at <= absent_since(app) && !is_following()
}

async fn close_idle(app: &App) -> Result<(), Failure> {
    let Some(idle_ms) = DaemonState::of(app).config.session_idle_ms else { return Ok(()) };
    let since = before(app, idle_ms);
    for session in store::daemon::sessions::list_idle(&app.db, since, PAGE).await? {
        let closed = close_for(app, session, CloseReason::Idle(since)).await;
        log_failure(closed, "an idle session could not be closed");
    }
    Ok(())
}
