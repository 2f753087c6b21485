//! Leases: which runner may write for a run, until when, under which epoch.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Timestamp,
    ids::{AttemptId, RunId, SessionId},
    kernel::{commands::Command, runs::Run},
};

/// The last lease of a run, live or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    pub run_id: RunId,
    pub session: SessionId,
    pub runner_id: String,
    pub epoch: i64,
    pub attempt_id: AttemptId,
    pub duration_ms: i64,
    pub acquired_at: Timestamp,
    pub heartbeat_at: Timestamp,
    pub expires_at: Timestamp,
    /// Released, or found expired: no runner holds it.
    pub ended: bool,
    /// It expired without being released: the next runner to claim takes over.
    pub expired: bool,
    /// Its runner is to go as soon as nothing is left for it to do.
    pub dismissed: bool,
    /// Runners that tried to claim the lease while it was held, each noted once.
    pub waiters: Vec<String>,
}

impl Lease {
    pub fn is_live(&self, now: Timestamp) -> bool {
        !self.ended && now < self.expires_at
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRun {
    pub runner_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<i64>,
    /// Acknowledge the run's next turn in the same transaction, if one is waiting.
    #[serde(default)]
    pub take_up: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claimed {
    pub lease_epoch: i64,
    #[schema(value_type = String, format = DateTime)]
    pub lease_expires_at: Timestamp,
    pub attempt_id: AttemptId,
    pub run: Run,
    /// The run's unfinished commands, so that a runner can start without a poll.
    pub commands: Vec<Command>,
    /// The agent's own thread, where the session has one.
    pub thread_id: Option<String>,
}

/// The body of `PATCH …/lease`: a heartbeat, or with `release` the end of the tenure.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchLease {
    pub runner_id: String,
    pub lease_epoch: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<i64>,
    #[serde(default)]
    pub release: bool,
    /// With `release`: only if no command is unfinished, else this is a heartbeat. So a runner that goes cannot miss a
    /// command that came a moment before.
    #[serde(default)]
    pub only_if_idle: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseState {
    pub run_id: RunId,
    pub runner_id: String,
    pub lease_epoch: i64,
    pub attempt_id: AttemptId,
    #[schema(value_type = String, format = DateTime)]
    pub lease_expires_at: Timestamp,
    pub released: bool,
    pub run_cancel_requested: bool,
}
