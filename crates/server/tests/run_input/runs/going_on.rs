//! A thread goes on after every end of an interrupt, and what a run sends fits what its clients hold from before.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use super::{
    RUNS, kinds, message, received,
    resuming::{ASKING, DIGEST, permission, resume, run_error, thread_with_question, yes},
    words,
};
use crate::harness::{Caller, Engine, TestServer, ask_body, both_engines, id};

/// The outcome and the failure kind of the run's last event.
async fn end_of(caller: &Caller, run_id: &str) -> (Value, Value) {
    let last = caller.received(run_id).await.pop().unwrap().event;
    (last["outcome"]["type"].clone(), last["metadata"]["failureKind"].clone())
}

#[both_engines]
async fn a_thread_goes_on_after_a_no_a_dismissal_and_an_expiry(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let cases = [("no", json!({"approved": false}), "permission-denied"), ("dismissed", Value::Null, "cancelled")];
    for (name, answer, kind) in cases {
        let first = received(&server.stream(&message(name, ASKING)).await.text);
        let interrupt = id(&first.last().unwrap().event["outcome"]["interrupts"][0], "id");
        let resumed = format!("{name}-answered");
        server.resume(&resumed, &[(&interrupt, answer)]).await.with_status(202);
        assert_eq!(end_of(&server, &resumed).await, (json!("cancelled"), json!(kind)), "{name}");
        let next = format!("{name}-next");
        server.say(&next, "and now?").await.with_status(202);
        assert_eq!(words(&server.received(&next).await), "and now?", "{name}");
    }
    let (server, runner, command) = thread_with_question(engine).await;
    runner.try_patch_lease(json!({"leaseMs": 600_000})).await.with_status(200);
    server.clock.advance_ms(60_000);
    server.resume("expired", &[(&permission(1), Value::Null)]).await.with_status(202);
    let end = runner.signed(json!({"status": "blocked", "failureKind": "cancelled"}));
    server.patch(&format!("/api/v1/commands/{command}/status"), &end).await.with_status(200);
    assert_eq!(end_of(&server, "expired").await, (json!("cancelled"), json!("cancelled")));
    server.say("expired-next", "and now?").await.with_status(202);
}

#[both_engines]
async fn a_dismissal_of_what_was_answered_elsewhere_shows_what_came_of_it(engine: Engine) {
    let (server, runner, command) = thread_with_question(engine).await;
    let (first, before) = (permission(1), server.received("run-1").await);
    server.resume("run-2", &[(&first, yes())]).await.with_status(202);
    // Another answer is still refused.
    let no = [(first.as_str(), json!({"approved": false}))];
    server.resume("run-3", &no).await.refused_by(RunInputInvalid, "interrupt-resolved");
    server.resume("run-3", &[(&first, Value::Null)]).await.with_status(202);
    runner.say(&command, "went on").await;
    runner.end(&command, "completed").await;
    assert_eq!(server.events_of(&runner.run_id, "permission_resolved").await.len(), 1);
    assert_eq!((words(&server.received("run-3").await).as_str(), server.received("run-1").await), ("went on", before));
    // Also past the deadline, when a stock client sends nothing else.
    server.clock.advance_ms(60_000);
    server.resume("run-4", &no).await.refused_by(RunInputInvalid, "interrupt-expired");
    server.resume("run-4", &[(&first, Value::Null)]).await.with_status(202);
}

#[both_engines]
async fn an_unknown_status_is_one_event_of_a_stream(engine: Engine) {
    let (server, runner, _) = thread_with_question(engine).await;
    let before = server.events(&runner.run_id).await;
    let mut body = resume("run-2", &[(&permission(1), yes())]);
    for (field, value, named) in [
        ("status", json!("maybe"), "RunAgentInput.resume[0].status"),
        ("status", json!(7), "RunAgentInput.resume[0].status"),
        ("interruptId", json!(7), "RunAgentInput.resume[0]"),
    ] {
        let good = std::mem::replace(&mut body["resume"][0][field], value);
        assert!(run_error(&server.stream(&body).await).contains(named));
        let refused = server.post(RUNS, &body).await.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
        assert!(refused.message.contains(named) && refused.rule == "interrupt-answer", "{refused:?}");
        body["resume"][0][field] = good;
    }
    body["resume"] = json!("yes");
    run_error(&server.stream(&body).await);
    assert_eq!(server.events(&runner.run_id).await, before);
}

