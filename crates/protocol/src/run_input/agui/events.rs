//! The AG-UI 1.0 events we send. These types cannot express a shape that a client refuses: an absent optional is left
//! out and never null, a patch is a real JSON Patch, and no event belongs to a subagent.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    json::text_of,
    kernel::{context::Note, front_end::FrontEndTool},
};

pub const PROTOCOL_VERSION: &str = "1.0";
/// The largest count a JavaScript client holds exactly.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgUiEvent {
    #[serde(flatten)]
    pub body: EventBody,
    /// Epoch milliseconds.
    pub timestamp: i64,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl AgUiEvent {
    pub fn to_json(&self) -> String {
        text_of(self)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE", rename_all_fields = "camelCase")]
pub enum EventBody {
    RunStarted {
        thread_id: String,
        run_id: String,
        protocol_version: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_run_id: Option<String>,
        /// What the run was started with, if more than a message.
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<Box<ReplayedInput>>,
    },
    RunFinished {
        thread_id: String,
        run_id: String,
        outcome: Outcome,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<TokenUsage>,
    },
    RunError {
        message: String,
        code: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<TokenUsage>,
    },
    StepStarted {
        step_name: String,
    },
    StepFinished {
        step_name: String,
    },
    TextMessageStart {
        message_id: String,
        role: AssistantRole,
    },
    TextMessageContent {
        message_id: String,
        delta: String,
    },
    TextMessageEnd {
        message_id: String,
    },
    ToolCallStart {
        tool_call_id: String,
        tool_call_name: String,
    },
    ToolCallArgs {
        tool_call_id: String,
        delta: String,
    },
    ToolCallEnd {
        tool_call_id: String,
    },
    ToolCallResult {
        message_id: String,
        tool_call_id: String,
        content: String,
        role: ToolRole,
    },
    StateSnapshot {
        snapshot: Value,
    },
    StateDelta {
        delta: Patch,
    },
    MessagesSnapshot {
        messages: Vec<SnapshotMessage>,
    },
    ActivitySnapshot {
        message_id: String,
        activity_type: String,
        content: Map<String, Value>,
    },
    ActivityDelta {
        message_id: String,
        activity_type: String,
        patch: Patch,
    },
    ReasoningStart {
        message_id: String,
    },
    ReasoningMessageStart {
        message_id: String,
        role: ReasoningRole,
    },
    ReasoningMessageContent {
        message_id: String,
        delta: String,
    },
    ReasoningMessageEnd {
        message_id: String,
    },
    ReasoningEnd {
        message_id: String,
    },
    Custom {
        name: String,
        value: Value,
    },
}

impl EventBody {
    /// The name that is also the SSE frame's `event`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "RUN_STARTED",
            Self::RunFinished { .. } => "RUN_FINISHED",
            Self::RunError { .. } => "RUN_ERROR",
            Self::StepStarted { .. } => "STEP_STARTED",
            Self::StepFinished { .. } => "STEP_FINISHED",
            Self::TextMessageStart { .. } => "TEXT_MESSAGE_START",
            Self::TextMessageContent { .. } => "TEXT_MESSAGE_CONTENT",
            Self::TextMessageEnd { .. } => "TEXT_MESSAGE_END",
            Self::ToolCallStart { .. } => "TOOL_CALL_START",
            Self::ToolCallArgs { .. } => "TOOL_CALL_ARGS",
            Self::ToolCallEnd { .. } => "TOOL_CALL_END",
            Self::ToolCallResult { .. } => "TOOL_CALL_RESULT",
            Self::StateSnapshot { .. } => "STATE_SNAPSHOT",
            Self::StateDelta { .. } => "STATE_DELTA",
            Self::MessagesSnapshot { .. } => "MESSAGES_SNAPSHOT",
            Self::ActivitySnapshot { .. } => "ACTIVITY_SNAPSHOT",
            Self::ActivityDelta { .. } => "ACTIVITY_DELTA",
            Self::ReasoningStart { .. } => "REASONING_START",
            Self::ReasoningMessageStart { .. } => "REASONING_MESSAGE_START",
            Self::ReasoningMessageContent { .. } => "REASONING_MESSAGE_CONTENT",
            Self::ReasoningMessageEnd { .. } => "REASONING_MESSAGE_END",
            Self::ReasoningEnd { .. } => "REASONING_END",
            Self::Custom { .. } => "CUSTOM",
        }
    }
}

