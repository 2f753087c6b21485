//! Prompts: accepted at once, worked on in order, cancelled, bounded in number and time.

use ostler_daemon::config::DaemonSection;
use serde_json::{Value, json};

use super::{configure, refused, states};
use crate::harness::{Engine, TestServer, both_engines, eventually, id};

const LONG: &str = r#"{"script": [{"wait": 60000}]}"#;

#[both_engines]
async fn a_prompt_is_accepted_at_once_and_answered_in_the_workspace(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        workspace = Some(setup.bind_workspace());
    })
    .await;
    let opened = server.open().await;
    let (session_id, client_id) = (id(&opened, "sessionId"), id(&opened, "clientId"));
    let before = server.logged(&session_id).await.last().unwrap()["sessionSeq"].as_i64().unwrap();
    let body = json!({"prompt": [{"type": "text", "text": "hello"}, {"type": "resource_link", "uri": "file:///a", "name": "a"}],
        "retry": false, "_meta": {"source": "test"}});
    let path = format!("/session/{session_id}/prompt");
    let accepted = server.as_client(&client_id, "POST", &path, &body).await.with_status(202);
    assert_eq!(accepted["lastEventId"], 2 * before);
    assert_eq!(id(&accepted, "promptId").len(), 36, "a UUID");
    states(&server, &session_id, &["completed"]).await;
    let events = server.logged(&session_id).await;
    let said = events.iter().find(|event| event["type"] == "user_message").unwrap();
    assert_eq!(said["payload"]["content"][0], json!({"type": "text", "text": "hello"}));
    let replied = events.iter().find(|event| event["type"] == "assistant_message").unwrap();
    assert_eq!(replied["payload"]["text"], "hello\n[a](file:///a)");
    let run = server.run(&id(said, "runId")).await;
    assert_eq!(run["workspaceRef"], json!({"kind": "local", "path": workspace.unwrap().to_str().unwrap()}));
    assert_eq!(said["payload"]["origin"], client_id.as_str());
}

#[both_engines]
async fn prompts_of_a_session_run_in_order_and_only_so_many_wait(engine: Engine) {
    let limit = |section: &mut DaemonSection| section.prompts_max = 2;
    let server = TestServer::with(engine, |setup| configure(setup, limit)).await;
    let session_id = server.open_own().await;
    server.prompt(&session_id, "one").await;
    server.prompt(&session_id, "two").await;
    let full = server.try_prompt(&session_id, "three").await;
    assert_eq!(full.headers["retry-after"], "5");
    let full = refused(full, 503, "prompt_queue_full");
    assert_eq!((&full["sessionId"], &full["limit"], &full["pendingCount"]), (&json!(session_id), &json!(2), &json!(2)));
    let commands = server.commands_of(&session_id).await;
    let run_id = server.logged(&session_id).await.iter().find_map(|event| event["runId"].as_str().map(str::to_owned));
    let run_id = run_id.unwrap();
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&commands[0].0).await;
    runner.end(&commands[0].0, "completed").await;
    server.prompt(&session_id, "three").await;
    states(&server, &session_id, &["completed", "pending", "pending"]).await;
    let runs: Vec<_> = server.logged(&session_id).await.iter().map(|event| event["runId"].clone()).collect();
    assert!(runs.iter().all(|of| of.is_null() || *of == run_id.as_str()), "one run takes them all: {runs:?}");
}

#[both_engines]
async fn concurrent_prompts_do_not_exceed_the_queue(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    let sent = futures_util::future::join_all((0..12).map(|_| server.try_prompt(&session_id, "hi"))).await;
    let accepted = sent.iter().filter(|answer| answer.status == 202).count();
    assert_eq!(accepted, 5, "{:?}", sent.iter().map(|answer| &answer.text).collect::<Vec<_>>());
}

