//! History: what was said in a thread, one day at a time by the user's own clock, as people would expect to read it.

use ostler_protocol::{FailureKind::*, kernel::aliases::OnBusy};
use ostler_run_input::config::RunInputSection;
use serde_json::{Value, json};

use crate::{
    harness::{Caller, Engine, ManualRunner, TestServer, both_engines, id},
    run_input::runs::{THREAD, user},
};

const HISTORY: &str = "/api/v1/agent/history";
const HOUR_MS: i64 = 3_600_000;

async fn page(caller: &Caller, query: &str) -> Value {
    caller.get(&format!("{HISTORY}?{query}")).await.with_status(200)
}

fn contents(page: &Value) -> Vec<&str> {
    page["messages"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap()).collect()
}

/// One whole turn of the thread, played by the test.
async fn turn(server: &TestServer, caller: &Caller, run_id: &str, text: &str, answer: &str) {
    let task = id(&caller.say(run_id, text).await.with_status(202), "taskId");
    let runner = runner(server).await;
    runner.ack(&task).await;
    runner.tell(&task, "tool_call", json!({"toolCallId": "t", "name": "shell", "status": "started"})).await;
    runner.tell(&task, "tool_call", json!({"toolCallId": "t", "name": "shell", "status": "completed"})).await;
    runner.say(&task, answer).await;
    runner.end(&task, "completed").await;
    runner.release().await;
}

async fn runner(server: &TestServer) -> ManualRunner {
    server.claim(&server.run_of_thread().await, "runner-a").await
}

#[both_engines]
async fn without_a_thread_history_is_empty(engine: Engine) {
    let server = TestServer::start(engine).await;
    let empty = json!({"scope": "history_day", "threadId": null, "day": null, "hasMore": false, "messages": []});
    assert_eq!(page(&server, "").await, empty);
    assert_eq!(page(&server, &format!("threadId={THREAD}")).await, empty);
    assert_eq!(page(&server, "before=2026-01-01").await, empty);
    let ada = user(&server, "ada", &["local"]).await;
    ada.say("run-1", "mine").await.with_status(202);
    assert_eq!(page(&server, "").await, empty, "another user's thread is not listed");
    server.get(&format!("{HISTORY}?threadId={THREAD}")).await.refused_as(Forbidden, "AGENT_FORBIDDEN");
    let before = page(&ada, &format!("threadId={THREAD}&before=2026-01-01")).await;
    assert_eq!((&before["threadId"], &before["day"], &before["messages"]), (&json!(THREAD), &Value::Null, &json!([])));
}

pub(crate) async fn zoned(server: &TestServer, name: &str, timezone: &str) -> Caller {
    server.post("/api/v1/users", &json!({"name": name, "timezone": timezone})).await.with_status(201);
    let life = json!({"expiresInMs": 30 * 24 * HOUR_MS});
    let made = server.post(&format!("/api/v1/users/{name}/token"), &life).await.with_status(201);
    server.with_token(Some(&id(&made, "token")))
}

