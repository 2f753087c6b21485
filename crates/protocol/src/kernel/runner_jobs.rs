//! Runner jobs: the only order to start a runner.

mod claims;
mod cluster_jobs;
mod extras;
mod logs;
mod variable_names;
pub use claims::{ClaimRunnerJob, ClaimedRunnerJob};
pub use cluster_jobs::{
    JobCleanup, JobObservation, JobRetention, ObservedPhase, cluster_job_name, is_cluster_name_part,
};
pub use extras::{
    BackendImageRef, IMAGE_BYTES_MAX, JobExtras, TRANSIENT_BYTES_MAX, TRANSIENT_NAME_BYTES_MAX,
    TRANSIENT_VALUE_BYTES_MAX, TRANSIENT_VARIABLES_MAX, TransientVariable, image_repository, is_image_name,
};
pub use logs::{JobLogQuery, RunnerJobLog, is_log_position};
pub use variable_names::check_names;

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    RawJson, Timestamp,
    ids::{AttemptId, CommandId, RunId, RunnerJobId, SessionId},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

enum_words!(JobPhase {
    Pending => "pending",
    Running => "running",
    Succeeded => "succeeded",
    Failed => "failed",
    Cancelled => "cancelled",
});

impl JobPhase {
    pub fn is_finished(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// What starts a job's runner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// A task inside the server.
    #[default]
    Resident,
    /// A child process of the server.
    Process,
    /// None: a runner elsewhere claims the job over HTTP (`runner.external_profiles`).
    External,
    /// A Kubernetes Job.
    Kubernetes,
}

enum_words!(Launcher {
    Resident => "resident",
    Process => "process",
    External => "external",
    Kubernetes => "kubernetes",
});

impl Launcher {
    /// Whether its runners do not depend on any server: they keep their runs by their leases alone.
    pub fn is_elsewhere(self) -> bool {
        matches!(self, Self::External | Self::Kubernetes)
    }

