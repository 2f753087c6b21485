//! From the order to the result: the resident runner plays the scripted agent, through the same path as every runner.

use serde_json::{Value, json};

use crate::{
    harness::{Engine, TestServer, both_engines, eventually, id},
    metrics::value,
};

fn script(steps: Value) -> String {
    json!({"script": steps}).to_string()
}

/// Waits until the turn has said something.
async fn has_said(server: &TestServer, run_id: &str, text: &str) {
    eventually("the turn has said it", async || {
        let said = server.events_of(run_id, "assistant_message").await;
        said.iter().any(|event| event["payload"]["text"] == text).then_some(())
    })
    .await;
}

#[both_engines]
async fn a_plain_prompt_is_echoed(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start("hello, ostler").await;
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &json!("hello, ostler")));
    assert_eq!(result["finalAssistantSource"], "authoritative-final");
    let events = server.events(&run_id).await;
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    let streamed: String = of("assistant_delta").iter().map(|event| id(&event["payload"], "delta")).collect();
    assert_eq!(streamed, "hello, ostler");
    assert_eq!(of("assistant_message").len(), 1);
    assert_eq!(of("terminal_status").len(), 1);
    // The lease is given back as soon as nothing is left to do.
    eventually("the run is idle", async || (server.run(&run_id).await["status"] == "pending").then_some(())).await;
}

/// Requests to the write lane so far.
async fn lane_requests(server: &TestServer) -> f64 {
    value(server, "ostler_flush_requests_sum").await
}

#[both_engines]
async fn a_turn_takes_two_requests_because_a_flush_starts_its_runner_and_another_ends_its_job(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start("first").await;
    server.ended(&run_id, &command_id).await;
    // The launcher claims the job instead while the former runner is just leaving.
    eventually("a turn takes two requests", async || {
        let before = lane_requests(&server).await;
        let command_id = server.turn(&run_id, "next").await;
        server.ended(&run_id, &command_id).await;
        (lane_requests(&server).await - before <= 2.0).then_some(())
    })
    .await;
    let job = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok()["runnerJobs"][0].clone();
    assert_eq!((&job["phase"], &job["attempt"]), (&json!("succeeded"), &json!(1)));
    let summary =
        json!({"status": "idle", "turnStatus": "completed", "failureKind": null, "message": null, "turns": 1});
    assert_eq!(job["terminalSummary"], summary);
}

#[both_engines]
async fn a_script_sends_text_and_calls_tools(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let prompt = script(json!([
        {"say": "Looking"},
        {"tool": {"name": "shell", "command": "ls", "output": "a\nb\n", "exitCode": 0}},
        {"tool": {"name": "shell", "command": "make", "exitCode": 2}},
        {"error": {"kind": "backend-failed", "message": "a hiccup"}},
        {"usage": {"inputTokens": 7, "outputTokens": 5, "costUsd": 0.5}},
        {"custom": {"name": "mark", "value": 1}},
        {"emit": {"count": 20, "bytes": 10}},
        {"say": "Done."},
    ]));
    let (run_id, command_id) = server.start(&prompt).await;
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["reply"], &result["completed"]), (&json!("Done."), &json!(true)));
    let tools = &result["toolCallSummary"];
    assert_eq!((&tools["count"], &tools["statusCounts"]), (&json!(2), &json!({"completed": 1, "failed": 1})));
    assert_eq!(tools["exitCodeCounts"], json!({"0": 1, "2": 1}));
    assert_eq!(tools["items"][0]["command"], "ls");
    assert_eq!(result["artifactSummary"]["outputBytes"], 4);
    assert_eq!(
        result["usage"],
        json!({"totalTokens": 12, "costUsd": 0.5, "turns": 1, "delegatedTokens": 0, "delegatedCostUsd": 0.0,
            "delegatedToolCalls": 0})
    );
    assert_eq!(server.events_of(&run_id, "custom").await.len(), 21);
}

#[both_engines]
async fn commands_of_a_run_are_worked_off_in_order(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, first) = server.start(&script(json!([{"wait": 600}, {"say": "first"}]))).await;
    let second = server.turn(&run_id, "second").await;
    let third = server.turn(&run_id, "third").await;
    for (command_id, reply) in [(&third, "third"), (&second, "second"), (&first, "first")] {
        assert_eq!(server.ended(&run_id, command_id).await["reply"], reply);
    }
    let ends = server.events_of(&run_id, "terminal_status").await;
    let order: Vec<_> = ends.iter().map(|event| id(event, "commandId")).collect();
    assert_eq!(order, [first, second, third]);
    assert_eq!(server.run(&run_id).await["leaseEpoch"], 1, "by one runner");
}

#[both_engines]
async fn a_waiting_turn_is_cancelled_at_once(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start(&script(json!([{"say": "begun"}, {"wait": 600_000}]))).await;
    has_said(&server, &run_id, "begun").await;
    let flagged = server.cancel_command(&command_id).await;
    assert_eq!(flagged["state"], "running");
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["runStatus"]), (&json!("cancelled"), &result["runStatus"]));
    assert_eq!(server.command(&run_id, &command_id).await["terminal"]["source"], "runner");
    // The run takes the next one.
    let next = server.turn(&run_id, "next").await;
    assert_eq!(server.ended(&run_id, &next).await["reply"], "next");
}

