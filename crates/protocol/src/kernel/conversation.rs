//! A conversation: the messages of a session before one of its commands, folded from events for agents that store no
//! history of their own. It holds the messages of users, the replies of agents, and what tools of this server returned to them;
//! never thoughts, failures or tools of the agents' own.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    RawJson,
    ids::CommandId,
    kernel::{
        commands::CommandType,
        events::{Event, EventType, PHASE_ATTEMPT_RESTARTED, PHASE_ROLLED_BACK, PHASE_STEER_ACCEPTED},
        front_end::{TOOL_RESULT_PART, tool_result_text},
    },
    limits::CONVERSATION_BYTES_MAX,
    text::clip,
    tools::calls::{TOOLKIT, replayed_arguments},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Message)]
pub struct ConversationMessage {
    pub role: Role,
    pub text: String,
}

/// A picture of a message, by a URL that expires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryAttachment {
    pub mime_type: String,
    pub url: String,
}

/// A call of a tool of this server that an agent made in an earlier turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PastCall {
    pub name: String,
    /// A JSON object, as text. Long arguments are cut, and are its only member `truncated`.
    pub arguments: String,
    /// A long one is cut.
    pub result: String,
    /// The place of the message that came after it.
    pub before: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Conversation {
    /// In the order in which the agent received or sent them. The first is a user's.
    pub messages: Vec<ConversationMessage>,
    /// Earlier turns or calls were left out, or were erased.
    pub truncated: bool,
    /// How many of the last messages came after the last turn. An agent that stores the conversation itself has the others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsent: usize,
    /// The calls of tools between the messages, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PastCall>,
    /// What the command's own message shows, each by a URL that ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<HistoryAttachment>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Characters of a call's arguments and of its result that later turns get.
const CALL_ARGUMENTS_CHARS_MAX: usize = 2_000;
const CALL_RESULT_CHARS_MAX: usize = 8_000;

/// What the conversation is folded from, beside [`CHANGES`] and the calls of this server's tools.
pub const SAID: [EventType; 3] = [EventType::UserMessage, EventType::AssistantMessage, EventType::BackendStatus];
/// Changes of a session that change its conversation.
pub const CHANGES: [&str; 2] = [MESSAGE_ADDED, REWOUND];
const MESSAGE_ADDED: &str = "message-added";
const REWOUND: &str = "rewound";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MessageView {
    command_type: Option<CommandType>,
    content: Vec<MessagePart>,
    text: Option<String>,
    phase: Option<String>,
    target_command_id: Option<CommandId>,
    change: Option<String>,
    before_command_id: Option<CommandId>,
}

/// A `tool_call` event of this server's tools.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CallView {
    tool_call_id: String,
    name: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    arguments: Option<serde_json::Value>,
    result: Option<String>,
}

#[derive(Deserialize)]
struct MessagePart {
    #[serde(rename = "type", default)]
    part_type: String,
    text: Option<String>,
    /// Of a tool whose result this is.
    name: Option<String>,
    error: Option<String>,
}

impl MessagePart {
    fn words(self) -> Option<String> {
        match (self.part_type.as_str(), self.name) {
            (TOOL_RESULT_PART, Some(name)) => Some(tool_result_text(&name, &self.text?, self.error.as_deref())),
            _ => self.text,
        }
    }
}

impl MessageView {
    fn of(event: &Event) -> Option<Self> {
        RawJson::parse(event.payload.as_ref()?.to_string()).ok()?.view()
    }

    fn words(self) -> String {
        let parts: Vec<String> = self.content.into_iter().filter_map(MessagePart::words).chain(self.text).collect();
        parts.join("\n")
    }
}

/// The messages of one turn, or one message that belongs to none.
struct Entry {
    turn: Option<CommandId>,
    messages: Vec<ConversationMessage>,
    /// Calls that have ended. Their places are those of the turn's own messages.
    calls: Vec<PastCall>,
}