#[both_engines]
async fn a_page_is_a_day_by_the_users_clock(engine: Engine) {
    let server = TestServer::start(engine).await;
    // It is 2026-01-01T00:00Z: in Los Angeles four in the afternoon of the day before.
    let ada = zoned(&server, "ada", "America/Los_Angeles").await;
    turn(&server, &ada, "run-1", "one", "eins").await;
    server.clock.advance_ms(7 * HOUR_MS + HOUR_MS - 1);
    turn(&server, &ada, "run-2", "two", "zwei").await;
    server.clock.advance_ms(1);
    turn(&server, &ada, "run-3", "three", "drei").await;
    server.clock.advance_ms(72 * HOUR_MS);
    turn(&server, &ada, "run-4", "four", "vier").await;
    let last = page(&ada, &format!("threadId={THREAD}")).await;
    assert_eq!((&last["scope"], &last["threadId"]), (&json!("history_day"), &json!(THREAD)));
    assert_eq!((&last["day"], &last["hasMore"]), (&json!("2026-01-04"), &json!(true)));
    assert_eq!(contents(&last), ["four", "vier"]);
    // `before` leads on, over days without messages.
    let second = page(&ada, "before=2026-01-04").await;
    assert_eq!((&second["day"], &second["hasMore"]), (&json!("2026-01-01"), &json!(true)));
    assert_eq!(contents(&second), ["three", "drei"]);
    let first = page(&ada, "before=2026-01-01").await;
    assert_eq!((&first["day"], &first["hasMore"]), (&json!("2025-12-31"), &json!(false)));
    assert_eq!(contents(&first), ["one", "eins", "two", "zwei"]);
    assert_eq!(page(&ada, "before=2025-12-31").await["messages"], json!([]));
    // Exactly the shape of the protocol, tools hidden, numbers that rise and stay.
    let (asked, answered) = (&first["messages"][0], &first["messages"][1]);
    assert_eq!(
        *asked,
        json!({"id": "m-run-1", "seq": asked["seq"], "role": "user", "content": "one", "attachments": [],
        "timestamp": "2026-01-01T00:00:00Z"})
    );
    assert_eq!(
        *answered,
        json!({"id": "m", "seq": answered["seq"], "role": "assistant", "content": "eins", "ui_schema": null,
        "timestamp": "2026-01-01T00:00:00Z"})
    );
    let pages = [&first, &second, &last];
    let seqs: Vec<i64> = pages
        .iter()
        .flat_map(|page| page["messages"].as_array().unwrap())
        .map(|m| m["seq"].as_i64().unwrap())
        .collect();
    assert!(seqs[0] > 0 && seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    assert_eq!(page(&ada, "before=2026-01-01").await, first);
    // The operator's clock is UTC, and a thread is its owner's alone.
    server.get(&format!("{HISTORY}?threadId={THREAD}")).await.refused(Forbidden);
}

#[both_engines]
async fn days_of_23_and_25_hours_are_whole_days(engine: Engine) {
    for (days, name, hours) in [(87, "2026-03-29", 23), (297, "2026-10-25", 25)] {
        let server = TestServer::start(engine).await;
        // To the midnight in Berlin with which that day begins.
        let offset = if hours == 23 { 1 } else { 2 };
        server.clock.advance_ms((days * 24 - offset) * HOUR_MS - 1);
        let ada = zoned(&server, "ada", "Europe/Berlin").await;
        turn(&server, &ada, "run-1", "the day before", "ja").await;
        server.clock.advance_ms(1);
        turn(&server, &ada, "run-2", "first", "ja").await;
        server.clock.advance_ms(hours * HOUR_MS - 1);
        turn(&server, &ada, "run-3", "last", "ja").await;
        server.clock.advance_ms(1);
        turn(&server, &ada, "run-4", "the day after", "ja").await;
        let next = page(&ada, "").await;
        assert_eq!(contents(&next), ["the day after", "ja"]);
        let day = page(&ada, &format!("before={}", next["day"].as_str().unwrap())).await;
        assert_eq!((&day["day"], contents(&day)), (&json!(name), vec!["first", "ja", "last", "ja"]));
        assert_eq!(contents(&page(&ada, &format!("before={name}")).await), ["the day before", "ja"]);
    }
}

#[both_engines]
async fn the_newest_thread_is_shown_when_none_is_named(engine: Engine) {
    let server = TestServer::start(engine).await;
    turn(&server, &server, "run-1", "older", "alt").await;
    server.clock.advance_ms(1_000);
    let newer = "650e8400-e29b-41d4-a716-446655440000";
    let body = json!({"threadId": newer, "runId": "r", "messages": [{"id": "m", "role": "user", "content": "newer"}],
        "forwardedProps": {"runtime_mode": "chat"}});
    server.post("/api/v1/agent/runs", &body).await.with_status(202);
    server.clock.advance_ms(1_000);
    let newest = page(&server, "").await;
    assert_eq!((&newest["threadId"], contents(&newest)), (&json!(newer), vec!["newer"]));
    // However its id is written.
    let upper = page(&server, &format!("threadId={}", THREAD.to_uppercase())).await;
    assert_eq!((&upper["threadId"], contents(&upper)), (&json!(THREAD), vec!["older", "alt"]));
}

#[both_engines]
async fn turns_that_were_taken_back_are_left_out(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|section: &mut RunInputSection| section.busy = OnBusy::Rollback)
    })
    .await;
    turn(&server, &server, "run-1", "kept", "behalten").await;
    // A few seconds before midnight.
    server.clock.advance_ms(48 * HOUR_MS - 10_000);
    let first = id(&server.say("run-2", "taken back").await.with_status(202), "taskId");
    let runner = runner(&server).await;
    runner.ack(&first).await;
    runner.say(&first, "half of it").await;
    server.clock.advance_ms(20_000);
    let second = id(&server.say("run-3", "instead").await.with_status(202), "taskId");
    runner.end(&first, "cancelled").await;
    runner.ack(&second).await;
    runner.end(&second, "completed").await;
    let last = page(&server, "").await;
    assert_eq!((contents(&last), &last["hasMore"]), (vec!["instead"], &json!(true)));
    // The day on which there is nothing else is no day.
    let before = page(&server, &format!("before={}", last["day"].as_str().unwrap())).await;
    assert_eq!((contents(&before), &before["hasMore"]), (vec!["kept", "behalten"], &json!(false)));
}

#[both_engines]
async fn a_steer_is_shown_where_it_took_effect(engine: Engine) {
    let server = TestServer::start(engine).await;
    let task = id(&server.say("run-1", "go").await.with_status(202), "taskId");
    let runner = runner(&server).await;
    runner.ack(&task).await;
    let steer = id(&server.steer(&runner.run_id, "left").await, "commandId");
    server.steer(&runner.run_id, "never heard").await;
    runner.say(&task, "going").await;
    runner.tell(&steer, "backend_status", json!({"phase": "turn/steer:completed", "targetCommandId": task})).await;
    runner.tell(&task, "assistant_message", json!({"messageId": "m2", "text": "going left"})).await;
    runner.end(&task, "completed").await;
    assert_eq!(contents(&page(&server, "").await), ["go", "going", "left", "going left"]);
}

