//! The part of the Agent Client Protocol, version 1, that we use. What a backend sends is read leniently: a missing or
//! unknown member never makes a whole message unreadable.

use ostler_protocol::kernel::permissions::OptionKind;
use serde::Deserialize;
use serde_json::Value;

pub(crate) const PROTOCOL_VERSION: u64 = 1;
/// The error code of a backend that requires a login first.
pub(crate) const AUTH_REQUIRED: i64 = -32000;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AcpInitialized {
    pub(crate) protocol_version: u64,
    pub(crate) agent_info: Option<AgentInfo>,
    pub(crate) agent_capabilities: Option<AgentCapabilities>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct AgentInfo {
    pub(crate) name: String,
    pub(crate) version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AgentCapabilities {
    pub(crate) load_session: bool,
    pub(crate) session_capabilities: Option<SessionCapabilities>,
    pub(crate) mcp_capabilities: Option<McpCapabilities>,
    pub(crate) prompt_capabilities: Option<PromptCapabilities>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct PromptCapabilities {
    /// Prompts may contain images.
    pub(crate) image: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct McpCapabilities {
    /// The backend connects to MCP servers over streamable HTTP.
    pub(crate) http: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct SessionCapabilities {
    /// Present if the backend can resume sessions.
    pub(crate) resume: Option<Value>,
}

/// The reply to `session/new`, `session/load` and `session/resume`. Only the first contains the session's id.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SessionReply {
    pub(crate) session_id: Option<String>,
    pub(crate) models: Option<Models>,
    pub(crate) modes: Option<Modes>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Models {
    pub(crate) current_model_id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Modes {
    pub(crate) current_mode_id: String,
    pub(crate) available_modes: Vec<AcpMode>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct AcpMode {
    pub(crate) id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PromptReply {
    pub(crate) stop_reason: String,
    pub(crate) usage: Option<AcpUsage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionUpdate {
    pub(crate) session_id: String,
    pub(crate) update: Update,
}

/// Any `session/update`. Which members are present depends on its kind.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Update {
    #[serde(rename = "sessionUpdate")]
    pub(crate) kind: String,
    /// One block of a message, or the list of a tool's outputs.
    pub(crate) content: Value,
    pub(crate) entries: Option<Value>,
    /// Of `usage_update`: the tokens that the context of the model may have.
    pub(crate) size: Value,
    #[serde(rename = "_meta")]
    pub(crate) meta: Option<Meta>,
    #[serde(flatten)]
    pub(crate) tool: AcpToolCall,
}

impl Update {
    /// Whether it is about the work on a prompt, as opposed to information about the backend itself.
    pub(crate) fn is_of_turn(&self) -> bool {
        let kinds = ["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"];
        kinds.contains(&self.kind.as_str())
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) usage: Option<AcpUsage>,
    pub(crate) tool_name: Option<String>,
    /// `mcp` if the tool is that of an MCP server.
    pub(crate) provenance: Value,
    /// The name of that server.
    pub(crate) server_id: Value,
}

impl Meta {
    /// Whether it is about a tool of this MCP server. The backend states that itself; a title can be the model's.
    pub(crate) fn is_of_server(&self, server: &str) -> bool {
        self.provenance == "mcp" && self.server_id == server
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AcpUsage {
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
    pub(crate) total_tokens: Option<u64>,
    #[serde(alias = "cachedTokens")]
    pub(crate) cached_read_tokens: Option<u64>,
    pub(crate) cached_write_tokens: Option<u64>,
    pub(crate) thought_tokens: Option<u64>,
}

impl AcpUsage {
    /// All input tokens and all output tokens. Some backends include cached and thought tokens in these counts, others count
    /// them separately. The total tells which.
    pub(crate) fn totals(&self) -> (Option<u64>, Option<u64>) {
        let count = |count: Option<u64>| count.unwrap_or(0).min(COUNT_MAX);
        let cached = count(self.cached_read_tokens) + count(self.cached_write_tokens);
        let thought = count(self.thought_tokens);
        let plain = count(self.input_tokens) + count(self.output_tokens);
        let beside = [(cached, thought), (cached, 0), (0, thought)];
        let is_total = |(cached, thought): &(u64, u64)| self.total_tokens == Some(plain + cached + thought);
        let (read, written) = beside.into_iter().find(is_total).unwrap_or_default();
        (
            self.input_tokens.map(|input| input.min(COUNT_MAX) + read),
            self.output_tokens.map(|output| output.min(COUNT_MAX) + written),
        )
    }
}

/// Counts are capped here, so that their sums do not overflow.
const COUNT_MAX: u64 = 1 << 53;

/// A tool call: complete in `tool_call` and in permission requests, only the changes in `tool_call_update`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AcpToolCall {
    pub(crate) tool_call_id: Option<String>,
    pub(crate) title: Option<String>,
    #[serde(rename = "kind")]
    pub(crate) tool_kind: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) raw_input: Option<Value>,
    pub(crate) raw_output: Option<Value>,
    /// The files that the call concerns.
    pub(crate) locations: Value,
    /// Extensions. Some backends name the tool here.
    #[serde(rename = "_meta")]
    pub(crate) meta: Option<Value>,
}

impl AcpToolCall {
    /// The name of the tool, if the backend gives it.
    pub(crate) fn tool_name(&self) -> Option<&str> {
        self.meta.as_ref().and_then(|meta| meta["toolName"].as_str())
    }

    /// Whether it is a call of this tool: by the name that the backend gives, or by the title if it gives none.
    pub(crate) fn is_of(&self, tool: &str) -> bool {
        match self.tool_name() {
            Some(name) => name == tool,
            None => self.title.as_deref().and_then(|title| title.split([' ', ':', '(']).next()) == Some(tool),
        }
    }
}

/// A tool call that needs permission, with its changes of files.
#[derive(Default, Deserialize)]
pub(crate) struct RequestedCall {
    #[serde(default)]
    pub(crate) content: Value,
    #[serde(flatten)]
    pub(crate) call: AcpToolCall,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PermissionParams {
    pub(crate) tool_call: RequestedCall,
    pub(crate) options: Vec<PermissionOffer>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PermissionOffer {
    pub(crate) option_id: String,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) kind: OptionKind,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadFile {
    pub(crate) path: String,
    /// The first line, counted from 1.
    pub(crate) line: Option<usize>,
    pub(crate) limit: Option<usize>,
}

#[derive(Deserialize)]
pub(crate) struct WriteFile {
    pub(crate) path: String,
    pub(crate) content: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreateTerminal {
    pub(crate) command: String,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: Vec<Variable>,
    pub(crate) cwd: Option<String>,
    pub(crate) output_byte_limit: Option<usize>,
}

#[derive(Deserialize)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TerminalRef {
    pub(crate) terminal_id: String,
}
