//! The state of the trust dialect in this process.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{config::WebhooksSection, listeners::Listeners, manifests::Manifests, metrics::Counters};
use ostler_server::app::App;

pub(crate) struct Trust {
    pub webhooks: WebhooksSection,
    pub listeners: Arc<Listeners>,
    pub manifests: Manifests,
    pub counters: Counters,
    /// Notified when a delivery to a webhook may be due.
    pub deliveries: Notify,
    /// Notified when the cursors of all runs must be compared: a webhook was set, or hints of the hub were lost.
    pub run_scan: Notify,
}

impl Trust {
    pub(crate) fn new(webhooks: WebhooksSection) -> Self {
        let (listeners, manifests, counters) = Default::default();
        Self { webhooks, listeners, manifests, counters, deliveries: Notify::new(), run_scan: Notify::new() }
    }

    /// The trust dialect of this server.
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }
}
