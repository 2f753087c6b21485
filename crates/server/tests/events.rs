//! Events: numbered without gap, appended once, closed types, and one end per thing.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, id};

#[both_engines]
async fn pages_of_any_size_hold_every_event_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    for batch in 0..5 {
        let events: Vec<_> = (0..7)
            .map(|n| json!({"type": "custom", "commandId": command_id, "payload": {"name": "n", "value": batch * 7 + n}}))
            .collect();
        let appended = runner.try_append(None, json!(events)).await.with_status(200);
        assert_eq!(appended["lastSeq"].as_i64().unwrap() - appended["firstSeq"].as_i64().unwrap(), 6);
    }
    runner.end(&command_id, "completed").await;
    let whole = server.events_by(&run_id, 1_000).await;
    assert_eq!(whole.len(), 3 + 35 + 1);
    let seqs: Vec<i64> = whole.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=39).collect::<Vec<_>>());
    for size in [1, 2, 3, 7, 38, 39, 40] {
        assert_eq!(server.events_by(&run_id, size).await, whole, "pages of {size}");
    }
}

#[both_engines]
async fn a_page_beyond_the_end_is_empty(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let page = server.get(&format!("/api/v1/runs/{run_id}/events?afterSeq=1000")).await.with_status(200);
    assert_eq!(page, json!({"events": [], "nextAfterSeq": 1000, "hasMore": false}));
    let page = server.get(&format!("/api/v1/runs/{run_id}/events?afterSeq=0&limit=1")).await.with_status(200);
    let event = &page["events"][0];
    assert_eq!((&event["seq"], &event["sessionSeq"], &event["commandId"]), (&json!(1), &json!(1), &Value::Null));
    assert_eq!(event["createdAt"], "2026-01-01T00:00:00Z");
    assert_eq!(event["runId"], run_id.as_str());
}

#[both_engines]
async fn payloads_come_back_as_they_were_sent(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    server.claim(&run_id, "runner-a").await;
    let payload =
        r#"{"z": 1.10, "a" :[1e3,"é\u00e9\n\u0000"], "unknown":{"deep":null},"big":123456789012345678901234567890}"#;
    let body = format!(
        r#"{{"runnerId":"runner-a","leaseEpoch":1,"events":[{{"type":"custom","commandId":"{command_id}","payload":{payload}}}]}}"#
    );
    server.send_text("POST", &format!("/api/v1/runs/{run_id}/events"), body).await.with_status(200);
    let page = server.get(&format!("/api/v1/runs/{run_id}/events")).await;
    assert!(page.text.contains(payload), "{}", page.text);
    // The same text reaches a follower.
    let mut follow = server.follow(&run_id, 3).await;
    assert_eq!(follow.event().await.unwrap()["payload"], serde_json::from_str::<Value>(payload).unwrap());
}

fn note(command_id: &str, n: i64) -> Value {
    json!([{"type": "custom", "commandId": command_id, "payload": {"name": "note", "value": n}}])
}

#[both_engines]
async fn a_retried_batch_appends_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let first = runner.try_append(Some(1), note(&command_id, 1)).await.with_status(200);
    let events = server.events(&run_id).await;
    for _ in 0..3 {
        assert_eq!(runner.try_append(Some(1), note(&command_id, 1)).await.with_status(200), first);
    }
    assert_eq!(server.events(&run_id).await, events);
    // Without a number there is nothing to recognise it by.
    runner.try_append(None, note(&command_id, 1)).await.with_status(200);
    assert_eq!(server.events(&run_id).await.len(), events.len() + 1);
    // A batch that ended its command is still answered, and so is one whose lease ran out in the meantime.
    let end = json!([{"type": "terminal_status", "commandId": command_id, "payload": {"status": "completed"}},
        {"type": "custom", "payload": {"name": "last"}}]);
    let ended = runner.try_append(Some(2), end.clone()).await.with_status(200);
    assert_eq!(runner.try_append(Some(2), end.clone()).await.with_status(200), ended);
    server.clock.advance_ms(60_000);
    assert_eq!(runner.try_append(Some(2), end).await.with_status(200), ended);
}

