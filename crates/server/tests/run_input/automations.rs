//! Automations: kept by their owners, started once for each time by any number of servers, and paused when they keep failing.

mod scheduling;
mod windows;

use ostler_protocol::FailureKind::*;
use ostler_run_input::config::automations::AutomationsSection;
use ostler_stand_ins::chat;
use serde_json::{Value, json};

use crate::{
    harness::{Caller, Engine, Socket, TestServer, both_engines, eventually, id},
    operations::automation,
    run_input::{
        calendar_tools::with_model,
        runs::{message, user},
    },
};

pub(crate) const AUTOMATIONS: &str = "/api/v1/automations";
/// The tests' clock begins at 2026-01-01T00:00:00Z, a Thursday.
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// A server whose scheduler looks often.
async fn server(engine: Engine, slots: usize) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.config.runner.slots = slots;
        setup.config.change(|automations: &mut AutomationsSection| {
            automations.poll_ms = 10;
            automations.failures_max = 2;
        });
    })
    .await
}

/// Daily at this hour of UTC.
fn daily(title: &str, hour: u8, template: &str) -> Value {
    json!({"title": title, "timezone": "UTC", "config": {"input_template": template,
        "schedule": {"type": "daily", "run_at": {"hour": hour, "minute": 0}}}})
}

async fn create(caller: &Caller, body: &Value) -> String {
    id(&caller.post(AUTOMATIONS, body).await.with_status(201), "id")
}

async fn starts(caller: &Caller, automation_id: &str) -> Vec<Value> {
    let page = caller.get(&format!("{AUTOMATIONS}/{automation_id}/runs")).await.with_status(200);
    page["starts"].as_array().unwrap().clone()
}

/// Waits until there are this many starts, all of them in this state.
async fn started(caller: &Caller, automation_id: &str, count: usize, status: &str) -> Vec<Value> {
    eventually(&format!("{count} starts are {status}"), async || {
        let starts = starts(caller, automation_id).await;
        let fits = starts.len() == count && starts.iter().all(|start| start["status"] == status);
        fits.then_some(starts)
    })
    .await
}

#[both_engines]
async fn an_automation_is_created_changed_and_deleted_by_its_owner_alone(engine: Engine) {
    let server = server(engine, 0).await;
    let ada = user(&server, "ada", &["local"]).await;
    let bob = user(&server, "bob", &["local"]).await;
    let made = ada.post(AUTOMATIONS, &automation()).await.with_status(201);
    // Friday, 7:30 in Berlin.
    assert_eq!(made["next_run_at"], "2026-01-02T06:30:00Z");
    assert_eq!((&made["status"], &made["last_run_at"], &made["failures"]), (&json!("active"), &Value::Null, &json!(0)));
    let path = format!("{AUTOMATIONS}/{}", id(&made, "id"));
    assert_eq!(ada.get(&path).await.with_status(200), made);
    assert_eq!(ada.get(AUTOMATIONS).await.with_status(200)["automations"], json!([made]));
    for method in ["GET", "DELETE"] {
        bob.send(bob.request(method, &path)).await.refused_as(NotFound, "AUTOMATION_NOT_FOUND");
    }
    bob.patch(&path, &json!({"title": "mine"})).await.refused_as(NotFound, "AUTOMATION_NOT_FOUND");
    bob.post(&format!("{path}/start"), &json!({})).await.refused_as(NotFound, "AUTOMATION_NOT_FOUND");
    for part in ["runs", "next"] {
        bob.get(&format!("{path}/{part}")).await.refused_as(NotFound, "AUTOMATION_NOT_FOUND");
    }
    assert_eq!(bob.get(AUTOMATIONS).await.with_status(200)["automations"], json!([]));

    let paused = ada.patch(&path, &json!({"status": "disabled"})).await.with_status(200);
    assert_eq!((&paused["next_run_at"], &paused["disabled_reason"]), (&Value::Null, &json!("requested")));
    assert_eq!(ada.get(&format!("{AUTOMATIONS}?status=active")).await.ok()["automations"], json!([]));
    let resumed = ada.patch(&path, &json!({"status": "active", "timezone": "Asia/Tokyo"})).await.with_status(200);
    assert_eq!(resumed["next_run_at"], "2026-01-01T22:30:00Z");
    let next = ada.get(&format!("{path}/next?count=2")).await.with_status(200);
    assert_eq!(next["times"][1]["local"], "2026-01-05T07:30:00+09:00");
    let later = ada.get(&format!("{path}/next?count=1&from=2026-10-26")).await.with_status(200);
    assert_eq!(later["times"][0]["local"], "2026-10-26T07:30:00+09:00");
    let earlier = ada.get(&format!("{path}/next?count=2&from=2025-11-01")).await.with_status(200);
    assert_eq!(earlier["times"], next["times"], "times that have passed are not listed");
    for bad in ["2026-13-01", "2026-10-26T00:00", "tomorrow", "-9999-01-01"] {
        ada.get(&format!("{path}/next?from={bad}")).await.refused_by(RunInputInvalid, "query-shape");
    }
    ada.send(ada.request("DELETE", &path)).await.with_status(204);
    ada.get(&path).await.refused_as(NotFound, "AUTOMATION_NOT_FOUND");
}

