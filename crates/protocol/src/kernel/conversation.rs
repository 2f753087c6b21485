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
    /// Earlier turns were left out.
    pub truncated: bool,
    /// What the command's own message shows, each by a URL that ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<HistoryAttachment>,
}

/// What the conversation is folded from.
pub const SAID: [EventType; 3] = [EventType::UserMessage, EventType::AssistantMessage, EventType::BackendStatus];

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MessageView {
    command_type: Option<CommandType>,
    content: Vec<MessagePart>,
    text: Option<String>,
    phase: Option<String>,
    target_command_id: Option<CommandId>,
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

impl Conversation {
    /// Folds a session's events, in their order, up to the command's own message. A message is placed where the agent
    /// received it: a queued turn comes after the one it waited for, and a steer at the point where the agent accepted
    /// it.
    pub fn before(command_id: CommandId, events: &[Event]) -> Self {
        let mut turns: Vec<(CommandId, Vec<ConversationMessage>)> = vec![];
        let mut steers: HashMap<CommandId, String> = HashMap::new();
        let mut reached_command = false;
        for event in events {
            let Some((id, view)) = event.command_id.zip(MessageView::of(event)) else { continue };
            reached_command |= id == command_id;
            let turn = |turns: &mut Vec<(CommandId, Vec<ConversationMessage>)>, id| {
                turns.iter_mut().position(|turn| turn.0 == id)
            };
            match event.event_type {
                EventType::UserMessage if view.command_type == Some(CommandType::Steer) => {
                    steers.insert(id, view.words());
                }
                // Messages sent after this command do not belong to its history.
                EventType::UserMessage if reached_command => {}
                EventType::UserMessage => {
                    turns.push((id, vec![ConversationMessage { role: Role::User, text: view.words() }]))
                }
                EventType::AssistantMessage => {
                    if let Some(at) = turn(&mut turns, id) {
                        turns[at].1.push(ConversationMessage { role: Role::Assistant, text: view.words() });
                    }
                }
                EventType::BackendStatus if view.phase.as_deref() == Some(PHASE_ATTEMPT_RESTARTED) => {
                    if let Some(at) = turn(&mut turns, id) {
                        turns[at].1.truncate(1);
                    }
                }
                EventType::BackendStatus if view.phase.as_deref() == Some(PHASE_ROLLED_BACK) => {
                    turns.retain(|turn| turn.0 != id);
                }
                EventType::BackendStatus if view.phase.as_deref() == Some(PHASE_STEER_ACCEPTED) => {
                    let accepted = steers.remove(&id).zip(view.target_command_id);
                    if let Some((text, at)) = accepted.and_then(|(text, of)| Some((text, turn(&mut turns, of)?))) {
                        turns[at].1.push(ConversationMessage { role: Role::User, text });
                    }
                }
                _ => {}
            }
        }
        Self::newest(turns.into_iter().map(|(_, messages)| messages))
    }

    /// Whole turns, as many of the newest as fit.
    fn newest(turns: impl DoubleEndedIterator<Item = Vec<ConversationMessage>>) -> Self {
        let (mut kept, mut bytes, mut truncated) = (VecDeque::new(), 0, false);
        for messages in turns.rev() {
            bytes += messages.iter().map(|message| message.text.len()).sum::<usize>();
            if bytes > CONVERSATION_BYTES_MAX {
                truncated = true;
                break;
            }
            kept.push_front(messages);
        }
        let messages = kept.into_iter().flatten().filter(|message| !message.text.is_empty());
        Self { messages: messages.collect(), truncated, images: vec![] }
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
