//! MCP servers and tools of the workspace, as clients see and change them. No reply has a command, an argument, a variable, a
//! header or a URL of a server: any of them can hold a secret.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::cells::{CellErrorKind, CellStatus, StatusCell};
use crate::{
    Failure, Rule,
    json::text_of,
    mcp::{
        budget::BudgetMode,
        config::{McpServer, McpTransport, McpValue},
        names::{SERVER_NAME_BYTES_MAX, TOOL_NAME_BYTES_MAX, is_server_name, is_tool_name},
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpDiscoveryState {
    /// No server was connected since the server started.
    NotStarted,
    InProgress,
    Completed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum McpRuntimeStatus {
    Connected,
    Connecting,
    Disconnected,
}

/// Why a server is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum McpDisabledReason {
    /// It is switched off.
    Config,
    /// The budget of connections is used up.
    Budget,
}

/// Where a server comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpConfigOrigin {
    /// The server's configuration.
    SystemSettings,
    /// A client added it. It is gone when the server ends.
    Runtime,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpServerStatus {
    /// Always `mcp_server`.
    pub kind: String,
    pub status: CellStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error_kind: Option<CellErrorKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    pub name: String,
    pub mcp_status: McpRuntimeStatus,
    pub transport: McpTransport,
    pub disabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub disabled_reason: Option<McpDisabledReason>,
    pub config_origin: McpConfigOrigin,
    /// Whether `DELETE /workspace/mcp/servers/{name}` removes it.
    pub removable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub description: Option<String>,
}

/// How much of the budget of connections is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpBudgetStatus {
    /// Always `mcp_budget`.
    pub kind: String,
    pub status: CellStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error_kind: Option<CellErrorKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    /// `workspace` if sessions share connections, otherwise `session`.
    pub scope: String,
    pub live_count: u32,
    pub budget: u32,
    pub mode: BudgetMode,
    pub refused_count: usize,
}

/// `GET /workspace/mcp`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpStatus {
    pub v: u32,
    /// Absent if the server is bound to no workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub workspace_cwd: Option<String>,
    pub initialized: bool,
    pub discovery_state: McpDiscoveryState,
    pub servers: Vec<McpServerStatus>,
    /// How many servers are connected.
    pub client_count: u32,
    /// Absent if there is no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub client_budget: Option<u32>,
    pub budget_mode: BudgetMode,
    pub budgets: Vec<McpBudgetStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpToolStatus {
    /// The name under which agents call it.
    pub name: String,
    pub server_tool_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub schema: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub annotations: Option<Map<String, Value>>,
    pub is_valid: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub invalid_reason: Option<String>,
}

/// `GET /workspace/mcp/{server}/tools`. The tools that the server listed last, without those that are switched off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpToolsStatus {
    pub v: u32,
    /// Absent if the server is bound to no workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub workspace_cwd: Option<String>,
    pub server_name: String,
    pub initialized: bool,
    /// Whether the server is connected.
    pub acp_channel_live: bool,
    pub tools: Vec<McpToolStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<StatusCell>,
}

/// Which connections of a server are restarted.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartQuery {
    /// The index of one connection, or `*` for all of them.
    pub entry_index: Option<String>,
}

impl RestartQuery {
    /// `None`: all of them.
    pub fn index(&self) -> Result<Option<usize>, Failure> {
        let Some(text) = self.entry_index.as_deref().filter(|text| *text != "*") else { return Ok(None) };
        let canonical = text.parse::<usize>().ok().filter(|index| index.to_string() == text);
        canonical.map(Some).ok_or_else(invalid_index)
    }
}

