//! Runs of chat front ends: accepted once under their names, only from their owners, followed to their end from any position,
//! cancelled, and accepted or refused by the policy for a busy thread.

mod busy;
mod edits;
mod fields;
mod following;
pub(crate) mod front_end;
mod going_on;
mod long_turns;
mod programs;
pub(crate) mod resuming;

use ostler_protocol::FailureKind::*;
use ostler_run_input::config::attachments::AttachmentsSection;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::{
    harness::{Answer, Caller, Engine, PNG, TestServer, both_engines, eventually, id, run_body},
    run_input::history::zoned,
};

pub(crate) const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";
const RUNS: &str = "/api/v1/agent/runs";

pub(crate) fn message(run_id: &str, text: &str) -> Value {
    json!({"threadId": THREAD, "runId": run_id, "messages": [{"id": format!("m-{run_id}"), "role": "user", "content": text}],
        "forwardedProps": {"runtime_mode": "chat"}})
}

/// A user in these tenants, as a caller.
pub(crate) async fn user(server: &TestServer, name: &str, tenants: &[&str]) -> Caller {
    let body = json!({"name": name, "timezone": "UTC", "tenants": tenants});
    server.post("/api/v1/users", &body).await.with_status(201);
    let made = server.post(&format!("/api/v1/users/{name}/token"), &json!({})).await.with_status(201);
    server.with_token(Some(&id(&made, "token")))
}

/// An AG-UI event with the id it came under.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReceivedEvent {
    pub id: String,
    pub event: Value,
}

impl ReceivedEvent {
    pub(crate) fn kind(&self) -> &str {
        self.event["type"].as_str().unwrap()
    }
}

/// Every frame of a stream that has ended, comments left out.
#[track_caller]
pub(crate) fn received(text: &str) -> Vec<ReceivedEvent> {
    assert!(!text.contains('\r'), "LF framing only");
    let frames = text.split("\n\n").filter(|frame| !frame.is_empty() && !frame.starts_with(':'));
    frames
        .map(|frame| {
            let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let event: Value = serde_json::from_str(field("data: ")).unwrap_or_else(|_| panic!("{frame}"));
            assert_eq!(event["type"], field("event: "), "{frame}");
            ReceivedEvent { id: field("id: ").to_owned(), event }
        })
        .collect()
}

pub(crate) fn kinds(received: &[ReceivedEvent]) -> Vec<&str> {
    received.iter().map(ReceivedEvent::kind).collect()
}

pub(crate) fn words(received: &[ReceivedEvent]) -> String {
    received.iter().filter_map(|event| event.event["delta"].as_str()).collect()
}

impl Caller {
    pub(crate) async fn say(&self, run_id: &str, text: &str) -> Answer {
        self.post(RUNS, &message(run_id, text)).await
    }

    /// As stock clients ask: the events in the same response, here read to their end.
    pub(crate) async fn stream(&self, body: &Value) -> Answer {
        self.send(self.streaming(body)).await
    }

    pub(crate) fn streaming(&self, body: &Value) -> RequestBuilder {
        let request = self.request("POST", RUNS).header("accept", "text/event-stream");
        request.header("content-type", "application/json").body(body.to_string())
    }

    /// A run's events, to its end.
    pub(crate) async fn received(&self, run_id: &str) -> Vec<ReceivedEvent> {
        received(&self.get(&format!("{RUNS}/{THREAD}/events?runId={run_id}")).await.text)
    }

    pub(crate) async fn cancel_agent_run(&self, run_id: &str) -> Answer {
        self.send(self.request("POST", &format!("{RUNS}/{THREAD}/cancel?runId={run_id}"))).await
    }

    /// The kernel's run behind the thread.
    pub(crate) async fn run_of_thread(&self) -> String {
        id(&self.get(&format!("/api/v1/sessions/{THREAD}")).await.ok(), "lastRunId")
    }
}

