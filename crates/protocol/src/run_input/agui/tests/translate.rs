//! The translation, event type by event type.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    Timestamp,
    ids::{CommandId, SessionId},
    kernel::events::{Event, EventType},
    run_input::agui::translate::{EventPlace, SentEvent, Translator},
};

pub(super) const RUN: &str = "run-1";

pub(super) fn event(session_seq: i64, event_type: EventType, payload: &Value) -> Event {
    Event {
        session: SessionId::new(Uuid::nil()),
        session_seq,
        run: None,
        command_id: Some(CommandId::new(Uuid::nil())),
        event_type,
        payload: Some(payload.to_string().into()),
        digest: [0; 32],
        hash: [0; 32],
        created_at: Timestamp::UNIX_EPOCH,
    }
}

pub(super) fn log(events: &[(EventType, Value)]) -> Vec<Event> {
    events.iter().zip(1..).map(|((event_type, payload), seq)| event(seq, *event_type, payload)).collect()
}

pub(super) fn translate(translator: &mut Translator, events: &[Event]) -> Vec<SentEvent> {
    events.iter().flat_map(|event| translator.take(event)).collect()
}

fn sent_events(events: &[(EventType, Value)]) -> Vec<Value> {
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
    assert_eq!(sent_events(&events)[4]["delta"], "!");
    assert_eq!(
        sent_events(&events)[6],
        json!({"type": "RUN_FINISHED", "threadId": "thread", "runId": RUN, "outcome": {"type": "success"}, "timestamp": 0})
    );
}

#[test]
fn a_place_is_read_only_as_it_is_written() {
    assert_eq!("12-3".parse(), Ok(EventPlace { session_seq: 12, n: 3 }));
    for bad in ["", "12", "12-", "-3", "012-3", "12-03", "+1-2", "12-3-4", " 1-2", "1-99999999999"] {
        assert_eq!(bad.parse::<EventPlace>(), Err(()), "{bad}");
    }
}

pub(super) const START: (EventType, Value) = (EventType::UserMessage, Value::Null);

pub(super) fn ended(status: &str) -> (EventType, Value) {
    (EventType::TerminalStatus, json!({"status": status, "failureKind": "provider-unavailable", "message": "later"}))
}

/// The events between the start and whatever ends the run, without their time.
pub(super) fn between(events: &[(EventType, Value)]) -> Vec<Value> {
    let all = [&[START], events].concat();
    let sent = sent_events(&all).into_iter().skip(1);
    sent.map(|mut event| {
        event.as_object_mut().expect("an object").remove("timestamp");
        event
    })
    .collect()
}

pub(super) fn opened(n: u8, tool: Option<&str>) -> (EventType, Value) {
    let options = json!([{"optionId": "allow", "name": "Allow", "kind": "allow_once"}]);
    let mut payload = json!({"permissionId": permission(n), "title": "Delete a?", "command": "rm a",
        "options": options, "digest": "0".repeat(64), "waitMs": 60_000});
    if let Some(tool) = tool {
        payload["toolCallId"] = tool.into();
    }
    (EventType::PermissionRequest, payload)
}

pub(super) fn answered(n: u8) -> (EventType, Value) {
    (EventType::PermissionResolved, json!({"permissionId": permission(n), "status": "allowed"}))
}

pub(super) fn permission(n: u8) -> String {
    format!("prm_{n:032x}")
}

pub(super) fn types(sent: &[SentEvent]) -> Vec<String> {
    sent.iter().map(|sent| format!("{} {}", sent.id, sent.event.body.type_name())).collect()
}

#[test]
fn a_message_without_deltas_is_sent_whole_and_one_without_an_id_gets_one() {
    assert_eq!(
        between(&[(EventType::AssistantMessage, json!({"text": "Hello"}))]),
        [
            json!({"type": "TEXT_MESSAGE_START", "messageId": "msg-2", "role": "assistant"}),
            json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "msg-2", "delta": "Hello"}),
            json!({"type": "TEXT_MESSAGE_END", "messageId": "msg-2"}),
        ]
    );
}

