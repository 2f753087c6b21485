//! Liveness: the state of a command at the time of a request, and what could be done about it. Derived, never stored.

use ostler_protocol::{Timestamp, limits::IDLE_AFTER_TOOL_MS};
use serde_json::{Value, json};

use crate::harness::{Answer, Engine, TestServer, both_engines, id};

/// Phase and suggestion; the rest is checked where it belongs.
async fn liveness(server: &TestServer, run_id: &str, command_id: &str) -> Value {
    let result = server.result(run_id, command_id).await;
    let liveness = result["liveness"].clone();
    assert!(!liveness["suggestedAction"].as_str().unwrap().is_empty());
    assert_eq!(liveness["suggestedAction"], result["supervisor"]["suggestedAction"]);
    assert!(!result["supervisor"]["summary"].as_str().unwrap().is_empty());
    assert_eq!(liveness["lastSeq"], result["lastSeq"]);
    liveness
}

#[both_engines]
async fn a_command_waits_for_a_runner_then_for_the_model(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let waiting = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&waiting["phase"], &waiting["lease"]), (&json!("waiting-runner"), &Value::Null));
    assert_eq!((&waiting["active"], &waiting["lastCommandActivity"]["type"]), (&json!(true), &json!("user_message")));
    let runner = server.claim(&run_id, "runner-a").await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-runner");
    runner.ack(&command_id).await;
    server.clock.advance_ms(1_234);
    let waiting = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&waiting["phase"], &waiting["active"]), (&json!("waiting-model"), &json!(true)));
    assert_eq!(waiting["lastEventAgeMs"], 1_234);
    assert_eq!(waiting["lastCommandActivity"]["ageMs"], 1_234);
    let lease = &waiting["lease"];
    assert_eq!((&lease["runnerId"], &lease["leaseEpoch"]), (&json!("runner-a"), &json!(1)));
    assert_eq!((&lease["live"], &lease["heartbeatAgeMs"]), (&json!(true), &json!(1_234)));
    runner.release().await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-runner");
}

#[both_engines]
async fn an_open_tool_call_is_waited_for(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    for (tool, status) in [("a", "started"), ("b", "started"), ("a", "completed")] {
        runner.tell(&command_id, "tool_call", json!({"toolCallId": tool, "name": "shell", "status": status})).await;
    }
    let waiting = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&waiting["phase"], &waiting["openToolCalls"]), (&json!("waiting-tool"), &json!(["b"])));
    // However long it takes.
    for _ in 0..5 {
        server.clock.advance_ms(40_000);
        runner.heartbeat().await;
    }
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-tool");
}

#[both_engines]
async fn silence_after_a_tool_is_noticed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let call = json!({"toolCallId": "a", "name": "shell", "status": "completed", "exitCode": 0});
    runner.tell(&command_id, "tool_call", call.clone()).await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
    server.clock.advance_ms(IDLE_AFTER_TOOL_MS - 1);
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
    server.clock.advance_ms(1);
    let idle = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&idle["phase"], &idle["active"]), (&json!("idle-after-tool"), &json!(true)));
    assert!(idle["suggestedAction"].as_str().unwrap().contains("steer"));
    runner.tell(&command_id, "assistant_delta", json!({"messageId": "m", "delta": "so"})).await;
    server.clock.advance_ms(IDLE_AFTER_TOOL_MS);
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
}

#[both_engines]
async fn a_disconnected_transport_is_reported_until_something_comes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.tell(&command_id, "backend_status", json!({"phase": "transport-disconnected"})).await;
    let lost = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&lost["phase"], &lost["active"]), (&json!("transport-disconnected"), &json!(true)));
    runner.tell(&command_id, "backend_status", json!({"phase": "reconnected"})).await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
}

#[both_engines]
async fn a_parked_provider_shows_when_it_resumes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let resume_at: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
    runner.tell(&command_id, "backend_status", json!({"phase": "waiting-provider", "resumeAt": resume_at})).await;
    let parked = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&parked["phase"], &parked["resumeAt"]), (&json!("waiting-provider"), &json!(resume_at)));
    runner.say(&command_id, "there it is").await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
}

#[both_engines]
async fn a_stale_heartbeat_is_reported_before_the_lease_ends(engine: Engine) {
    // Without the sweeper, which would end the lease that this looks at.
    let server = TestServer::with(engine, |setup| setup.config.runner.sweep_interval_ms = 3_600_000).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    server.clock.advance_ms(48_000);
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
    server.clock.advance_ms(1);
    let stale = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&stale["phase"], &stale["lease"]["live"]), (&json!("runner-heartbeat-stale"), &json!(true)));
    runner.heartbeat().await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
    server.clock.advance_ms(60_000);
    let stale = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&stale["phase"], &stale["lease"]["live"]), (&json!("runner-heartbeat-stale"), &json!(false)));
    assert!(stale["suggestedAction"].as_str().unwrap().contains("runner job"));
}

