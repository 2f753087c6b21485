//! Runs that go on after an interrupt: how a person's no ends them, and what their streams begin with. And patches, which
//! are applied before they are sent.

use serde_json::{Value, json};

use super::translate::{START, answered, between, ended, log, opened, permission, translate, types};
use crate::{
    kernel::events::{Event, EventType, PHASE_ATTEMPT_RESTARTED},
    run_input::agui::{
        events::SnapshotMessage,
        replay::RunReplay,
        translate::{Translator, TranslatorState},
    },
};

fn resolved(n: u8, status: &str) -> (EventType, Value) {
    (EventType::PermissionResolved, json!({"permissionId": permission(n), "status": status}))
}

fn blocked(kind: &str) -> (EventType, Value) {
    (EventType::TerminalStatus, json!({"status": "blocked", "failureKind": kind, "message": "no: Delete a?"}))
}

/// The last event of a run that resumes the one that the second event has interrupted.
fn last_resumed(events: &[(EventType, Value)]) -> Value {
    let sent = translate(&mut Translator::new("thread", "run-2", 2), &log(events));
    serde_json::to_value(&sent.last().expect("an end").event).expect("JSON")
}

#[test]
fn a_persons_no_finishes_the_run_as_cancelled() {
    for (status, kind) in [("denied", "permission-denied"), ("cancelled", "cancelled")] {
        let end = last_resumed(&[START, opened(1, None), resolved(1, status), blocked(kind)]);
        assert_eq!(
            end,
            json!({"type": "RUN_FINISHED", "threadId": "thread", "runId": "run-2", "timestamp": 0,
                "outcome": {"type": "cancelled"}, "metadata": {"failureKind": kind, "message": "no: Delete a?"}})
        );
    }
    // Other failures stay failures, also after a no, and so does a denial that no person has given.
    let after_no = last_resumed(&[START, opened(1, None), resolved(1, "denied"), blocked("backend-failed")]);
    assert_eq!(after_no["type"], "RUN_ERROR");
    let after_yes = last_resumed(&[START, opened(1, None), resolved(1, "allowed"), blocked("permission-denied")]);
    assert_eq!((&after_yes["type"], &after_yes["code"]), (&json!("RUN_ERROR"), &json!("permission-denied")));
    assert_eq!(between(&[resolved(1, "denied"), blocked("permission-denied")])[0]["type"], "RUN_ERROR");
    let stopped = between(&[(EventType::TerminalStatus, json!({"status": "cancelled"}))]).remove(0);
    assert_eq!(stopped["metadata"], json!({"failureKind": "cancelled", "message": "It was cancelled."}));
}

