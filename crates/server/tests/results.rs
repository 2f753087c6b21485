//! The result envelope: every field always there, the reply taken from where it has authority, and counts that fit the
//! log.

use ostler_protocol::FailureKind::SchemaInvalid;
use serde_json::{Value, json};

use crate::harness::{Engine, Recorder, TestServer, both_engines, id};

/// Each field of the envelope, in the state before anything has happened.
fn fields() -> Vec<&'static str> {
    vec![
        "artifactSummary",
        "attemptId",
        "backendProfile",
        "blocker",
        "chainHead",
        "commandId",
        "completed",
        "eventCount",
        "eventsCapped",
        "failureKind",
        "finalAssistantOutputTruncated",
        "finalAssistantSeq",
        "finalAssistantSource",
        "finalAssistantTextTruncated",
        "finalResponse",
        "lastSeq",
        "liveness",
        "nextAfterSeq",
        "openPermissions",
        "payloadsRemovedAt",
        "profileTenantId",
        "reply",
        "retryOf",
        "rule",
        "runId",
        "runStatus",
        "scopedEventCount",
        "scopedLastSeq",
        "sessionId",
        "state",
        "status",
        "steerDelivery",
        "supervisor",
        "terminalSource",
        "terminalStatus",
        "toolCallSummary",
        "usage",
    ]
}

fn keys(value: &Value) -> Vec<String> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

#[both_engines]
async fn every_field_is_there_from_the_beginning(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let fresh = server.result(&run_id, &command_id).await;
    assert_eq!(keys(&fresh), fields());
    for field in ["attemptId", "blocker", "failureKind", "reply", "finalResponse", "steerDelivery"] {
        assert_eq!(fresh[field], Value::Null, "{field}");
    }
    for field in ["terminalStatus", "terminalSource", "finalAssistantSeq", "finalAssistantSource"] {
        assert_eq!(fresh[field], Value::Null, "{field}");
    }
    assert_eq!((&fresh["status"], &fresh["completed"]), (&json!("pending"), &json!(false)));
    let empty = json!({"count": 0, "statusCounts": {}, "exitCodeCounts": {}, "items": []});
    assert_eq!(fresh["toolCallSummary"], empty);
    let liveness = ["active", "externalProfile", "lastCommandActivity", "lastEventAgeMs", "lastSeq", "lease"];
    let rest = ["openToolCalls", "otherWorkspace", "phase", "podReason", "recovery", "resumeAt", "suggestedAction"];
    assert_eq!(keys(&fresh["liveness"]), [&liveness[..], &rest].concat());
    assert_eq!(keys(&fresh["supervisor"]), ["state", "suggestedAction", "summary"]);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    runner.say(&command_id, "hello").await;
    runner.end(&command_id, "completed").await;
    let done = server.result(&run_id, &command_id).await;
    assert_eq!(keys(&done), fields());
    assert_eq!((&done["terminalStatus"], &done["terminalSource"]), (&json!("completed"), &json!("terminal_status")));
    assert_eq!((&done["completed"], &done["reply"]), (&json!(true), &json!("hello")));
    assert_eq!((&done["attemptId"], &done["runStatus"]), (&json!(runner.attempt_id), &json!("claimed")));
    assert_eq!(done["chainHead"]["hash"].as_str().unwrap().len(), 64);
    assert_eq!(done["chainHead"]["sessionSeq"], done["lastSeq"]);
}

#[both_engines]
async fn a_run_without_a_command_has_a_result_too(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let path = format!("/api/v1/runs/{run_id}/result");
    let result = server.get(&path).await.ok();
    assert_eq!(keys(&result), fields());
    for field in ["commandId", "scopedLastSeq", "scopedEventCount", "terminalStatus"] {
        assert_eq!(result[field], Value::Null, "{field}");
    }
    assert_eq!((&result["status"], &result["liveness"]["phase"]), (&json!("pending"), &json!("idle")));
    server.cancel_run(&run_id).await;
    let result = server.get(&path).await.ok();
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("cancelled"), &json!("cancelled")));
    assert_eq!((&result["completed"], &result["liveness"]["phase"]), (&json!(false), &json!("terminal")));
}

fn message(text: &str, is_final: bool, authority: bool) -> Value {
    json!({"messageId": "m", "text": text, "final": is_final, "replyAuthority": authority})
}

