//! The log of a job's runner.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::ids::RunnerJobId;

/// The query of `GET /api/v1/runs/{runId}/runner-jobs/{runnerJobId}/log`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct JobLogQuery {
    /// The last lines of the log; 200 when left out, at most 5,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 5_000)]
    pub tail_lines: Option<u32>,
    /// `nextAfter` of the last response: only what was written later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A part of a runner's log, redacted.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunnerJobLog {
    pub runner_job_id: RunnerJobId,
    /// The pod that the log is of; null if the runner is or was none, or the cluster has not made it.
    pub pod_name: Option<String>,
    /// Whole lines, the oldest first.
    pub text: String,
    /// Whether lines were left out: earlier ones, or more than a response can have.
    pub truncated: bool,
    /// To continue from here; null if nothing was written yet, or the log has no times.
    pub next_after: Option<String>,
    /// Whether the runner has ended, so that nothing is added.
    pub finished: bool,
}

/// Characters of the longest position.
const POSITION_CHARS_MAX: usize = 40;

/// Whether this can be a position in a log: a time such as `2030-01-01T00:00:00.123456789Z`.
pub fn is_log_position(text: &str) -> bool {
    text.len() <= POSITION_CHARS_MAX && text.ends_with('Z') && text.parse::<crate::Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_a_time() {
        assert!(is_log_position("2030-01-01T00:00:00.123456789Z") && is_log_position("2030-01-01T00:00:00Z"));
        assert!(!is_log_position("now") && !is_log_position("2030-01-01") && !is_log_position(""));
    }
}