#[test]
fn a_vote_that_does_not_decide_ends_the_run_with_the_same_questions() {
    let voted =
        |n: u8| (EventType::Audit, json!({"action": "permission.voted", "permissionId": permission(n), "voter": "a"}));
    let events = log(&[START, opened(1, None), opened(2, None), voted(1), voted(2), resolved(1, "allowed")]);
    let interrupts = |run_id: &str, after_seq: i64| {
        let sent = translate(&mut Translator::new("thread", run_id, after_seq), &events);
        let end = serde_json::to_value(&sent.last().expect("an end").event).expect("JSON");
        let kinds: Vec<_> = sent.iter().map(|sent| sent.event.body.type_name()).collect();
        assert_eq!(kinds, ["RUN_STARTED", "RUN_FINISHED"]);
        let interrupts = end["outcome"]["interrupts"].as_array().expect("interrupts").clone();
        interrupts.iter().map(|interrupt| interrupt["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(interrupts("run-1", 0), [json!(permission(1))]);
    // Everything that is open by now is asked.
    assert_eq!(interrupts("run-2", 3), [json!(permission(1)), json!(permission(2))]);
}

fn replayed(events: &[Event], last: i64) -> Option<Vec<SnapshotMessage>> {
    let mut replay = RunReplay::default();
    let signed =
        |picture: &crate::run_input::history::Picture| picture.path.as_ref().map(|path| format!("signed:{path}"));
    events.iter().filter(|event| event.session_seq <= last).for_each(|event| replay.take(event, signed));
    replay.finish()
}

/// A request about a call of this server's tools.
fn opened_call(n: u8, call_id: &str) -> (EventType, Value) {
    let (event_type, mut payload) = opened(n, Some(call_id));
    payload["toolName"] = json!("write");
    (event_type, payload)
}

#[test]
fn the_result_of_a_call_comes_in_the_run_that_answers_and_before_the_next_interrupt() {
    let call = |id: &str, status: &str, deadline_ms: u64| {
        let payload = json!({"toolCallId": id, "name": "write", "status": status, "deadlineMs": deadline_ms});
        (EventType::ToolCall, payload)
    };
    // Without the announcements of the calls.
    let kinds = |events: &[(EventType, Value)]| -> Vec<_> {
        let sent = translate(&mut Translator::new("thread", "run-2", 3), &log(events));
        let kinds = sent.iter().map(|sent| sent.event.body.type_name());
        kinds.filter(|kind| !["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"].contains(kind)).collect()
    };
    let asked = [START, opened_call(1, "a"), opened_call(2, "b"), resolved(1, "allowed")];
    assert_eq!(kinds(&asked), ["RUN_STARTED"], "the result is to come");
    let quick = [&asked[..], &[call("a", "started", 60_000), call("a", "completed", 0)]].concat();
    assert_eq!(kinds(&quick), ["RUN_STARTED", "TOOL_CALL_RESULT", "RUN_FINISHED"]);
    let slow = [&asked[..], &[call("a", "started", 60_001)]].concat();
    assert_eq!(kinds(&slow), ["RUN_STARTED", "RUN_FINISHED"], "a person is asked while it is executed");
    let dead = [&asked[..], &[(EventType::BackendStatus, json!({"phase": PHASE_ATTEMPT_RESTARTED}))]].concat();
    assert_eq!(kinds(&dead), ["RUN_STARTED", "CUSTOM", "RUN_FINISHED"]);
    // Nothing is known of the order in which a program executes its own tools.
    let own = [START, opened(1, Some("a")), opened(2, None), resolved(1, "allowed")];
    assert_eq!(kinds(&own), ["RUN_STARTED", "RUN_FINISHED"]);
}

#[test]
fn arguments_that_a_person_has_edited_replace_those_of_the_call() {
    let call = json!({"toolCallId": "open", "name": "rm", "arguments": {"path": "a"}, "status": "started"});
    let edited = json!({"permissionId": permission(1), "status": "allowed",
        "edited": {"arguments": {"path": "b"}, "digest": "d"}});
    let events = log(&[(EventType::ToolCall, call), opened(1, Some("open")), (EventType::PermissionResolved, edited)]);
    let arguments = |last: i64| {
        let messages = serde_json::to_value(replayed(&events, last)).expect("JSON");
        messages[0]["toolCalls"][0]["function"]["arguments"].clone()
    };
    assert_eq!((arguments(2), arguments(3)), (json!(r#"{"path":"a"}"#), json!(r#"{"path":"b"}"#)));
}

#[test]
fn a_resumed_run_begins_with_the_calls_that_are_still_open() {
    use EventType::{AssistantDelta, AssistantMessage, CommandOutput, ToolCall, UserMessage};
    let tool = |id: &str, status: &str| (ToolCall, json!({"toolCallId": id, "command": "rm", "status": status}));
    let content = json!([{"type": "text", "text": "look"}, {"type": "image", "mimeType": "image/png", "path": "p"}]);
    let events = log(&[
        (UserMessage, json!({"messageId": "u", "commandType": "turn", "content": content})),
        tool("done", "started"),
        (CommandOutput, json!({"toolCallId": "done", "text": "out"})),
        tool("done", "completed"),
        (AssistantMessage, json!({"messageId": "m", "text": "Hello"})),
        (AssistantDelta, json!({"messageId": "half", "delta": "I "})),
        tool("open", "started"),
        opened(1, Some("open")),
        answered(1),
        tool("open", "completed"),
        (AssistantMessage, json!({"messageId": "half", "text": "I did"})),
        ended("completed"),
    ]);
    let mut translator = Translator::new("thread", "run-2", 8);
    assert!(translate(&mut translator, &events[..8]).is_empty());
    assert_eq!(translator.wants_messages(&events[8]), Some(8));
    translator.set_messages(replayed(&events, 8));
    let sent = translate(&mut translator, &events[8..]);
    let expected = [
        "9-0 RUN_STARTED",
        "9-1 MESSAGES_SNAPSHOT",
        "10-0 TOOL_CALL_RESULT",
        "11-0 TEXT_MESSAGE_START",
        "11-1 TEXT_MESSAGE_CONTENT",
        "11-2 TEXT_MESSAGE_END",
        "12-0 RUN_FINISHED",
    ];
    assert_eq!(types(&sent), expected);
    let call = |id: &str| {
        let function = json!({"name": "tool", "arguments": "{\"command\":\"rm\"}"});
        json!({"role": "assistant", "id": id, "toolCalls": [{"type": "function", "id": id, "function": function}]})
    };
    let image = json!({"type": "image", "source": {"type": "url", "value": "signed:p", "mimeType": "image/png"}});
    assert_eq!(
        serde_json::to_value(&sent[1].event).expect("JSON"),
        json!({"type": "MESSAGES_SNAPSHOT", "timestamp": 0, "messages": [
            {"role": "user", "id": "u", "content": [{"type": "text", "text": "look"}, image]},
            call("done"),
            {"role": "tool", "id": "done-result", "toolCallId": "done", "content": "out", "metadata": {"status": "completed"}},
            {"role": "assistant", "id": "m", "content": "Hello"},
            {"role": "assistant", "id": "half", "content": "I "},
            call("open"),
        ]})
    );
}

#[test]
fn a_resumed_run_without_open_calls_begins_with_no_messages() {
    let call = |status: &str| (EventType::ToolCall, json!({"toolCallId": "t", "status": status}));
    let events = log(&[START, call("started"), call("completed"), opened(1, None), answered(1), ended("completed")]);
    let mut translator = Translator::new("thread", "run-2", 4);
    translate(&mut translator, &events[..4]);
    assert_eq!(translator.wants_messages(&events[4]), None);
}

#[test]
fn a_replay_leaves_out_rolled_back_turns_and_dead_attempts() {
    use EventType::{AssistantMessage, BackendStatus, UserMessage};
    let user = |id: &str| {
        let content = json!([{"type": "text", "text": id}]);
        (UserMessage, json!({"messageId": id, "commandType": "turn", "content": content}))
    };
    let message = |id: &str| (AssistantMessage, json!({"messageId": id, "text": id}));
    let mut events = log(&[
        user("gone"),
        message("also gone"),
        (BackendStatus, json!({"phase": crate::kernel::events::PHASE_ROLLED_BACK})),
        user("question"),
        message("dead"),
        (BackendStatus, json!({"phase": "attempt-restarted"})),
        message("alive"),
    ]);
    let other = crate::ids::CommandId::new(uuid::Uuid::from_u128(2));
    events[3..].iter_mut().for_each(|event| event.command_id = Some(other));
    let messages = replayed(&events, 7).expect("messages");
    assert_eq!(messages.iter().map(SnapshotMessage::id).collect::<Vec<_>>(), ["question", "alive"]);
}

#[test]
fn a_thread_too_large_to_send_is_not_replayed() {
    let text = "x".repeat(200_000);
    let events: Vec<_> =
        (0..12).map(|n| (EventType::AssistantMessage, json!({"messageId": n.to_string(), "text": text}))).collect();
    assert_eq!(replayed(&log(&events), 12), None);
    assert_eq!(replayed(&log(&events), 5).map(|messages| messages.len()), Some(5));
}

fn patch(op: &str, path: &str, value: i32) -> Value {
    json!({"patch": [{"op": op, "path": path, "value": value}]})
}

#[test]
fn a_patch_that_does_not_apply_is_held_back() {
    use EventType::{Activity, State as Of};
    let of_plan = |mut payload: Value| {
        payload["activityType"] = "plan".into();
        (Activity, payload)
    };
    let sent = between(&[
        (Of, patch("add", "/a", 1)),
        (Of, patch("replace", "/b", 2)),
        (Of, patch("test", "/a", 2)),
        (Of, json!({"snapshot": {"b": 1}})),
        (Of, patch("replace", "/b", 2)),
        (Of, patch("test", "/b", 2)),
        of_plan(patch("add", "/a", 1)),
        of_plan(json!({"content": {"a": 1}})),
        of_plan(patch("remove", "/b", 0)),
        of_plan(patch("remove", "/a", 0)),
        of_plan(patch("remove", "/a", 0)),
    ]);
    let kinds: Vec<_> = sent.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    assert_eq!(
        kinds,
        ["STATE_DELTA", "STATE_SNAPSHOT", "STATE_DELTA", "STATE_DELTA", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA"]
    );
}

#[test]
fn a_patch_applies_to_the_state_that_earlier_turns_have_left() {
    let events = log(&[START, (EventType::State, patch("replace", "/count", 2))]);
    let mut state = TranslatorState::default();
    state.take(&json!({"snapshot": {"count": 0}}));
    state.take(&patch("replace", "/count", 1));
    for (earlier, is_sent) in [(Some(state), true), (Some(TranslatorState::unknown()), false), (None, false)] {
        let mut translator = Translator::new("thread", "run", 0);
        translator.take(&events[0]);
        assert!(translator.wants_state(&events[1]));
        if let Some(state) = earlier {
            translator.set_state(state);
            assert!(!translator.wants_state(&events[1]));
        }
        assert_eq!(translator.take(&events[1]).len(), usize::from(is_sent));
        assert_eq!(translator.patches_held_back(), u64::from(!is_sent));
    }
}

#[test]
fn a_resumed_run_begins_with_the_steps_that_have_not_ended() {
    let step = |name: &str, status: &str| (EventType::Step, json!({"name": name, "status": status}));
    let events = log(&[
        step("router", "started"),
        step("router", "finished"),
        step("worker", "started"),
        opened(1, None),
        answered(1),
        step("worker", "finished"),
        ended("completed"),
    ]);
    let first = translate(&mut Translator::new("thread", "run-1", 0), &events[..4]);
    let expected = [
        "1-0 RUN_STARTED",
        "1-1 STEP_STARTED",
        "2-0 STEP_FINISHED",
        "3-0 STEP_STARTED",
        "4-0 STEP_FINISHED",
        "4-1 RUN_FINISHED",
    ];
    assert_eq!(types(&first), expected);
    let second = translate(&mut Translator::new("thread", "run-2", 4), &events);
    assert_eq!(types(&second), ["5-0 RUN_STARTED", "5-1 STEP_STARTED", "6-0 STEP_FINISHED", "7-0 RUN_FINISHED"]);
    let resumed = serde_json::to_value(&second[1].event).expect("JSON");
    assert_eq!(resumed["stepName"], "worker");
}
