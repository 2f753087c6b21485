//! Evicts session storage that has expired, and clears away workspaces and attachments that nobody uses, every few minutes. Each eviction is an ordinary operation of the kernel, so two
//! servers do no harm, only work twice.

use std::time::Duration;

use ostler_protocol::session_storage::SWEEP_DEFAULT;

use crate::{app::App, launcher::workspaces, service};

pub async fn run(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(app.config.sessions.gc_interval_ms.max(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stopped() => return,
        }
        if let Err(failure) = service::session_storage::evict_expired(&app, app.now(), SWEEP_DEFAULT).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "evicting storage failed; the next sweep tries again");
        }
        if let Err(failure) = service::threads::finish_all_erasing(&app).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "erasing a thread failed; the next sweep tries again");
        }
        // Another server may have erased its session, or an agent that came late have made it again.
        if let Err(failure) = service::session_storage::clear_leftovers(&app).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "clearing evicted storage failed; the next sweep tries again");
        }
        if let Err(failure) = service::attachments::sweep(&app).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "clearing unused attachments failed; the next sweep tries again");
        }
        if let Err(failure) = workspaces::clear_unused(&app).await {
            tracing::warn!(%failure, cause = failure.cause.as_deref(), "clearing workspaces failed; the next sweep tries again");
        }
    }
}