#[both_engines]
async fn an_older_batch_is_answered_too(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let mut answers = vec![];
    for no in 1..=4 {
        answers.push(runner.try_append(Some(no), note(&command_id, no)).await.with_status(200));
    }
    let events = server.events(&run_id).await;
    for no in [2, 1, 4, 3] {
        let again = runner.try_append(Some(no), note(&command_id, no)).await.with_status(200);
        assert_eq!(again, answers[no as usize - 1]);
    }
    assert_eq!(server.events(&run_id).await, events);
}

#[both_engines]
async fn a_batch_number_means_nothing_in_another_epoch(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let old = server.claim(&run_id, "runner-a").await;
    old.try_append(Some(1), note(&command_id, 1)).await.with_status(200);
    let new = server.claim(&run_id, "runner-a").await;
    let before = server.events(&run_id).await.len();
    old.try_append(Some(1), note(&command_id, 1)).await.refused_by(RunnerLeaseConflict, "lease-epoch-stale");
    new.try_append(Some(1), note(&command_id, 2)).await.with_status(200);
    assert_eq!(server.events(&run_id).await.len(), before + 1);
}

#[both_engines]
async fn a_bad_event_refuses_the_whole_batch(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let elsewhere = server.create_run().await;
    let foreign = server.turn(&elsewhere, "other").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let before = server.events(&run_id).await;
    let good = json!({"type": "custom", "commandId": command_id, "payload": {"name": "good"}});
    for (bad, rule) in [
        (json!({"type": "no_such_type", "payload": {}}), "event-type-unknown"),
        (json!({"type": "lease", "payload": {"state": "claimed"}}), "event-type-reserved"),
        (json!({"type": "permission_resolved", "payload": {}}), "event-type-reserved"),
        (json!({"type": "user_message", "payload": {}}), "event-type-reserved"),
        (json!({"type": "audit", "payload": {}}), "event-type-reserved"),
        (json!({"type": "custom", "payload": "text"}), "payload-object"),
        (json!({"type": "custom", "payload": null}), "payload-object"),
        (json!({"type": "custom", "commandId": "cmd_x", "payload": {}}), "command-unknown"),
        (json!({"type": "custom", "commandId": foreign, "payload": {}}), "command-unknown"),
        (json!({"type": "terminal_status", "commandId": command_id, "payload": {}}), "terminal-status"),
        (
            json!({"type": "terminal_status", "commandId": command_id, "payload": {"status": "running"}}),
            "terminal-status",
        ),
        (
            json!({"type": "terminal_status", "payload": {"status": "failed", "failureKind": "bad-luck"}}),
            "failure-kind-unknown",
        ),
        (json!({"type": "permission_request", "payload": {"title": "?"}}), "permission-command"),
    ] {
        let answer = runner.try_append(Some(1), json!([good, bad])).await;
        assert_eq!(answer.body["details"]["rule"], rule, "{bad}: {}", answer.text);
        answer.refused(SchemaInvalid);
    }
    let after_end = json!([{"type": "terminal_status", "payload": {"status": "completed"}}, good]);
    runner.try_append(None, after_end).await.refused_by(SchemaInvalid, "after-run-end");
    let end = json!({"type": "terminal_status", "commandId": command_id, "payload": {"status": "completed"}});
    runner.try_append(None, json!([end, good])).await.refused_by(StateConflict, "command-terminal");
    assert_eq!(server.events(&run_id).await, before);
    runner.try_append(Some(1), json!([good])).await.with_status(200);
}

#[both_engines]
async fn the_first_end_counts(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let first = runner.end(&command_id, "completed").await;
    let events = server.events(&run_id).await;
    // The same again, by either verb and in any state of the lease, is the same.
    assert_eq!(runner.end(&command_id, "completed").await, first);
    let stated = json!([{"type": "terminal_status", "commandId": command_id, "payload": {"status": "completed"}}]);
    let appended = runner.try_append(None, stated.clone()).await.with_status(200);
    assert_eq!(appended["lastSeq"], first["terminal"]["seq"]);
    runner.release().await;
    runner.try_append(None, stated).await.with_status(200);
    // Another end is refused.
    for other in ["failed", "blocked", "cancelled"] {
        let runner = server.claim(&run_id, "runner-a").await;
        let refused = runner.try_end(&command_id, other).await.refused_by(StateConflict, "command-terminal");
        assert_eq!(refused.details["status"], "completed");
    }
    let terminals = |events: &[Value]| events.iter().filter(|event| event["type"] == "terminal_status").count();
    assert_eq!(terminals(&server.events(&run_id).await), terminals(&events));
    assert_eq!(server.command(&run_id, &command_id).await["terminal"], first["terminal"]);
    assert_eq!(server.cancel_command(&command_id).await["state"], "completed");
    // A failed end without a kind is the backend's failure; a completed one has none.
    let failed = server.turn(&run_id, "again").await;
    let runner = server.claim(&run_id, "runner-a").await;
    assert_eq!(runner.end(&failed, "failed").await["terminal"]["failureKind"], "backend-failed");
}

