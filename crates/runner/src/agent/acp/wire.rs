//! The Agent Client Protocol, version 1, as far as we speak it. What an agent sends is read loosely: a member that is
//! missing or unknown never makes a whole message unreadable.

use ostler_protocol::permissions::OptionKind;
use serde::Deserialize;
use serde_json::Value;

pub const PROTOCOL_VERSION: u64 = 1;
/// The code by which an agent says that it wants a login first.
pub const AUTH_REQUIRED: i64 = -32000;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Initialized {
    pub protocol_version: u64,
    pub agent_info: Option<AgentInfo>,
    pub agent_capabilities: Option<AgentCapabilities>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct AgentInfo {
    pub name: String,
    pub version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentCapabilities {
    pub load_session: bool,
    pub session_capabilities: Option<SessionCapabilities>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct SessionCapabilities {
    /// There when the agent can resume.
    pub resume: Option<Value>,
}

/// The answer to `session/new`, `session/load` and `session/resume`; only the first names the session.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Opened {
    pub session_id: Option<String>,
    pub models: Option<Models>,
    pub modes: Option<Modes>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Models {
    pub current_model_id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Modes {
    pub current_mode_id: String,
    pub available_modes: Vec<Mode>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Mode {
    pub id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Prompted {
    pub stop_reason: String,
    pub usage: Option<Usage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Updated {
    pub session_id: String,
    pub update: Update,
}

/// Any `session/update`; which members are there depends on its kind.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Update {
    #[serde(rename = "sessionUpdate")]
    pub kind: String,
    /// One block of a message, or a list of what a tool has produced.
    pub content: Value,
    pub entries: Option<Value>,
    #[serde(rename = "_meta")]
    pub meta: Option<Meta>,
    #[serde(flatten)]
    pub tool: ToolCall,
}

impl Update {
    /// Whether it tells of the work on a prompt, as opposed to what the agent says of itself at any time.
    pub fn is_of_turn(&self) -> bool {
        let kinds = ["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"];
        kinds.contains(&self.kind.as_str())
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    pub usage: Option<Usage>,
    pub tool_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    pub total_tokens: Option<u64>,
    #[serde(alias = "cachedTokens")]
    pub cached_read_tokens: Option<u64>,
    pub cached_write_tokens: Option<u64>,
    pub thought_tokens: Option<u64>,
}

impl Usage {
    /// All that was read and all that was written. Some agents count what came from a cache, and what was thought, among
    /// these; others count it beside them, which the total tells.
    pub fn whole(&self) -> (Option<u64>, Option<u64>) {
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

/// No agent counts beyond this; sums of these do not overflow.
const COUNT_MAX: u64 = 1 << 53;

/// What is known of a tool call: whole in `tool_call` and permission requests, changes in `tool_call_update`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolCall {
    pub tool_call_id: Option<String>,
    pub title: Option<String>,
    #[serde(rename = "kind")]
    pub tool_kind: Option<String>,
    pub status: Option<String>,
    pub raw_input: Option<Value>,
    pub raw_output: Option<Value>,
}

/// A call that somebody is asked about, with what it would make of files.
#[derive(Default, Deserialize)]
pub struct AskedCall {
    #[serde(default)]
    pub content: Value,
    #[serde(flatten)]
    pub call: ToolCall,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionAsked {
    pub tool_call: AskedCall,
    pub options: Vec<PermissionOffer>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOffer {
    pub option_id: String,
    #[serde(default)]
    pub name: String,
    pub kind: OptionKind,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadFile {
    pub path: String,
    /// The first line, counted from 1.
    pub line: Option<usize>,
    pub limit: Option<usize>,
}

#[derive(Deserialize)]
pub struct WriteFile {
    pub path: String,
    pub content: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateTerminal {
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<Variable>,
    pub cwd: Option<String>,
    pub output_byte_limit: Option<usize>,
}

#[derive(Deserialize)]
pub struct Variable {
    pub name: String,
    pub value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfTerminal {
    pub terminal_id: String,
}
