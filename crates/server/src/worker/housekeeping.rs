//! Clears away what is not needed any more, every few minutes: storage that has expired, workspaces of runs that have ended,
//! and what the dialects have to clear. Each step can be done twice, so two servers do no harm.

use std::time::Duration;

use ostler_protocol::{Failure, kernel::session_storage::SWEEP_DEFAULT};

use crate::{app::App, launcher::workspaces, service::session_storage, worker::wakeups};

pub async fn run(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(app.config.sessions.gc_interval_ms.max(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let chores = app.dialects.chores();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stopped() => return,
        }
        told("evicting storage", session_storage::evict_expired(&app, app.now(), SWEEP_DEFAULT).await);
        // Another server may have erased its session, or an agent that came late have made it again.
        told("clearing evicted storage", session_storage::clear_leftovers(&app).await);
        told("clearing wake-ups", wakeups::sweep(&app).await);
        told("clearing workspaces", workspaces::clear_unused(&app).await);
        for (what, chore) in &chores {
            told(what, chore(app.clone()).await);
        }
    }
}

/// What failed is tried again by the next round.
fn told<T>(what: &str, outcome: Result<T, Failure>) {
    if let Err(failure) = outcome {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), "{what} failed; the next sweep tries again");
    }
}
