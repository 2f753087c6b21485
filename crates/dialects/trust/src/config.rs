//! Configuration of webhooks: allowed addresses and timeouts.

use std::time::Duration;

use ostler_protocol::{Failure, outgoing::OutgoingRules};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use ostler_server::config::{Config, MS_MAX, OutgoingSection, Section, check_range};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebhooksSection {
    /// Allow webhooks on the server's own machine, also without TLS. For development; `outgoing.allow` lists
    /// other addresses.
    pub allow_loopback: bool,
    /// Time limit for the response of a receiver.
    pub timeout_ms: u64,
    /// How often the server checks for deliveries that are due.
    pub poll_ms: u64,
}

impl Default for WebhooksSection {
    fn default() -> Self {
        Self { allow_loopback: false, timeout_ms: 15_000, poll_ms: 1_000 }
    }
}

impl Section for WebhooksSection {
    const NAME: &'static str = "webhooks";

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let checks = [
            check_range("webhooks.timeout_ms", self.timeout_ms, 1..=MS_MAX),
            check_range("webhooks.poll_ms", self.poll_ms, 1..=MS_MAX),
        ];
        checks.into_iter().filter_map(Result::err).collect()
    }
}

impl WebhooksSection {
    /// The addresses that webhooks may have.
    pub fn rules(&self, outgoing: &OutgoingSection) -> Result<OutgoingRules, Failure> {
        let rules = outgoing.rules()?;
        Ok(if self.allow_loopback { rules.with_loopback() } else { rules })
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}
