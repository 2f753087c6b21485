//! Runs: a runner's tenure over a session's work, one lease at a time.

mod state;
mod status;
pub use state::RunState;
pub(crate) use status::from_terminal_status;
pub use status::{RunStatus, Terminal, TerminalStatus};

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, RawJson, Rule, Timestamp,
    ids::{AgentId, AttemptId, RunId, RunnerJobId, SessionId},
    json::{canonical_hash, present},
    kernel::{
        commands::{Command, CreateCommand},
        labels::{LabelPatch, Labels},
        policy::{ExecutionPolicy, RequestedPolicy},
        runner_jobs::RunnerJob,
        usage::RunUsage,
    },
    limits::{EVENT_BYTES_MAX, TRACE_SINK_BYTES_MAX, WORKSPACE_REF_BYTES_MAX},
};

/// The body of `POST /api/v1/runs`. Presence is checked by the tenant policy, which names the exact rule.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateRun {
    #[schema(value_type = String, required)]
    pub tenant_id: Option<String>,
    #[schema(value_type = String, required)]
    pub project_id: Option<String>,
    #[schema(value_type = Object, required)]
    pub workspace_ref: Option<RawJson>,
    #[schema(value_type = String, required)]
    pub provider_id: Option<String>,
    #[schema(value_type = String, required)]
    pub backend_profile: Option<String>,
    /// The agent that the run is of. Its profile runs it, if no other is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    #[schema(value_type = Option<RequestedPolicy>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_policy: Option<RawJson>,
    /// Must be there; may be null.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<TraceSink>, required)]
    pub trace_sink: Option<RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_ref: Option<SessionRef>,
    /// Business mutations the caller intends. Recorded as an audit event, never judged.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub business_intents: Option<RawJson>,
    /// At most 16, by which the run can be found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub labels: Option<Labels>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Files of a repository that the agent finds in its workspace: `kind` (`gitbundle`), `repoUrl`, `bundles` of `subpath` and
    /// `targetPath`, and `commitId`, `ref` or `credentialRef`.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_bundle_ref: Option<RawJson>,
    /// Belongs to the runner job request (`POST …/runner-jobs`): a run that names an image is refused.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_image_ref: Option<RawJson>,
    /// Belongs to the runner job request, too, and is refused here.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transient_env: Option<RawJson>,
    /// The run that this one repeats. Recorded in the run's first event; the caller must be able to read that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<RunId>,
    /// Create a first command, and a standing runner job for it, in the same transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<CreateCommand>,
}