    /// Whether a runner can outlive the server that started it: then its lease shows whether it does.
    pub fn outlives_server(self) -> bool {
        matches!(self, Self::Process | Self::External | Self::Kubernetes)
    }
}

/// The `category` in the terminal summary of a job whose runner could not be observed to its end: what became of it is
/// unknown.
pub const JOB_OBSERVE_FAILED: &str = "runner-job-observe-failed";

/// The status in the terminal summary of a start whose runner has released its run, and whose Job is gone.
pub const RUNNER_RELEASED: &str = "released";

/// The fields of a terminal summary that are not texts.
const SUMMARY_FIELDS: [&str; 7] = ["status", "turnStatus", "failureKind", "turns", "exitCode", "signal", "category"];

/// A terminal summary without its texts, as retention leaves it: `textsRemoved` is true.
pub fn summary_without_texts(summary: &RawJson) -> RawJson {
    let mut fields = match summary.to_value() {
        serde_json::Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    fields.retain(|name, _| SUMMARY_FIELDS.contains(&name.as_str()));
    fields.insert("textsRemoved".into(), true.into());
    RawJson::of(&fields)
}

/// What a cluster showed of a start, without the text.
pub fn observed_without_text(observed: &RawJson) -> RawJson {
    let mut observed = observed.to_value();
    if let Some(fields) = observed.as_object_mut() {
        fields.remove("message");
    }
    RawJson::of(&observed)
}

/// How the runner that a job started has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// It left in order.
    Succeeded,
    /// It is gone, and was not done.
    Failed,
    /// It was stopped because its server stops: that start does not count, and another launcher continues.
    Returned,
    /// Its time limit is over. That start counts, and the count begins again if a command has ended during it.
    Overdue,
    /// Its launcher is silent; the state of the runner is unknown.
    Lost,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateRunnerJob {
    /// The command to start a runner for; the run's latest when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Start a runner again whenever a command waits and no lease is live. False if left out: after its runner has ended, new commands
    /// wait for another job. The jobs that `POST /api/v1/runs` with `command` and `ostler run` create are standing.
    pub standing: bool,
    /// The image of the runner's pod, pinned by its digest; by default that of the server's config. Only where runners are
    /// Kubernetes Jobs, and only from a repository that the operator has listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_image_ref: Option<BackendImageRef>,
    /// Short-lived variables of the agent's tools, by name. Responses show the hashes of their values. Only where runners are
    /// Kubernetes Jobs. Names that can decide which programs run, where they connect to or which certificates they trust are
    /// rejected; for an agent that speaks ACP, the names must be those of credentials.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "extras::expose_values")]
    #[schema(value_type = BTreeMap<String, String>, default = json!({}), write_only)]
    pub transient_env: BTreeMap<String, SecretString>,
}

/// A runner job as stored and as sent.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunnerJob {
    pub runner_job_id: RunnerJobId,
    pub run_id: RunId,
    #[serde(skip, default = "SessionId::unset")]
    pub session: SessionId,
    pub command_id: CommandId,
    pub attempt_id: AttemptId,
    /// How often a runner was started for this job.
    pub attempt: i64,
    pub job_name: String,
    pub namespace: String,
    /// What starts its runner; the one that takes the job has the last word.
    pub launcher: Launcher,
    pub runner_id: String,
    /// The Kubernetes pod of the runner, once the cluster has made it; null for a launcher that starts none.
    pub pod_name: Option<String>,
    /// Where this server serves the log of the runner's pod; null where there is none. The end of a process's log is in
    /// `terminalSummary`.
    pub log_path: Option<String>,
    pub standing: bool,
    pub phase: JobPhase,
    /// How the last runner ended: `status`, `failureKind`, `message`, and of a process `exitCode` or `signal` and
    /// `logTail`; an empty object before. `textsRemoved`: retention has removed `message` and `logTail`. `category` is `runner-job-observe-failed` if the server lost sight of the runner.
    #[schema(value_type = Object)]
    pub terminal_summary: RawJson,
    /// What the cluster shows of the last start: `jobName`, `podName`, `nodeName`, `phase`, `reason`, `message` and
    /// `exitCode`, as far as they are known; an empty object for other launchers and before the start.
    #[serde(default = "RawJson::empty_object")]
    #[schema(value_type = Object)]
    pub observed: RawJson,
    /// How long the cluster keeps a finished Job, and how many there may be. Null for other launchers.
    #[serde(default)]
    pub retention: Option<JobRetention>,
    /// The image that the order named; null if it named none.
    #[serde(default)]
    pub backend_image_ref: Option<BackendImageRef>,
    /// The short-lived variables that the order gave to the agent's tools, without their values.
    #[serde(default)]
    pub transient_env: Vec<TransientVariable>,
    /// What the order added for this job: [`JobExtras`].
    #[serde(skip, default = "RawJson::empty_object")]
    pub extras: RawJson,
    /// How often the job was claimed, over all of its life. Unlike `attempt`, it never goes down.
    #[serde(skip)]
    pub starts: i64,
    #[serde(skip)]
    pub idempotency_key: Option<String>,
    #[serde(skip)]
    pub request_hash: String,
    /// The server process that runs it.
    #[serde(skip)]
    pub owner: Option<String>,
    #[serde(skip)]
    pub heartbeat_at: Option<Timestamp>,
    #[serde(skip)]
    pub token_hash: Option<String>,
    /// The workspace that a launcher must serve to start its runner. `None`: any launcher may.
    #[serde(skip)]
    pub placement: Option<String>,
    pub poll: JobPoll,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// Where to look next.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobPoll {
    pub job: String,
    pub events: String,
    pub result: String,
}

impl JobPoll {
    pub fn of(run_id: RunId, job_id: RunnerJobId, command_id: CommandId) -> Self {
        Self {
            job: format!("/api/v1/runs/{run_id}/runner-jobs/{job_id}"),
            events: format!("/api/v1/runs/{run_id}/events"),
            result: format!("/api/v1/runs/{run_id}/commands/{command_id}/result"),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListRunnerJobs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunnerJobPage {
    pub runner_jobs: Vec<RunnerJob>,
    pub next_cursor: Option<String>,
}