#[both_engines]
async fn a_message_without_text_or_image_is_rejected(engine: Engine) {
    let server = TestServer::start(engine).await;
    for content in [json!(""), json!(" \n\u{200b}"), json!([]), json!([{"type": "text", "text": "\t"}])] {
        let mut body = message("run-1", "");
        body["messages"][0]["content"] = content;
        let refused = server.post(RUNS, &body).await.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
        assert_eq!(refused.message, "RunAgentInput user message has neither text nor an image");
        server.stream(&body).await.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    }
}

#[both_engines]
async fn a_resumed_run_begins_with_the_open_tool_calls(engine: Engine) {
    let server = TestServer::start(engine).await;
    let command = id(&server.say("run-1", "one").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&command).await;
    runner.say(&command, "eins").await;
    runner.end(&command, "completed").await;
    let command = id(&server.say("run-2", "two").await.with_status(202), "taskId");
    runner.ack(&command).await;
    let call = |status: &str| json!({"toolCallId": "t", "name": "rm", "command": "rm a", "status": status});
    runner.tell(&command, "tool_call", call("started")).await;
    let mut ask = ask_body(&permission(1), DIGEST);
    ask["toolCallId"] = json!("t");
    runner.tell(&command, "permission_request", ask).await;
    server.resume("run-3", &[(&permission(1), yes())]).await.with_status(202);
    runner.tell(&command, "tool_call", call("completed")).await;
    runner.end(&command, "completed").await;
    let received = server.received("run-3").await;
    assert_eq!(kinds(&received), ["RUN_STARTED", "MESSAGES_SNAPSHOT", "TOOL_CALL_RESULT", "RUN_FINISHED"]);
    let messages = received[1].event["messages"].as_array().unwrap();
    let shown: Vec<_> = messages.iter().map(|message| (&message["role"], &message["content"])).collect();
    let (user, assistant, none) = (json!("user"), json!("assistant"), Value::Null);
    let said = ["one", "eins", "two"].map(Value::from);
    assert_eq!(shown, [(&user, &said[0]), (&assistant, &said[1]), (&user, &said[2]), (&assistant, &none)]);
    assert_eq!((&messages[0]["id"], &messages[2]["id"]), (&json!("m-run-1"), &json!("m-run-2")), "the client's own");
    assert_eq!(messages[3]["toolCalls"][0]["id"], received[2].event["toolCallId"]);
    // From behind the snapshot nothing is sent twice.
    let request = server.request("GET", &format!("{RUNS}/{}/events?runId=run-3", super::THREAD));
    let rest = super::received(&server.send(request.header("last-event-id", &received[1].id)).await.text);
    assert_eq!(rest, received[2..]);
}

#[both_engines]
async fn a_patch_is_applied_to_the_threads_state_before_it_is_sent(engine: Engine) {
    let server = TestServer::start(engine).await;
    let command = id(&server.say("run-1", "one").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    let replace = |value: i32| json!({"patch": [{"op": "replace", "path": "/count", "value": value}]});
    runner.ack(&command).await;
    runner.tell(&command, "state", replace(1)).await;
    runner.tell(&command, "state", json!({"snapshot": {"count": 1}})).await;
    runner.tell(&command, "state", replace(2)).await;
    runner.end(&command, "completed").await;
    let first = server.received("run-1").await;
    assert_eq!(kinds(&first), ["RUN_STARTED", "STATE_SNAPSHOT", "STATE_DELTA", "RUN_FINISHED"]);
    // The next turn goes on from there, without a snapshot of its own.
    let command = id(&server.say("run-2", "two").await.with_status(202), "taskId");
    runner.ack(&command).await;
    let test = |value: i32| json!({"patch": [{"op": "test", "path": "/count", "value": value}]});
    runner.tell(&command, "state", test(1)).await;
    runner.tell(&command, "state", test(2)).await;
    runner.tell(&command, "state", replace(3)).await;
    runner.end(&command, "completed").await;
    let second = server.received("run-2").await;
    assert_eq!(kinds(&second), ["RUN_STARTED", "STATE_DELTA", "STATE_DELTA", "RUN_FINISHED"]);
    assert_eq!(second[1].event["delta"], test(2)["patch"]);
}