/// Roles with one value each: a message of ours is the assistant's, a result a tool's, a thought a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AssistantRole {
    Assistant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolRole {
    Tool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningRole {
    Reasoning,
}

/// The input of a run, as a client reads it back: what is stored of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayedInput {
    pub thread_id: String,
    pub run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// The run's own messages, without the transcript.
    pub messages: Vec<Value>,
    pub tools: Vec<FrontEndTool>,
    pub context: Vec<Note>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum Outcome {
    Success {
        /// Calls of the front end's tools, which the next run answers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pending_tool_call_ids: Vec<String>,
    },
    Interrupt {
        /// At least one.
        interrupts: Vec<Interrupt>,
    },
    Cancelled,
}

/// A permission request, as a front end shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupt {
    pub id: String,
    pub reason: &'static str,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    pub response_schema: Value,
    pub expires_at: String,
    pub metadata: Map<String, Value>,
}

/// What one model of one provider used. Counts are at most [`COUNT_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
}

/// A message as a client holds it: what the events that made it add up to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum SnapshotMessage {
    /// An instruction of the client. Clients remove messages that a snapshot does not have.
    System {
        id: String,
        /// Its text and other fields, as the client sent them.
        #[serde(flatten)]
        fields: Map<String, Value>,
    },
    Developer {
        id: String,
        #[serde(flatten)]
        fields: Map<String, Value>,
    },
    User {
        id: String,
        /// Text, or parts.
        content: Value,
        /// Other fields, as the client sent them.
        #[serde(flatten)]
        fields: Map<String, Value>,
    },
    Assistant {
        id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<SnapshotCall>,
        #[serde(skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
    },
    Tool {
        id: String,
        tool_call_id: String,
        content: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
        /// Other fields, as the client sent them. Empty for a result of the server's own.
        #[serde(flatten)]
        fields: Map<String, Value>,
    },
}

impl SnapshotMessage {
    pub fn id(&self) -> &str {
        match self {
            Self::System { id, .. }
            | Self::Developer { id, .. }
            | Self::User { id, .. }
            | Self::Assistant { id, .. }
            | Self::Tool { id, .. } => id,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "function")]
pub struct SnapshotCall {
    pub id: String,
    pub function: SnapshotFunction,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SnapshotFunction {
    pub name: String,
    /// JSON, as text.
    pub arguments: String,
}

/// A JSON Patch (RFC 6902) whose operations have everything they need.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Patch(Vec<Value>);

impl Patch {
    pub fn read(value: &Value) -> Option<Self> {
        let operations = value.as_array()?;
        operations.iter().all(is_operation).then(|| Self(operations.clone()))
    }

    pub fn operations(&self) -> &[Value] {
        &self.0
    }
}

fn is_operation(operation: &Value) -> bool {
    let pointer = |name: &str| operation[name].as_str().is_some_and(is_pointer);
    let wants = match operation["op"].as_str() {
        Some("add" | "replace" | "test") => operation.get("value").is_some(),
        Some("move" | "copy") => pointer("from"),
        Some("remove") => true,
        _ => false,
    };
    wants && pointer("path")
}

/// RFC 6901: empty, or every token after a slash, and a tilde only where it escapes.
fn is_pointer(text: &str) -> bool {
    let escapes = text.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
    (text.is_empty() || text.starts_with('/')) && escapes
}