#[both_engines]
async fn an_ended_command_takes_no_more_events(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.end(&command_id, "completed").await;
    let before = server.events(&run_id).await;
    runner.try_append(None, note(&command_id, 1)).await.refused_by(StateConflict, "command-terminal");
    runner.try_ack(&command_id).await.refused_by(StateConflict, "command-terminal");
    runner.try_end(&command_id, "running").await.refused_by(StateConflict, "command-terminal");
    assert_eq!(server.events(&run_id).await, before);
    // Events of a steer that ends with its turn do not slip in behind that end.
    let turn = server.turn(&run_id, "more").await;
    let steer = id(&server.steer(&run_id, "left").await, "commandId");
    let end = json!({"type": "terminal_status", "commandId": turn, "payload": {"status": "completed"}});
    let late = json!({"type": "custom", "commandId": steer, "payload": {"name": "late"}});
    runner.try_append(None, json!([end, late])).await.refused_by(StateConflict, "command-terminal");
    // Its own end may: the runner cannot know that the server was faster.
    let own_end = json!({"type": "terminal_status", "commandId": steer, "payload": {"status": "completed"}});
    runner.try_append(None, json!([end, own_end])).await.with_status(200);
    assert_eq!(server.command(&run_id, &steer).await["state"], "blocked");
}

#[both_engines]
async fn a_run_ends_with_everything_in_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (one, two) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.end(&one, "completed").await;
    let run = runner.try_end_run("failed").await.with_status(200);
    assert_eq!((&run["status"], &run["terminal"]["failureKind"]), (&json!("failed"), &json!("backend-failed")));
    assert_eq!(server.command(&run_id, &one).await["state"], "completed");
    let result = server.result(&run_id, &two).await;
    assert_eq!((&result["terminalStatus"], &result["terminalSource"]), (&json!("failed"), &json!("run")));
    assert_eq!(result["runStatus"], "failed");
    // Ended is ended: the same again is fine, and nothing else is.
    assert_eq!(runner.try_end_run("failed").await.with_status(200)["terminal"], run["terminal"]);
    runner.try_end_run("completed").await.refused_by(StateConflict, "run-terminal");
    let turn = json!({"type": "turn", "payload": {"prompt": "more"}});
    server.submit(&run_id, &turn).await.refused_by(StateConflict, "run-terminal");
    let refused = server.create_job(&run_id, &json!({"commandId": two})).await.with_status(409);
    assert_eq!(
        (&refused["failureKind"], &refused["details"]["rule"]),
        (&json!("schema-invalid"), &json!("run-terminal"))
    );
    server.try_claim(&run_id, "runner-b", 1_000).await.refused_by(StateConflict, "run-terminal");
    runner.try_patch_lease(json!({})).await.refused_by(StateConflict, "run-terminal");
    assert_eq!(server.cancel_run(&run_id).await["status"], "failed");
    // A run that is ended as completed ends its unfinished commands as cancelled, never as completed.
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "left over").await;
    let runner = server.claim(&run_id, "runner-a").await;
    assert_eq!(runner.try_end_run("completed").await.with_status(200)["status"], "completed");
    assert_eq!(server.command(&run_id, &command_id).await["state"], "cancelled");
}