#[both_engines]
async fn what_breaks_a_bound_is_refused_and_the_same_key_is_the_same_automation(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|automations: &mut AutomationsSection| automations.per_user_max = 2);
    })
    .await;
    let mut keyed = daily("Digest", 7, "hi");
    keyed["bootstrap_key"] = json!("digest");
    let made = server.post(AUTOMATIONS, &keyed).await.with_status(201);
    keyed["title"] = json!("Another");
    assert_eq!(server.post(AUTOMATIONS, &keyed).await.with_status(200), made);
    create(&server, &daily("Second", 7, "hi")).await;
    server.post(AUTOMATIONS, &daily("Third", 7, "hi")).await.refused_by(RateLimited, "automation-quota");
    // The same user in another tenant has the same automations; another user has their own.
    create(&user(&server, "ada", &["local"]).await, &daily("Third", 7, "hi")).await;
    for (field, value, rule) in [
        ("title", json!(""), "automation-shape"),
        ("title", json!("x".repeat(201)), "automation-shape"),
        ("title", json!("two\nlines"), "automation-shape"),
        ("timezone", json!("Mars/Olympus"), "timezone"),
        ("status", json!("asleep"), "body-shape"),
    ] {
        let mut bad = daily("Digest", 7, "hi");
        bad[field] = value;
        server.post(AUTOMATIONS, &bad).await.refused_by(RunInputInvalid, rule);
    }
    let mut bad = daily("Digest", 7, "hi");
    bad["config"]["schedule"]["weekdays"] = json!([1]);
    server.post(AUTOMATIONS, &bad).await.refused_by(RunInputInvalid, "automation-schedule");
    let path = format!("{AUTOMATIONS}/{}", id(&made, "id"));
    for count in ["0", "51"] {
        server.get(&format!("{path}/next?count={count}")).await.refused_by(RunInputInvalid, "page-limit");
    }
    server.get(&format!("{AUTOMATIONS}?status=asleep")).await.refused_by(RunInputInvalid, "query-shape");
}

#[both_engines]
async fn enabled_tools_restrict_what_the_runs_are_offered(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    for (enabled, offered, result) in [
        (json!(["calendar_read"]), vec!["calendar_read"], "there is no tool \"time_now\""),
        (json!(["time_now"]), vec!["time_now"], "2026-01-01"),
        (json!([]), vec![], "there is no tool \"time_now\""),
        (Value::Null, vec!["calendar_read", "calendar_write", "time_now"], "2026-01-01"),
    ] {
        let mut body = daily("Digest", 7, "[[call:time_now {}]]");
        // Without the field, the runs are offered what a chat is offered.
        if !enabled.is_null() {
            body["config"]["enabled_tools"] = enabled;
        }
        let automation_id = create(&server, &body).await;
        server.post(&format!("{AUTOMATIONS}/{automation_id}/start"), &json!({})).await.with_status(202);
        started(&server, &automation_id, 1, "completed").await;
        let request = endpoint.seen().pop().unwrap().body;
        let tools = request["tools"].as_array().into_iter().flatten();
        let names: Vec<_> = tools.map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, offered);
        let last = request["messages"].as_array().unwrap().last().unwrap();
        assert!(last["content"].as_str().unwrap().contains(result), "{last}");
    }
}

