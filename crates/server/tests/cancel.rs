//! Cancelling: idempotent in every state. A command that no runner works on ends at once; one of a live runner is flagged, and
//! ends when the runner has stopped it or its lease is gone.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, eventually, id};

async fn cancels(server: &TestServer, run_id: &str) -> usize {
    let audit = server.events_of(run_id, "audit").await;
    audit.iter().filter(|event| event["payload"]["action"].as_str().unwrap().ends_with(".cancel")).count()
}

#[both_engines]
async fn a_pending_command_ends_at_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let path = format!("/api/v1/commands/{command_id}/cancel");
    let first = server.post(&path, &json!({"reason": "changed my mind"})).await.with_status(200);
    assert_eq!((&first["state"], &first["terminal"]["source"]), (&json!("cancelled"), &json!("manager")));
    assert_eq!(first["terminal"]["failureKind"], "cancelled");
    assert!(first["cancelRequestedAt"].is_string());
    // Again, and without a body.
    assert_eq!(server.send(server.request("POST", &path)).await.with_status(200), first);
    assert_eq!(cancels(&server, &run_id).await, 1);
    let audit = server.events_of(&run_id, "audit").await;
    let told = json!({"action": "command.cancel", "by": "operator", "reason": "changed my mind"});
    assert_eq!(audit.last().unwrap()["payload"], told);
    // The run is none the worse.
    assert_eq!(server.run(&run_id).await["status"], "pending");
    server.claim(&run_id, "runner-a").await.try_ack(&command_id).await.refused_by(Cancelled, "command-cancelled");
}

#[both_engines]
async fn the_reason_of_a_cancel_is_part_of_the_end(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (pending, working) = (server.turn(&run_id, "later").await, server.turn(&run_id, "now").await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&working).await;
    let cancel = async |path: String| server.post(&path, &json!({"reason": "too dear"})).await.with_status(200);
    let told = "cancelled on request: too dear";
    let command = cancel(format!("/api/v1/commands/{pending}/cancel")).await;
    assert_eq!((&command["terminal"]["message"], &command["cancelReason"]), (&json!(told), &json!("too dear")));
    assert_eq!(server.result(&run_id, &pending).await["blocker"], told);
    // A command that runs is notified, and ends as cancelled whatever its runner reports.
    assert_eq!(cancel(format!("/api/v1/runs/{run_id}/cancel")).await["cancelReason"], "too dear");
    let command = server.command(&run_id, &working).await;
    assert_eq!((&command["state"], &command["cancelReason"]), (&json!("acked"), &json!("too dear")));
    runner.end(&working, "cancelled").await;
    assert_eq!(server.result(&run_id, &working).await["blocker"], told);
    assert_eq!(server.run(&run_id).await["terminal"]["message"], told);
}

#[both_engines]
async fn a_pending_run_ends_at_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let first = server.cancel_run(&run_id).await;
    assert_eq!((&first["status"], &first["terminal"]["failureKind"]), (&json!("cancelled"), &json!("cancelled")));
    assert_eq!(server.cancel_run(&run_id).await, first);
    assert_eq!(server.command(&run_id, &command_id).await["state"], "cancelled");
    assert_eq!(server.cancel_command(&command_id).await["state"], "cancelled");
    assert_eq!(cancels(&server, &run_id).await, 1);
    server.try_claim(&run_id, "runner-a", 1_000).await.refused_by(Cancelled, "run-cancelled");
    let turn = json!({"type": "turn", "payload": {"prompt": "x"}});
    server.submit(&run_id, &turn).await.refused_by(Cancelled, "run-cancelled");
}

#[both_engines]
async fn a_claimed_run_without_work_ends_at_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    assert_eq!(server.cancel_run(&run_id).await["status"], "cancelled");
    runner.try_patch_lease(json!({})).await.refused_by(Cancelled, "run-cancelled");
    runner.try_append(None, json!([{"type": "custom", "payload": {}}])).await.refused_by(Cancelled, "run-cancelled");
}

#[both_engines]
async fn a_running_command_is_flagged_and_ends_by_its_runner(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let flagged = server.cancel_command(&command_id).await;
    assert_eq!((&flagged["state"], &flagged["terminal"]), (&json!("acked"), &Value::Null));
    assert!(flagged["cancelRequestedAt"].is_string());
    server.clock.advance_ms(5_000);
    let again = server.cancel_command(&command_id).await;
    assert_eq!(again["cancelRequestedAt"], flagged["cancelRequestedAt"]);
    assert_eq!(cancels(&server, &run_id).await, 1);
    assert_eq!(runner.poll("").await["cancelRequested"], json!([command_id]));
    // The runner may still say what it was doing; only its end ends the command.
    runner.say(&command_id, "stopping").await;
    assert_eq!(server.result(&run_id, &command_id).await["terminalStatus"], Value::Null);
    runner.end(&command_id, "cancelled").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("cancelled"), &json!("cancelled")));
    assert_eq!(server.run(&run_id).await["status"], "claimed");
}

