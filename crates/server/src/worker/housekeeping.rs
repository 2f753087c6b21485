//! Clears away what nobody needs any more, every few minutes: storage that has expired, threads whose erasing was cut off,
//! pictures that no message shows, workspaces of runs that have ended, what removed users left, what was told to webhooks
//! long ago. Each step can be done twice, so two servers do no harm.

use std::time::Duration;

use ostler_protocol::{Failure, kernel::session_storage::SWEEP_DEFAULT};

use crate::{
    app::App,
    launcher::workspaces,
    service::{attachments, mesh, mesh_messages, session_storage, threads, users, webhooks},
    worker::wakeups,
};

pub async fn run(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(app.config.sessions.gc_interval_ms.max(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stopped() => return,
        }
        told("evicting storage", session_storage::evict_expired(&app, app.now(), SWEEP_DEFAULT).await);
        told("erasing threads", threads::finish_all_erasing(&app).await);
        // Another server may have erased its session, or an agent that came late have made it again.
        told("clearing evicted storage", session_storage::clear_leftovers(&app).await);
        told("clearing unused attachments", attachments::sweep(&app).await);
        told("forgetting logins of the mesh", mesh::sweep(&app).await);
        told("renewing the auth service's certificate", mesh::identities::renew_auth(&app).await);
        told("clearing expired messages", mesh_messages::sweep(&app).await);
        told("clearing what servers told each other", wakeups::sweep(&app).await);
        told("clearing workspaces", workspaces::clear_unused(&app).await);
        told("ending what removed users left", users::clear_orphaned(&app).await);
        told("forgetting deliveries", webhooks::forget_ended(&app).await);
    }
}

/// What failed is tried again by the next round.
fn told<T>(what: &str, outcome: Result<T, Failure>) {
    if let Err(failure) = outcome {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), "{what} failed; the next sweep tries again");
    }
}
