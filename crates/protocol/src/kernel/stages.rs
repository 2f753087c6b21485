//! Stages of a turn: a router plans, and a worker executes the plan. A dialect asks for them in the command's payload
//! (`runtimeConfig`), together with the tools that the turn may use. A backend that is only a model works in stages; other
//! agents plan for themselves. The tools are limited for every backend.
//!
//! These are the pure rules: the request, the plan with its checks, and the texts that a model receives.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    RawJson,
    kernel::{
        context::Context,
        conversation::{ConversationMessage, PastCall, Role},
    },
    text::{clip, is_blank_text},
};

/// The names of the stages in `step` events.
pub const STAGE_ROUTER: &str = "router";
pub const STAGE_WORKER: &str = "worker";
/// The function that a model calls to return its plan.
pub const PLAN_FUNCTION: &str = "make_plan";
/// Bytes of a plan, as the model writes it.
pub const PLAN_BYTES_MAX: usize = 16 * 1024;
/// Characters of the worker's instructions in a plan.
pub const PLAN_INSTRUCTIONS_CHARS_MAX: usize = 4_000;
/// How long a router may take, unless the request sets another time.
pub const ROUTER_MS_DEFAULT: u64 = 30_000;
pub const ROUTER_MS_MAX: u64 = 300_000;
/// Characters of a tool's description that a router receives.
const DESCRIPTION_CHARS_MAX: usize = 200;
/// Characters of an unknown name that are reported.
const NAME_CHARS_MAX: usize = 64;

/// Whether a turn is planned before it is worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RouterMode {
    /// The worker gets everything.
    #[default]
    Off,
    /// The model decides in its first reply: it answers or calls tools at once, or it plans.
    Auto,
    /// A request of its own makes the plan.
    Always,
}

/// What a dialect asks of a turn beside its prompt. Other fields of the same object are the dialect's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeConfig {
    /// `None` if the turn has no stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterMode>,
    /// How long a router may take that has a request of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_ms: Option<u64>,
    /// The server's tools that the turn may use, which the server enforces. `None`: all that the run is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_tools: Option<Vec<String>>,
    /// Maximum number of earlier messages of the session that the model receives. `None`: as many as fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_max: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimePayload {
    runtime_config: Option<RuntimeConfig>,
}

impl RuntimeConfig {
    /// The request in a command's payload.
    pub fn of(payload: &RawJson) -> Self {
        payload.view::<RuntimePayload>().and_then(|payload| payload.runtime_config).unwrap_or_default()
    }

    /// How long a router may take, in milliseconds.
    pub fn router_limit_ms(&self) -> u64 {
        self.router_ms.unwrap_or(ROUTER_MS_DEFAULT).clamp(1, ROUTER_MS_MAX)
    }

    /// The router of a turn, or `None` if the turn has no stages. An attempt that continues after calls of an earlier one is past its
    /// plan. A turn that only brings results of calls continues the work of the turn before, so that its router gets no request of
    /// its own.
    pub fn effective_router(&self, has_earlier_calls: bool, only_brings_results: bool) -> Option<RouterMode> {
        match self.router? {
            _ if has_earlier_calls => Some(RouterMode::Off),
            RouterMode::Always if only_brings_results => Some(RouterMode::Auto),
            mode => Some(mode),
        }
    }
}

/// A part of what the worker may receive with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanContext {
    /// The earlier messages of the session.
    Conversation,
    /// Messages that the front end sent along.
    Messages,
    /// Notes that the front end sent along.
    Notes,
    /// The user's clock.
    Clock,
    /// The state that the front end shares.
    State,
}

impl PlanContext {
    pub const ALL: [Self; 5] = [Self::Conversation, Self::Messages, Self::Notes, Self::Clock, Self::State];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::Messages => "messages",
            Self::Notes => "notes",
            Self::Clock => "clock",
            Self::State => "state",
        }
    }
}

/// What a router returns. Fields that it invents are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnPlan {
    /// The tools that the worker gets, each once.
    pub tools: Vec<String>,
    /// `None`: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<PlanContext>>,
    /// What the worker should do.
    pub instructions: String,
}

/// Why there is no plan. The worker then gets everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanProblem {
    Empty,
    /// It called a tool, which only the worker may do.
    ToolCall(String),
    NotJson,
    /// It is JSON, but not a plan.
    Shape,
    UnknownTool(String),
    TooLong,
    TimedOut,
    /// The reply broke off.
    Interrupted,
}

impl PlanProblem {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::ToolCall(_) => "tool-call",
            Self::NotJson => "not-json",
            Self::Shape => "shape",
            Self::UnknownTool(_) => "unknown-tool",
            Self::TooLong => "too-long",
            Self::TimedOut => "timed-out",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for PlanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the router returned nothing"),
            Self::ToolCall(name) => write!(f, "the router called the tool {name:?} instead of returning a plan"),
            Self::NotJson => f.write_str("the router did not return JSON"),
            Self::Shape => f.write_str("the router returned JSON that is not a plan"),
            Self::UnknownTool(name) => write!(f, "the router's plan has a tool that does not exist: {name:?}"),
            Self::TooLong => f.write_str("the router's plan is too long"),
            Self::TimedOut => f.write_str("the router took too long"),
            Self::Interrupted => f.write_str("the router's reply broke off"),
        }
    }
}