#[both_engines]
async fn cancelling_the_run_stops_its_runner(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start(&script(json!([{"say": "begun"}, {"wait": 600_000}]))).await;
    let waiting = server.turn(&run_id, "never").await;
    has_said(&server, &run_id, "begun").await;
    server.cancel_run(&run_id).await;
    assert_eq!(server.ended(&run_id, &command_id).await["terminalStatus"], "cancelled");
    assert_eq!(server.ended(&run_id, &waiting).await["terminalStatus"], "cancelled");
    eventually("the job is over", async || {
        let jobs = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok();
        (jobs["runnerJobs"][0]["phase"] == "cancelled").then_some(())
    })
    .await;
    assert_eq!(server.run(&run_id).await["status"], "cancelled");
}

#[both_engines]
async fn a_script_fails_with_the_kind_it_names(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    for (kind, status) in [
        ("backend-failed", "failed"),
        ("provider-auth-failed", "failed"),
        ("provider-unavailable", "blocked"),
        ("secret-unavailable", "blocked"),
        ("infra-failed", "failed"),
    ] {
        let fail = json!({"kind": kind, "message": "as told", "status": status});
        let (run_id, command_id) = server.start(&script(json!([{"say": "trying"}, {"fail": fail}]))).await;
        let result = server.ended(&run_id, &command_id).await;
        assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!(status), &json!(kind)));
        assert_eq!((&result["blocker"], &result["reply"]), (&json!("as told"), &Value::Null));
        assert_eq!(result["finalResponse"]["text"], "trying");
    }
}

#[both_engines]
async fn a_turn_that_fails_with_a_long_message_keeps_its_text(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let message = "long ".repeat(4_000);
    let prompt = script(json!([{"say": "said"}, {"fail": {"kind": "backend-failed", "message": message}}]));
    let (run_id, command_id) = server.start(&prompt).await;
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["failureKind"], &result["finalResponse"]["text"]), (&json!("backend-failed"), &json!("said")));
    let job = server.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).await.ok()["runnerJobs"][0].clone();
    let summary = job["terminalSummary"]["message"].as_str().unwrap().chars().count();
    assert!(summary <= 301, "{summary} characters");
}

#[both_engines]
async fn the_failure_of_a_malformed_script_names_the_step(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start(&script(json!([{"say": "a"}, {"sing": "b"}]))).await;
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("failed"), &json!("schema-invalid")));
    assert!(result["blocker"].as_str().unwrap().contains("step 2"), "{result}");
    assert_eq!(server.events_of(&run_id, "assistant_message").await, Vec::<Value>::new());
}

/// A turn that asks before it goes on, and its open question.
async fn asking(server: &TestServer) -> (String, String, Value) {
    let steps = json!([{"ask": {"title": "Delete a?", "command": "rm a", "waitMs": 60_000}}, {"say": "deleted"}]);
    let (run_id, command_id) = server.start(&script(steps)).await;
    let request =
        eventually("the question is asked", async || server.permissions(&run_id).await.first().cloned()).await;
    assert_eq!((&request["title"], &request["status"]), (&json!("Delete a?"), &json!("pending")));
    (run_id, command_id, request)
}

#[both_engines]
async fn an_allowed_question_lets_the_turn_go_on(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id, request) = asking(&server).await;
    let digest = ostler_protocol::json::canonical_hash(&json!("rm a"));
    assert_eq!(request["digest"], digest);
    assert_eq!(server.result(&run_id, &command_id).await["liveness"]["phase"], "waiting-permission");
    server.answer(&request, "allow", &digest).await.with_status(200);
    assert_eq!(server.ended(&run_id, &command_id).await["reply"], "deleted");
}

#[both_engines]
async fn a_denied_question_blocks_the_turn(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id, request) = asking(&server).await;
    server.answer(&request, "deny", &id(&request, "digest")).await.with_status(200);
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("blocked"), &json!("permission-denied")));
    assert_eq!(server.events_of(&run_id, "assistant_message").await, Vec::<Value>::new());
    // A steer would be rejected, and the request cannot be answered again.
    let action = id(&result["liveness"], "suggestedAction");
    assert!(action.starts_with("submit another turn to the session") && action.contains("retry the run"), "{action}");
    let session = server.get(&format!("/api/v1/sessions/{}", id(&result, "sessionId"))).await.ok();
    assert_eq!(session["supervisor"]["suggestedAction"], action);
}

#[both_engines]
async fn an_unanswered_question_blocks_the_turn(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.config.runner.lease_ms = 600_000;
        setup.config.runner.job_silence_ms = 3_600_000;
    })
    .await;
    let (run_id, command_id, _) = asking(&server).await;
    server.clock.advance_ms(60_000);
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("blocked"), &json!("cancelled")));
    assert_eq!(server.permissions(&run_id).await[0]["resolvedBy"], "deadline");
}