#[both_engines]
async fn the_last_authoritative_reply_wins(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    for (text, is_final, authority) in [
        ("progress", false, false),
        ("first answer", true, true),
        ("second answer", true, true),
        ("afterthought", false, false),
        ("final without authority", true, false),
        ("authority without final", false, true),
    ] {
        runner.tell(&command_id, "assistant_message", message(text, is_final, authority)).await;
    }
    runner.tell(&command_id, "assistant_delta", json!({"messageId": "m", "delta": "never a reply"})).await;
    runner.end(&command_id, "completed").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!(result["reply"], "second answer");
    let response = &result["finalResponse"];
    assert_eq!((&response["source"], &response["final"]), (&json!("authoritative-final"), &json!(true)));
    assert_eq!(response["replyAuthority"], true);
    assert_eq!(result["finalAssistantSource"], "authoritative-final");
    let chosen = server.events(&run_id).await.into_iter().find(|event| event["payload"]["text"] == "second answer");
    assert_eq!(result["finalAssistantSeq"], chosen.unwrap()["seq"]);
    assert_eq!(response["seq"], result["finalAssistantSeq"]);
}

#[both_engines]
async fn without_authority_the_last_text_is_shown_as_a_fallback(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.tell(&command_id, "assistant_message", message("early", false, false)).await;
    runner.tell(&command_id, "assistant_message", message("late", true, false)).await;
    runner.tell(&command_id, "assistant_message", message("  \n ", false, false)).await;
    runner.end(&command_id, "completed").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!((&result["reply"], &result["finalAssistantSource"]), (&json!("late"), &json!("fallback-last-text")));
    let response = &result["finalResponse"];
    assert_eq!((&response["final"], &response["replyAuthority"]), (&json!(true), &json!(false)));
}

#[both_engines]
async fn one_flag_alone_makes_no_authoritative_reply(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    for (is_final, authority) in [(true, false), (false, true), (true, true)] {
        let command_id = server.turn(&run_id, "hi").await;
        runner.tell(&command_id, "assistant_message", message("flagged", is_final, authority)).await;
        runner.tell(&command_id, "assistant_message", message("later", false, false)).await;
        runner.end(&command_id, "completed").await;
        let result = server.result(&run_id, &command_id).await;
        let (reply, source) = match is_final && authority {
            true => ("flagged", "authoritative-final"),
            false => ("later", "fallback-last-text"),
        };
        assert_eq!((&result["reply"], &result["finalAssistantSource"]), (&json!(reply), &json!(source)));
        // Whichever message was chosen, its own flags are shown.
        let shown = (&result["finalResponse"]["final"], &result["finalResponse"]["replyAuthority"]);
        let both = is_final && authority;
        assert_eq!(shown, (&json!(both), &json!(both)), "final {is_final}, replyAuthority {authority}");
    }
    // With one flag and no later message it is still only the fallback, and names the flag it had.
    for (is_final, authority) in [(true, false), (false, true)] {
        let command_id = server.turn(&run_id, "hi").await;
        runner.tell(&command_id, "assistant_message", message("only", is_final, authority)).await;
        runner.end(&command_id, "completed").await;
        let result = server.result(&run_id, &command_id).await;
        assert_eq!(result["finalAssistantSource"], "fallback-last-text");
        let shown = (&result["finalResponse"]["final"], &result["finalResponse"]["replyAuthority"]);
        assert_eq!(shown, (&json!(is_final), &json!(authority)));
    }
}

#[both_engines]
async fn only_a_completed_command_has_a_reply(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    for status in ["failed", "blocked", "cancelled"] {
        let command_id = server.turn(&run_id, "hi").await;
        runner.say(&command_id, "an answer all the same").await;
        runner.end(&command_id, status).await;
        let result = server.result(&run_id, &command_id).await;
        assert_eq!((&result["reply"], &result["completed"]), (&Value::Null, &json!(false)), "{status}");
        assert_eq!(result["terminalStatus"], status);
        assert_eq!(result["finalResponse"]["text"], "an answer all the same");
    }
}

#[both_engines]
async fn truncation_is_passed_on(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    for (text_truncated, output_truncated) in [(false, false), (true, false), (false, true), (true, true)] {
        let command_id = server.turn(&run_id, "hi").await;
        let mut payload = message("long", true, true);
        payload["textTruncated"] = text_truncated.into();
        payload["outputTruncated"] = output_truncated.into();
        runner.tell(&command_id, "assistant_message", payload).await;
        runner.end(&command_id, "completed").await;
        let result = server.result(&run_id, &command_id).await;
        assert_eq!(result["finalAssistantTextTruncated"], text_truncated);
        assert_eq!(result["finalAssistantOutputTruncated"], output_truncated);
        assert_eq!(result["finalResponse"]["textTruncated"], text_truncated);
        assert_eq!(result["finalResponse"]["outputTruncated"], output_truncated);
    }
}

