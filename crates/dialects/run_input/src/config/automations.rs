//! Configuration of automations.

use std::time::Duration;

use ostler_protocol::Failure;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use ostler_server::config::{Config, MS_MAX, Section, check_range};

/// Jobs that start runs on a schedule.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AutomationsSection {
    /// Whether this server starts automations. Of several servers, one that does is enough.
    pub scheduler: bool,
    /// How often the server checks whether runs of automations have ended. Without such runs it sleeps until one is due, for 30
    /// times as long at most.
    pub poll_ms: u64,
    /// Maximum number of automations of one user.
    pub per_user_max: i64,
    /// Failed runs in a row after which an automation is paused.
    pub failures_max: i64,
}

impl Default for AutomationsSection {
    fn default() -> Self {
        Self { scheduler: true, poll_ms: 1_000, per_user_max: 100, failures_max: 5 }
    }
}

impl Section for AutomationsSection {
    const NAME: &'static str = "automations";

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let checks = [
            check_range("automations.poll_ms", self.poll_ms, 10..=MS_MAX),
            check_range("automations.per_user_max", self.per_user_max.unsigned_abs(), 1..=1_000_000),
            check_range("automations.failures_max", self.failures_max.unsigned_abs(), 1..=1_000),
        ];
        checks.into_iter().filter_map(Result::err).collect()
    }
}

impl AutomationsSection {
    pub(crate) fn poll(&self) -> Duration {
        Duration::from_millis(self.poll_ms)
    }
}