#[test]
fn a_complete_message_is_not_sent_again() {
    let whole = (EventType::AssistantMessage, json!({"messageId": "m", "text": "Hello"}));
    let late = (EventType::AssistantDelta, json!({"messageId": "m", "delta": "lo"}));
    assert_eq!(between(&[whole.clone(), late, whole]).len(), 3);
}

#[test]
fn a_message_whose_deltas_differ_carries_the_final_text() {
    let sent = between(&[
        (EventType::AssistantDelta, json!({"messageId": "m", "delta": "my key is"})),
        (EventType::AssistantMessage, json!({"messageId": "m", "text": "[redacted]"})),
    ]);
    assert_eq!(sent[2], json!({"type": "TEXT_MESSAGE_END", "messageId": "m", "metadata": {"text": "[redacted]"}}));
}

#[test]
fn hints_become_a_schema_on_the_message_and_beside_it_and_never_leave_themselves() {
    let hints = json!({"version": "2.1", "intent": "status", "status": "success", "title": "Created"});
    let sent = between(&[(EventType::AssistantMessage, json!({"messageId": "m", "text": "Done", "uiHints": hints}))]);
    let schema = &sent[2]["metadata"]["ui_schema"];
    assert_eq!(schema["version"], "2.0", "{sent:?}");
    assert_eq!(
        sent[3],
        json!({"type": "CUSTOM", "name": "ui_schema", "value": {"messageId": "m", "ui_schema": schema}})
    );
    assert!(!json!(sent).to_string().contains("intent"));
    let bad = json!({"messageId": "m", "text": "Done", "uiHints": "not hints"});
    assert_eq!(between(&[(EventType::AssistantMessage, bad)]).len(), 3);
}

#[test]
fn a_thought_has_its_span_and_its_message() {
    let sent = between(&[
        (EventType::ReasoningDelta, json!({"messageId": "t", "delta": "hm"})),
        (EventType::Reasoning, json!({"messageId": "t", "text": "hm."})),
    ]);
    let types: Vec<_> = sent.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    assert_eq!(
        types,
        [
            "REASONING_START",
            "REASONING_MESSAGE_START",
            "REASONING_MESSAGE_CONTENT",
            "REASONING_MESSAGE_CONTENT",
            "REASONING_MESSAGE_END",
            "REASONING_END"
        ]
    );
}

#[test]
fn a_thought_never_has_the_id_of_a_text() {
    let sent = between(&[
        (EventType::AssistantDelta, json!({"messageId": "a", "delta": "x"})),
        (EventType::ReasoningDelta, json!({"messageId": "a", "delta": "hm"})),
    ]);
    let thoughts = sent.iter().filter(|event| event["type"].as_str().expect("a type").starts_with("REASONING"));
    assert!(thoughts.clone().count() > 2 && thoughts.clone().all(|event| event["messageId"] == "think-a"), "{sent:?}");
}

#[test]
fn a_tool_call_is_announced_with_its_output_and_result() {
    let call = |status: &str| json!({"toolCallId": "t", "name": "shell", "command": "ls", "status": status});
    let mut failed = call("failed");
    failed["exitCode"] = 2.into();
    let sent = between(&[
        (EventType::ToolCall, call("started")),
        (EventType::CommandOutput, json!({"toolCallId": "t", "stream": "stdout", "text": "a\n"})),
        (EventType::CommandOutput, json!({"toolCallId": "t", "stream": "stderr", "text": "b\n"})),
        (EventType::ToolCall, failed),
    ]);
    assert_eq!(
        sent,
        [
            json!({"type": "TOOL_CALL_START", "toolCallId": "t", "toolCallName": "shell"}),
            json!({"type": "TOOL_CALL_ARGS", "toolCallId": "t", "delta": "{\"command\":\"ls\"}"}),
            json!({"type": "TOOL_CALL_END", "toolCallId": "t"}),
            json!({"type": "CUSTOM", "name": "ostler.command_output", "value": {"toolCallId": "t", "stream": "stdout", "text": "a\n"}}),
            json!({"type": "CUSTOM", "name": "ostler.command_output", "value": {"toolCallId": "t", "stream": "stderr", "text": "b\n"}}),
            json!({"type": "TOOL_CALL_RESULT", "messageId": "t-result", "toolCallId": "t", "content": "a\nb\n",
                "role": "tool", "metadata": {"status": "failed", "exitCode": 2}}),
        ]
    );
}

