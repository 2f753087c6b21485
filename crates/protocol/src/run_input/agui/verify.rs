//! The client's rules of sequence, enforced on the output: a client that finds one broken aborts the run. Events that
//! are not allowed are dropped, and what was left open is closed before the end, so that no agent can make us send a
//! stream that a client rejects. Rules about subagents hold by themselves: our events cannot name one.

use serde_json::Map;

use super::events::{AgUiEvent, Body};

/// What may be open at once. One more closes the oldest: each costs every follower memory.
pub const OPEN_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Before,
    Running,
    Over,
}

/// Something with a beginning and an end, by its kind and name. An id is only unique within its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Open {
    Text(String),
    Tool(String),
    Span(String),
    Thought(String),
    Step(String),
}

/// What an event does to what is open.
enum Effect {
    Begins,
    Opens(Open),
    Continues(Open),
    Closes(Open),
    Ends,
    Nothing,
}

#[derive(Clone, Debug, Default)]
pub struct Verifier {
    stage: Stage,
    /// In the order in which they were opened.
    open: Vec<Open>,
}

impl Verifier {
    pub fn has_begun(&self) -> bool {
        self.stage != Stage::Before
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Adds the event to the output, after the events that must precede it; adds nothing if it is not allowed here.
    pub fn pass(&mut self, event: AgUiEvent, out: &mut Vec<AgUiEvent>) {
        match (self.stage, Effect::of(&event.body)) {
            (Stage::Before, Effect::Begins) => self.stage = Stage::Running,
            // Only a failure may come of a run that never started.
            (Stage::Before, Effect::Ends) if matches!(event.body, Body::RunError { .. }) => self.stage = Stage::Over,
            (Stage::Running, Effect::Nothing) => {}
            (Stage::Running, Effect::Opens(new)) => {
                if self.open.contains(&new) {
                    return;
                }
                if self.open.len() == OPEN_MAX {
                    let oldest = self.open.remove(0);
                    out.push(oldest.closed(event.timestamp));
                }
                self.open.push(new);
            }
            (Stage::Running, Effect::Continues(of)) => {
                if !self.open.contains(&of) {
                    return;
                }
            }
            (Stage::Running, Effect::Closes(of)) => match self.open.iter().position(|open| *open == of) {
                Some(at) => drop(self.open.remove(at)),
                None => return,
            },
            (Stage::Running, Effect::Ends) => {
                self.close_all(event.timestamp, out);
                self.stage = Stage::Over;
            }
            (Stage::Before | Stage::Over, _) | (Stage::Running, Effect::Begins) => return,
        }
        out.push(event);
    }

    /// Closes what is open, the newest first.
    pub fn close_all(&mut self, timestamp: i64, out: &mut Vec<AgUiEvent>) {
        out.extend(self.open.drain(..).rev().map(|open| open.closed(timestamp)));
    }
}

impl Open {
    fn closed(self, timestamp: i64) -> AgUiEvent {
        let body = match self {
            Self::Text(message_id) => Body::TextMessageEnd { message_id },
            Self::Tool(tool_call_id) => Body::ToolCallEnd { tool_call_id },
            Self::Span(message_id) => Body::ReasoningEnd { message_id },
            Self::Thought(message_id) => Body::ReasoningMessageEnd { message_id },
            Self::Step(step_name) => Body::StepFinished { step_name },
        };
        AgUiEvent { body, timestamp, metadata: Map::new() }
    }
}

impl Effect {
    fn of(body: &Body) -> Self {
        let id = String::clone;
        match body {
            Body::RunStarted { .. } => Self::Begins,
            Body::RunFinished { .. } | Body::RunError { .. } => Self::Ends,
            Body::StepStarted { step_name } => Self::Opens(Open::Step(id(step_name))),
            Body::StepFinished { step_name } => Self::Closes(Open::Step(id(step_name))),
            Body::TextMessageStart { message_id, .. } => Self::Opens(Open::Text(id(message_id))),
            Body::TextMessageContent { message_id, .. } => Self::Continues(Open::Text(id(message_id))),
            Body::TextMessageEnd { message_id } => Self::Closes(Open::Text(id(message_id))),
            Body::ToolCallStart { tool_call_id, .. } => Self::Opens(Open::Tool(id(tool_call_id))),
            Body::ToolCallArgs { tool_call_id, .. } => Self::Continues(Open::Tool(id(tool_call_id))),
            Body::ToolCallEnd { tool_call_id } => Self::Closes(Open::Tool(id(tool_call_id))),
            Body::ReasoningStart { message_id } => Self::Opens(Open::Span(id(message_id))),
            Body::ReasoningEnd { message_id } => Self::Closes(Open::Span(id(message_id))),
            Body::ReasoningMessageStart { message_id, .. } => Self::Opens(Open::Thought(id(message_id))),
            Body::ReasoningMessageContent { message_id, .. } => Self::Continues(Open::Thought(id(message_id))),
            Body::ReasoningMessageEnd { message_id } => Self::Closes(Open::Thought(id(message_id))),
            Body::ToolCallResult { .. }
            | Body::StateSnapshot { .. }
            | Body::StateDelta { .. }
            | Body::MessagesSnapshot { .. }
            | Body::ActivitySnapshot { .. }
            | Body::ActivityDelta { .. }
            | Body::Custom { .. } => Self::Nothing,
        }
    }
}