#[both_engines]
async fn a_message_is_accepted_and_its_run_followed_to_its_end(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let accepted = server.say("run-1", "hello").await.with_status(202);
    assert_eq!((&accepted["threadId"], &accepted["runId"]), (&json!(THREAD), &json!("run-1")));
    assert_eq!(accepted["created"], true);
    assert!(accepted["taskId"].as_str().unwrap().starts_with("cmd_"));
    let first = server.received("run-1").await;
    assert_eq!((first[0].kind(), first.last().unwrap().kind()), ("RUN_STARTED", "RUN_FINISHED"));
    assert_eq!((words(&first).as_str(), &first[0].event["runId"]), ("hello", &json!("run-1")));
    // The second turn goes on with the same thread, and each run tells its own events only.
    let again = server.say("run-2", "and again").await.with_status(202);
    assert_eq!(again["created"], false);
    let second = server.received("run-2").await;
    assert_eq!(words(&second), "and again");
    assert_eq!(server.received("run-1").await, first, "each reader of a run gets the same events");
    assert_eq!(kinds(&first), kinds(&second));
    // The streamed form answers with the events themselves.
    let streamed = server.stream(&message("run-3", "streamed")).await;
    assert_eq!((streamed.status, &streamed.headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    assert_eq!(words(&received(&streamed.text)), "streamed");
}

#[both_engines]
async fn the_same_run_again_is_answered_the_same_and_another_body_is_refused(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let first = server.say("run-1", "hello").await.with_status(202);
    let mut expected = first.clone();
    expected["created"] = json!(false);
    assert_eq!(server.say("run-1", "hello").await.with_status(202), expected);
    // The same, though it is written otherwise.
    let respelled = message("run-1", "hello").to_string().replace(':', " : ");
    assert_eq!(server.send_text("POST", RUNS, respelled).await.with_status(202), expected);
    server.restart().await;
    assert_eq!(server.say("run-1", "hello").await.with_status(202), expected);
    server.say("run-1", "another").await.refused_as(IdempotencyConflict, "AGENT_RUN_ID_CONFLICT");
    server.stream(&message("run-1", "another")).await.refused_as(IdempotencyConflict, "AGENT_RUN_ID_CONFLICT");
    assert_eq!(server.events_of(&server.run_of_thread().await, "user_message").await.len(), 1);
}

#[both_engines]
async fn the_same_run_again_is_answered_the_same_when_its_picture_cannot_be_had_any_more(engine: Engine) {
    let server = TestServer::start(engine).await;
    let url = id(&server.upload(THREAD, PNG).await.with_status(201), "url");
    let look = |run_id: &str| {
        let mut body = message(run_id, "");
        let picture = json!({"type": "binary", "mimeType": "image/png", "url": url});
        body["messages"][0]["content"] = json!([{"type": "text", "text": "look"}, picture]);
        body
    };
    let first = server.post(RUNS, &look("run-1")).await.with_status(202);
    server.clock.advance_ms(server.config.section::<AttachmentsSection>().url_ttl_ms + 1);
    assert_eq!(server.post(RUNS, &look("run-1")).await.with_status(202)["taskId"], first["taskId"]);
    assert_eq!(server.post(RUNS, &look("run-2")).await.status, 422);
}

#[both_engines]
async fn the_same_run_twice_at_once_is_one_run(engine: Engine) {
    let server = TestServer::start(engine).await;
    for round in 0..5 {
        let run_id = format!("run-{round}");
        let answers = futures_util::future::join_all((0..8).map(|_| server.say(&run_id, "hello"))).await;
        let tasks: Vec<_> = answers.into_iter().map(|answer| answer.with_status(202)).collect();
        assert!(tasks.iter().all(|task| task["taskId"] == tasks[0]["taskId"]), "{tasks:?}");
        let made = tasks.iter().filter(|task| task["created"] == true).count();
        assert_eq!(made, usize::from(round == 0), "{tasks:?}");
        server.cancel_agent_run(&run_id).await.with_status(202);
    }
    assert_eq!(server.events_of(&server.run_of_thread().await, "user_message").await.len(), 5);
}

#[both_engines]
async fn a_thread_is_its_owners_alone_on_every_route(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, bob) = (user(&server, "ada", &["local"]).await, user(&server, "bob", &["local"]).await);
    let elsewhere = user(&server, "eve", &["hwlab"]).await;
    ada.say("run-1", "secret").await.with_status(202);
    let events = format!("{RUNS}/{THREAD}/events?runId=run-1");
    for other in [&bob, &elsewhere, &*server] {
        for answer in [
            other.say("run-1", "secret").await,
            other.say("run-2", "mine").await,
            other.stream(&message("run-2", "mine")).await,
            other.get(&events).await,
            other.cancel_agent_run("run-1").await,
            other.cancel_agent_run("run-9").await,
        ] {
            assert!(!answer.text.contains("secret"), "{}", answer.text);
            answer.refused_as(Forbidden, "AGENT_FORBIDDEN");
        }
    }
    ada.cancel_agent_run("run-1").await.with_status(202);
    assert_eq!(ada.received("run-1").await.last().unwrap().event["outcome"], json!({"type": "cancelled"}));
    // A thread that does not exist is unknown, and a caller without a token is not authenticated.
    let unknown = events.replace('5', "6");
    bob.get(&unknown).await.refused_as(NotFound, "AGENT_SESSION_NOT_FOUND");
    server.with_token(None).get(&events).await.refused_as(Unauthenticated, "AUTH_UNAUTHORIZED");
}

#[both_engines]
async fn a_session_of_the_manager_dialect_is_no_thread(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": THREAD})).await;
    server.say("run-1", "hello").await.refused_as(Forbidden, "AGENT_FORBIDDEN");
}

#[both_engines]
async fn a_thread_cannot_be_taken_over_and_a_run_that_never_starts_does_not_block_it(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (ada, bob) = (user(&server, "ada", &["local"]).await, user(&server, "bob", &["local"]).await);
    ada.say("run-1", "one").await.with_status(202);
    assert_eq!(words(&ada.received("run-1").await), "one");
    let mut run = run_body();
    (run["tenantId"], run["sessionRef"]) = (json!("local"), json!({"sessionId": THREAD}));
    bob.post("/api/v1/runs", &run).await.refused_by(Forbidden, "owner");
    let named = json!({"tenantId": "local", "backendProfile": "scripted", "sessionId": THREAD});
    bob.post("/api/v1/sessions", &named).await.refused_by(Forbidden, "owner");
    ada.post("/api/v1/runs", &run).await.with_status(201);
    ada.say("run-2", "two").await.with_status(202);
    assert_eq!(words(&ada.received("run-2").await), "two");
}

#[both_engines]
async fn a_users_thread_belongs_to_the_configured_tenant_or_their_first(engine: Engine) {
    let server = TestServer::start(engine).await;
    for (name, tenants, tenant) in
        [("ada", &["hwlab", "local"][..], "local"), ("bob", &["unidesk", "hwlab"], "unidesk")]
    {
        let caller = user(&server, name, tenants).await;
        let mut body = message("run-1", "hello");
        let thread_id = crate::operations::uuid(&server.create_run().await);
        body["threadId"] = json!(thread_id);
        caller.post(RUNS, &body).await.with_status(202);
        assert_eq!(server.get(&format!("/api/v1/sessions/{thread_id}")).await.ok()["tenantId"], tenant, "{name}");
    }
}

#[both_engines]
async fn a_run_can_be_cancelled_by_its_name(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    server.say("run-1", r#"{"script": [{"say": "begun"}, {"wait": 600000}]}"#).await.with_status(202);
    let run = server.run_of_thread().await;
    eventually("the turn is at work", async || {
        (!server.events_of(&run, "assistant_message").await.is_empty()).then_some(())
    })
    .await;
    let cancelled = server.cancel_agent_run("run-1").await.with_status(202);
    assert_eq!(cancelled, json!({"threadId": THREAD, "runId": "run-1", "accepted": true}));
    let received = server.received("run-1").await;
    assert_eq!(received.last().unwrap().event["outcome"], json!({"type": "cancelled"}));
    assert_eq!(server.cancel_agent_run("run-1").await.with_status(202), cancelled, "again, when it has ended");
    // The thread goes on.
    server.say("run-2", "next").await.with_status(202);
    assert_eq!(words(&server.received("run-2").await), "next");
}

#[both_engines]
async fn names_that_make_no_sense_are_refused_with_their_codes(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.say("run-1", "hello").await.with_status(202);
    let path = format!("{RUNS}/{THREAD}/events");
    for (path, code) in [
        (format!("{RUNS}/not-a-uuid/events?runId=run-1"), "AGENT_SESSION_ID_INVALID"),
        (path.clone(), "AGENT_INVALID_RUN_ID"),
        (format!("{path}?runId="), "AGENT_INVALID_RUN_ID"),
        (format!("{path}?runId=run-2"), "AGENT_INVALID_RUN_ID"),
        (format!("{path}?runId={}", "x".repeat(129)), "AGENT_INVALID_RUN_ID"),
        (format!("{path}?runId=run-1&idle_limit=0"), "AGENT_PAYLOAD_INVALID"),
        (format!("{path}?runId=run-1&idle_limit=3601"), "AGENT_PAYLOAD_INVALID"),
        (format!("{path}?runId=run-1&idle_limit=x"), "AGENT_PAYLOAD_INVALID"),
    ] {
        let answer = server.get(&path).await;
        assert_eq!(answer.status, 422, "{path}: {}", answer.text);
        answer.refused_as(RunInputInvalid, code);
    }
    for wrong in ["x", "1", "1-", "-1", "1-x", "01-0", "1-0-0", ""] {
        let request = server.request("GET", &format!("{path}?runId=run-1")).header("last-event-id", wrong);
        server.send(request).await.refused_as(RunInputInvalid, "AGENT_INVALID_LAST_EVENT_ID");
    }
    server.cancel_agent_run("run-2").await.refused_as(RunInputInvalid, "AGENT_INVALID_RUN_ID");
    let mut body = message("run\u{0}", "hello");
    server.post(RUNS, &body).await.refused_as(RunInputInvalid, "AGENT_INVALID_RUN_ID");
    body["runId"] = json!("ghp_0123456789abcdefABCDEF");
    server.post(RUNS, &body).await.refused_as(RunInputInvalid, "AGENT_INVALID_RUN_ID");
    body["forwardedProps"] = json!({"runtime_mode": "automation"});
    let refused = server.post(RUNS, &body).await.refused_as(RunInputInvalid, "AGENT_RUNTIME_MODE_INVALID");
    assert!(refused.message.starts_with("invalid RunAgentInput.forwardedProps: runtime_mode"), "{}", refused.message);
}

#[both_engines]
async fn an_oversized_body_is_refused_in_the_words_of_the_protocol(engine: Engine) {
    let server = TestServer::start(engine).await;
    let sized = |bytes: usize| {
        let mut body = message("run-1", "hello");
        body["state"] = json!("");
        body["state"] = json!("x".repeat(bytes - body.to_string().len()));
        body
    };
    for (form, bytes) in [("queued", 262_145), ("queued", 4_194_305), ("streamed", 262_145), ("streamed", 4_194_305)] {
        let body = sized(bytes);
        let answer = if form == "queued" { server.post(RUNS, &body).await } else { server.stream(&body).await };
        let refused = answer.refused_as(PayloadTooLarge, "AGENT_PAYLOAD_INVALID");
        assert_eq!(refused.message, "RunAgentInput payload exceeds size limit", "{form} {bytes}");
    }
    let mut padded = message("run-1", "hello").to_string();
    padded.extend(std::iter::repeat_n(' ', 262_144 - padded.len()));
    server.send_text("POST", RUNS, padded).await.with_status(202);
}

#[both_engines]
async fn context_reaches_the_command_and_never_the_history(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut body = message("run-1", "what is on this page?");
    body["messages"].as_array_mut().unwrap().push(json!({"id": "s", "role": "system", "content": "Be brief."}));
    body["context"] = json!([{"description": "page", "value": "/orders/7"}]);
    body["forwardedProps"]["client_time"] = json!({"device_timezone": "America/Los_Angeles",
        "client_now_iso": "2026-03-16T09:12:33-07:00", "client_epoch_ms": 1773658353000_i64});
    let accepted = server.post(RUNS, &body).await.with_status(202);
    let run = server.run_of_thread().await;
    let command = server.command(&run, &id(&accepted, "taskId")).await;
    assert_eq!(
        command["payload"]["context"],
        json!({"messages": [{"role": "system", "text": "Be brief.", "sent": {"id": "s"}}],
            "notes": [{"description": "page", "value": "/orders/7"}],
            "clock": {"now": "2026-03-16T09:12:33-07:00", "timezone": "America/Los_Angeles", "device": true}})
    );
    let events = json!(server.events(&run).await).to_string();
    assert!(events.contains("what is on this page?"));
    assert!(!events.contains("Be brief.") && !events.contains("/orders/7"), "{events}");
}

#[both_engines]
async fn an_agent_receives_the_time_in_the_zone_of_the_user(engine: Engine) {
    let server = TestServer::start(engine).await;
    let kei = zoned(&server, "kei", "Asia/Tokyo").await;
    let accepted = kei.say("run-1", "when is tomorrow?").await.with_status(202);
    let run = kei.run_of_thread().await;
    let command = server.command(&run, &id(&accepted, "taskId")).await;
    let clock = json!({"now": "2026-01-01T09:00:00+09:00", "timezone": "Asia/Tokyo"});
    assert_eq!(command["payload"]["context"], json!({"clock": clock}));
}

#[both_engines]
async fn an_agent_receives_the_new_time_zone_and_utc_where_none_is_known(engine: Engine) {
    let server = TestServer::start(engine).await;
    let kei = zoned(&server, "kei", "Asia/Tokyo").await;
    let moved = server.call("PATCH", "/api/v1/users/kei", &json!({"timezone": "America/New_York"})).await;
    moved.with_status(200);
    let accepted = kei.say("run-1", "when is tomorrow?").await.with_status(202);
    let command = server.command(&kei.run_of_thread().await, &id(&accepted, "taskId")).await;
    let clock = json!({"now": "2025-12-31T19:00:00-05:00", "timezone": "America/New_York"});
    assert_eq!(command["payload"]["context"], json!({"clock": clock}));
    // The operator is no user, so their zone is not known.
    let other = TestServer::start(engine).await;
    let accepted = other.say("run-1", "when is tomorrow?").await.with_status(202);
    let command = other.command(&other.run_of_thread().await, &id(&accepted, "taskId")).await;
    let clock = json!({"now": "2026-01-01T00:00:00+00:00", "timezone": "UTC"});
    assert_eq!(command["payload"]["context"], json!({"clock": clock}));
}

#[both_engines]
async fn of_a_thread_too_long_to_compare_the_newest_is_compared(engine: Engine) {
    let server = TestServer::start(engine).await;
    let first = id(&server.say("run-1", "one").await.with_status(202), "taskId");
    let run = server.run_of_thread().await;
    let runner = server.claim(&run, "runner-a").await;
    runner.ack(&first).await;
    let said =
        |n: usize| json!({"type": "assistant_message", "commandId": first, "payload": {"text": format!("line {n}")}});
    for chunk in 0..5 {
        let lines: Value = (0..401).map(|n| said(chunk * 401 + n)).collect();
        runner.try_append(None, lines).await.with_status(200);
    }
    runner.end(&first, "completed").await;
    let second = id(&server.say("run-2", "two").await.with_status(202), "taskId");
    runner.ack(&second).await;
    runner.end(&second, "completed").await;
    let with = |text: &str| {
        let mut body = message("run-3", "");
        let user = |text: &str| json!({"id": text, "role": "user", "content": text});
        body["messages"] = json!([user("one"), user(text), user("three")]);
        server.streaming(&body)
    };
    server.send(with("never said")).await.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    let open = with("two").send().await.unwrap();
    assert_eq!(open.status(), 200);
}

#[both_engines]
async fn a_streamed_transcript_must_be_our_history(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let secret = "my key is ghp_0123456789abcdefABCDEF";
    for (run_id, text) in [("run-1", "one"), ("run-2", secret)] {
        server.say(run_id, text).await.with_status(202);
        server.received(run_id).await;
    }
    let run = server.run_of_thread().await;
    let said = server.events_of(&run, "assistant_message").await;
    let reply = |index: usize| said[index]["payload"]["text"].clone();
    let whole = json!([
        {"id": "s", "role": "system", "content": "be brief"},
        {"id": "m-run-1", "role": "user", "content": "one"}, {"id": "a", "role": "assistant", "content": reply(0)},
        {"id": "m-run-2", "role": "user", "content": secret}, {"id": "b", "role": "assistant", "content": reply(1)},
        {"id": "m", "role": "user", "content": [{"type": "text", "text": "three"}]},
    ]);
    let posted = |run_id: &str, change: fn(&mut Vec<Value>)| {
        let mut body = message(run_id, "");
        let mut messages = whole.as_array().unwrap().clone();
        change(&mut messages);
        body["messages"] = json!(messages);
        body
    };
    let wrong: [fn(&mut Vec<Value>); 4] = [
        |messages| messages[1]["content"] = json!("uno"),
        |messages| messages[2]["content"] = json!("something else"),
        |messages| messages.swap(1, 3),
        |messages| messages.insert(1, json!({"id": "x", "role": "user", "content": "never said"})),
    ];
    for change in wrong {
        let refused =
            server.stream(&posted("run-3", change)).await.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
        assert_eq!(refused.message, "RunAgentInput.messages contains earlier messages that the thread does not have");
    }
    let streamed = server.stream(&posted("run-3", |_| ())).await;
    assert_eq!(words(&received(&streamed.text)), "three", "{}", streamed.text);
    // A client may have forgotten some of it; only what is new has been kept.
    let streamed = server.stream(&posted("run-4", |messages| drop(messages.drain(1..3)))).await;
    assert_eq!(streamed.status, 200, "{}", streamed.text);
    assert_eq!(server.events_of(&run, "user_message").await.len(), 4);
    // In the other form the rule applies as it is written.
    let refused = server.post(RUNS, &posted("run-5", |_| ())).await;
    refused.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
}

#[both_engines]
async fn a_client_may_remember_an_answer_that_was_cut_off(engine: Engine) {
    let server = TestServer::start(engine).await;
    let command = id(&server.say("run-1", "one").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&command).await;
    runner.tell(&command, "assistant_delta", json!({"messageId": "m", "delta": "half of"})).await;
    runner.end(&command, "cancelled").await;
    let remembered = |parts: &[&str]| {
        let mut body = message("run-2", "");
        let mut messages = vec![json!({"id": "a", "role": "user", "content": "one"})];
        messages.extend(parts.iter().map(|part| json!({"id": "b", "role": "assistant", "content": part})));
        messages.push(json!({"id": "c", "role": "user", "content": "two"}));
        body["messages"] = json!(messages);
        body
    };
    let refused = server.stream(&remembered(&["half of", "and another"])).await;
    refused.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    let response = server.streaming(&remembered(&["half of"])).send().await.unwrap();
    assert_eq!(response.status(), 200);
}

/// A client that disconnects has only a prefix; text that was streamed counts as sent, whatever the whole message has.
#[both_engines]
async fn a_client_may_send_back_a_message_that_was_streamed_to_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let command = id(&server.say("run-1", "one").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&command).await;
    for delta in ["hello ", "wrld  "] {
        runner.tell(&command, "assistant_delta", json!({"messageId": "m", "delta": delta})).await;
    }
    runner.tell(&command, "assistant_message", json!({"messageId": "m", "text": "hello world", "final": true})).await;
    runner.tell(&command, "assistant_delta", json!({"messageId": "n", "delta": "and no end"})).await;
    runner.end(&command, "completed").await;
    let remembered = |run_id: &str, part: &str| {
        let mut body = message(run_id, "");
        body["messages"] = json!([{"id": "a", "role": "user", "content": "one"},
            {"id": "b", "role": "assistant", "content": part}, {"id": "c", "role": "user", "content": "two"}]);
        body
    };
    server.stream(&remembered("run-2", "hello moon")).await.refused_as(RunInputInvalid, "AGENT_RUN_MESSAGES_INVALID");
    for (n, part) in ["hello wrld  ", "hello world", "hello wr", "hello wo", "and no", "no end"].iter().enumerate() {
        let response = server.streaming(&remembered(&format!("run-2{n}"), part)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{part}");
        server.cancel_agent_run(&format!("run-2{n}")).await.with_status(202);
    }
}
