//! Tools and their calls, as the API shows them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    CallState, ToolDefinition,
    calls::{CALL_ID_BYTES_MAX, REPLY_CALLS_MAX, is_call_id},
    schema::ARGUMENTS_BYTES_MAX,
};
use crate::{Failure, Rule, cursors, ids::CommandId, kernel::facts::DelegatedUse, limits::NAME_BYTES_MAX};

/// A tool that agents can call.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OfferedTool {
    pub name: String,
    pub description: String,
    /// The JSON schema of its parameters.
    #[schema(value_type = Object)]
    pub parameters: Map<String, Value>,
    /// `built-in`, `dialect:NAME` or `mcp:SERVER`.
    pub source: String,
    /// The scope that must have been granted to an agent.
    pub scope: Option<String>,
    /// Whether a call changes anything outside of the run.
    pub changes: bool,
    /// Whether a call may be executed again if its outcome is not known.
    pub idempotent: bool,
    /// Whether a call connects to other machines.
    pub uses_network: bool,
    pub deadline_ms: u64,
    pub output_bytes_max: u64,
}

impl From<&ToolDefinition> for OfferedTool {
    fn from(tool: &ToolDefinition) -> Self {
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
            source: tool.origin.to_string(),
            scope: tool.scope.clone(),
            changes: tool.changes,
            idempotent: tool.is_idempotent,
            uses_network: tool.uses_network,
            deadline_ms: tool.deadline_ms,
            output_bytes_max: tool.output_bytes_max as u64,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ToolList {
    pub tools: Vec<OfferedTool>,
}

/// The tools of a run, for its runner.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunTools {
    pub tools: Vec<OfferedTool>,
    /// The calls that earlier attempts of the command made, the oldest first.
    #[serde(default)]
    pub earlier_calls: Vec<EarlierCall>,
}

/// A call that an earlier attempt of the command made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EarlierCall {
    pub call_id: String,
    pub name: String,
    /// A JSON object, as text. Long arguments are cut, and are its only member `truncated`.
    pub arguments: String,
    pub status: CallStatus,
    pub result: String,
}

/// The query of a run's tools.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct RunToolsQuery {
    /// The command that is worked on. With it, only the tools that the command allows are listed, and the calls of its earlier
    /// attempts.
    #[param(nullable = false)]
    pub command_id: Option<CommandId>,
    /// Leave out the calls of earlier attempts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_calls: bool,
}

/// The status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CallStatus {
    /// It has not ended: it is executed, or waits for permission. Send the same request again.
    Running,
    Completed,
    Failed,
    Declined,
    OutcomeUnknown,
}

impl From<CallState> for CallStatus {
    fn from(state: CallState) -> Self {
        match state {
            CallState::Requested | CallState::Waiting | CallState::Started => Self::Running,
            CallState::Completed => Self::Completed,
            CallState::Failed => Self::Failed,
            CallState::Declined => Self::Declined,
            CallState::OutcomeUnknown => Self::OutcomeUnknown,
        }
    }
}

/// A call of a tool, by the runner that holds the run's lease.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallTool {
    pub runner_id: String,
    pub lease_epoch: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
    pub command_id: CommandId,
    /// Names the call in its run: the same one again is not executed again.
    pub call_id: String,
    pub name: String,
    /// A JSON object, as the model wrote it.
    #[serde(default)]
    pub arguments: String,
    /// The ids of all calls of this server's tools that the agent makes at once, this one among them, in the same order in each of their
    /// requests. People are asked about them together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reply_calls: Vec<String>,
    /// An earlier request for this call may have reached the server.
    #[serde(default)]
    pub repeated: bool,
    /// How long the response waits for the end of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

impl CallTool {
    /// Checks what the schema of the body cannot express, and returns how long to wait, in milliseconds.
    pub fn check(&self) -> Result<u64, Failure> {
        if !is_call_id(&self.call_id) {
            let message = format!("callId must be letters, digits, _, -, . or :, at most {CALL_ID_BYTES_MAX} of them");
            return Err(Failure::invalid(Rule::ToolCallId, message));
        }
        if self.reply_calls.len() > REPLY_CALLS_MAX || !self.reply_calls.iter().all(|call_id| is_call_id(call_id)) {
            let message = format!("replyCalls must be at most {REPLY_CALLS_MAX} ids of calls");
            return Err(Failure::invalid(Rule::ToolCallId, message));
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(Failure::too_large(Rule::ToolCallSize, "name", self.name.len(), NAME_BYTES_MAX));
        }
        if self.arguments.len() > ARGUMENTS_BYTES_MAX {
            let bytes = self.arguments.len();
            return Err(Failure::too_large(Rule::ToolCallSize, "arguments", bytes, ARGUMENTS_BYTES_MAX));
        }
        cursors::wait_ms(self.wait_ms)
    }
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalledTool {
    pub call_id: String,
    pub status: CallStatus,
    /// The result, or why there is none. Empty while the call is running.
    pub content: String,
    /// The result was longer.
    pub truncated: bool,
    /// The arguments with which the call was executed, if a person has put them in place of those of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub edited_arguments: Option<Map<String, Value>>,
    /// The tokens, the cost and the tool calls of the runs that the call started, if it started any. They count against the budgets of
    /// its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delegated_tokens: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delegated_cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub delegated_tool_calls: Option<i64>,
}

impl CalledTool {
    /// What runs that the call started have used.
    pub fn delegated(&self) -> DelegatedUse {
        let cost_usd = self.delegated_cost_usd.filter(|cost| cost.is_finite() && *cost > 0.0);
        let count = |reported: Option<i64>| reported.unwrap_or(0).max(0);
        let (tokens, tool_calls) = (count(self.delegated_tokens), count(self.delegated_tool_calls));
        DelegatedUse { tokens, cost_usd: cost_usd.unwrap_or(0.0), tool_calls }
    }
}

/// A call of a tool by the operator, outside of any run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TryTool {
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
}
