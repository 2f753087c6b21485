//! Metrics of the trust dialect.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ostler_protocol::trust::webhooks::NextAttempt;
use ostler_store as store;

use super::state::Trust;
use ostler_server::dialect::Metric;

pub(crate) const ALL: &[Metric] = &[
    Metric::gauge("ostler_sockets", "Authenticated WebSockets on this server.", |app, samples| {
        samples.add(Trust::of(app).listeners.count() as i64)
    }),
    Metric::counter(
        "ostler_webhook_attempts_total",
        "outcome",
        "Attempts to deliver to a webhook, by outcome.",
        |app, samples| {
            let counted = ATTEMPTS.iter().zip(&Trust::of(app).counters.attempts);
            counted.for_each(|(outcome, count)| samples.add_labelled("outcome", outcome, count.load(Relaxed)));
        },
    ),
    Metric::stored(
        "ostler_webhook_deliveries_waiting",
        "Deliveries that wait or are being sent, in the whole store.",
        |app| Box::pin(async move { store::trust::webhooks::count_waiting(&app.db).await.ok() }),
    ),
    Metric::counter(
        "ostler_webhook_deliveries_dropped_total",
        "",
        "Ended deliveries that this server deleted early, because an agent had too many.",
        |app, samples| samples.add(Trust::of(app).counters.deliveries_dropped.load(Relaxed) as i64),
    ),
    Metric::counter(
        "ostler_manifests_large_total",
        "",
        "Manifests of 64 KiB or more that were submitted; the limit is 128 KiB.",
        |app, samples| samples.add(Trust::of(app).counters.large_manifests.load(Relaxed) as i64),
    ),
    Metric::counter(
        "ostler_reauth_retries_total",
        "",
        "Times that people could not be notified of a breaking manifest because the store failed, and it was tried again.",
        |app, samples| samples.add(Trust::of(app).counters.reauth_retries.load(Relaxed) as i64),
    ),
    Metric::counter(
        "ostler_manifest_computations_total",
        "",
        "Manifests parsed, and pairs of manifests compared, because the result was not cached.",
        |app, samples| samples.add(Trust::of(app).manifests.computed() as i64),
    ),
];

const ATTEMPTS: [&str; 4] = ["delivered", "again", "dead", "disabled"];

#[derive(Default)]
pub(crate) struct Counters {
    attempts: [AtomicU64; ATTEMPTS.len()],
    deliveries_dropped: AtomicU64,
    large_manifests: AtomicU64,
    reauth_retries: AtomicU64,
}

impl Counters {
    pub(crate) fn webhook_attempt(&self, next: NextAttempt) {
        let at = match next {
            NextAttempt::Delivered => 0,
            NextAttempt::Again { .. } => 1,
            NextAttempt::Dead => 2,
            NextAttempt::Disable => 3,
        };
        self.attempts[at].fetch_add(1, Relaxed);
    }

    /// Counts ended deliveries that were deleted before their time.
    pub(crate) fn deliveries_dropped(&self, deliveries: usize) {
        self.deliveries_dropped.fetch_add(deliveries as u64, Relaxed);
    }

    /// Counts a manifest that is near its size limit.
    pub(crate) fn large_manifest(&self) {
        self.large_manifests.fetch_add(1, Relaxed);
    }

    pub(crate) fn reauth_retried(&self) {
        self.reauth_retries.fetch_add(1, Relaxed);
    }
}
