//! A conversation: the messages of a session before one of its commands, folded from events for agents that store no
//! history of their own. It holds the messages of users and the replies of agents, never tools, thoughts or failures.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    RawJson,
    ids::CommandId,
    kernel::{
        commands::CommandType,
        events::{Event, EventType, PHASE_ATTEMPT_RESTARTED, PHASE_ROLLED_BACK, PHASE_STEER_ACCEPTED},
    },
    limits::CONVERSATION_BYTES_MAX,
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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Conversation {
    /// In the order in which the agent received or sent them. The first is a user's.
    pub messages: Vec<ConversationMessage>,
    /// Earlier turns were left out, or were erased.
    pub truncated: bool,
    /// How many of the last messages came after the last turn. An agent that stores the conversation itself has the others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsent: usize,
    /// What the command's own message shows, each by a URL that ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<HistoryAttachment>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// What the conversation is folded from, beside [`CHANGES`].
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

#[derive(Deserialize)]
struct MessagePart {
    text: Option<String>,
}

impl MessageView {
    fn of(event: &Event) -> Option<Self> {
        RawJson::parse(event.payload.as_ref()?.to_string()).ok()?.view()
    }

    fn words(self) -> String {
        let parts: Vec<String> = self.content.into_iter().filter_map(|part| part.text).chain(self.text).collect();
        parts.join("\n")
    }
}

/// The messages of one turn, or one message that belongs to none.
struct Entry {
    turn: Option<CommandId>,
    messages: Vec<ConversationMessage>,
}

/// Conversations before one command, folded event by event.
#[derive(Default)]
struct ConversationFold {
    /// `None`: all of the conversation.
    command_id: Option<CommandId>,
    reached_command: bool,
    entries: Vec<Entry>,
    steers: HashMap<CommandId, String>,
    /// A message was erased.
    has_gap: bool,
}

impl ConversationFold {
    fn turn(&mut self, id: CommandId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.turn == Some(id))
    }

    fn push(&mut self, turn: Option<CommandId>, text: String) {
        self.entries.push(Entry { turn, messages: vec![ConversationMessage { role: Role::User, text }] });
    }

    fn apply(&mut self, event: &Event) {
        let Some(view) = MessageView::of(event) else {
            self.has_gap |= event.payload.is_none() && !self.reached_command;
            // The turn of an erased message keeps its place: the session may have been rewound to it.
            if event.event_type == EventType::UserMessage && !self.reached_command {
                self.entries.extend(event.command_id.map(|id| Entry { turn: Some(id), messages: vec![] }));
            }
            return;
        };
        match event.command_id {
            Some(id) => self.apply_to_turn(event.event_type, id, view),
            None if event.event_type == EventType::Session => self.apply_change(view),
            None => {}
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

    /// Whole turns, as many of the newest as fit.
    fn newest(entries: Vec<Entry>) -> Self {
        let (mut kept, mut bytes, mut truncated, mut unsent) = (VecDeque::new(), 0, false, None);
        for entry in entries.into_iter().rev() {
            bytes += entry.messages.iter().map(|message| message.text.len()).sum::<usize>();
            if bytes > CONVERSATION_BYTES_MAX {
                truncated = true;
                break;
            }
            if entry.turn.is_some() {
                unsent.get_or_insert(kept.len());
            }
            entry
                .messages
                .into_iter()
                .rev()
                .filter(|message| !message.text.is_empty())
                .for_each(|m| kept.push_front(m));
        }
        let unsent = unsent.unwrap_or(kept.len());
        Self { messages: kept.into(), truncated, unsent, images: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::{Timestamp, ids::SessionId};

    fn id(number: u128) -> CommandId {
        CommandId::new(Uuid::from_u128(number))
    }

    fn event(command: u128, event_type: EventType, payload: Value) -> Event {
        Event {
            session: SessionId::new(Uuid::nil()),
            session_seq: 0,
            run: None,
            command_id: Some(id(command)),
            event_type,
            payload: Some(payload.to_string().into()),
            digest: [0; 32],
            hash: [0; 32],
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn user_message(command: u128, text: &str) -> Event {
        let payload = json!({"commandType": "turn", "content": [{"type": "text", "text": text}]});
        event(command, EventType::UserMessage, payload)
    }

    fn steered(command: u128, text: &str) -> Event {
        let payload = json!({"commandType": "steer", "content": [{"type": "text", "text": text}]});
        event(command, EventType::UserMessage, payload)
    }

    fn assistant_message(command: u128, text: &str) -> Event {
        event(command, EventType::AssistantMessage, json!({"messageId": "m", "text": text}))
    }

    fn phase(command: u128, phase: &str, target: u128) -> Event {
        event(command, EventType::BackendStatus, json!({"phase": phase, "targetCommandId": id(target)}))
    }

    fn words(conversation: &Conversation) -> Vec<&str> {
        conversation.messages.iter().map(|message| message.text.as_str()).collect()
    }

    #[test]
    fn a_queued_turn_comes_after_the_one_it_waited_for_and_later_ones_are_left_out() {
        let events = [
            user_message(1, "one"),
            user_message(2, "two"),
            user_message(3, "three"),
            user_message(4, "four"),
            assistant_message(1, "eins"),
            assistant_message(2, "zwei"),
        ];
        let before = Conversation::before(id(3), &events);
        assert_eq!(words(&before), ["one", "eins", "two", "zwei"]);
        assert_eq!(before.messages[1].role, Role::Assistant);
        assert!(Conversation::before(id(1), &events).messages.is_empty());
    }

    #[test]
    fn a_steer_counts_where_it_was_taken_and_not_at_all_where_it_was_not() {
        let events = [
            user_message(1, "one"),
            steered(2, "left"),
            steered(3, "never accepted"),
            assistant_message(1, "half"),
            phase(2, PHASE_STEER_ACCEPTED, 1),
            assistant_message(1, "whole"),
            user_message(4, "four"),
        ];
        assert_eq!(words(&Conversation::before(id(4), &events)), ["one", "half", "left", "whole"]);
    }

    #[test]
    fn messages_of_a_dead_attempt_are_left_out() {
        let events = [
            user_message(1, "one"),
            assistant_message(1, "half"),
            phase(1, PHASE_ATTEMPT_RESTARTED, 1),
            assistant_message(1, "whole"),
            user_message(2, "two"),
        ];
        assert_eq!(words(&Conversation::before(id(2), &events)), ["one", "whole"]);
    }

    #[test]
    fn a_turn_that_was_rolled_back_is_left_out() {
        let events = [
            user_message(1, "one"),
            assistant_message(1, "eins"),
            user_message(2, "two"),
            assistant_message(2, "half of zwei"),
            phase(2, PHASE_ROLLED_BACK, 2),
            user_message(3, "three"),
            assistant_message(2, "the rest, sent before it stopped"),
        ];
        assert_eq!(words(&Conversation::before(id(3), &events)), ["one", "eins"]);
    }

    fn change(payload: Value) -> Event {
        Event { command_id: None, ..event(0, EventType::Session, payload) }
    }

    fn rewound(before: u128) -> Event {
        change(json!({"change": "rewound", "beforeCommandId": id(before)}))
    }

    fn added(text: &str) -> Event {
        change(json!({"change": "message-added", "text": text}))
    }

    #[test]
    fn turns_that_the_session_was_rewound_over_are_left_out() {
        let mut events = vec![
            user_message(1, "one"),
            assistant_message(1, "eins"),
            user_message(2, "two"),
            assistant_message(2, "zwei"),
            added("between"),
            user_message(3, "three"),
            rewound(2),
            user_message(4, "four"),
            assistant_message(4, "vier"),
            user_message(5, "five"),
        ];
        assert_eq!(words(&Conversation::before(id(5), &events)), ["one", "eins", "four", "vier"]);
        // A turn keeps the history that it had.
        assert_eq!(words(&Conversation::before(id(3), &events)), ["one", "eins", "two", "zwei", "between"]);
        // A target that is not among the events is older than they are, so that all of them were left.
        let older = events.split_off(2);
        let before = Conversation::before(id(5), &older);
        assert_eq!((words(&before), before.truncated), (vec!["four", "vier"], false));
        let newer = &older[1..];
        let before = Conversation::before(id(5), newer);
        assert_eq!((words(&before), before.truncated), (vec!["four", "vier"], true));
    }

    #[test]
    fn messages_after_the_last_turn_are_counted() {
        let mut events = vec![added("before"), user_message(1, "one"), added("during"), assistant_message(1, "eins")];
        events.push(user_message(2, "two"));
        let before = Conversation::before(id(2), &events);
        assert_eq!((words(&before), before.unsent), (vec!["before", "one", "eins", "during"], 1));
        let before = Conversation::before(id(1), &events);
        assert_eq!((words(&before), before.unsent), (vec!["before"], 1));
        let events = [user_message(1, "one"), assistant_message(1, "eins"), user_message(2, "two")];
        assert_eq!(Conversation::before(id(2), &events).unsent, 0);
    }

    #[test]
    fn a_conversation_with_an_erased_message_is_reported_as_truncated() {
        let erased = Event { payload: None, ..user_message(1, "one") };
        let events = [erased, user_message(2, "two"), user_message(3, "three")];
        let before = Conversation::before(id(3), &events);
        assert_eq!((words(&before), before.truncated), (vec!["two"], true));
    }

    #[test]
    fn the_newest_whole_turns_that_fit_are_kept() {
        let long = "x".repeat(CONVERSATION_BYTES_MAX / 2);
        let events =
            [user_message(1, &long), assistant_message(1, "a"), user_message(2, &long), user_message(3, "three")];
        let before = Conversation::before(id(3), &events);
        assert_eq!((before.messages.len(), before.truncated), (1, true));
        assert_eq!(before.messages[0].role, Role::User);
    }
}