#[test]
fn arguments_are_always_an_object() {
    let delta = |arguments: Value| {
        let call = json!({"toolCallId": "t", "name": "f", "arguments": arguments, "status": "started"});
        between(&[(EventType::ToolCall, call)])[1]["delta"].clone()
    };
    assert_eq!(delta(json!({"a": 1})), r#"{"a":1}"#);
    assert_eq!(delta(json!("{\"a\": 1}")), r#"{"a":1}"#);
    assert_eq!(delta(json!("{\"a\": \"cut…")), r#"{"arguments":"{\"a\": \"cut…"}"#);
    assert_eq!(delta(json!([1])), "{}");
}

#[test]
fn a_call_that_never_ended_and_one_of_unknown_outcome_are_answered_as_unknown() {
    let call = |id: &str, status: &str| (EventType::ToolCall, json!({"toolCallId": id, "status": status}));
    let sent = between(&[call("a", "started"), call("b", "outcome-unknown"), ended("completed")]);
    let results: Vec<_> = sent.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").collect();
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|result| result["metadata"]["status"] == "outcome-unknown"));
}

#[test]
fn an_id_used_again_is_another_call() {
    let call = |status: &str| (EventType::ToolCall, json!({"toolCallId": "t", "name": "f", "status": status}));
    let sent = between(&[call("started"), call("completed"), call("completed"), call("started"), call("completed")]);
    let ids: Vec<_> = sent.iter().map(|event| event["toolCallId"].as_str().expect("an id")).collect();
    assert_eq!(ids, ["t", "t", "t", "t", "t#5", "t#5", "t#5", "t#5"]);
}

#[test]
fn steps_state_and_activity_are_sent_where_they_make_sense() {
    use EventType::{Activity, State, Step};
    let patch = json!([{"op": "add", "path": "/a", "value": 1}]);
    let sent = between(&[
        (Step, json!({"name": "plan", "status": "started"})),
        (State, json!({"snapshot": {"a": 0}})),
        (State, json!({"patch": patch})),
        (State, json!({"patch": [{"op": "add", "path": "a"}]})),
        (Activity, json!({"activityType": "plan", "content": {"steps": []}})),
        (Activity, json!({"activityType": "plan", "entries": [1]})),
        (Activity, json!({"activityType": "plan", "patch": patch})),
        (Step, json!({"name": "other", "status": "finished"})),
        ended("completed"),
    ]);
    assert_eq!(
        sent,
        [
            json!({"type": "STEP_STARTED", "stepName": "plan"}),
            json!({"type": "STATE_SNAPSHOT", "snapshot": {"a": 0}}),
            json!({"type": "STATE_DELTA", "delta": patch}),
            json!({"type": "ACTIVITY_SNAPSHOT", "messageId": "activity-6", "activityType": "plan", "content": {"steps": []}}),
            json!({"type": "ACTIVITY_SNAPSHOT", "messageId": "activity-6", "activityType": "plan", "content": {"entries": [1]}}),
            json!({"type": "ACTIVITY_DELTA", "messageId": "activity-6", "activityType": "plan", "patch": patch}),
            json!({"type": "STEP_FINISHED", "stepName": "plan"}),
            json!({"type": "RUN_FINISHED", "threadId": "thread", "runId": RUN, "outcome": {"type": "success"}}),
        ]
    );
}

#[test]
fn usage_is_summed_by_model_and_sent_at_the_end() {
    let used = |model: &str, tokens: u64| {
        (
            EventType::Usage,
            json!({"model": model, "inputTokens": tokens, "outputTokens": 1, "reasoningOutputTokens": 1}),
        )
    };
    let sent = between(&[used("a", 1), used("b", u64::MAX), used("a", 2), ended("failed")]);
    assert_eq!(
        sent,
        [json!({"type": "RUN_ERROR", "message": "later", "code": "provider-unavailable", "usage": [
            {"model": "a", "inputTokens": 3, "outputTokens": 2, "reasoningTokens": 2},
            {"model": "b", "inputTokens": 9_007_199_254_740_991_u64, "outputTokens": 1, "reasoningTokens": 1}]})]
    );
}

#[test]
fn each_end_has_its_outcome() {
    let outcome = |status: &str| between(&[ended(status)]).remove(0);
    assert_eq!(outcome("completed")["outcome"], json!({"type": "success"}));
    assert_eq!(outcome("cancelled")["outcome"], json!({"type": "cancelled"}));
    for status in ["failed", "blocked"] {
        assert_eq!((&outcome(status)["type"], &outcome(status)["message"]), (&json!("RUN_ERROR"), &json!("later")));
    }
    // An end that was erased, or makes no sense, is an end all the same.
    assert_eq!(between(&[(EventType::TerminalStatus, Value::Null)])[0]["code"], "gone");
}

#[test]
fn errors_waits_and_an_agents_own_events_are_custom_but_ours_cannot_be_forged() {
    use EventType::{BackendStatus, Custom, Error};
    let sent = between(&[
        (Error, json!({"failureKind": "provider-unavailable", "message": "again", "secretive": 1})),
        (BackendStatus, json!({"phase": "waiting-provider", "resumeAt": "2026-01-01T00:00:00Z"})),
        (BackendStatus, json!({"phase": "transport-disconnected", "resumeAt": "2026-01-01T00:00:01Z"})),
        (BackendStatus, json!({"phase": "transport-disconnected"})),
        (BackendStatus, json!({"phase": "session/prompt"})),
        (Custom, json!({"name": "mine", "value": [1]})),
        (Custom, json!({"name": "ui_schema", "value": {"version": "2.0"}})),
        (Custom, json!({"name": "ostler.command_output", "value": {"text": "forged"}})),
        (Custom, json!({"name": "error", "value": 1})),
        (Custom, json!({"no": "name"})),
    ]);
    let names: Vec<_> = sent.iter().map(|event| (event["name"].as_str().expect("a name"), &event["value"])).collect();
    assert_eq!(
        names,
        [
            ("ostler.error", &json!({"failureKind": "provider-unavailable", "message": "again"})),
            ("ostler.waiting_provider", &json!({"resumeAt": "2026-01-01T00:00:00Z"})),
            ("ostler.waiting_provider", &json!({"resumeAt": "2026-01-01T00:00:01Z"})),
            ("mine", &json!([1])),
            ("error", &json!(1)),
            ("ostler.custom", &json!({"no": "name"})),
        ]
    );
}

#[test]
fn a_new_attempt_closes_and_names_the_messages_of_the_dead_one() {
    let sent = between(&[
        (EventType::AssistantDelta, json!({"messageId": "m1", "delta": "half"})),
        (EventType::BackendStatus, json!({"phase": "attempt-restarted"})),
        (EventType::AssistantDelta, json!({"messageId": "m1", "delta": "late"})),
        (EventType::AssistantMessage, json!({"messageId": "m2", "text": "whole"})),
    ]);
    assert_eq!(sent[2], json!({"type": "TEXT_MESSAGE_END", "messageId": "m1"}));
    assert_eq!(sent[3], json!({"type": "CUSTOM", "name": "ostler.attempt_restarted", "value": {"messageIds": ["m1"]}}));
    assert_eq!(sent[4]["messageId"], "m2");
}

#[test]
fn a_question_ends_the_run_and_the_run_that_answers_goes_on_from_there() {
    let tool = |status: &str| (EventType::ToolCall, json!({"toolCallId": "t", "name": "rm", "status": status}));
    let events = log(&[
        START,
        (EventType::AssistantDelta, json!({"messageId": "m", "delta": "I "})),
        tool("started"),
        opened(1, Some("t")),
        (EventType::AssistantDelta, json!({"messageId": "m", "delta": "wait"})),
        answered(1),
        tool("completed"),
        (EventType::AssistantMessage, json!({"messageId": "m", "text": "I wait"})),
        ended("completed"),
    ]);
    let first = translate(&mut Translator::new("thread", RUN, 0), &events);
    let last = first.last().expect("an end");
    assert_eq!(types(&first)[6..], ["4-0 TEXT_MESSAGE_END", "4-1 RUN_FINISHED"]);
    let end = serde_json::to_value(&last.event).expect("JSON");
    let interrupt = &end["outcome"]["interrupts"][0];
    assert_eq!((&interrupt["id"], &interrupt["reason"]), (&json!(permission(1)), &json!("tool_call")));
    assert_eq!((&interrupt["toolCallId"], &interrupt["expiresAt"]), (&json!("t"), &json!("1970-01-01T00:01:00Z")));
    assert_eq!(interrupt["metadata"]["command"], "rm a");

    // What the agent sent while the question was open is not lost, and the call is not announced again.
    let second = translate(&mut Translator::new("thread", "run-2", 5), &events);
    assert_eq!(
        types(&second),
        [
            "6-0 RUN_STARTED",
            "6-1 TEXT_MESSAGE_START",
            "6-2 TEXT_MESSAGE_CONTENT",
            "7-0 TOOL_CALL_RESULT",
            "8-0 TEXT_MESSAGE_END",
            "9-0 RUN_FINISHED"
        ]
    );
}

#[test]
fn a_call_with_a_request_before_its_start_is_announced_with_the_request() {
    let (kind, mut asked) = opened(1, Some("t"));
    asked["toolName"] = json!("rm");
    asked["editable"] = json!({"arguments": {"path": "a"}, "schema": {"type": "object"}});
    let tool = |status: &str| (EventType::ToolCall, json!({"toolCallId": "t", "name": "rm", "status": status}));
    let events = log(&[START, (kind, asked), answered(1), tool("started"), tool("completed"), ended("completed")]);
    let first = translate(&mut Translator::new("thread", RUN, 0), &events);
    let names = ["2-0 TOOL_CALL_START", "2-1 TOOL_CALL_ARGS", "2-2 TOOL_CALL_END", "2-3 RUN_FINISHED"];
    assert_eq!(types(&first)[1..], names);
    let end = serde_json::to_value(&first.last().expect("an end").event).expect("JSON");
    let interrupt = &end["outcome"]["interrupts"][0];
    assert_eq!((&interrupt["reason"], &interrupt["toolCallId"]), (&json!("tool_call"), &json!("t")));
    assert_eq!(interrupt["responseSchema"]["properties"]["editedArgs"], json!({"type": "object"}));
    let second = translate(&mut Translator::new("thread", "run-2", 2), &events);
    assert_eq!(types(&second), ["3-0 RUN_STARTED", "5-0 TOOL_CALL_RESULT", "6-0 RUN_FINISHED"]);
}

#[test]
fn later_questions_are_sent_once_the_first_are_answered() {
    let events = log(&[START, opened(1, None), opened(2, None), answered(1), answered(2), ended("completed")]);
    let run = |after_seq| {
        let sent = translate(&mut Translator::new("thread", RUN, after_seq), &events);
        serde_json::to_value(&sent.last().expect("an end").event).expect("JSON")["outcome"].clone()
    };
    assert_eq!(run(0)["interrupts"][0]["id"], permission(1));
    assert_eq!(run(3)["interrupts"][0]["id"], permission(2));
    assert_eq!(run(4), json!({"type": "success"}));
}

#[test]
fn questions_of_one_set_are_sent_together() {
    let mut first = opened(1, None);
    first.1["withNext"] = true.into();
    let events = log(&[START, first, opened(2, None), answered(1), answered(2), ended("completed")]);
    let sent = translate(&mut Translator::new("thread", RUN, 0), &events);
    assert_eq!(types(&sent), ["1-0 RUN_STARTED", "3-0 RUN_FINISHED"]);
    let end = serde_json::to_value(&sent.last().expect("an end").event).expect("JSON");
    let interrupts = end["outcome"]["interrupts"].as_array().expect("interrupts");
    assert_eq!(interrupts.iter().map(|asked| &asked["id"]).collect::<Vec<_>>(), [&permission(1), &permission(2)]);
    let second = translate(&mut Translator::new("thread", "run-2", 3), &events);
    assert_eq!(types(&second), ["4-0 RUN_STARTED", "6-0 RUN_FINISHED"]);
}

#[test]
fn a_question_that_the_kernel_answers_by_itself_interrupts_no_run() {
    let mut late = opened(1, None);
    late.1["waitMs"] = 0.into();
    let mut unreadable = opened(1, None);
    unreadable.1["digest"] = "?".into();
    let stopping = (EventType::Audit, json!({"action": "command.cancel"}));
    for events in [vec![late], vec![unreadable], vec![stopping, opened(1, None)]] {
        assert_eq!(between(&events), Vec::<Value>::new());
    }
}

#[test]
fn ids_that_are_empty_or_over_long_are_replaced_by_their_digest() {
    let long = "x".repeat(201);
    for id in ["", &long] {
        let sent = between(&[(EventType::AssistantDelta, json!({"messageId": id, "delta": "a"}))]);
        assert_eq!(sent[0]["messageId"].as_str().expect("an id").len(), 64);
    }
}

#[test]
fn an_agent_that_opens_without_end_has_its_oldest_closed() {
    let deltas: Vec<_> =
        (0..300).map(|n| (EventType::AssistantDelta, json!({"messageId": n.to_string(), "delta": "a"}))).collect();
    let sent = between(&deltas);
    let ended = sent.iter().filter(|event| event["type"] == "TEXT_MESSAGE_END").count();
    assert_eq!(ended, 300 - crate::run_input::agui::verify::OPEN_MAX);
}

#[test]
fn however_many_events_precede_a_resume_the_events_after_it_are_legal() {
    use EventType::*;
    // Past what is held: messages that begin and end where there is no room for them any more.
    let mut events: Vec<_> = (0..4_000)
        .flat_map(|n| {
            let id = format!("m-{n}");
            [
                (AssistantDelta, json!({"messageId": id, "delta": "a"})),
                (AssistantMessage, json!({"messageId": id, "text": "a", "final": false})),
            ]
        })
        .collect();
    events.push((AssistantDelta, json!({"messageId": "last", "delta": "b"})));
    let after_seq = events.len() as i64;
    events.push((AssistantDelta, json!({"messageId": "last", "delta": "c"})));
    events.push((AssistantMessage, json!({"messageId": "last", "text": "bc", "final": true})));
    events.push((TerminalStatus, json!({"status": "completed"})));
    let sent = translate(&mut Translator::new("thread", RUN, after_seq), &log(&events));
    let mut judge = super::judge::Judge::default();
    for one in &sent {
        let verdict = judge.receive(&serde_json::from_str(&one.event.to_json()).expect("JSON"));
        assert!(verdict.is_ok(), "{}: {}", one.id, verdict.unwrap_err());
    }
    assert!(judge.has_ended());
}