impl Entry {
    fn new(turn: Option<CommandId>, messages: Vec<ConversationMessage>) -> Self {
        Self { turn, messages, calls: vec![] }
    }

    fn message_bytes(&self) -> usize {
        self.messages.iter().map(|message| message.text.len()).sum()
    }

    /// Keeps the newest calls that fit into `room`, and subtracts them from it. Returns whether it has dropped any. Then nothing is
    /// left of the room: an older call without those that followed it would mislead.
    fn drop_oldest_calls(&mut self, room: &mut usize) -> bool {
        let mut dropped = self.calls.len();
        for call in self.calls.iter().rev() {
            match room.checked_sub(call.name.len() + call.arguments.len() + call.result.len()) {
                Some(left) => (*room, dropped) = (left, dropped - 1),
                None => {
                    *room = 0;
                    break;
                }
            }
        }
        self.calls.drain(..dropped);
        dropped > 0
    }
}

/// Conversations before one command, folded event by event.
#[derive(Default)]
struct ConversationFold {
    /// `None`: all of the conversation.
    command_id: Option<CommandId>,
    reached_command: bool,
    entries: Vec<Entry>,
    steers: HashMap<CommandId, String>,
    /// The arguments of calls that have not ended, by their ids.
    open_calls: HashMap<String, String>,
    /// A message was erased.
    has_gap: bool,
}

impl ConversationFold {
    fn turn(&mut self, id: CommandId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.turn == Some(id))
    }

    fn push(&mut self, turn: Option<CommandId>, text: String) {
        self.entries.push(Entry::new(turn, vec![ConversationMessage { role: Role::User, text }]));
    }

    fn apply(&mut self, event: &Event) {
        let Some(view) = MessageView::of(event) else {
            self.has_gap |= event.payload.is_none() && !self.reached_command;
            // The turn of an erased message keeps its place: the session may have been rewound to it.
            if event.event_type == EventType::UserMessage && !self.reached_command {
                self.entries.extend(event.command_id.map(|id| Entry::new(Some(id), vec![])));
            }
            return;
        };
        match event.command_id {
            Some(id) if event.event_type == EventType::ToolCall => self.apply_call(id, event),
            Some(id) => self.apply_to_turn(event.event_type, id, view),
            None if event.event_type == EventType::Session => self.apply_change(view),
            None => {}
        }
    }

    /// A call comes after its turn's messages so far.
    fn apply_call(&mut self, id: CommandId, event: &Event) {
        let view = event.payload.as_deref().and_then(|text| serde_json::from_str::<CallView>(text).ok());
        let Some(view) = view.filter(|view| view.kind.as_deref() == Some(TOOLKIT)) else { return };
        if let Some(arguments) = &view.arguments {
            let arguments = replayed_arguments(arguments, CALL_ARGUMENTS_CHARS_MAX);
            self.open_calls.insert(view.tool_call_id.clone(), arguments);
        }
        let Some(result) = view.result else { return };
        let arguments = self.open_calls.remove(&view.tool_call_id).unwrap_or_else(|| "{}".into());
        let result = clip(&result, CALL_RESULT_CHARS_MAX);
        if let Some(entry) = self.turn(id) {
            let before = entry.messages.len();
            entry.calls.push(PastCall { name: view.name, arguments, result, before });
        }
    }

    /// What happened after the command's own message does not belong to its history.
    fn apply_change(&mut self, view: MessageView) {
        match view.change.as_deref().filter(|_| !self.reached_command) {
            Some(MESSAGE_ADDED) => self.push(None, view.words()),
            Some(REWOUND) => {
                let target = self.entries.iter().position(|entry| entry.turn == view.before_command_id);
                // A target that is not among the events is older than all of them.
                self.has_gap |= target.is_none();
                self.entries.truncate(target.unwrap_or(0));
            }
            _ => {}
        }
    }

    fn apply_to_turn(&mut self, event_type: EventType, id: CommandId, view: MessageView) {
        self.reached_command |= Some(id) == self.command_id;
        match event_type {
            EventType::UserMessage if view.command_type == Some(CommandType::Steer) => {
                self.steers.insert(id, view.words());
            }
            EventType::UserMessage if self.reached_command => {}
            EventType::UserMessage => self.push(Some(id), view.words()),
            EventType::AssistantMessage => {
                if let Some(entry) = self.turn(id) {
                    entry.messages.push(ConversationMessage { role: Role::Assistant, text: view.words() });
                }
            }
            EventType::BackendStatus if view.phase.as_deref() == Some(PHASE_ATTEMPT_RESTARTED) => {
                if let Some(entry) = self.turn(id) {
                    entry.messages.truncate(1);
                    // What they did is done.
                    entry.calls.iter_mut().for_each(|call| call.before = call.before.min(1));
                }
            }
            EventType::BackendStatus if view.phase.as_deref() == Some(PHASE_ROLLED_BACK) => {
                self.entries.retain(|entry| entry.turn != Some(id));
            }
            EventType::BackendStatus if view.phase.as_deref() == Some(PHASE_STEER_ACCEPTED) => {
                let accepted = self.steers.remove(&id).zip(view.target_command_id);
                if let Some((text, of)) = accepted
                    && let Some(entry) = self.turn(of)
                {
                    entry.messages.push(ConversationMessage { role: Role::User, text });
                }
            }
            _ => {}
        }
    }
}

