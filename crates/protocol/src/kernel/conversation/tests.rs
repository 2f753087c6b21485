//! Conversations, folded from events.

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
fn results_of_this_servers_tools_stand_between_the_messages() {
    let call = |command: u128, payload: Value| event(command, EventType::ToolCall, payload);
    let toolkit = |id: &str, status: &str, more: Value| {
        let mut payload = json!({"toolCallId": id, "name": "time_now", "type": "toolkit", "status": status});
        payload.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        call(1, payload)
    };
    let events = [
        user_message(1, "when?"),
        call(1, json!({"toolCallId": "x", "name": "shell", "status": "completed", "result": "no"})),
        toolkit("a", "started", json!({"arguments": {"timezone": "UTC"}})),
        toolkit("a", "completed", json!({"result": "noon"})),
        toolkit("b", "started", json!({"arguments": {}})),
        assistant_message(1, "at noon"),
        user_message(2, "and now?"),
    ];
    let conversation = Conversation::of(&events);
    assert_eq!(words(&conversation), ["when?", "at noon", "and now?"]);
    let arguments = r#"{"timezone":"UTC"}"#.to_owned();
    let expected = PastCall { name: "time_now".into(), arguments, result: "noon".into(), before: 1 };
    assert_eq!(conversation.calls, [expected]);
}

#[test]
fn calls_get_the_room_that_the_messages_leave() {
    let mut events = vec![user_message(1, "first"), assistant_message(1, "yes"), user_message(2, "search")];
    for number in 0..60 {
        let start = json!({"toolCallId": number.to_string(), "name": "web_fetch", "type": "toolkit", "status": "started",
            "arguments": {"page": number}});
        let end = json!({"toolCallId": number.to_string(), "name": "web_fetch", "type": "toolkit", "status": "completed",
            "result": "x".repeat(8_000)});
        events.extend([start, end].map(|payload| event(2, EventType::ToolCall, payload)));
    }
    events.push(assistant_message(2, "found"));
    let conversation = Conversation::of(&events);
    assert_eq!(words(&conversation), ["first", "yes", "search", "found"]);
    assert!(conversation.truncated && (20..60).contains(&conversation.calls.len()), "{}", conversation.calls.len());
    assert_eq!(conversation.calls.last().unwrap().arguments, r#"{"page":59}"#, "the newest are kept");
    assert!(conversation.calls.iter().all(|call| call.before == 3));
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
fn the_newest_whole_turns_that_fit_remain() {
    let long = "x".repeat(CONVERSATION_BYTES_MAX / 2);
    let events = [user_message(1, &long), assistant_message(1, "a"), user_message(2, &long), user_message(3, "three")];
    let before = Conversation::before(id(3), &events);
    assert_eq!((before.messages.len(), before.truncated), (1, true));
    assert_eq!(before.messages[0].role, Role::User);
}
