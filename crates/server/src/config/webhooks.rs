//! How far webhooks reach, and how patiently.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::worker::webhooks::sender::Reach;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebhooksSection {
    /// Lets webhooks be on this machine, also without TLS. For development.
    pub allow_loopback: bool,
    /// A receiver must have answered within this time.
    pub timeout_ms: u64,
    /// How often deliveries that are due are looked for.
    pub poll_ms: u64,
}

impl Default for WebhooksSection {
    fn default() -> Self {
        Self { allow_loopback: false, timeout_ms: 15_000, poll_ms: 1_000 }
    }
}

impl WebhooksSection {
    pub fn reach(&self) -> Reach {
        if self.allow_loopback { Reach::Loopback } else { Reach::Public }
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}