#[both_engines]
async fn an_open_question_is_waited_for(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let digest = "a".repeat(64);
    runner.ask(&command_id, "prm_0123456789abcdef0123456789abcdef", &digest).await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-permission");
    let open = server.result(&run_id, &command_id).await["openPermissions"].clone();
    assert_eq!((&open[0]["title"], &open[0]["digest"]), (&json!("Delete it?"), &json!(digest)));
    server.answer(&open[0], "yes", &digest).await.with_status(200);
    assert_eq!(liveness(&server, &run_id, &command_id).await["phase"], "waiting-model");
    assert_eq!(server.result(&run_id, &command_id).await["openPermissions"], json!([]));
}

#[both_engines]
async fn an_ended_command_is_terminal(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.end(&command_id, "completed").await;
    let ended = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&ended["phase"], &ended["active"]), (&json!("terminal"), &json!(false)));
    assert_eq!(ended["suggestedAction"], "read the result");
    assert_eq!(server.result(&run_id, &command_id).await["supervisor"]["state"], "done");
}

/// Sends the request that a result suggests.
async fn recover(server: &TestServer, liveness: &Value) -> Answer {
    let recovery = &liveness["recovery"];
    let (method, path) = (recovery["method"].as_str().unwrap(), recovery["path"].as_str().unwrap());
    server.call(method, path, &recovery["body"]).await
}

#[both_engines]
async fn the_suggested_recovery_can_be_sent_as_it_is(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.runner.sweep_interval_ms = 3_600_000).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let jobs = async || {
        let listed = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
        listed["runnerJobs"].as_array().unwrap().len()
    };
    // There is no runner yet: the suggestion starts one, once.
    let waiting = liveness(&server, &run_id, &command_id).await;
    assert_eq!(recover(&server, &waiting).await.with_status(201)["commandId"], command_id.as_str());
    recover(&server, &waiting).await.with_status(200);
    assert_eq!(jobs().await, 1);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    assert_eq!(liveness(&server, &run_id, &command_id).await["recovery"], Value::Null, "nothing is wrong");
    // The runner is silent, but holds the lease: a job for its command would be refused.
    server.clock.advance_ms(50_000);
    let silent = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&silent["phase"], &silent["lease"]["live"]), (&json!("runner-heartbeat-stale"), &json!(true)));
    assert_eq!(silent["recovery"], Value::Null);
    let steer = id(&server.steer(&run_id, "left").await, "commandId");
    assert_eq!(liveness(&server, &run_id, &steer).await["recovery"], Value::Null, "its target has a runner");
    // The lease has expired: another runner is started.
    server.clock.advance_ms(10_000);
    let stale = liveness(&server, &run_id, &command_id).await;
    assert_eq!(stale["phase"], "runner-heartbeat-stale");
    recover(&server, &stale).await.with_status(201);
    assert_eq!(jobs().await, 2);
    // The runner lost the connection to its backend and retries; a client that does not want to wait can cancel.
    let runner = server.claim(&run_id, "runner-b").await;
    runner.ack(&command_id).await;
    let resume_at = json!("2026-01-01T01:00:00Z");
    let lost = json!({"phase": "transport-disconnected", "resumeAt": resume_at});
    runner.tell(&command_id, "backend_status", lost).await;
    let lost = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&lost["phase"], &lost["resumeAt"]), (&json!("transport-disconnected"), &resume_at));
    let cancelled = recover(&server, &lost).await.with_status(200);
    assert!(cancelled["cancelRequestedAt"].is_string(), "{cancelled}");
    runner.end(&command_id, "cancelled").await;
    let ended = liveness(&server, &run_id, &command_id).await;
    assert_eq!((&ended["phase"], &ended["recovery"]), (&json!("terminal"), &Value::Null));
}

#[both_engines]
async fn every_suggested_recovery_is_accepted(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.runner.sweep_interval_ms = 3_600_000).await;
    let in_phase = async |run_id: &str, command_id: &str, phase: &str| {
        let liveness = liveness(&server, run_id, command_id).await;
        assert_eq!(liveness["phase"], phase);
        liveness
    };
    // A runner holds the run, and has not taken up the command.
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let _runner = server.claim(&run_id, "runner-a").await;
    recover(&server, &in_phase(&run_id, &command_id, "waiting-runner").await).await.with_status(201);
    server.clock.advance_ms(50_000);
    recover(&server, &in_phase(&run_id, &command_id, "runner-heartbeat-stale").await).await.with_status(200);
    for (phase, event_type, payload) in [
        ("waiting-provider", "backend_status", json!({"phase": "waiting-provider"})),
        ("transport-disconnected", "backend_status", json!({"phase": "transport-disconnected"})),
        ("idle-after-tool", "tool_call", json!({"toolCallId": "a", "name": "shell", "status": "completed"})),
    ] {
        let run_id = server.create_run().await;
        let command_id = server.turn(&run_id, "hi").await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.tell(&command_id, event_type, payload).await;
        if phase == "idle-after-tool" {
            server.clock.advance_ms(IDLE_AFTER_TOOL_MS);
        }
        recover(&server, &in_phase(&run_id, &command_id, phase).await).await.with_status(200);
    }
}
