//! What an agent asks ends its run as an interrupt; the run that brings the answers goes on with the same turn.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use super::{RUNS, THREAD, message, received, words};
use crate::harness::{Answer, Caller, Engine, ManualRunner, TestServer, ask_body, both_engines, id};

pub(crate) const ASKING: &str =
    r#"{"script": [{"say": "May I?"}, {"ask": {"title": "Delete a?", "command": "rm a"}}, {"say": "Done."}]}"#;
pub(crate) const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(crate) fn permission(n: usize) -> String {
    format!("prm_{n:032x}")
}

pub(crate) fn resume(run_id: &str, answers: &[(&str, Value)]) -> Value {
    let entry = |(id, payload): &(&str, Value)| match payload {
        Value::Null => json!({"interruptId": id, "status": "cancelled"}),
        payload => json!({"interruptId": id, "status": "resolved", "payload": payload}),
    };
    let resume: Vec<_> = answers.iter().map(entry).collect();
    json!({"threadId": THREAD, "runId": run_id, "messages": [], "resume": resume,
        "forwardedProps": {"runtime_mode": "chat"}})
}

impl Caller {
    pub(crate) async fn resume(&self, run_id: &str, answers: &[(&str, Value)]) -> Answer {
        self.post(RUNS, &resume(run_id, answers)).await
    }
}

pub(crate) fn yes() -> Value {
    json!({"approved": true})
}

/// A thread whose agent, played by the test, has asked.
pub(crate) async fn thread_with_question(engine: Engine) -> (TestServer, ManualRunner, String) {
    let server = TestServer::start(engine).await;
    let command = id(&server.say("run-1", "one").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&command).await;
    runner.ask(&command, &permission(1), DIGEST).await;
    (server, runner, command)
}

#[both_engines]
async fn a_run_that_asks_is_resumed_by_the_answer(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let first = received(&server.stream(&message("run-1", ASKING)).await.text);
    let outcome = &first.last().unwrap().event["outcome"];
    assert_eq!((outcome["type"].as_str(), words(&first).as_str()), (Some("interrupt"), "May I?"));
    let interrupt = id(&outcome["interrupts"][0], "id");
    let accepted = server.resume("run-2", &[(&interrupt, yes())]).await.with_status(202);
    assert_eq!(accepted["created"], false);
    let second = server.received("run-2").await;
    assert_eq!((second[0].kind(), words(&second).as_str()), ("RUN_STARTED", "Done."));
    assert_eq!(second[0].event["runId"], "run-2");
    assert_eq!(second.last().unwrap().event["outcome"]["type"], "success");
    assert_eq!(server.received("run-1").await, first, "events that were sent do not change");
    // The second is resumable in its middle like any other.
    let request = server.request("GET", &format!("{RUNS}/{THREAD}/events?runId=run-2"));
    let rest = received(&server.send(request.header("last-event-id", &second[1].id)).await.text);
    assert_eq!(rest, second[2..]);
    // As stock clients do it: streamed, and with the whole transcript.
    let third = received(&server.stream(&message("run-3", ASKING)).await.text);
    let interrupt = id(&third.last().unwrap().event["outcome"]["interrupts"][0], "id");
    let mut body = resume("run-4", &[(&interrupt, json!({"optionId": "deny"}))]);
    body["messages"] = json!([{"id": "m", "role": "user", "content": ASKING},
        {"id": "a", "role": "assistant", "content": "May I?"}]);
    let fourth = received(&server.stream(&body).await.text);
    assert_eq!(super::kinds(&fourth), ["RUN_STARTED", "RUN_FINISHED"]);
    assert_eq!(fourth[1].event["outcome"], json!({"type": "cancelled"}));
    assert_eq!(fourth[1].event["metadata"]["failureKind"], "permission-denied");
    server.say("run-5", "and now?").await.with_status(202);
    assert_eq!(words(&server.received("run-5").await), "and now?");
}

/// The one event of a stream that has the error.
#[track_caller]
pub(crate) fn run_error(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let received = received(&answer.text);
    assert_eq!(super::kinds(&received), ["RUN_ERROR"], "{}", answer.text);
    assert_eq!(received[0].event["code"], "AGENT_RUN_INPUT_INVALID");
    id(&received[0].event, "message")
}

#[both_engines]
async fn a_message_is_refused_while_an_answer_is_awaited(engine: Engine) {
    let (server, runner, _) = thread_with_question(engine).await;
    let before = server.events(&runner.run_id).await;
    let refused = server.say("run-2", "two").await.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
    assert_eq!((refused.rule.as_str(), &refused.details["interruptIds"]), ("interrupts-open", &json!([permission(1)])));
    assert!(run_error(&server.stream(&message("run-2", "two")).await).contains(&permission(1)));
    assert_eq!(server.events(&runner.run_id).await, before);
    server.cancel_agent_run("run-1").await.with_status(202);
}

