//! A message for a thread that is busy: refused, queued, or the earlier one gives way to it.

use ostler_protocol::{FailureKind::*, kernel::aliases::OnBusy};
use ostler_run_input::config::RunInputSection;
use serde_json::json;

use super::{received, words};
use crate::harness::{Engine, ManualRunner, TestServer, both_engines, id};

/// A thread whose first turn is at work under the test's own lease.
async fn at_work(engine: Engine, busy: OnBusy) -> (TestServer, ManualRunner, String) {
    let server =
        TestServer::with(engine, |setup| setup.config.change(|section: &mut RunInputSection| section.busy = busy))
            .await;
    let first = id(&server.say("run-1", "one").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&first).await;
    runner.say(&first, "half of it").await;
    (server, runner, first)
}

#[both_engines]
async fn a_busy_thread_refuses_another_message_by_default(engine: Engine) {
    assert_eq!(OnBusy::default(), OnBusy::Reject);
    let (server, runner, first) = at_work(engine, OnBusy::Reject).await;
    let before = server.events(&runner.run_id).await;
    let refused = server.say("run-2", "two").await.refused_as(SessionBusy, "AGENT_SESSION_RUN_LIMIT_EXCEEDED");
    assert_eq!(refused.details["activeRunId"], "run-1", "by the name that it can be cancelled by");
    let streamed = server.stream(&super::message("run-2", "two")).await;
    streamed.refused_as(SessionBusy, "AGENT_SESSION_RUN_LIMIT_EXCEEDED");
    assert_eq!(server.events(&runner.run_id).await, before);
    runner.end(&first, "completed").await;
    server.say("run-2", "two").await.with_status(202);
}

#[both_engines]
async fn a_message_may_wait_its_turn(engine: Engine) {
    let (server, runner, first) = at_work(engine, OnBusy::Enqueue).await;
    let second = id(&server.say("run-2", "two").await.with_status(202), "taskId");
    assert_eq!(server.command(&runner.run_id, &second).await["state"], "pending");
    runner.end(&first, "completed").await;
    runner.ack(&second).await;
    runner.say(&second, "zwei").await;
    runner.end(&second, "completed").await;
    assert_eq!(words(&server.received("run-1").await), "half of it");
    assert_eq!(words(&server.received("run-2").await), "zwei");
}

#[both_engines]
async fn a_message_may_interrupt_the_turn_before_it(engine: Engine) {
    let (server, runner, first) = at_work(engine, OnBusy::Interrupt).await;
    let second = id(&server.say("run-2", "two").await.with_status(202), "taskId");
    assert_eq!(runner.poll("").await["cancelRequested"], json!([first]));
    runner.end(&first, "cancelled").await;
    runner.ack(&second).await;
    runner.end(&second, "completed").await;
    assert_eq!(server.received("run-1").await.last().unwrap().event["outcome"]["type"], "cancelled");
    assert_eq!(server.received("run-2").await.last().unwrap().event["outcome"]["type"], "success");
    let conversation = server.get(&conversation(&runner, &second)).await.ok();
    assert_eq!(conversation["messages"][0]["text"], "one", "it was said all the same");
}

fn conversation(runner: &ManualRunner, command_id: &str) -> String {
    format!("/api/v1/runs/{}/commands/{command_id}/conversation", runner.run_id)
}

#[both_engines]
async fn a_turn_that_was_rolled_back_is_left_out_of_the_conversation(engine: Engine) {
    let (server, runner, first) = at_work(engine, OnBusy::Rollback).await;
    let second = id(&server.say("run-2", "two").await.with_status(202), "taskId");
    assert_eq!(runner.poll("").await["cancelRequested"], json!([first]));
    runner.end(&first, "cancelled").await;
    runner.ack(&second).await;
    runner.say(&second, "zwei").await;
    runner.end(&second, "completed").await;
    let taken_back = server.command(&runner.run_id, &first).await;
    assert_eq!((taken_back["state"].as_str(), taken_back["rolledBackAt"].is_string()), (Some("cancelled"), true));
    let third = id(&server.say("run-3", "three").await.with_status(202), "taskId");
    let heard = server.get(&conversation(&runner, &third)).await.ok();
    let texts: Vec<_> = heard["messages"].as_array().unwrap().iter().map(|message| &message["text"]).collect();
    assert_eq!(texts, ["two", "zwei"]);
    // Its events stay, and so does its stream.
    assert_eq!(words(&server.received("run-1").await), "half of it");
    // A client that still remembers it is not refused for that.
    runner.ack(&third).await;
    runner.end(&third, "completed").await;
    let mut body = super::message("run-4", "four");
    body["messages"] = json!([{"id": "a", "role": "user", "content": "one"},
        {"id": "b", "role": "assistant", "content": "half of it"}, {"id": "c", "role": "user", "content": "two"},
        {"id": "d", "role": "user", "content": "four"}]);
    let (streamed, ()) = tokio::join!(server.stream(&body), async {
        let run = crate::harness::eventually("the fourth turn", async || {
            let page = runner.poll("afterSeq=3").await;
            page["commands"].as_array().unwrap().first().map(|command| id(command, "commandId"))
        });
        let fourth = run.await;
        runner.ack(&fourth).await;
        runner.end(&fourth, "completed").await;
    });
    assert_eq!(super::kinds(&received(&streamed.text)), ["RUN_STARTED", "RUN_FINISHED"], "{}", streamed.text);
}