impl CreateRun {
    /// The fields that a caller fills freely, with their bounds.
    fn free(&self) -> [(Rule, &'static str, Option<&RawJson>, usize); 5] {
        [
            (Rule::WorkspaceRefSize, "workspaceRef", self.workspace_ref.as_ref(), WORKSPACE_REF_BYTES_MAX),
            (Rule::TraceSinkSize, "traceSink", self.trace_sink.as_ref(), TRACE_SINK_BYTES_MAX),
            (Rule::ExecutionPolicySize, "executionPolicy", self.execution_policy.as_ref(), EVENT_BYTES_MAX),
            (Rule::BusinessIntentsSize, "businessIntents", self.business_intents.as_ref(), EVENT_BYTES_MAX),
            (
                Rule::ResourceBundleRefSize,
                "resourceBundleRef",
                self.resource_bundle_ref.as_ref(),
                WORKSPACE_REF_BYTES_MAX,
            ),
        ]
    }

    /// Checks the sizes of all fields that a caller fills freely, before anything in them is read.
    pub fn check_sizes(&self) -> Result<(), Failure> {
        let too_large = |(rule, field, json, bytes_max): (_, _, Option<&RawJson>, _)| {
            let bytes = json.map(RawJson::size).filter(|bytes| *bytes > bytes_max)?;
            Some(Failure::too_large(rule, field, bytes, bytes_max))
        };
        Failure::check_all(self.free().into_iter().filter_map(too_large).collect())
    }

    /// Retention removed the input of the run that is to be repeated.
    pub fn input_removed(run_id: RunId, at: Timestamp) -> Failure {
        let date = at.strftime("%Y-%m-%d");
        let message = format!("the input of this run was removed by retention on {date}; start a new run");
        Failure::rule(Rule::RetryInput, message).detail("runId", run_id.to_string())
    }

    /// The bytes of what a caller fills freely.
    pub fn free_bytes(&self) -> usize {
        let first = self.command.as_ref().map(|first| &first.payload);
        self.free().into_iter().filter_map(|(.., json, _)| json).chain(first).map(|json| json.as_str().len()).sum()
    }
}

/// Where the caller wants its trace: a name or a description of its own. Stored without interpretation.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TraceSink {
    Name(String),
    #[schema(value_type = Object)]
    Described(serde_json::Map<String, serde_json::Value>),
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRef {
    pub session_id: String,
}

/// How the keys of runs begin that a call of another run has started.
pub const CHILD_RUN_KEY: &str = "run_agent.";

/// A run as stored and as sent.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub run_id: RunId,
    /// The caller's own session id where it chose one, else ours.
    pub session_id: String,
    #[serde(skip, default = "SessionId::unset")]
    pub session: SessionId,
    pub tenant_id: String,
    pub project_id: String,
    #[schema(value_type = Object)]
    pub workspace_ref: RawJson,
    pub provider_id: String,
    pub backend_profile: String,
    /// The agent that the run is of, where one was named.
    #[serde(default)]
    pub agent_id: Option<AgentId>,
    pub execution_policy: ExecutionPolicy,
    #[schema(value_type = Option<TraceSink>)]
    pub trace_sink: RawJson,
    #[serde(skip)]
    pub idempotency_key: Option<String>,
    #[serde(skip)]
    pub request_hash: String,
    /// The user or other caller that created it. `None` for runs that are older than this field.
    #[serde(skip)]
    pub created_by: Option<String>,
    /// The run that this one repeats.
    #[serde(default)]
    pub retry_of: Option<RunId>,
    /// The files of a repository that the agent finds in its workspace, as the request named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    pub resource_bundle_ref: Option<RawJson>,
    pub status: RunStatus,
    pub terminal: Option<Terminal>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<Timestamp>,
    /// The reason given by the client that requested the cancel.
    pub cancel_reason: Option<String>,
    /// The number of the run's last event.
    pub last_seq: i64,
    /// How many commands the run has received; the last one's number.
    pub command_count: i64,
    /// Commands that have not ended. A run with none and no lease is idle.
    pub unfinished_commands: i64,
    /// Raised by every claim; what fences out earlier ones.
    pub lease_epoch: i64,
    #[serde(skip)]
    pub open_permissions: i64,
    /// The attempt a runner job minted for the next claim.
    #[serde(skip)]
    pub offered_attempt_id: Option<AttemptId>,
    pub attempt_id: Option<AttemptId>,
    #[serde(skip)]
    pub standing_job_id: Option<RunnerJobId>,
    #[serde(default)]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub labels: Labels,
    /// What it has used so far.
    #[serde(default)]
    pub usage: RunUsage,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

impl Run {
    /// The digest of what never changes about a run, recorded in its first event: no other event holds it.
    pub fn record_digest(&self) -> String {
        let mut record = json!({
            "runId": self.run_id, "session": self.session.to_string(), "sessionId": self.session_id,
            "tenantId": self.tenant_id, "projectId": self.project_id, "workspaceRef": self.workspace_ref,
            "providerId": self.provider_id, "backendProfile": self.backend_profile, "agentId": self.agent_id,
            "executionPolicy": self.execution_policy, "traceSink": self.trace_sink,
            "createdAtUs": self.created_at.as_microsecond(),
        });
        // Runs that are older than these fields have a digest without them.
        if let Some(repeated) = self.retry_of {
            record["retryOf"] = repeated.to_string().into();
        }
        if let Some(bundle) = &self.resource_bundle_ref {
            record["resourceBundleRef"] = bundle.to_value();
        }
        canonical_hash(&record)
    }
}

/// The response to creating a run: the run and, where they were requested, its first command and its standing job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedRun {
    #[serde(flatten)]
    pub run: Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub command: Option<Command>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub runner_job: Option<RunnerJob>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListRuns {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Only runs in this state: `waiting`, `running`, `completed`, `failed`, `blocked` or `cancelled`. Of several between
    /// commas, one must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only ids that begin like this; the kind's own `run_` may be left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Only runs that were created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, format = DateTime)]
    pub created_after: Option<Timestamp>,
    /// Only runs with this label, `key=value`. Several between commas must all match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// `created`, the newest first, when left out. By `cost`, `tokens` or `duration`, the largest come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The order of a list of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum RunSort {
    #[default]
    Created,
    Cost,
    Tokens,
    Duration,
}

enum_words!(RunSort {
    Created => "created",
    Cost => "cost",
    Tokens => "tokens",
    Duration => "duration",
});

impl RunSort {
    /// The number by which it orders a run.
    pub fn position(self, run: &Run) -> i64 {
        match self {
            Self::Created => run.created_at.as_microsecond(),
            Self::Cost => run.usage.cost_nano_usd,
            Self::Tokens => run.usage.tokens,
            Self::Duration => run.usage.active_ms,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Cancel {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of `PATCH /api/v1/runs/{runId}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateRun {
    /// Labels to set by their keys; null removes one. Others stay as they are.
    #[schema(value_type = std::collections::BTreeMap<String, Option<String>>, required)]
    pub labels: Option<LabelPatch>,
}