#[both_engines]
async fn answers_that_make_no_sense_are_refused_in_both_forms(engine: Engine) {
    let (server, runner, _) = thread_with_question(engine).await;
    let before = server.events(&runner.run_id).await;
    let (first, other) = (permission(1), permission(2));
    for (answers, rule) in [
        (vec![(other.as_str(), yes())], "interrupt-unknown"),
        (vec![("not an id", yes())], "interrupt-unknown"),
        (vec![(&first, yes()), (&other, yes())], "interrupt-unknown"),
        (vec![(&first, json!({"optionId": "perhaps"}))], "interrupt-answer"),
        (vec![(&first, json!({"approved": "yes"}))], "interrupt-answer"),
        (vec![(&first, json!({}))], "interrupt-answer"),
    ] {
        let refused = server.resume("run-2", &answers).await;
        assert_eq!(refused.body["details"]["rule"], rule, "{answers:?}: {}", refused.text);
        refused.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
        run_error(&server.stream(&resume("run-2", &answers)).await);
    }
    assert_eq!(server.events(&runner.run_id).await, before);
    let mut nowhere = resume("run-1", &[(&first, yes())]);
    nowhere["threadId"] = json!(crate::operations::uuid(&runner.run_id));
    server.post(RUNS, &nowhere).await.refused_as(RunInputInvalid, "AGENT_RUN_INPUT_INVALID");
}

#[both_engines]
async fn the_same_resume_again_does_nothing_twice(engine: Engine) {
    let (mut server, runner, command) = thread_with_question(engine).await;
    let first = permission(1);
    let accepted = server.resume("run-2", &[(&first, yes())]).await.with_status(202);
    assert_eq!(accepted["taskId"], command.as_str());
    server.restart().await;
    assert_eq!(server.resume("run-2", &[(&first, yes())]).await.with_status(202), accepted);
    // A client that lost the answer may also come under another name.
    server.resume("run-3", &[(&first, json!({"optionId": "yes"}))]).await.with_status(202);
    assert_eq!(server.events_of(&runner.run_id, "permission_resolved").await.len(), 1);
    let refused = server.resume("run-4", &[(&first, json!({"approved": false}))]).await;
    assert_eq!(refused.refused(RunInputInvalid).rule, "interrupt-resolved");
    let runner = server.claim(&runner.run_id, "runner-a").await;
    runner.ack(&command).await;
    runner.say(&command, "went on").await;
    runner.end(&command, "completed").await;
    let (second, third) = (server.received("run-2").await, server.received("run-3").await);
    assert_eq!((words(&second).as_str(), words(&third).as_str()), ("went on", "went on"));
    assert_eq!(super::kinds(&second), super::kinds(&third));
    server.resume("run-5", &[(&first, yes())]).await.with_status(202);
    assert_eq!(words(&server.received("run-5").await), "went on", "also when it is all over");
}

#[both_engines]
async fn an_expired_interrupt_can_only_be_cancelled(engine: Engine) {
    let (server, runner, command) = thread_with_question(engine).await;
    runner.try_patch_lease(json!({"leaseMs": 600_000})).await.with_status(200);
    server.clock.advance_ms(60_000);
    let first = permission(1);
    let refused = server.resume("run-2", &[(&first, yes())]).await;
    assert_eq!(refused.refused(RunInputInvalid).rule, "interrupt-expired");
    run_error(&server.stream(&resume("run-2", &[(&first, yes())])).await);
    server.resume("run-2", &[(&first, Value::Null)]).await.with_status(202);
    runner.say(&command, "went on without").await;
    runner.end(&command, "completed").await;
    assert_eq!(words(&server.received("run-2").await), "went on without");
}