#[both_engines]
async fn the_partial_text_of_a_failed_turn_is_shown(engine: Engine) {
    let server = TestServer::start(engine).await;
    let task = id(&server.say("run-1", "tell me").await.with_status(202), "taskId");
    let runner = runner(&server).await;
    runner.ack(&task).await;
    for (message_id, delta) in [("a", "First "), ("a", "part."), ("b", "And th")] {
        runner.tell(&task, "assistant_delta", json!({"messageId": message_id, "delta": delta})).await;
    }
    runner.tell(&task, "assistant_message", json!({"messageId": "a", "text": "First part."})).await;
    assert_eq!(contents(&page(&server, "").await), ["tell me", "First part."], "while it runs, streams tell the rest");
    runner.tell(&task, "error", json!({"failureKind": "backend-failed", "message": "it broke"})).await;
    runner.end(&task, "failed").await;
    let shown = page(&server, "").await;
    let mut words = contents(&shown);
    words.sort_unstable();
    assert_eq!(words, ["And th", "First part.", "tell me"]);
    // A turn that failed without a word leaves what was asked.
    let second = id(&server.say("run-2", "again").await.with_status(202), "taskId");
    runner.ack(&second).await;
    runner.end(&second, "failed").await;
    assert_eq!(contents(&page(&server, "").await).last(), Some(&"again"));
}

#[both_engines]
async fn what_was_begun_after_midnight_is_shown_with_its_question(engine: Engine) {
    let server = TestServer::start(engine).await;
    // A minute before midnight; the server's clock begins at one.
    server.clock.advance_ms(24 * HOUR_MS - 60_000);
    let task = id(&server.say("run-1", "late").await.with_status(202), "taskId");
    let runner = runner(&server).await;
    runner.ack(&task).await;
    server.clock.advance_ms(20_000);
    runner.try_patch_lease(json!({})).await.with_status(200);
    server.clock.advance_ms(20_000);
    runner.try_patch_lease(json!({})).await.with_status(200);
    server.clock.advance_ms(21_000);
    runner.tell(&task, "assistant_delta", json!({"messageId": "a", "delta": "Good mor"})).await;
    runner.end(&task, "failed").await;
    let shown = page(&server, "").await;
    assert_eq!((&shown["day"], contents(&shown)), (&json!("2026-01-01"), vec!["late", "Good mor"]));
    let times: Vec<_> = shown["messages"].as_array().unwrap().iter().map(|message| &message["timestamp"]).collect();
    assert!(times.iter().all(|time| time.as_str().unwrap().starts_with("2026-01-01")), "{times:?}");
}

#[both_engines]
async fn an_answer_shows_the_schema_of_its_hints_and_never_the_hints(engine: Engine) {
    let server = TestServer::start(engine).await;
    let task = id(&server.say("run-1", "book it").await.with_status(202), "taskId");
    let runner = runner(&server).await;
    runner.ack(&task).await;
    let hints =
        json!({"status": "success", "title": "Booked", "message": "Tomorrow at nine.", "secretHint": "unknown"});
    let payload = json!({"messageId": "m1", "text": "Done.", "uiHints": hints});
    runner.tell(&task, "assistant_message", payload).await;
    let wrong = json!({"messageId": "m2", "text": "Anything else?", "uiHints": {"status": "great"}});
    runner.tell(&task, "assistant_message", wrong).await;
    runner.end(&task, "completed").await;
    let shown = page(&server, "").await;
    let schema = &shown["messages"][1]["ui_schema"];
    assert_eq!((&schema["version"], &schema["status"]), (&json!("2.0"), &json!("success")));
    assert_eq!(schema["root"]["children"][0], json!({"type": "text", "content": "Booked", "role": "title"}));
    assert_eq!(shown["messages"][2]["ui_schema"], Value::Null);
    assert!(!shown.to_string().contains("Hint"), "{shown}");
}

#[both_engines]
async fn a_day_that_makes_no_sense_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    for bad in ["", "2026-02-30", "20260101", "yesterday", "2026-01-01T00:00:00Z", "2026-1-1"] {
        server.get(&format!("{HISTORY}?before={bad}")).await.refused_by(RunInputInvalid, "before");
    }
    let refused = server.get(&format!("{HISTORY}?threadId=mine")).await;
    refused.refused_as(RunInputInvalid, "AGENT_SESSION_ID_INVALID");
    for edge in ["0000-01-01", "0001-01-01", "9999-12-31"] {
        assert_eq!(page(&server, &format!("before={edge}")).await["messages"], json!([]));
    }
}
