//! Messages that were sent piece by piece. The event with the whole message repeats their text, and its frame must not. Whether
//! pieces came before it is settled when the event is recorded; this remembers it, so that the log need not be read again for
//! each message.

use std::collections::{HashSet, VecDeque};

use serde::Deserialize;

use crate::{
    ids::CommandId,
    kernel::events::{Event, EventType, PHASE_ATTEMPT_RESTARTED},
};

/// Commands and messages that are remembered. Beyond either the log must be read.
const COMMANDS_MAX: usize = 64;
const MESSAGES_MAX: usize = 1_024;

/// An event with a message or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MessagePart {
    pub is_thought: bool,
    /// Whether it is the whole message.
    pub is_whole: bool,
    /// `None` if the agent does not name its messages.
    pub message_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageRef {
    #[serde(default)]
    message_id: Option<String>,
}

impl MessagePart {
    /// `None` if the event has no part of a message.
    pub fn read(event: &Event) -> Option<Self> {
        let (is_thought, is_whole) = match event.event_type {
            EventType::AssistantDelta => (false, false),
            EventType::AssistantMessage => (false, true),
            EventType::ReasoningDelta => (true, false),
            EventType::Reasoning => (true, true),
            _ => return None,
        };
        let payload = event.payload.as_deref()?;
        let message_id = serde_json::from_str::<MessageRef>(payload).ok().and_then(|of| of.message_id);
        Some(Self { is_thought, is_whole, message_id })
    }

    /// Whether both are parts of one message, or of two that cannot be distinguished.
    pub fn is_of_same_message(&self, other: &Self) -> bool {
        (self.is_thought, &self.message_id) == (other.is_thought, &other.message_id)
    }
}

#[derive(Deserialize)]
struct PhaseRef {
    #[serde(default)]
    phase: Option<String>,
}

/// Whether another attempt at the event's command begins. The pieces of earlier attempts belong to no message after it.
pub fn restarts_attempt(event: &Event) -> bool {
    let payload = event.payload.as_deref().filter(|_| event.event_type == EventType::BackendStatus);
    let status = payload.and_then(|payload| serde_json::from_str::<PhaseRef>(payload).ok());
    status.and_then(|status| status.phase).is_some_and(|phase| phase == PHASE_ATTEMPT_RESTARTED)
}

#[derive(Clone, Debug)]
struct FollowedCommand {
    command_id: CommandId,
    /// Messages of which only pieces were sent so far.
    open: HashSet<(bool, Option<String>)>,
}

/// The open messages of the commands that were followed from their first event.
#[derive(Clone, Debug, Default)]
pub struct SentPieces {
    commands: VecDeque<FollowedCommand>,
}

impl SentPieces {
    /// Takes the next event of the session. Returns whether it holds a whole message whose pieces came before; `None` if the log
    /// must be read to find out, because the command was not followed from its first event.
    pub fn take(&mut self, event: &Event) -> Option<bool> {
        let Some(command_id) = event.command_id else { return Some(false) };
        let at = self.commands.iter().position(|command| command.command_id == command_id);
        match (event.event_type, at) {
            (EventType::UserMessage, None) => self.follow(command_id),
            (EventType::TerminalStatus, Some(at)) => drop(self.commands.remove(at)),
            (EventType::BackendStatus, Some(at)) if restarts_attempt(event) => self.commands[at].open.clear(),
            _ => {}
        }
        let Some(part) = MessagePart::read(event) else { return Some(false) };
        let is_whole = part.is_whole;
        let key = (part.is_thought, part.message_id);
        let Some(command) = at.and_then(|at| self.commands.get_mut(at)) else { return (!is_whole).then_some(false) };
        if is_whole {
            return Some(command.open.remove(&key));
        }
        command.open.insert(key);
        if command.open.len() > MESSAGES_MAX {
            self.commands.retain(|command| command.command_id != command_id);
        }
        Some(false)
    }

    fn follow(&mut self, command_id: CommandId) {
        if self.commands.len() == COMMANDS_MAX {
            self.commands.pop_front();
        }
        self.commands.push_back(FollowedCommand { command_id, open: HashSet::new() });
    }
}
