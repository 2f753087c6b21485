//! The translation, event type by event type.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    Timestamp,
    agui::translate::{Place, Sent, Translator},
    events::{Event, EventType},
    ids::SessionId,
};

pub const RUN: &str = "run-1";

pub fn event(session_seq: i64, event_type: EventType, payload: &Value) -> Event {
    Event {
        session: SessionId::new(Uuid::nil()),
        session_seq,
        run: None,
        command_id: None,
        event_type,
        payload: Some(payload.to_string().into()),
        digest: [0; 32],
        hash: [0; 32],
        created_at: Timestamp::UNIX_EPOCH,
    }
}

fn log(events: &[(EventType, Value)]) -> Vec<Event> {
    events.iter().zip(1..).map(|((event_type, payload), seq)| event(seq, *event_type, payload)).collect()
}

pub fn translate(translator: &mut Translator, events: &[Event]) -> Vec<Sent> {
    events.iter().flat_map(|event| translator.take(event)).collect()
}

fn told(events: &[(EventType, Value)]) -> Vec<Value> {
    let mut translator = Translator::new("thread", RUN, 0);
    let sent = translate(&mut translator, &log(events));
    sent.into_iter().map(|sent| serde_json::to_value(sent.event).expect("JSON")).collect()
}

#[test]
fn deltas_and_the_whole_become_one_message() {
    use EventType::*;
    let events = [
        (UserMessage, json!({"messageId": "u"})),
        (AssistantDelta, json!({"messageId": "m", "delta": "Hel"})),
        (AssistantDelta, json!({"messageId": "m", "delta": "lo"})),
        (AssistantMessage, json!({"messageId": "m", "text": "Hello!", "final": true})),
        (TerminalStatus, json!({"status": "completed"})),
    ];
    let sent = translate(&mut Translator::new("thread", RUN, 0), &log(&events));
    let ids: Vec<_> = sent.iter().map(|sent| format!("{} {}", sent.id, sent.event.body.type_name())).collect();
    assert_eq!(
        ids,
        [
            "1-0 RUN_STARTED",
            "2-0 TEXT_MESSAGE_START",
            "2-1 TEXT_MESSAGE_CONTENT",
            "3-0 TEXT_MESSAGE_CONTENT",
            "4-0 TEXT_MESSAGE_CONTENT",
            "4-1 TEXT_MESSAGE_END",
            "5-0 RUN_FINISHED"
        ]
    );
    assert_eq!(told(&events)[4]["delta"], "!");
    assert_eq!(
        told(&events)[6],
        json!({"type": "RUN_FINISHED", "threadId": "thread", "runId": RUN, "outcome": {"type": "success"}, "timestamp": 0})
    );
}

#[test]
fn a_place_is_read_only_as_it_is_written() {
    assert_eq!("12-3".parse(), Ok(Place { session_seq: 12, n: 3 }));
    for bad in ["", "12", "12-", "-3", "012-3", "12-03", "+1-2", "12-3-4", " 1-2", "1-99999999999"] {
        assert_eq!(bad.parse::<Place>(), Err(()), "{bad}");
    }
}
