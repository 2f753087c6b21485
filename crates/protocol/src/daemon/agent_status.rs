//! What only a coding agent knows: its slash commands, skills, hooks and language servers. The entries are the agent's own and are
//! passed on as they are; the rest of each response is ours.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::workspace::SNAPSHOT_VERSION;

/// Most entries of a list that are passed on.
const ENTRIES_MAX: usize = 5_000;

/// An entry of the agent's own, such as a command or a skill.
pub type AgentEntry = Map<String, Value>;

/// `GET /session/{sessionId}/supported-commands`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SupportedCommands {
    pub v: u32,
    pub session_id: String,
    /// Slash commands: name, description and what follows the name.
    #[schema(value_type = Vec<Object>)]
    pub available_commands: Vec<AgentEntry>,
    /// Names of skills.
    pub available_skills: Vec<String>,
}

/// `GET /session/{sessionId}/lsp`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionLsp {
    pub v: u32,
    pub session_id: String,
    pub workspace_cwd: String,
    /// Whether the agent uses language servers.
    pub enabled: bool,
    pub configured_servers: u64,
    pub ready_servers: u64,
    pub failed_servers: u64,
    pub in_progress_servers: u64,
    pub not_started_servers: u64,
    /// Each server: its name, languages and status.
    #[schema(value_type = Vec<Object>)]
    pub servers: Vec<AgentEntry>,
}

/// `GET /session/{sessionId}/hooks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionHooks {
    pub v: u32,
    pub session_id: String,
    pub workspace_cwd: String,
    pub disabled: bool,
    /// Each hook: its event, what it runs, and where it is configured.
    #[schema(value_type = Vec<Object>)]
    pub hooks: Vec<AgentEntry>,
}

/// `GET /workspace/hooks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceHooks {
    pub v: u32,
    pub workspace_cwd: String,
    /// False while no process of the agent runs: its hooks are not known then.
    pub initialized: bool,
    pub disabled: bool,
    #[schema(value_type = Vec<Object>)]
    pub hooks: Vec<AgentEntry>,
    /// The events that a hook can be for, by their names.
    #[schema(value_type = Object)]
    pub events: AgentEntry,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub errors: Vec<AgentEntry>,
}

/// `GET /workspace/skills`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSkills {
    pub v: u32,
    pub workspace_cwd: String,
    /// False while no process of the agent runs: its skills are not known then.
    pub initialized: bool,
    /// Each skill: its name, description, level, and whether the model may use it.
    #[schema(value_type = Vec<Object>)]
    pub skills: Vec<AgentEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub errors: Vec<AgentEntry>,
}

/// The objects of a list in an agent's reply. What is no object is left out.
pub fn entries(reply: &Value, name: &str) -> Vec<AgentEntry> {
    let objects = reply[name].as_array().into_iter().flatten().filter_map(Value::as_object);
    objects.take(ENTRIES_MAX).cloned().collect()
}

impl SupportedCommands {
    pub fn of(session_id: &str, reply: &Value) -> Self {
        let skills = reply["availableSkills"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self {
            v: SNAPSHOT_VERSION,
            session_id: session_id.to_owned(),
            available_commands: entries(reply, "availableCommands"),
            available_skills: skills.take(ENTRIES_MAX).map(str::to_owned).collect(),
        }
    }
}

impl SessionLsp {
    pub fn of(session_id: &str, workspace_cwd: &str, reply: &Value) -> Self {
        let count = |name: &str| reply[name].as_u64().unwrap_or(0);
        Self {
            v: SNAPSHOT_VERSION,
            session_id: session_id.to_owned(),
            workspace_cwd: workspace_cwd.to_owned(),
            enabled: reply["enabled"] == true,
            configured_servers: count("configuredServers"),
            ready_servers: count("readyServers"),
            failed_servers: count("failedServers"),
            in_progress_servers: count("inProgressServers"),
            not_started_servers: count("notStartedServers"),
            servers: entries(reply, "servers"),
        }
    }
}

impl SessionHooks {
    pub fn of(session_id: &str, workspace_cwd: &str, reply: &Value) -> Self {
        Self {
            v: SNAPSHOT_VERSION,
            session_id: session_id.to_owned(),
            workspace_cwd: workspace_cwd.to_owned(),
            disabled: reply["disabled"] == true,
            hooks: entries(reply, "hooks"),
        }
    }
}

impl WorkspaceHooks {
    /// `None`: no process of the agent runs.
    pub fn of(workspace_cwd: String, reply: Option<&Value>) -> Self {
        let nothing = Value::Null;
        let (initialized, reply) = (reply.is_some(), reply.unwrap_or(&nothing));
        Self {
            v: SNAPSHOT_VERSION,
            workspace_cwd,
            initialized,
            disabled: reply["disabled"] == true,
            hooks: entries(reply, "hooks"),
            events: reply["events"].as_object().cloned().unwrap_or_default(),
            errors: entries(reply, "errors"),
        }
    }
}

impl WorkspaceSkills {
    /// `None`: no process of the agent runs.
    pub fn of(workspace_cwd: String, reply: Option<&Value>) -> Self {
        let nothing = Value::Null;
        let (initialized, reply) = (reply.is_some(), reply.unwrap_or(&nothing));
        let (skills, errors) = (entries(reply, "skills"), entries(reply, "errors"));
        Self { v: SNAPSHOT_VERSION, workspace_cwd, initialized, skills, errors }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replies_that_lack_members_or_have_wrong_ones_are_read_as_empty() {
        for reply in [json!({}), json!(null), json!({"skills": 7, "hooks": [1, "a"], "servers": {}, "enabled": "yes"})]
        {
            assert!(WorkspaceSkills::of("/w".into(), Some(&reply)).skills.is_empty());
            assert!(SessionHooks::of("s", "/w", &reply).hooks.is_empty());
            let lsp = SessionLsp::of("s", "/w", &reply);
            assert!(!lsp.enabled && lsp.servers.is_empty());
        }
    }

    #[test]
    fn the_session_is_ours_and_the_entries_are_the_agents() {
        let reply = json!({"sessionId": "theirs", "availableCommands": [{"name": "init", "_meta": {"a": 1}}],
            "availableSkills": ["review", 7]});
        let commands = SupportedCommands::of("ours", &reply);
        assert_eq!((commands.session_id.as_str(), commands.available_skills), ("ours", vec!["review".to_owned()]));
        assert_eq!(commands.available_commands[0]["_meta"], json!({"a": 1}));
        assert!(!WorkspaceHooks::of("/w".into(), None).initialized);
    }
}