#[both_engines]
async fn a_steer_reaches_the_waiting_turn(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start(&script(json!([{"say": "which way?"}, {"awaitSteer": {}}]))).await;
    has_said(&server, &run_id, "which way?").await;
    let steer = id(&server.steer(&run_id, "left").await, "commandId");
    assert_eq!(server.ended(&run_id, &command_id).await["reply"], "steered: left");
    let result = server.ended(&run_id, &steer).await;
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &Value::Null));
    let delivery = &result["steerDelivery"];
    assert_eq!((&delivery["targetCommandId"], &delivery["acked"]), (&json!(command_id), &json!(true)));
    assert_eq!((&delivery["accepted"], &delivery["targetEventsObserved"]), (&json!(true), &json!(true)));
    assert_eq!(server.steer(&run_id, "too late").await["state"], "blocked");
}

#[both_engines]
async fn an_interrupt_stops_the_turn(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start(&script(json!([{"say": "begun"}, {"wait": 600_000}, {"say": "no"}]))).await;
    has_said(&server, &run_id, "begun").await;
    let interrupt = server.submit(&run_id, &json!({"type": "interrupt"})).await.with_status(201);
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["blocker"]), (&json!("cancelled"), &json!("interrupted")));
    assert_eq!(server.ended(&run_id, &id(&interrupt, "commandId")).await["terminalStatus"], "completed");
}

#[both_engines]
async fn a_run_of_a_profile_without_an_agent_fails_with_the_reason(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let path = "/api/v1/provider-profiles/codex/credential";
    server.call("PUT", path, &json!({"apiKey": "k-0123456789"})).await.with_status(200);
    let (run_id, command_id) = server
        .start_with("hi", |body| {
            body["backendProfile"] = "codex".into();
            body["executionPolicy"] = json!({"secretScope": {"providerCredentials": [{"profile": "codex",
                "secretRef": {"name": "agentrun-v01-provider-codex", "keys": ["auth.json", "config.toml"]}}]}});
        })
        .await;
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("failed"), &json!("infra-failed")));
    assert!(result["blocker"].as_str().unwrap().contains("codex"), "{result}");
}

#[both_engines]
async fn a_crashed_turn_is_run_again_as_the_next_attempt(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let steps = json!([{"say": "before"}, {"tool": {"name": "deploy", "leaveOpen": true}}, {"crash": "once"}]);
    let (run_id, command_id) = server.start(&script(steps)).await;
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["reply"]), (&json!("completed"), &json!("before")));
    let events = server.events(&run_id).await;
    let restarted = events.iter().position(|event| event["payload"]["phase"] == "attempt-restarted").unwrap();
    let unknown = events.iter().position(|event| event["payload"]["status"] == "outcome-unknown").unwrap();
    assert!(unknown < restarted, "what nobody can know is said before the turn is repeated");
    // The reply is of the last attempt only.
    assert!(result["finalAssistantSeq"].as_i64().unwrap() > events[restarted]["seq"].as_i64().unwrap());
    assert_ne!(events[restarted]["payload"]["attemptId"], events[restarted]["payload"]["previousAttemptId"]);
    assert_eq!(server.command(&run_id, &command_id).await["attemptId"], events[restarted]["payload"]["attemptId"]);
}

#[both_engines]
async fn a_turn_that_always_crashes_is_given_up(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start(&script(json!([{"say": "again"}, {"crash": true}]))).await;
    let jobs_path = format!("/api/v1/runs/{run_id}/runner-jobs");
    // The first restart comes at once; each later one waits longer than the one before.
    for (attempt, pause_ms) in [(2, 1_000), (3, 4_000), (4, 9_000)] {
        eventually("the job waits", async || {
            let job = server.get(&jobs_path).await.ok()["runnerJobs"][0].clone();
            (job["attempt"] == attempt && job["phase"] == "pending").then_some(())
        })
        .await;
        server.clock.advance_ms(pause_ms);
    }
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("failed"), &json!("infra-failed")));
    assert_eq!(server.command(&run_id, &command_id).await["terminal"]["source"], "manager");
    assert_eq!(result["reply"], Value::Null);
    let jobs = server.get(&jobs_path).await.ok();
    let job = &jobs["runnerJobs"][0];
    assert_eq!((&job["phase"], &job["attempt"]), (&json!("failed"), &json!(5)));
    assert_eq!(job["terminalSummary"]["status"], "crashed");
    assert_eq!(server.run(&run_id).await["leaseEpoch"], 5);
}

#[both_engines]
async fn a_runner_that_lost_its_lease_is_replaced(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.config.runner.lease_ms = 300;
        setup.config.runner.job_silence_ms = 3_600_000;
    })
    .await;
    let (run_id, command_id) = server.start(&script(json!([{"say": "begun"}, {"wait": 2_000}, {"say": "done"}]))).await;
    has_said(&server, &run_id, "begun").await;
    server.clock.advance_ms(300);
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["reply"]), (&json!("completed"), &json!("done")));
    assert!(server.run(&run_id).await["leaseEpoch"].as_i64().unwrap() >= 2);
    let done = server.events_of(&run_id, "assistant_message").await;
    assert_eq!(done.iter().filter(|event| event["payload"]["text"] == "done").count(), 1);
}