#[both_engines]
async fn a_started_run_carries_its_job_and_appears_in_history(engine: Engine) {
    let server = server(engine, 4).await;
    let ada = user(&server, "ada", &["local"]).await;
    ada.post("/api/v1/agent/runs", &message("run-1", "I like tea")).await.with_status(202);
    eventually("the chat is answered", async || {
        let history = ada.get("/api/v1/agent/history").await.ok();
        (history["messages"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    let mut body = daily("Digest", 7, "Report of {{date}}");
    body["config"]["context"] = json!({"source": "latest_chat", "window_mode": "number", "window_count": 5});
    body["config"]["enabled_tools"] = json!(["calendar_write"]);
    let automation_id = create(&ada, &body).await;
    let path = format!("{AUTOMATIONS}/{automation_id}/start");
    let start = ada.post(&path, &json!({"idempotencyKey": "k"})).await.with_status(202);
    assert_eq!(id(&ada.post(&path, &json!({"idempotencyKey": "k"})).await.with_status(202), "id"), id(&start, "id"));
    let done = started(&ada, &automation_id, 1, "completed").await.remove(0);
    assert_eq!((&done["trigger"], &done["due_at"]), (&json!("request"), &Value::Null));
    let thread_id = id(&done, "thread_id");
    let history = ada.get(&format!("/api/v1/agent/history?threadId={thread_id}")).await.ok();
    assert_eq!(history["messages"][0]["content"], "Report of 2026-01-01");
    let newest = ada.get("/api/v1/agent/history").await.ok();
    assert_eq!(newest["messages"][0]["content"], "I like tea", "the newest chat, not the automation's thread");
    let labelled = ada.get(&format!("/api/v1/runs?label=automation={automation_id}")).await.ok();
    assert_eq!(labelled["runs"].as_array().unwrap().len(), 1);
    let payload =
        server.store(&format!("SELECT payload FROM commands WHERE command_id = '{}'", id(&done, "task_id"))).await;
    let payload: Value = serde_json::from_str(&payload[0]).unwrap();
    assert_eq!(payload["context"]["messages"][0], json!({"role": "user", "text": "I like tea"}));
    let runtime = &payload["runtimeConfig"];
    assert_eq!((&runtime["mode"], &runtime["automationId"]), (&json!("automation"), &json!(automation_id)));
    assert_eq!(
        (&runtime["enabledTools"], &runtime["context"]["window_count"]),
        (&json!(["calendar_write"]), &json!(5))
    );

    // The owner goes on in the thread, in the mode of the automation. In a chat there is no such mode.
    let mut more = message("run-2", "and now?");
    (more["threadId"], more["forwardedProps"]) = (json!(thread_id), json!({"runtime_mode": "automation"}));
    let accepted = ada.post("/api/v1/agent/runs", &more).await.with_status(202);
    let sql = format!("SELECT payload FROM commands WHERE command_id = '{}'", id(&accepted, "taskId"));
    let continued: Value = serde_json::from_str(&server.store(&sql).await[0]).unwrap();
    assert_eq!(continued["context"]["messages"], payload["context"]["messages"], "its context is the automation's too");
    assert_eq!(continued["runtimeConfig"], payload["runtimeConfig"]);
    let mut chat = message("run-9", "hi");
    chat["forwardedProps"] = json!({"runtime_mode": "automation"});
    ada.post("/api/v1/agent/runs", &chat).await.refused_as(RunInputInvalid, "AGENT_RUNTIME_MODE_INVALID");
    let bob = user(&server, "bob", &["local"]).await;
    bob.post("/api/v1/agent/runs", &more).await.refused_as(RunInputInvalid, "AGENT_RUNTIME_MODE_INVALID");
}

#[both_engines]
async fn an_automation_that_keeps_failing_is_paused_and_its_owner_is_notified(engine: Engine) {
    let server = server(engine, 4).await;
    let automation_id = create(&server, &daily("Broken", 7, r#"{"script": [{"nonsense": 1}]}"#)).await;
    let path = format!("{AUTOMATIONS}/{automation_id}");
    for count in 1..=2 {
        server.post(&format!("{path}/start"), &json!({})).await.with_status(202);
        started(&server, &automation_id, count, "failed").await;
        server.clock.advance_ms(1);
    }
    let paused = server.get(&path).await.ok();
    assert_eq!((&paused["status"], &paused["disabled_reason"]), (&json!("disabled"), &json!("repeated-failure")));
    assert_eq!((&paused["failures"], &paused["next_run_at"]), (&json!(2), &Value::Null));
    let last = starts(&server, &automation_id).await.remove(0);
    assert_eq!(paused["last_run_at"], last["created_at"], "a start on request is a run, too");
    assert!(last["message"].as_str().is_some_and(|message| !message.is_empty()), "why it failed: {last}");
    let copied = "SELECT message FROM automation_starts WHERE command_id IS NOT NULL AND message IS NOT NULL";
    assert_eq!(server.store(copied).await, Vec::<String>::new(), "the reason is read from the command");
    let thread_id = id(&last, "thread_id");
    let noted = eventually("a note is in the thread", async || {
        let trace = server.get(&format!("/api/v1/sessions/{thread_id}/trace")).await.ok();
        let events = trace["events"].as_array().unwrap().clone();
        events.into_iter().find(|event| event.to_string().contains("automation_paused"))
    })
    .await;
    assert!(noted.to_string().contains(&automation_id), "{noted}");
    // Time passes, and nothing starts.
    server.clock.advance_ms(3 * DAY_MS);
    let resumed = server.patch(&path, &json!({"status": "active"})).await.with_status(200);
    assert_eq!((&resumed["failures"], &resumed["next_run_at"]), (&json!(0), &json!("2026-01-04T07:00:00Z")));
    assert_eq!(starts(&server, &automation_id).await.len(), 2);
}

/// The owner is connected to another server, where there can be one.
#[both_engines]
async fn the_owner_of_an_automation_that_was_paused_receives_a_frame_until_it_is_resumed(engine: Engine) {
    let server = server(engine, 4).await;
    let there = if engine == Engine::Postgres { Some(server.start_another(|_| ()).await) } else { None };
    let there = there.as_ref().unwrap_or(&server);
    let (mut owner, _) = Socket::introduce(there, "/ws/human", &server).await;
    let ada = user(&server, "ada", &["local"]).await;
    let (mut other, _) = Socket::introduce(&server, "/ws/human", &ada).await;
    let automation_id = create(&server, &daily("Broken", 7, r#"{"script": [{"nonsense": 1}]}"#)).await;
    let path = format!("{AUTOMATIONS}/{automation_id}");
    for count in 1..=2 {
        server.post(&format!("{path}/start"), &json!({})).await.with_status(202);
        started(&server, &automation_id, count, "failed").await;
        server.clock.advance_ms(1);
    }
    let frame = owner.hear().await;
    let payload = &frame["payload"];
    assert_eq!((&frame["type"], &payload["automation_id"]), (&json!("automation.paused"), &json!(automation_id)));
    assert_eq!((&payload["reason"], &payload["failures"]), (&json!("repeated-failure"), &json!(2)));
    assert_eq!(payload["title"], "Broken");
    // An owner who was not connected is notified on connect, and other users are not.
    let (mut later, _) = Socket::introduce(&server, "/ws/human", &server).await;
    assert_eq!(later.hear().await, frame);
    has_nothing_pending(&mut other).await;
    // The owner leaves it paused.
    let left = server.patch(&path, &json!({"status": "disabled"})).await.with_status(200);
    assert_eq!((&left["status"], &left["disabled_reason"]), (&json!("disabled"), &json!("requested")));
    let (mut last, _) = Socket::introduce(&server, "/ws/human", &server).await;
    has_nothing_pending(&mut last).await;
}

/// Pending frames come before the reply to a frame that the server does not know.
async fn has_nothing_pending(socket: &mut Socket) {
    socket.say(&json!({"type": "nonsense"})).await;
    assert_eq!(socket.hear().await["code"], "unknown_frame");
}

#[both_engines]
async fn automations_and_calendars_of_a_removed_user_are_deleted(engine: Engine) {
    let server = server(engine, 0).await;
    let ada = user(&server, "ada", &["local"]).await;
    let automation_id = create(&ada, &daily("Digest", 7, "hi")).await;
    ada.post(&format!("{AUTOMATIONS}/{automation_id}/start"), &json!({})).await.with_status(202);
    ada.post("/api/v1/calendar-events", &crate::operations::calendar_event()).await.with_status(201);
    server.send(server.request("DELETE", "/api/v1/users/ada")).await.with_status(200);
    for table in ["automations", "automation_starts", "calendar_events"] {
        assert_eq!(server.store(&format!("SELECT 'x' FROM {table}")).await, Vec::<String>::new(), "{table}");
    }
}

/// Users are moved behind the server's back, as there is no request for it.
#[both_engines]
async fn an_automation_whose_owner_has_left_its_tenant_starts_no_run(engine: Engine) {
    let server = server(engine, 4).await;
    let ada = user(&server, "ada", &["local", "hwlab"]).await;
    create(&ada, &daily("Digest", 7, "hi")).await;
    server.store("UPDATE users SET tenants = '[\"hwlab\"]' WHERE name = 'ada'").await;
    server.clock.advance_ms(7 * HOUR_MS);
    let sql = "SELECT status || ': ' || COALESCE(message, '') FROM automation_starts WHERE ended_at IS NOT NULL";
    let ended = eventually("the start has ended", async || server.store(sql).await.pop()).await;
    assert_eq!(ended, "failed: the owner of the automation is no longer in its tenant");
    assert_eq!(server.store("SELECT run_id FROM runs").await, Vec::<String>::new());
}

#[both_engines]
async fn a_thread_of_a_deleted_automation_is_no_chat(engine: Engine) {
    let server = server(engine, 4).await;
    let mut body = daily("Digest", 7, "Report of {{date}}");
    body["config"]["context"] = json!({"source": "latest_chat", "window_mode": "number", "window_count": 5});
    for round in 0..2 {
        let automation_id = create(&server, &body).await;
        server.post(&format!("{AUTOMATIONS}/{automation_id}/start"), &json!({})).await.with_status(202);
        let done = started(&server, &automation_id, 1, "completed").await.remove(0);
        let sql = format!("SELECT payload FROM commands WHERE command_id = '{}'", id(&done, "task_id"));
        let payload: Value = serde_json::from_str(&server.store(&sql).await[0]).unwrap();
        assert_eq!(payload["context"]["messages"], Value::Null, "round {round}: there is no chat");
        let path = format!("{AUTOMATIONS}/{automation_id}");
        server.send(server.request("DELETE", &path)).await.with_status(204);
    }
}

#[both_engines]
async fn automations_and_events_of_a_held_tenant_are_not_deleted(engine: Engine) {
    let server = server(engine, 0).await;
    let ada = user(&server, "ada", &["local"]).await;
    let automation = format!("{AUTOMATIONS}/{}", create(&ada, &daily("Digest", 7, "hi")).await);
    let made = ada.post("/api/v1/calendar-events", &crate::operations::calendar_event()).await.with_status(201);
    let event = format!("/api/v1/calendar-events/{}", id(&made, "id"));
    let hold = json!({"tenantId": "local", "reason": "case 7"});
    let hold = server.post("/api/v1/retention/holds", &hold).await.with_status(201);
    for path in [&automation, &event] {
        ada.send(ada.request("DELETE", path)).await.refused_by(StateConflict, "legal-hold");
        ada.get(path).await.with_status(200);
    }
    let release = format!("/api/v1/retention/holds/{}", id(&hold, "holdId"));
    server.send(server.request("DELETE", &release)).await.with_status(200);
    for path in [&automation, &event] {
        ada.send(ada.request("DELETE", path)).await.with_status(204);
    }
}

#[both_engines]
async fn the_title_of_an_automations_thread_is_in_its_log(engine: Engine) {
    let server = server(engine, 4).await;
    let automation_id = create(&server, &daily("Digest", 7, "hi")).await;
    server.post(&format!("{AUTOMATIONS}/{automation_id}/start"), &json!({})).await.with_status(202);
    let done = started(&server, &automation_id, 1, "completed").await.remove(0);
    let path = format!("/api/v1/sessions/{}", id(&done, "thread_id"));
    eventually("the thread has its title", async || (server.get(&path).await.ok()["title"] == "Digest").then_some(()))
        .await;
    assert_eq!(crate::retention::verify(&server, engine).await.broken, vec![]);
}

#[both_engines]
async fn starts_are_listed_in_pages(engine: Engine) {
    let server = server(engine, 0).await;
    let automation_id = create(&server, &daily("Digest", 7, "hi")).await;
    for _ in 0..5 {
        server.post(&format!("{AUTOMATIONS}/{automation_id}/start"), &json!({})).await.with_status(202);
        server.clock.advance_ms(1);
    }
    let whole: Vec<_> = starts(&server, &automation_id).await.iter().map(|start| id(start, "id")).collect();
    let (mut ids, mut cursor) = (vec![], String::new());
    loop {
        let page = server.get(&format!("{AUTOMATIONS}/{automation_id}/runs?limit=2{cursor}")).await.with_status(200);
        ids.extend(page["starts"].as_array().unwrap().iter().map(|start| id(start, "id")));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!((ids.len(), &ids), (5, &whole));
}
