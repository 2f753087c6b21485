//! A process that dies while it executes a call.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Notebook, Work, statuses};
use crate::harness::{Engine, TestServer, both_engines, eventually, one_engine};

/// A server that was restarted while it executed a call, which is therefore of unknown outcome.
async fn interrupted_write(engine: Engine) -> (Notebook, TestServer, Work) {
    let notebook = Notebook::new();
    let mut server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let mut body = work.body("call_a", "slow_write", r#"{"text": "x"}"#);
    body["waitMs"] = json!(0);
    work.send(&server, &body).await.with_status(200);
    eventually("it is executed", async || (notebook.written() == 1).then_some(())).await;
    server.restart().await;
    // On SQLite the lease of the previous process has ended; on Postgres another server might execute the call, until its deadline.
    let work = take_over(&server, work).await;
    server.clock.advance_ms(60_000);
    let mut body = work.body("call_a", "slow_write", r#"{"text": "x"}"#);
    body["repeated"] = json!(true);
    let called = work.send(&server, &body).await.with_status(200);
    assert_eq!(called["status"], "outcome-unknown");
    (notebook, server, work)
}

#[both_engines]
async fn a_call_that_was_running_when_the_server_ended_is_never_repeated(engine: Engine) {
    let (notebook, server, work) = interrupted_write(engine).await;
    assert_eq!(statuses(&work.recorded(&server).await), ["started", "outcome-unknown"]);
    let again = work.call(&server, "slow_write", r#"{"text": "x"}"#).await;
    assert_eq!(again["status"], "declined", "the same call under another id");
    assert_eq!(notebook.written(), 1);
}

#[both_engines]
async fn a_call_without_an_answer_may_be_made_again_by_its_own_attempt_only(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    for _ in 0..2 {
        let late = work.call(&server, "late_write", "{}").await;
        assert_eq!(late["status"], "outcome-unknown", "{late}");
        let text = late["content"].as_str().unwrap();
        assert!(text.contains("it is not known whether the call had an effect"), "{text}");
    }
    let work = take_over(&server, work).await;
    let again = work.call(&server, "late_write", "{}").await;
    assert_eq!(again["status"], "declined", "the agent of this attempt may not know of it: {again}");
    assert_eq!(
        statuses(&work.recorded(&server).await),
        ["started", "outcome-unknown"].repeat(2).into_iter().chain(["started", "declined"]).collect::<Vec<_>>()
    );
}

/// The same runner, with a lease that is live.
pub(super) async fn take_over(server: &TestServer, work: Work) -> Work {
    server.clock.advance_ms(120_000);
    let runner = eventually("the lease can be claimed", async || {
        let claimed = server.try_claim(&work.runner.run_id, "runner-a", 600_000).await;
        (claimed.status == 200).then(|| claimed.with_status(200))
    })
    .await;
    let runner =
        crate::harness::ManualRunner::new(server.with_token(server.token()), work.run_id(), "runner-a", &runner);
    runner.ack(&work.command_id).await;
    Work { runner, ..work }
}

/// More calls of the agent's own tools than are read of a command's log.
const OWN_CALLS: usize = 240;

#[one_engine]
async fn a_log_that_is_too_long_to_be_read_counts_as_one_with_a_call_of_unknown_outcome(engine: Engine) {
    let (notebook, server, work) = interrupted_write(engine).await;
    record_own_calls(&work).await;
    for (name, arguments) in [("slow_write", r#"{"text": "x"}"#), ("write_note", r#"{"text": "y"}"#)] {
        let called = work.call(&server, name, arguments).await;
        assert_eq!(called["status"], "declined", "{name}: what was not read may be this call: {called}");
    }
    assert_eq!(work.call(&server, "time_now", "{}").await["status"], "completed", "it can be repeated");
    assert_eq!(notebook.written(), 1);
}

#[one_engine]
async fn a_call_without_an_answer_prevents_no_other_calls_of_its_own_attempt_however_long_the_log_is(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    assert_eq!(work.call(&server, "late_write", "{}").await["status"], "outcome-unknown");
    record_own_calls(&work).await;
    let called = work.call(&server, "write_note", r#"{"text": "x"}"#).await;
    assert_eq!((&called["status"], notebook.written()), (&json!("completed"), 1), "{called}");
    let work = take_over(&server, work).await;
    let called = work.call(&server, "write_note", r#"{"text": "y"}"#).await;
    assert_eq!(called["status"], "declined", "the agent of this attempt may have made it before: {called}");
    assert_eq!(notebook.written(), 1);
}

#[both_engines]
async fn a_runner_that_continues_a_command_gets_the_reason_why_a_call_had_no_answer(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let late = work.call(&server, "late_write", "{}").await;
    let path = format!("/api/v1/runs/{}/tools?commandId={}", work.run_id(), work.command_id);
    let earlier = server.get(&path).await.with_status(200)["earlierCalls"][0].clone();
    assert_eq!((&earlier["status"], &earlier["result"]), (&json!("outcome-unknown"), &late["content"]));
    assert!(late["content"].as_str().unwrap().contains("did not respond within 20 ms"), "{late}");
}

/// Records calls of the agent's own tools.
async fn record_own_calls(work: &Work) {
    let event = |number: usize, status: &str| {
        json!({"type": "tool_call", "commandId": work.command_id, "payload": {"toolCallId": format!("own_{number}"),
            "name": "shell", "method": "function", "status": status}})
    };
    let events: Vec<Value> =
        (0..OWN_CALLS).flat_map(|number| [event(number, "started"), event(number, "completed")]).collect();
    work.runner.try_append(None, events.into()).await.with_status(200);
}

#[both_engines]
async fn an_idempotent_call_is_executed_again(engine: Engine) {
    let notebook = Notebook::new();
    let mut server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let mut body = work.body("call_a", "slow_read", "{}");
    body["waitMs"] = json!(0);
    work.send(&server, &body).await.with_status(200);
    eventually("it is executed", async || (notebook.read.load(Ordering::SeqCst) == 1).then_some(())).await;
    server.restart().await;
    let work = take_over(&server, work).await;
    let mut body = work.body("call_a", "slow_read", "{}");
    body["repeated"] = json!(true);
    notebook.release.notify_one();
    notebook.release.notify_one();
    assert_eq!(work.send(&server, &body).await.with_status(200)["status"], "completed");
    assert_eq!(notebook.read.load(Ordering::SeqCst), 2);
}

#[both_engines]
async fn a_call_that_has_ended_is_found_after_a_restart_also_if_its_request_is_not_marked_as_repeated(engine: Engine) {
    let notebook = Notebook::new();
    let mut server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    let body = work.body("call_a", "write_note", r#"{"text": "x"}"#);
    let first = work.send(&server, &body).await.with_status(200);
    server.restart().await;
    let work = take_over(&server, work).await;
    let body = work.body("call_a", "write_note", r#"{"text": "x"}"#);
    assert_eq!(work.send(&server, &body).await.with_status(200), first);
    assert_eq!(notebook.written(), 1);
}

#[both_engines]
async fn a_call_that_is_found_in_the_log_has_the_arguments_that_a_person_edited(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let work = Work::begin(&server, |_| ()).await;
    for (call_id, arguments) in [("short", json!({"text": "y"})), ("long", json!("{\"text\":\"yy…"))] {
        let started = json!({"toolCallId": call_id, "name": "write_note", "type": "toolkit", "status": "started",
            "arguments": arguments, "edited": true});
        work.runner.tell(&work.command_id, "tool_call", started).await;
        let ended = json!({"toolCallId": call_id, "name": "write_note", "type": "toolkit", "status": "completed",
            "result": "written: y"});
        work.runner.tell(&work.command_id, "tool_call", ended).await;
        let called = work.send(&server, &work.body(call_id, "write_note", r#"{"text": "x"}"#)).await.with_status(200);
        let expected = if arguments.is_object() { arguments } else { json!({"truncated": arguments}) };
        assert_eq!((&called["content"], &called["editedArguments"]), (&json!("written: y"), &expected), "{called}");
    }
    assert_eq!(notebook.written(), 0);
}
