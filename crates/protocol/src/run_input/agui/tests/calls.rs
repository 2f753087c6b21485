//! Tool calls of turns that make many of them.

use serde_json::json;

use super::translate::{between, ended};
use crate::kernel::{events::EventType, front_end::call_payload};

/// More than a translator remembers.
const OWN_CALLS: usize = 1_100;

#[test]
fn a_pending_call_is_not_forgotten_among_many_that_have_ended() {
    let mut events = vec![(EventType::ToolCall, call_payload("page", "get_weather", &json!({})))];
    for number in 0..OWN_CALLS {
        let fact = |status: &str| json!({"toolCallId": format!("own-{number}"), "name": "shell", "status": status});
        events.extend([(EventType::ToolCall, fact("started")), (EventType::ToolCall, fact("completed"))]);
    }
    events.push(ended("completed"));
    let sent = between(&events);
    let outcome = &sent.last().expect("an end")["outcome"];
    assert_eq!(outcome, &json!({"type": "success", "pendingToolCallIds": ["page"]}));
}
