//! Removes what is older than its limit, every hour by default. Each step is idempotent, so two servers may do it at once.

use std::time::Duration;

use crate::{app::App, service::retention};

pub(crate) async fn run(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(app.config.retention.sweep_ms.max(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is immediate, and the server has just started.
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.stopped() => return,
        }
        match retention::sweep_all(&app).await {
            Ok(swept) => {
                for count in swept.counts.iter().filter(|count| count.items > 0) {
                    let (noun, tenant) = (count.noun.as_str(), count.tenant_id.as_deref());
                    tracing::info!(noun, tenant, items = count.items, bytes = count.bytes, "retention removed");
                }
            }
            Err(failure) => {
                tracing::warn!(%failure, cause = failure.cause.as_deref(), "a sweep of retention failed; the next one tries again");
            }
        }
    }
}