#[both_engines]
async fn a_runner_that_was_faster_wins(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.say(&command_id, "done").await;
    server.cancel_run(&run_id).await;
    runner.end(&command_id, "completed").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["reply"]), (&json!("completed"), &json!("done")));
    assert_eq!(result["runStatus"], "cancelled");
}

#[both_engines]
async fn a_lease_that_expires_while_a_cancel_waits_ends_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    assert_eq!(server.cancel_run(&run_id).await["status"], "claimed");
    server.clock.advance_ms(60_000);
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["runStatus"]), (&json!("cancelled"), &json!("cancelled")));
    assert_eq!(server.cancel_run(&run_id).await["status"], "cancelled");
    // The late runner cannot change that, but may say the same.
    runner.try_end(&command_id, "cancelled").await.with_status(200);
    runner.try_end(&command_id, "completed").await.refused(Cancelled);
}

#[both_engines]
async fn a_lease_that_is_released_while_a_cancel_waits_ends_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&one).await;
    server.cancel_command(&one).await;
    runner.release().await;
    assert_eq!(server.command(&run_id, &one).await["state"], "cancelled");
    assert_eq!(server.command(&run_id, &two).await["state"], "pending");
    assert_eq!(server.cancel_command(&one).await["state"], "cancelled");
}

#[both_engines]
async fn a_finished_command_or_run_keeps_its_end(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let ended = runner.end(&command_id, "failed").await;
    assert_eq!(server.cancel_command(&command_id).await, ended);
    let run = runner.try_end_run("blocked").await.with_status(200);
    assert_eq!(server.cancel_run(&run_id).await, run);
    assert_eq!(cancels(&server, &run_id).await, 0);
}

#[both_engines]
async fn cancelling_a_turn_takes_its_steers_along(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let steer = id(&server.steer(&run_id, "left").await, "commandId");
    server.cancel_command(&command_id).await;
    assert_eq!(server.command(&run_id, &steer).await["state"], "blocked");
    // A steer can be cancelled by itself.
    let command_id = server.turn(&run_id, "hi").await;
    let steer = id(&server.steer(&run_id, "right").await, "commandId");
    assert_eq!(server.cancel_command(&steer).await["state"], "cancelled");
    assert_eq!(server.command(&run_id, &command_id).await["state"], "pending");
}

#[both_engines]
async fn cancelling_a_run_converges_everything(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (done, working) = (server.turn(&run_id, "done").await, server.turn(&run_id, "working").await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.end(&done, "completed").await;
    runner.ack(&working).await;
    runner.ask(&working, "prm_0123456789abcdef0123456789abcdef", &"a".repeat(64)).await;
    let waiting = server.turn(&run_id, "waiting").await;
    let steer = id(&server.steer(&run_id, "left").await, "commandId");
    let run = server.cancel_run(&run_id).await;
    assert_eq!((&run["status"], &run["terminal"]), (&json!("running"), &Value::Null));
    // A command that was not begun ends at once; one that a runner works on ends with its runner.
    assert_eq!(server.command(&run_id, &waiting).await["state"], "cancelled");
    assert_eq!(server.command(&run_id, &steer).await["state"], "cancelled");
    assert_eq!(server.permissions(&run_id).await[0]["status"], "cancelled");
    assert_eq!(runner.poll("").await["runCancelRequested"], true);
    assert_eq!(runner.heartbeat().await["runCancelRequested"], true);
    runner.end(&working, "cancelled").await;
    let run = server.run(&run_id).await;
    assert_eq!((&run["status"], &run["unfinishedCommands"]), (&json!("cancelled"), &json!(0)));
    assert_eq!(server.command(&run_id, &done).await["state"], "completed");
    let events = server.events(&run_id).await;
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["commandId"]), (&json!("terminal_status"), &Value::Null));
    let ends = events.iter().filter(|event| event["type"] == "terminal_status").count();
    assert_eq!(ends, 5, "one for each command and one for the run");
    // The session is free again.
    let session_id = id(&run, "sessionId");
    let next = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await;
    server.claim(&next, "runner-b").await;
}

#[both_engines]
async fn a_run_that_is_being_cancelled_takes_nothing_new(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    server.cancel_run(&run_id).await;
    let turn = json!({"type": "turn", "payload": {"prompt": "x"}});
    server.submit(&run_id, &turn).await.refused_by(Cancelled, "run-cancelling");
    server.create_job(&run_id, &json!({"commandId": command_id})).await.refused_by(Cancelled, "run-cancelling");
    // Its runner may be replaced, though: a runner has to end it.
    server.clock.advance_ms(59_999);
    runner.heartbeat().await;
    runner.end(&command_id, "cancelled").await;
    eventually("the run ends", async || (server.run(&run_id).await["status"] == "cancelled").then_some(())).await;
}