#[both_engines]
async fn counts_cover_the_run_and_the_command(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    let runner = server.claim(&run_id, "runner-a").await;
    for command_id in [&one, &two, &one] {
        runner.tell(command_id, "step", json!({"name": "s", "status": "started"})).await;
    }
    runner.end(&two, "completed").await;
    runner.end(&one, "completed").await;
    let events = server.events(&run_id).await;
    for command_id in [&one, &two] {
        let result = server.result(&run_id, command_id).await;
        let mine: Vec<_> = events.iter().filter(|event| event["commandId"] == command_id.as_str()).collect();
        assert_eq!(result["scopedEventCount"], mine.len());
        assert_eq!(result["scopedLastSeq"], mine.last().unwrap()["seq"]);
        assert_eq!(mine.last().unwrap()["type"], "terminal_status");
        for field in ["lastSeq", "eventCount", "nextAfterSeq"] {
            assert_eq!(result[field], events.len(), "{field}");
        }
        assert_eq!(result["eventsCapped"], false);
    }
}

#[both_engines]
async fn tool_calls_are_summed_up(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let call = |n: i64, status: &str, exit: Value| {
        json!({"toolCallId": format!("t{n}"), "name": "shell", "method": "item/commandExecution", "type": "exec",
            "command": format!("make {n}"), "status": status, "exitCode": exit})
    };
    for n in 0..13 {
        runner.tell(&command_id, "tool_call", call(n, "started", Value::Null)).await;
        let (status, exit) = if n % 3 == 0 { ("failed", 2) } else { ("completed", 0) };
        runner.tell(&command_id, "tool_call", call(n, status, exit.into())).await;
    }
    runner.tell(&command_id, "tool_call", call(13, "declined", Value::Null)).await;
    runner.tell(&command_id, "tool_call", call(14, "started", Value::Null)).await;
    let summary = server.result(&run_id, &command_id).await["toolCallSummary"].clone();
    assert_eq!(summary["count"], 15);
    assert_eq!(summary["statusCounts"], json!({"completed": 8, "failed": 5, "declined": 1, "started": 1}));
    assert_eq!(summary["exitCodeCounts"], json!({"0": 8, "2": 5}));
    let items = summary["items"].as_array().unwrap();
    assert_eq!(items.len(), 10, "the most recent ones");
    assert_eq!(items.last().unwrap()["toolCallId"], "t14");
    let expected = json!({"toolCallId": "t12", "method": "item/commandExecution", "toolName": "shell", "type": "exec",
        "status": "failed", "exitCode": 2, "command": "make 12"});
    assert!(items.contains(&expected), "{items:?}");
    // A tool that failed is not evidence about the command.
    runner.end(&command_id, "completed").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!((&result["completed"], &result["failureKind"]), (&json!(true), &Value::Null));
    assert_eq!(result["liveness"]["openToolCalls"], json!([]));
}

#[both_engines]
async fn output_and_usage_are_summed_up(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.tell(&command_id, "command_output", json!({"stream": "stdout", "text": "12345"})).await;
    let path = format!("/api/v1/runs/{run_id}/events");
    let artifacts = async || server.result(&run_id, &command_id).await["artifactSummary"].clone();
    let expected = |events: u32, bytes: u32, truncated: bool| {
        json!({"outputEvents": events, "outputBytes": bytes, "truncated": truncated, "eventsPath": path,
            "filesChanged": 0, "bytesAdded": 0, "bytesRemoved": 0, "changesUnknown": false, "diffPath": null})
    };
    assert_eq!(artifacts().await, expected(1, 5, false));
    runner.tell(&command_id, "command_output", json!({"text": "é", "outputTruncated": true})).await;
    assert_eq!(artifacts().await, expected(2, 7, true));
    runner.tell(&command_id, "usage", json!({"inputTokens": 100, "outputTokens": 20, "costUsd": 0.25})).await;
    runner.tell(&command_id, "usage", json!({"totalTokens": 30, "costUsd": 0.5})).await;
    let less = json!([{"type": "usage", "commandId": command_id, "payload": {"totalTokens": -5, "costUsd": -1}}]);
    runner.try_append(None, less).await.refused_by(SchemaInvalid, "event-field");
    let usage = server.result(&run_id, &command_id).await["usage"].clone();
    let expected = json!({"totalTokens": 150, "costUsd": 0.75, "turns": 2, "delegatedTokens": 0, "delegatedCostUsd": 0.0,
            "delegatedToolCalls": 0});
    assert_eq!(usage, expected);
}