pub fn invalid_index() -> Failure {
    Failure::invalid(Rule::InvalidEntryIndex, "entryIndex must be the index of a connection, or *")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpRestartReason {
    /// The server is connecting.
    InFlight,
    Disabled,
    BudgetWouldExceed,
    /// It could not be connected again.
    RestartFailed,
}

/// `POST /workspace/mcp/{server}/restart`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum McpRestarted {
    Entries(McpEntriesRestarted),
    Skipped(McpRestartSkipped),
    Done(McpServerRestarted),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpServerRestarted {
    pub server_name: String,
    pub restarted: bool,
    pub duration_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpRestartSkipped {
    pub server_name: String,
    pub restarted: bool,
    pub skipped: bool,
    pub reason: McpRestartReason,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpEntriesRestarted {
    pub server_name: String,
    pub entries: Vec<McpEntryRestarted>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpEntryRestarted {
    pub entry_index: usize,
    pub restarted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<McpRestartReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum McpManageAction {
    Enable,
    Disable,
    Authenticate,
    ClearAuth,
}

/// `POST /workspace/mcp/{server}/enable`, `/disable`, `/authenticate` and `/clear-auth`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpManaged {
    pub server_name: String,
    pub action: McpManageAction,
    pub ok: bool,
    pub changed: bool,
}

/// `POST /workspace/mcp/servers`. Not to be logged: it can hold secrets.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct AddMcpServer {
    #[schema(value_type = String, required)]
    pub name: Option<Value>,
    #[schema(value_type = RuntimeMcpConfig, required)]
    pub config: Option<Value>,
}

/// A server as clients describe it. `trust` and other members are ignored: a client cannot make agents skip an approval.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RuntimeMcpConfig {
    /// `stdio` or `http`. It can be left out.
    #[serde(rename = "type")]
    pub type_name: Option<String>,
    pub command: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub url: Option<String>,
    pub http_url: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// Milliseconds.
    pub timeout: Option<u64>,
    pub description: Option<String>,
    /// WebSockets are not supported.
    pub tcp: Option<String>,
}

impl AddMcpServer {
    /// The name and the server, checked.
    pub fn read(self) -> Result<(String, McpServer), Failure> {
        let name = self.name.as_ref().and_then(Value::as_str).unwrap_or_default();
        let name = check_new_name(name)?.to_owned();
        let missing = || {
            let failure = Failure::invalid(Rule::MissingRequiredField, "config must be an object");
            failure.detail("field", "config")
        };
        let config = self.config.filter(Value::is_object).ok_or_else(missing)?;
        let unreadable = |why: &str| Failure::invalid(Rule::InvalidMcpConfig, format!("the configuration {why}"));
        // The message of the parser could quote a value.
        let config: RuntimeMcpConfig =
            serde_json::from_str(&text_of(&config)).map_err(|_| unreadable("has a member of the wrong type"))?;
        let server = config.server().map_err(unreadable)?;
        server.check().map_err(|why| unreadable(&why))?;
        Ok((name, server))
    }
}

impl RuntimeMcpConfig {
    fn server(self) -> Result<McpServer, &'static str> {
        if !matches!(self.type_name.as_deref(), None | Some("stdio" | "http")) || self.tcp.is_some() {
            return Err("has a transport that is not supported; use stdio or streamable HTTP");
        }
        let values = |values: BTreeMap<String, String>| {
            values.into_iter().map(|(name, text)| (name, McpValue::Text(text.into()))).collect()
        };
        let default = McpServer::default();
        Ok(McpServer {
            command: self.command,
            args: self.args,
            env: values(self.env),
            cwd: self.cwd,
            url: self.http_url.or(self.url),
            headers: values(self.headers),
            timeout_ms: self.timeout.unwrap_or(default.timeout_ms),
            description: self.description,
            ..default
        })
    }
}

/// Checks the name of a server that is added or removed.
pub fn check_new_name(name: &str) -> Result<&str, Failure> {
    let message = format!("the name must be 1 to {SERVER_NAME_BYTES_MAX} letters, digits, _ or -");
    if is_server_name(name) { Ok(name) } else { Err(Failure::invalid(Rule::InvalidServerName, message)) }
}

/// Checks the name of a server that a path names.
pub fn check_named(name: &str) -> Result<&str, Failure> {
    let message = format!("the name of the server must be 1 to {SERVER_NAME_BYTES_MAX} bytes");
    let fits = (1..=SERVER_NAME_BYTES_MAX).contains(&name.len());
    if fits { Ok(name) } else { Err(Failure::invalid(Rule::InvalidServerName, message)) }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum McpServerAdded {
    Skipped(McpChangeSkipped),
    Added(AddedMcpServer),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddedMcpServer {
    pub name: String,
    pub transport: McpTransport,
    /// Whether a client had added one of this name before.
    pub replaced: bool,
    /// Whether it takes the place of a configured one.
    pub shadowed_settings: bool,
    pub tool_count: usize,
    /// The client that added it. Absent for a caller that cannot attach one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub originator_client_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum McpServerRemoved {
    Skipped(McpChangeSkipped),
    Removed(RemovedMcpServer),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovedMcpServer {
    pub name: String,
    pub removed: bool,
    /// Whether a configured one of this name is in force again.
    pub was_shadowing_settings: bool,
    /// The client that removed it. Absent for a caller that cannot attach one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub originator_client_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct McpChangeSkipped {
    pub name: String,
    pub skipped: bool,
    pub reason: McpSkipReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpSkipReason {
    /// The server was not added: it would exceed the budget, which only warns.
    BudgetWarningOnly,
    NotPresent,
}

/// `POST /workspace/tools/{name}/enable`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ToggleTool {
    #[schema(value_type = bool, required)]
    pub enabled: Option<Value>,
}

impl ToggleTool {
    pub fn read(&self) -> Result<bool, Failure> {
        let flag = self.enabled.as_ref().and_then(Value::as_bool);
        flag.ok_or_else(|| Failure::invalid(Rule::InvalidEnabledFlag, "enabled must be true or false"))
    }
}

/// Checks the name of a tool that a path names.
pub fn check_tool_name(name: &str) -> Result<&str, Failure> {
    let message = format!("the name of the tool must be 1 to {TOOL_NAME_BYTES_MAX} printable bytes");
    if is_tool_name(name) { Ok(name) } else { Err(Failure::invalid(Rule::InvalidToolName, message)) }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolToggled {
    pub tool_name: String,
    pub enabled: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(name: Value, config: Value) -> Result<McpServer, Option<Rule>> {
        let added: AddMcpServer = serde_json::from_value(json!({"name": name, "config": config})).unwrap();
        added.read().map(|(_, server)| server).map_err(|failure| failure.broken_rule())
    }

    #[test]
    fn clients_describe_servers_as_published_ones_do() {
        let server = read(json!("a"), json!({"httpUrl": "https://x/mcp", "timeout": 5, "trust": true})).unwrap();
        assert_eq!((server.url.as_deref(), server.timeout_ms), (Some("https://x/mcp"), 5));
        let server = read(json!("a"), json!({"type": "stdio", "command": "x", "env": {"A": "pl4nted"}})).unwrap();
        assert_eq!(server.command.as_deref(), Some("x"));
        assert!(!format!("{server:?}").contains("pl4nted"));
        for name in [json!(null), json!(7), json!(""), json!("a b"), json!("x".repeat(257))] {
            assert_eq!(read(name, json!({"command": "x"})).unwrap_err(), Some(Rule::InvalidServerName));
        }
        assert_eq!(read(json!("a"), json!(null)).unwrap_err(), Some(Rule::MissingRequiredField));
        for config in
            [json!({}), json!({"tcp": "x:1"}), json!({"type": "sse", "url": "http://x"}), json!({"command": ["x"]})]
        {
            assert_eq!(read(json!("a"), config).unwrap_err(), Some(Rule::InvalidMcpConfig));
        }
    }

    #[test]
    fn an_index_is_a_plain_number_or_a_star() {
        let index = |text: Option<&str>| RestartQuery { entry_index: text.map(str::to_owned) }.index().ok();
        assert_eq!((index(None), index(Some("*")), index(Some("0"))), (Some(None), Some(None), Some(Some(0))));
        for bad in ["", "-1", "01", "1.0", "x"] {
            assert_eq!(index(Some(bad)), None, "{bad}");
        }
    }
}
