//! Deletes data that is no longer needed, every few minutes: expired storage, workspaces of runs that have ended, and data of
//! the dialects. Each step is idempotent, so two servers may do it at once.

use std::time::Duration;

use ostler_protocol::{Failure, kernel::session_storage::SWEEP_DEFAULT};

use crate::{app::App, dialect::Dialects, launcher::workspaces, service::session_storage, worker::wakeups};

pub(crate) async fn run(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(app.config.sessions.gc_interval_ms.max(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let chores = Dialects::of(&app).chores();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stopped() => return,
        }
        log_failure("evicting storage", session_storage::evict_expired(&app, app.now(), SWEEP_DEFAULT).await);
        // Another server may have erased the session, or a late agent may have created the directory again.
        log_failure("clearing evicted storage", session_storage::clear_leftovers(&app).await);
        log_failure("clearing wake-ups", wakeups::sweep(&app).await);
        log_failure("clearing workspaces", workspaces::clear_unused(&app).await);
        for (what, chore) in &chores {
            log_failure(what, chore(app.clone()).await);
        }
    }
}

/// A failed step is not retried here; the next round repeats it.
fn log_failure<T>(what: &str, outcome: Result<T, Failure>) {
    if let Err(failure) = outcome {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), "{what} failed; the next sweep tries again");
    }
}
