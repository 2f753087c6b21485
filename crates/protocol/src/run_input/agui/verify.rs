//! The client's rules of sequence, enforced on the output: a client that finds one broken aborts the run. Events that
//! are not allowed are dropped, and what was left open is closed before the end, so that no agent can make us send a
//! stream that a client rejects. Rules about subagents hold by themselves: our events cannot name one.

use serde_json::Map;

use super::events::{AgUiEvent, EventBody};

/// What may be open at once. One more closes the oldest: each costs every follower memory.
pub const OPEN_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RunStage {
    #[default]
    Before,
    Running,
    Over,
}

/// Something with a beginning and an end, by its kind and name. An id is only unique within its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OpenItem {
    Text(String),
    Tool(String),
    Span(String),
    Thought(String),
    Step(String),
}

/// What an event does to what is open.
enum EventEffect {
    Begins,
    Opens(OpenItem),
    Continues(OpenItem),
    Closes(OpenItem),
    Ends,
    Nothing,
}

#[derive(Clone, Debug, Default)]
pub struct EventVerifier {
    stage: RunStage,
    /// In the order in which they were opened.
    open: Vec<OpenItem>,
}

impl EventVerifier {
    pub fn has_begun(&self) -> bool {
        self.stage != RunStage::Before
    }

    pub fn is_over(&self) -> bool {
        self.stage == RunStage::Over
    }

    /// Adds the event to the output, after the events that must precede it; adds nothing if it is not allowed here.
    pub fn pass(&mut self, event: AgUiEvent, out: &mut Vec<AgUiEvent>) {
        match (self.stage, EventEffect::of(&event.body)) {
            (RunStage::Before, EventEffect::Begins) => self.stage = RunStage::Running,
            // Only a failure may come of a run that never started.
            (RunStage::Before, EventEffect::Ends) if matches!(event.body, EventBody::RunError { .. }) => {
                self.stage = RunStage::Over
            }
            (RunStage::Running, EventEffect::Nothing) => {}
            (RunStage::Running, EventEffect::Opens(new)) => {
                if self.open.contains(&new) {
                    return;
                }
                if self.open.len() == OPEN_MAX {
                    let oldest = self.open.remove(0);
                    out.push(oldest.closed(event.timestamp));
                }
                self.open.push(new);
            }
            (RunStage::Running, EventEffect::Continues(of)) => {
                if !self.open.contains(&of) {
                    return;
                }
            }
            (RunStage::Running, EventEffect::Closes(of)) => match self.open.iter().position(|open| *open == of) {
                Some(at) => drop(self.open.remove(at)),
                None => return,
            },
            (RunStage::Running, EventEffect::Ends) => {
                self.close_all(event.timestamp, out);
                self.stage = RunStage::Over;
            }
            (RunStage::Before | RunStage::Over, _) | (RunStage::Running, EventEffect::Begins) => return,
        }
        out.push(event);
    }

    /// Closes what is open, the newest first.
    pub fn close_all(&mut self, timestamp: i64, out: &mut Vec<AgUiEvent>) {
        out.extend(self.open.drain(..).rev().map(|open| open.closed(timestamp)));
    }
}

impl OpenItem {
    fn closed(self, timestamp: i64) -> AgUiEvent {
        let body = match self {
            Self::Text(message_id) => EventBody::TextMessageEnd { message_id },
            Self::Tool(tool_call_id) => EventBody::ToolCallEnd { tool_call_id },
            Self::Span(message_id) => EventBody::ReasoningEnd { message_id },
            Self::Thought(message_id) => EventBody::ReasoningMessageEnd { message_id },
            Self::Step(step_name) => EventBody::StepFinished { step_name },
        };
        AgUiEvent { body, timestamp, metadata: Map::new() }
    }
}

impl EventEffect {
    fn of(body: &EventBody) -> Self {
        let id = String::clone;
        match body {
            EventBody::RunStarted { .. } => Self::Begins,
            EventBody::RunFinished { .. } | EventBody::RunError { .. } => Self::Ends,
            EventBody::StepStarted { step_name } => Self::Opens(OpenItem::Step(id(step_name))),
            EventBody::StepFinished { step_name } => Self::Closes(OpenItem::Step(id(step_name))),
            EventBody::TextMessageStart { message_id, .. } => Self::Opens(OpenItem::Text(id(message_id))),
            EventBody::TextMessageContent { message_id, .. } => Self::Continues(OpenItem::Text(id(message_id))),
            EventBody::TextMessageEnd { message_id } => Self::Closes(OpenItem::Text(id(message_id))),
            EventBody::ToolCallStart { tool_call_id, .. } => Self::Opens(OpenItem::Tool(id(tool_call_id))),
            EventBody::ToolCallArgs { tool_call_id, .. } => Self::Continues(OpenItem::Tool(id(tool_call_id))),
            EventBody::ToolCallEnd { tool_call_id } => Self::Closes(OpenItem::Tool(id(tool_call_id))),
            EventBody::ReasoningStart { message_id } => Self::Opens(OpenItem::Span(id(message_id))),
            EventBody::ReasoningEnd { message_id } => Self::Closes(OpenItem::Span(id(message_id))),
            EventBody::ReasoningMessageStart { message_id, .. } => Self::Opens(OpenItem::Thought(id(message_id))),
            EventBody::ReasoningMessageContent { message_id, .. } => Self::Continues(OpenItem::Thought(id(message_id))),
            EventBody::ReasoningMessageEnd { message_id } => Self::Closes(OpenItem::Thought(id(message_id))),
            EventBody::ToolCallResult { .. }
            | EventBody::StateSnapshot { .. }
            | EventBody::StateDelta { .. }
            | EventBody::MessagesSnapshot { .. }
            | EventBody::ActivitySnapshot { .. }
            | EventBody::ActivityDelta { .. }
            | EventBody::Custom { .. } => Self::Nothing,
        }
    }
}