#[both_engines]
async fn requests_that_come_one_after_the_other_are_put_one_after_the_other(engine: Engine) {
    let (server, runner, command) = thread_with_question(engine).await;
    let [first, second, third] = [1, 2, 3].map(permission);
    runner.ask(&command, &second, DIGEST).await;
    runner.ask(&command, &third, DIGEST).await;
    let put = async |run_id: &str| {
        let received = server.received(run_id).await;
        let interrupts = received.last().unwrap().event["outcome"]["interrupts"].as_array().unwrap().clone();
        interrupts.iter().map(|interrupt| id(interrupt, "id")).collect::<Vec<_>>()
    };
    assert_eq!(put("run-1").await, [first.as_str()]);
    server.resume("run-2", &[(&first, yes())]).await.with_status(202);
    assert_eq!(put("run-2").await, [second.as_str(), &third]);
    let partial = server.resume("run-3", &[(&second, yes())]).await;
    assert_eq!(partial.refused(RunInputInvalid).details["interruptIds"], json!([third]));
    server.resume("run-3", &[(&second, yes()), (&third, json!({"approved": false}))]).await.with_status(202);
    runner.say(&command, "all answered").await;
    runner.end(&command, "completed").await;
    assert_eq!(words(&server.received("run-3").await), "all answered");
}

#[both_engines]
async fn a_resume_that_answers_twice_or_ahead_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let command = id(&server.say("run-1", "go").await.with_status(202), "taskId");
    let run = server.run_of_thread().await;
    let runner = server.claim(&run, "runner-a").await;
    runner.ack(&command).await;
    let ids = [permission(1), permission(2)];
    let asks = |id: &str| json!({"type": "permission_request", "commandId": command, "payload": ask_body(id, DIGEST)});
    runner.try_append(None, json!([asks(&ids[0]), asks(&ids[1])])).await.with_status(200);
    let no = || json!({"approved": false});
    for answers in [vec![(&ids[0], yes()), (&ids[0], no())], vec![(&ids[0], yes()), (&ids[0], yes())]] {
        let answers: Vec<_> = answers.iter().map(|(id, payload)| (id.as_str(), payload.clone())).collect();
        server.resume("run-2", &answers).await.refused_by(RunInputInvalid, "interrupt-twice");
    }
    // The second waits until the first is answered, and was not shown.
    let ahead = [(ids[0].as_str(), yes()), (ids[1].as_str(), yes())];
    server.resume("run-2", &ahead).await.refused_by(RunInputInvalid, "interrupt-unknown");
    server.resume("run-2", &ahead[..1]).await.with_status(202);
    let second = server.received("run-2").await;
    assert_eq!(second.last().unwrap().event["outcome"]["interrupts"][0]["id"], ids[1].as_str(), "{second:?}");
    server.resume("run-3", &ahead[1..]).await.with_status(202);
}

/// The attempt that continues the turn after the restart makes the same request under another id.
#[both_engines]
async fn an_interrupt_is_answered_by_its_old_id_after_a_restart(engine: Engine) {
    let mut server = TestServer::with_runner(engine).await;
    let first = received(&server.stream(&message("run-1", ASKING)).await.text);
    let interrupt = id(&first.last().unwrap().event["outcome"]["interrupts"][0], "id");
    server.restart().await;
    server.resume("run-2", &[(&interrupt, yes())]).await.with_status(202);
    let second = server.received("run-2").await;
    assert!(words(&second).ends_with("Done."), "{second:?}");
    assert_eq!(second.last().unwrap().event["outcome"]["type"], "success");
    // Sent again under another name, it has no further effect. Another answer is rejected.
    server.resume("run-3", &[(&interrupt, yes())]).await.with_status(202);
    assert_eq!(words(&server.received("run-3").await), words(&second));
    let refused = server.resume("run-4", &[(&interrupt, json!({"approved": false}))]).await;
    assert_eq!(refused.refused(RunInputInvalid).rule, "interrupt-resolved");
    let run = server.run_of_thread().await;
    assert_eq!(server.events_of(&run, "permission_request").await.len(), 2, "the agent has asked twice");
    assert_eq!(server.received("run-1").await, first);
}

#[both_engines]
async fn an_interrupt_of_an_earlier_attempt_answers_no_other_request(engine: Engine) {
    let (server, runner, command) = thread_with_question(engine).await;
    let first = permission(1);
    runner.try_patch_lease(json!({"release": true})).await.with_status(200);
    let runner = server.claim(&runner.run_id, "runner-a").await;
    runner.ack(&command).await;
    let mut other = ask_body(&permission(2), DIGEST);
    other["title"] = json!("Delete everything?");
    runner.tell(&command, "permission_request", other).await;
    let refused = server.resume("run-2", &[(&first, yes())]).await.refused(RunInputInvalid);
    assert_eq!(
        (refused.rule.as_str(), &refused.details["interruptIds"]),
        ("interrupt-unknown", &json!([permission(2)]))
    );
    assert_eq!(server.permissions(&runner.run_id).await.iter().filter(|p| p["status"] == "pending").count(), 1);
    server.resume("run-2", &[(&first, Value::Null)]).await.refused_by(RunInputInvalid, "interrupts-open");
}