#[both_engines]
async fn nothing_but_an_end_completes_a_command(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.tell(&command_id, "assistant_delta", json!({"messageId": "m", "delta": "all done"})).await;
    runner.tell(&command_id, "command_output", json!({"stream": "stdout", "text": "Build succeeded"})).await;
    runner.say(&command_id, "All done, task completed.").await;
    runner.tell(&command_id, "backend_status", json!({"phase": "transport-disconnected"})).await;
    runner.tell(&command_id, "backend_status", json!({"phase": "completed", "status": "completed"})).await;
    runner.tell(&command_id, "step", json!({"name": "last", "status": "finished"})).await;
    runner.release().await;
    // A long time, and still within the command's own.
    server.clock.advance_ms(1_000_000);
    let result = server.result(&run_id, &command_id).await;
    assert_eq!((&result["status"], &result["completed"]), (&json!("running"), &json!(false)));
    for field in ["terminalStatus", "terminalSource", "reply", "failureKind", "blocker"] {
        assert_eq!(result[field], Value::Null, "{field}");
    }
    assert_eq!(result["finalResponse"]["text"], "All done, task completed.");
}

#[both_engines]
async fn session_numbers_run_through_all_runs(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut numbers = vec![];
    for n in 0..3 {
        let run_id = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": "s"})).await;
        let command_id = server.turn(&run_id, &n.to_string()).await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.end(&command_id, "completed").await;
        runner.release().await;
        let events = server.events(&run_id).await;
        let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
        assert_eq!(seqs, (1..=events.len() as i64).collect::<Vec<_>>());
        numbers.extend(events.iter().map(|event| event["sessionSeq"].as_i64().unwrap()));
    }
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>());
}

#[both_engines]
async fn secrets_in_events_are_redacted(engine: Engine) {
    let server = TestServer::start(engine).await;
    let token = server.operator_token();
    let run_id = server.create_run_with(|body| body["businessIntents"] = json!({"password": "hunter2-intent"})).await;
    let command_id = server.turn(&run_id, &format!("use sk-abcdefghij0123456789 and {token}")).await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.tell(&command_id, "command_output", json!({"text": format!("OPENAI_API_KEY=hunter2 {token}")})).await;
    runner.say(&command_id, "Authorization: Bearer hunter2hunter2").await;
    let ended = json!({"status": "failed", "message": "postgres://me:hunter2@db/x", "failureKind": "backend-failed"});
    runner.tell(&command_id, "terminal_status", ended).await;
    let pages = [
        server.get(&format!("/api/v1/runs/{run_id}/events")).await.text,
        server.get(&format!("/api/v1/runs/{run_id}/commands/{command_id}")).await.text,
        server.get(&format!("/api/v1/runs/{run_id}/commands/{command_id}/result")).await.text,
    ];
    for page in pages {
        for secret in ["hunter2", "sk-abcdefghij", &token] {
            assert!(!page.contains(secret), "{secret} in {page}");
        }
        assert!(page.contains("[redacted]"));
    }
    let mut body = json!({"type": "turn", "payload": {"prompt": "x"}, "idempotencyKey": "k"});
    server.submit(&run_id, &body).await.with_status(201);
    body["type"] = format!("sk-abcdefghij0123456789 {token}").into();
    let refused = server.submit(&run_id, &body).await;
    assert!(!refused.text.contains("sk-abc") && !refused.text.contains(&token), "{}", refused.text);
}

#[both_engines]
async fn an_append_gives_the_lease_back_if_nothing_is_left_to_do(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let (first, second) = (server.turn(&run_id, "one").await, server.turn(&run_id, "two").await);
    let runner = server.claim(&run_id, "runner-a").await;
    let append = async |batch: i64, command: &str| {
        let end = json!({"type": "terminal_status", "commandId": command, "payload": {"status": "completed"}});
        let body = json!({"runnerId": "runner-a", "leaseEpoch": runner.epoch, "batchNo": batch, "releaseIfIdle": true,
            "events": [end]});
        server.post(&format!("/api/v1/runs/{run_id}/events"), &body).await.with_status(200)
    };
    assert_eq!(append(1, &first).await["released"], false, "the second turn waits");
    runner.heartbeat().await;
    let last = append(2, &second).await;
    assert_eq!(last["released"], true);
    runner.try_patch_lease(json!({})).await.refused_by(RunnerLeaseConflict, "lease-released");
    assert_eq!(append(2, &second).await, last, "the same batch is answered as the first time");
    assert_eq!(server.events_of(&run_id, "lease").await.last().unwrap()["payload"]["state"], "released");
    assert_eq!(server.run(&run_id).await["status"], "pending");
}
