//! The claim of a job by a runner elsewhere.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::kernel::{runner_jobs::RunnerJob, runs::Run};

/// The body of `POST /api/v1/runner-jobs/claim`: a runner elsewhere looks for work.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRunnerJob {
    /// The name of this runner process. The run must then be claimed under the same one.
    pub runner_id: String,
    /// The backend profiles that this runner drives; each one of `runner.external_profiles`.
    pub profiles: Vec<String>,
    /// How long to wait for a job if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// A job that belongs to the caller now, and its run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedRunnerJob {
    pub runner_job: RunnerJob,
    pub run: Run,
}