#[both_engines]
async fn the_blocker_of_a_failed_command_has_the_reason(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    for (kind, status) in [
        ("secret-unavailable", "failed"),
        ("provider-auth-failed", "failed"),
        ("provider-unavailable", "blocked"),
        ("backend-failed", "failed"),
        ("infra-failed", "failed"),
    ] {
        let command_id = server.turn(&run_id, "hi").await;
        let end = json!({"status": status, "failureKind": kind, "message": format!("because of {kind}")});
        runner.tell(&command_id, "terminal_status", end).await;
        let result = server.result(&run_id, &command_id).await;
        assert_eq!((&result["failureKind"], &result["terminalStatus"]), (&json!(kind), &json!(status)));
        assert_eq!(result["blocker"], format!("because of {kind}"));
    }
    // Without words of its own, the last error speaks; an error alone ends nothing.
    let command_id = server.turn(&run_id, "hi").await;
    runner.tell(&command_id, "error", json!({"failureKind": "backend-failed", "message": "it broke"})).await;
    assert_eq!(server.result(&run_id, &command_id).await["blocker"], Value::Null);
    runner.end(&command_id, "failed").await;
    assert_eq!(server.result(&run_id, &command_id).await["blocker"], "it broke");
    let cancelled = server.turn(&run_id, "hi").await;
    server.cancel_command(&cancelled).await;
    assert_eq!(server.result(&run_id, &cancelled).await["failureKind"], "cancelled");
}

#[both_engines]
async fn a_long_command_costs_no_more_pages(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.say(&command_id, "an early word").await;
    let batch: Value =
        (0..500).map(|n| json!({"type": "custom", "commandId": command_id, "payload": {"value": n}})).collect();
    for no in 1..=4 {
        runner.try_append(Some(no), batch.clone()).await.with_status(200);
    }
    runner.say(&command_id, "the last word").await;
    runner.end(&command_id, "completed").await;
    let result = server.result(&run_id, &command_id).await;
    assert_eq!((&result["reply"], &result["eventsCapped"]), (&json!("the last word"), &json!(false)));
    assert_eq!(result["lastSeq"], 2 + 1 + 1 + 2_000 + 1 + 1);
    assert_eq!(result["scopedLastSeq"], result["lastSeq"]);
}

#[both_engines]
async fn a_runs_result_is_its_latest_turns(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.say(&turn, "at it").await;
    server.steer(&run_id, "hurry").await;
    let path = format!("/api/v1/runs/{run_id}/result");
    let result = server.get(&path).await.ok();
    assert_eq!((&result["commandId"], &result["terminalStatus"]), (&json!(turn), &Value::Null));
    runner.end(&turn, "failed").await;
    let result = server.get(&path).await.ok();
    assert_eq!((&result["commandId"], &result["terminalStatus"]), (&json!(turn), &json!("failed")));
}

#[both_engines]
async fn the_events_of_a_steer_count_in_the_range_of_its_target(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.say(&turn, "at it").await;
    let steer = id(&server.steer(&run_id, "hurry").await, "commandId");
    runner.tell(&steer, "backend_status", json!({"phase": "turn/steer:completed"})).await;
    runner.end(&steer, "completed").await;
    let other = server.turn(&run_id, "another").await;
    let events = server.events(&run_id).await;
    let of = |ids: &[&String]| {
        let own = |event: &&Value| ids.iter().any(|id| event["commandId"] == id.as_str());
        let seqs: Vec<_> = events.iter().filter(own).map(|event| event["seq"].clone()).collect();
        (json!(seqs.len()), seqs.last().cloned().unwrap())
    };
    for (command_id, ids) in [(&turn, vec![&turn, &steer]), (&steer, vec![&steer]), (&other, vec![&other])] {
        let result = server.result(&run_id, command_id).await;
        let scoped = (result["scopedEventCount"].clone(), result["scopedLastSeq"].clone());
        assert_eq!(scoped, of(&ids), "{result}");
    }
}

/// Two reads could return a count of events that the session did not have at any moment.
#[both_engines]
async fn a_result_and_the_commands_that_target_its_command_are_one_read(engine: Engine) {
    let mut recorder = None;
    let server = TestServer::with(engine, |setup| recorder = Some(Recorder::of(&mut setup.config))).await;
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "work").await;
    server.claim(&run_id, "runner-a").await.say(&turn, "at it").await;
    server.steer(&run_id, "hurry").await;
    server.result(&run_id, &turn).await;
    let statements = recorder.unwrap().statements();
    let reads: Vec<_> = statements.iter().filter(|sent| sent.sql.contains("a.target_command_id = ")).collect();
    assert!(!reads.is_empty() && reads.iter().all(|sent| sent.sql.contains("AS session_seq")), "{reads:?}");
}
