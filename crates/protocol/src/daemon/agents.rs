//! Subagents of a coding agent: definitions in files with front matter, of the workspace or of the agent's home. Clients call a
//! subagent an agent.

mod definition;
mod front_matter;

pub use definition::{AgentDefinition, AgentLevel};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::cells::StatusCell;
use crate::{
    Failure, Rule,
    json::{present, value_of},
};

/// The folder of definitions, in the workspace and in the agent's home.
pub const AGENTS_FOLDER: &str = ".qwen/agents";
/// Maximum bytes of a file with a definition.
pub const AGENT_FILE_BYTES_MAX: usize = 768 * 1024;
/// Maximum number of files that are read of a folder.
pub const AGENT_FILES_MAX: usize = 512;
/// Maximum bytes that are read of all files of a folder together.
pub const AGENT_FOLDER_BYTES_MAX: usize = 8 * 1024 * 1024;
const NAME_CHARS_MIN: usize = 2;
const NAME_CHARS_MAX: usize = 64;
const DESCRIPTION_BYTES_MAX: usize = 4_096;

/// Agents that the program has itself. Their definitions are not known here.
pub const BUILT_IN_AGENTS: [(&str, &str); 4] = [
    ("general-purpose", "Researches questions, searches code and does tasks of several steps."),
    ("Explore", "Explores a code base quickly, by patterns and keywords."),
    ("statusline-setup", "Configures the status line of the program."),
    ("review-agent", "One part of a code review."),
];

/// `GET /workspace/agents`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentList {
    pub v: u32,
    pub workspace_cwd: String,
    pub agents: Vec<AgentSummary>,
    /// Files that cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<StatusCell>,
}

/// An agent of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentSummary {
    /// `agent`.
    pub kind: String,
    pub name: String,
    pub description: String,
    pub level: AgentLevel,
    pub is_builtin: bool,
    /// The file of an agent of the workspace. Absent for others: paths in the server's data directory are not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub file_path: Option<String>,
    /// Whether it is restricted to some tools.
    pub has_tools: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tools: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub disallowed_tools: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, nullable = false)]
    pub model: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, nullable = false)]
    pub color: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, nullable = false)]
    pub background: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, nullable = false)]
    pub approval_mode: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, nullable = false)]
    pub permission_mode: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = i64, nullable = false)]
    pub max_turns: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable = false)]
    pub run_config: Option<Value>,
    /// The names of its MCP servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub mcp_server_names: Option<Vec<String>>,
    /// The events of its hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hook_events: Option<Vec<String>>,
}

/// `GET /workspace/agents/{agentType}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentDetail {
    #[serde(flatten)]
    pub summary: AgentSummary,
    pub system_prompt: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable = false)]
    pub mcp_servers: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable = false)]
    pub hooks: Option<Value>,
}

impl AgentDetail {
    /// Without members whose commands, variables and headers can contain secrets.
    pub fn without_programs(self) -> Self {
        Self { mcp_servers: None, hooks: None, ..self }
    }
}

/// The response to a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentChanged {
    pub ok: bool,
    pub agent: AgentDetail,
    /// Absent for an agent that was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub changed: Option<bool>,
}

/// `POST /workspace/agents`, and `POST /workspace/agents/{agentType}` without `scope` and `name`. Null removes what an agent need not
/// have.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentBody {
    /// Where a new agent is stored: `workspace` or `global`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub scope: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub name: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub description: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub system_prompt: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub tools: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub disallowed_tools: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub model: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub color: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub approval_mode: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub permission_mode: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    pub max_turns: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub run_config: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub background: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub mcp_servers: Option<Value>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub hooks: Option<Value>,
}

impl AgentBody {
    /// Where a new agent is stored.
    pub fn level(&self) -> Result<AgentLevel, Failure> {
        let scope = self.scope.as_ref().and_then(Value::as_str);
        AgentLevel::of_scope(scope).and_then(|level| level.ok_or_else(invalid_scope))
    }

    /// Whether it gives the agent hooks or MCP servers, which can start programs. An empty object removes them.
    pub fn names_programs(&self) -> bool {
        let is_given = |value: &Value| !value.is_null() && value.as_object().is_none_or(|record| !record.is_empty());
        [&self.mcp_servers, &self.hooks].into_iter().flatten().any(is_given)
    }

    /// What the body names, by the names of a definition.
    fn members(&self) -> Map<String, Value> {
        match value_of(self) {
            Value::Object(members) => members,
            _ => Map::new(),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct AgentScope {
    /// `workspace` or `global`. Left out: the workspace first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// `POST /workspace/agents/generate`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenerateAgent {
    /// What the agent is for, in at most 4096 bytes.
    #[schema(value_type = String)]
    pub description: Option<Value>,
}

impl GenerateAgent {
    pub fn read(&self) -> Result<&str, Failure> {
        let text = self.description.as_ref().and_then(Value::as_str).unwrap_or_default();
        match text.trim().is_empty() || text.len() > DESCRIPTION_BYTES_MAX {
            false => Ok(text.trim()),
            true => {
                let message = format!("description must be text of 1 to {DESCRIPTION_BYTES_MAX} bytes");
                Err(Failure::invalid(Rule::InvalidDescription, message))
            }
        }
    }
}

/// A definition that the agent's model has written. It is stored nowhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GeneratedAgent {
    pub name: String,
    pub description: String,
    pub system_prompt: String,
}

pub(crate) fn invalid_scope() -> Failure {
    Failure::invalid(Rule::InvalidScope, "scope must be workspace or global")
}

fn is_agent_name(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') && name.chars().count() <= NAME_CHARS_MAX
}

/// The name of an agent in a path.
pub fn check_agent_type(name: &str) -> Result<&str, Failure> {
    if !name.is_empty() && is_agent_name(name) {
        return Ok(name);
    }
    let message = format!("the name of an agent is at most {NAME_CHARS_MAX} letters, digits, hyphens or underscores");
    Err(Failure::invalid(Rule::InvalidAgentType, message).detail("agentType", name))
}