impl Conversation {
    /// Folds a session's events, in their order, up to the command's own message. A message is placed where the agent
    /// received it: a queued turn comes after the one it waited for, and a steer at the point where the agent accepted
    /// it. Turns that the session was rewound over are left out. The events of a session that this one continues come first.
    pub fn before(command_id: CommandId, events: &[Event]) -> Self {
        Self::fold(Some(command_id), events)
    }

    /// As [`Conversation::before`], of all events.
    pub fn of(events: &[Event]) -> Self {
        Self::fold(None, events)
    }

    fn fold(command_id: Option<CommandId>, events: &[Event]) -> Self {
        let mut fold = ConversationFold { command_id, ..ConversationFold::default() };
        events.iter().for_each(|event| fold.apply(event));
        let newest = Self::newest(fold.entries);
        Self { truncated: newest.truncated || fold.has_gap, ..newest }
    }

    /// The messages of whole turns, as many of the newest as fit, and the newest calls in the room that the messages leave: a turn
    /// that called many tools must not displace messages.
    fn newest(entries: Vec<Entry>) -> Self {
        let (mut kept, mut room, mut truncated) = (VecDeque::new(), CONVERSATION_BYTES_MAX, false);
        for entry in entries.into_iter().rev() {
            let Some(left) = room.checked_sub(entry.message_bytes()) else {
                truncated = true;
                break;
            };
            room = left;
            kept.push_front(entry);
        }
        for entry in kept.iter_mut().rev() {
            truncated |= entry.drop_oldest_calls(&mut room);
        }
        let (mut whole, mut sent) = (Self { truncated, ..Self::default() }, 0);
        for entry in kept {
            let is_turn = entry.turn.is_some();
            whole.extend(entry);
            if is_turn {
                sent = whole.messages.len();
            }
        }
        whole.unsent = whole.messages.len() - sent;
        whole
    }

    /// Adds the messages and calls of a turn.
    fn extend(&mut self, entry: Entry) {
        let mut calls = entry.calls.into_iter().peekable();
        for (place, message) in entry.messages.into_iter().enumerate() {
            while let Some(call) = calls.next_if(|call| call.before <= place) {
                self.calls.push(PastCall { before: self.messages.len(), ..call });
            }
            if !message.text.is_empty() {
                self.messages.push(message);
            }
        }
        self.calls.extend(calls.map(|call| PastCall { before: self.messages.len(), ..call }));
    }
}