impl TurnPlan {
    /// Reads a plan as a model wrote it, also between the fences of a code block. `exists` decides whether the worker can get a tool.
    pub fn read(text: &str, exists: impl Fn(&str) -> bool) -> Result<Self, PlanProblem> {
        if text.len() > PLAN_BYTES_MAX {
            return Err(PlanProblem::TooLong);
        }
        if is_blank_text(text) {
            return Err(PlanProblem::Empty);
        }
        let value: Value = serde_json::from_str(without_fences(text)).map_err(|_| PlanProblem::NotJson)?;
        let mut plan: Self = serde_json::from_value(value).map_err(|_| PlanProblem::Shape)?;
        if is_blank_text(&plan.instructions) {
            return Err(PlanProblem::Shape);
        }
        if plan.instructions.chars().count() > PLAN_INSTRUCTIONS_CHARS_MAX {
            return Err(PlanProblem::TooLong);
        }
        if let Some(unknown) = plan.tools.iter().find(|name| !exists(name)) {
            return Err(PlanProblem::UnknownTool(clip(unknown, NAME_CHARS_MAX)));
        }
        let mut tools: Vec<String> = vec![];
        for name in plan.tools {
            if !tools.contains(&name) {
                tools.push(name);
            }
        }
        plan.tools = tools;
        Ok(plan)
    }

    /// Whether the worker receives this part of the context.
    pub fn uses(&self, part: PlanContext) -> bool {
        self.context.as_ref().is_none_or(|parts| parts.contains(&part))
    }

    /// The parts of the front end's context that the worker receives. What belongs to the message itself always stays.
    pub fn select(&self, context: Context) -> Context {
        Context {
            messages: if self.uses(PlanContext::Messages) { context.messages } else { vec![] },
            notes: if self.uses(PlanContext::Notes) { context.notes } else { vec![] },
            about: context.about,
            clock: context.clock.filter(|_| self.uses(PlanContext::Clock)),
            state: context.state.filter(|_| self.uses(PlanContext::State)),
            tools: context.tools,
            tool_answers: context.tool_answers,
        }
    }

    /// The text that follows the message in the worker's request.
    pub fn worker_text(&self) -> String {
        format!(
            "<plan>\n{}\n</plan>\n\nThe plan above was made for you. Follow it where it helps, and answer the message itself.",
            self.instructions
        )
    }
}

/// A JSON text without the fences of a code block around it.
fn without_fences(text: &str) -> &str {
    let text = text.trim();
    let fenced = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match fenced {
        Some(inside) => inside.strip_prefix("json").unwrap_or(inside).trim(),
        None => text,
    }
}

/// The text that follows the message in a router's own request. `tools` are names with descriptions.
pub fn router_text<'a>(tools: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = format!(
        "<router>\nDo not answer the message above, and do not do what it asks: plan it for a worker. Call {PLAN_FUNCTION}, \
        or reply with its arguments only, as one JSON object: {{\"tools\": [names of the tools that the worker may need], \
        \"context\": [parts of the context that the worker needs: {}], \"instructions\": \"what the worker should do\"}}. \
        Leave out \"context\" if the worker needs all of it.\n",
        PlanContext::ALL.map(PlanContext::as_str).join(", ")
    );
    let mut has_tools = false;
    for (name, description) in tools {
        if !std::mem::replace(&mut has_tools, true) {
            text += "The tools are:\n";
        }
        let first_line = description.lines().next().unwrap_or_default();
        text += &format!("- {name}: {}\n", clip(first_line, DESCRIPTION_CHARS_MAX));
    }
    if !has_tools {
        text += "There are no tools.\n";
    }
    text + "</router>"
}

/// The function [`PLAN_FUNCTION`], as it is offered to a model together with these tools.
pub fn plan_function(tools: &[String]) -> Value {
    let mut tool = json!({"type": "string"});
    if !tools.is_empty() {
        tool["enum"] = json!(tools);
    }
    let description = "Plans a task that takes several steps, before anything else is done. Call it alone, and at most once. \
        Do not call it for a message that you can answer at once or with a call of one tool.";
    let parameters = json!({
        "type": "object",
        "properties": {
            "tools": {"type": "array", "items": tool, "description": "The tools that the task may need."},
            "context": {
                "type": "array",
                "items": {"type": "string", "enum": PlanContext::ALL},
                "description": "The parts of the context that the task needs. Left out: all of it.",
            },
            "instructions": {"type": "string", "description": "What to do, step by step."},
        },
        "required": ["tools", "instructions"],
    });
    json!({"type": "function", "function": {"name": PLAN_FUNCTION, "description": description, "parameters": parameters}})
}

/// The last `max` messages, or fewer: the first is a user's. Returns them with the calls of tools between them.
pub fn window<'a>(
    messages: &'a [ConversationMessage],
    calls: &[PastCall],
    max: usize,
) -> (&'a [ConversationMessage], Vec<PastCall>) {
    let Some(excess) = messages.len().checked_sub(max).filter(|excess| *excess > 0) else {
        return (messages, calls.to_vec());
    };
    let later = messages[excess..].iter().position(|message| message.role == Role::User);
    let start = later.map_or(messages.len(), |later| excess + later);
    // The calls before the first message that stays belong to a turn that does not.
    let stay = calls.iter().filter(|call| call.before > start);
    let calls = stay.map(|call| PastCall { before: call.before - start, ..call.clone() }).collect();
    (&messages[start..], calls)
}

/// Number of messages from the last one of the user on. Results of tools make no sense without them.
pub fn last_exchange(messages: &[ConversationMessage]) -> usize {
    messages.iter().rev().position(|message| message.role == Role::User).map_or(0, |later| later + 1)
}