#[both_engines]
async fn a_prompt_waits_while_the_agent_asks_for_permission(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session_id = server.open_own().await;
    server.prompt(&session_id, r#"{"script": [{"ask": {"title": "Delete?", "command": "rm a"}}]}"#).await;
    eventually("the agent asks", async || {
        let events = server.logged(&session_id).await;
        events.iter().any(|event| event["type"] == "permission_request").then_some(())
    })
    .await;
    server.prompt(&session_id, "next").await;
    let cancel = format!("/session/{session_id}/cancel");
    server.post(&cancel, &json!({})).await.with_status(204);
    states(&server, &session_id, &["cancelled", "completed"]).await;
}

#[both_engines]
async fn cancelling_stops_the_prompt_that_runs_and_no_other(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session_id = server.open_own().await;
    let cancel = format!("/session/{session_id}/cancel");
    server.post(&cancel, &json!({})).await.with_status(204);
    server.prompt(&session_id, LONG).await;
    server.prompt(&session_id, "two").await;
    server.post(&cancel, &json!({})).await.with_status(204);
    states(&server, &session_id, &["cancelled", "completed"]).await;
    refused(server.post("/session/ses_0/cancel", &json!({})).await, 404, "session_not_found");
    let foreign = server.as_client("client_other", "POST", &cancel, &Value::Null).await;
    refused(foreign, 400, "invalid_client_id");
}

#[both_engines]
async fn a_prompt_that_cannot_be_read_is_refused_and_changes_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    let before = server.logged(&session_id).await;
    let path = format!("/session/{session_id}/prompt");
    for prompt in [json!([]), json!("hi"), json!(null), json!([7]), json!([{"type": "audio", "data": "AAAA"}])] {
        refused(server.post(&path, &json!({"prompt": prompt})).await, 400, "prompt_invalid");
    }
    refused(server.post(&path, &json!({})).await, 400, "prompt_invalid");
    let text = json!([{"type": "text", "text": "hi"}]);
    for deadline in [json!(0), json!(-1), json!("5"), json!(0.5)] {
        let body = json!({"prompt": text, "deadlineMs": deadline});
        refused(server.post(&path, &body).await, 400, "invalid_deadline_ms");
    }
    let foreign = server.as_client("client_other", "POST", &path, &json!({"prompt": text})).await;
    refused(foreign, 400, "invalid_client_id");
    refused(server.try_prompt("ses_0", "hi").await, 404, "session_not_found");
    assert_eq!(server.logged(&session_id).await, before);
}

#[both_engines]
async fn secrets_in_a_prompt_are_not_stored(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    let secret = "sk-0123456789abcdef0123456789abcdef";
    let blocks = json!([{"type": "text", "text": format!("use {secret}")},
        {"type": "resource", "resource": {"uri": "file:///env", "text": format!("KEY={secret}")}}]);
    server.post(&format!("/session/{session_id}/prompt"), &json!({"prompt": blocks})).await.with_status(202);
    let events = serde_json::to_string(&server.logged(&session_id).await).unwrap();
    assert!(events.contains("file:///env") && !events.contains(secret), "{events}");
    let stored = server.store("SELECT payload FROM commands").await.join("");
    assert!(stored.contains("file:///env") && !stored.contains(secret), "{stored}");
}

fn with_deadline(engine: Engine, ms: Option<u64>) -> impl Future<Output = TestServer> {
    TestServer::with(engine, move |setup| {
        setup.config.runner.slots = 4;
        // A restart does not wait for the prompt that runs.
        setup.config.server.drain_ms = 50;
        configure(setup, |section| section.prompt_deadline_ms = ms);
    })
}

#[both_engines]
async fn a_prompt_past_its_deadline_is_cancelled_also_after_a_restart(engine: Engine) {
    let mut server = with_deadline(engine, Some(60_000)).await;
    let session_id = server.open_own().await;
    let body = json!({"prompt": [{"type": "text", "text": LONG}], "deadlineMs": 5_000});
    server.post(&format!("/session/{session_id}/prompt"), &body).await.with_status(202);
    server.prompt(&session_id, "next").await;
    server.restart().await;
    server.clock.advance_ms(4_999);
    assert_ne!(server.commands_of(&session_id).await[0].1, "cancelled");
    server.clock.advance_ms(1);
    states(&server, &session_id, &["cancelled", "completed"]).await;
    let events = server.logged(&session_id).await;
    let audit = events.iter().find(|event| event["payload"]["action"] == "command.cancel").unwrap();
    assert_eq!(audit["payload"]["reason"], "prompt_deadline_exceeded");
}

#[both_engines]
async fn a_deadline_is_ignored_if_the_server_sets_none(engine: Engine) {
    let server = with_deadline(engine, None).await;
    let session_id = server.open_own().await;
    let body = json!({"prompt": [{"type": "text", "text": "hi"}], "deadlineMs": 1});
    server.post(&format!("/session/{session_id}/prompt"), &body).await.with_status(202);
    states(&server, &session_id, &["completed"]).await;
}

/// Whichever comes first: a prompt that was accepted after all is cancelled, so that nothing runs in a session that no client follows.
#[both_engines]
async fn a_prompt_that_races_with_a_close_does_not_run(engine: Engine) {
    let server = TestServer::start(engine).await;
    for _ in 0..8 {
        let session_id = server.open_own().await;
        let prompt = || server.try_prompt(&session_id, "hi");
        let path = format!("/session/{session_id}");
        let (first, closed, second, third) = tokio::join!(prompt(), server.remove(&path), prompt(), prompt());
        closed.with_status(204);
        for answer in [first, second, third] {
            assert!([202, 404].contains(&answer.status), "{}", answer.text);
        }
        eventually("every prompt is cancelled", async || {
            let commands = server.commands_of(&session_id).await;
            commands.iter().all(|(_, state)| state == "cancelled").then_some(())
        })
        .await;
    }
}
