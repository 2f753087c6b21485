//! The context of an automation's runs: the end of its owner's latest chat.

use ostler_protocol::kernel::events::PHASE_STEER_ACCEPTED;

use super::*;

/// The lease of a runner that a test plays.
const LEASE_MS: i64 = 60_000;

/// A message of the context.
type Remark = (String, String);

fn latest_chat(mode: &str, count: u32) -> Value {
    json!({"source": "latest_chat", "window_mode": mode, "window_count": count})
}

fn remark(role: &str, text: &str) -> Remark {
    (role.to_owned(), text.to_owned())
}

/// One whole turn of the owner's chat, in which the test plays the runner.
async fn chat_turn(server: &TestServer, run_id: &str, text: &str, reply: &str) {
    let task = id(&server.say(run_id, text).await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&task).await;
    runner.say(&task, reply).await;
    runner.end(&task, "completed").await;
    runner.release().await;
}

/// The messages that a run of an automation with this context gets. `Value::Null`: an automation without one.
async fn messages_for(server: &TestServer, timezone: &str, context: Value) -> Vec<Remark> {
    let mut body = daily("Digest", 7, "hi");
    body["timezone"] = json!(timezone);
    if !context.is_null() {
        body["config"]["context"] = context;
    }
    let automation_id = create(server, &body).await;
    server.post(&format!("{AUTOMATIONS}/{automation_id}/start"), &json!({})).await.with_status(202);
    let task_id = eventually("the run is submitted", async || {
        starts(server, &automation_id).await[0]["task_id"].as_str().map(str::to_owned)
    })
    .await;
    let payload = server.store(&format!("SELECT payload FROM commands WHERE command_id = '{task_id}'")).await;
    let payload: Value = serde_json::from_str(&payload[0]).unwrap();
    let messages = payload["context"]["messages"].as_array().cloned().unwrap_or_default();
    messages.iter().map(|message| (id(message, "role"), id(message, "text"))).collect()
}

#[both_engines]
async fn a_window_of_messages_has_the_newest_ones(engine: Engine) {
    let server = server(engine, 0).await;
    assert!(messages_for(&server, "UTC", latest_chat("number", 3)).await.is_empty(), "there is no chat");
    for (run_id, text, reply) in [("run-1", "one", "eins"), ("run-2", "two", "zwei"), ("run-3", "three", "drei")] {
        chat_turn(&server, run_id, text, reply).await;
    }
    let newest = [remark("assistant", "zwei"), remark("user", "three"), remark("assistant", "drei")];
    assert_eq!(messages_for(&server, "UTC", latest_chat("number", 3)).await, newest);
    assert_eq!(messages_for(&server, "UTC", latest_chat("number", 100)).await.len(), 6);
    assert!(messages_for(&server, "UTC", Value::Null).await.is_empty(), "without the field there is no context");
}

#[both_engines]
async fn a_window_of_days_begins_at_a_midnight_in_the_zone_of_the_automation(engine: Engine) {
    const ZONE: &str = "America/Los_Angeles";
    let server = server(engine, 0).await;
    // In Los Angeles it is four in the afternoon of the day before, and eight hours later it is midnight.
    server.clock.advance_ms(8 * HOUR_MS - 1);
    chat_turn(&server, "run-1", "one", "eins").await;
    server.clock.advance_ms(1);
    chat_turn(&server, "run-2", "two", "zwei").await;
    let today = [remark("user", "two"), remark("assistant", "zwei")];
    assert_eq!(messages_for(&server, ZONE, latest_chat("day", 1)).await, today);
    assert_eq!(messages_for(&server, ZONE, latest_chat("day", 2)).await.len(), 4);
    assert_eq!(messages_for(&server, "UTC", latest_chat("day", 1)).await.len(), 4, "one day in UTC");
    server.clock.advance_ms(DAY_MS);
    assert!(messages_for(&server, ZONE, latest_chat("day", 1)).await.is_empty());
    assert_eq!(messages_for(&server, ZONE, latest_chat("day", 2)).await, today);
}

#[both_engines]
async fn the_context_has_accepted_steers_and_no_messages_of_replaced_attempts(engine: Engine) {
    let server = server(engine, 0).await;
    chat_turn(&server, "run-1", "hello", "hi").await;
    let task = id(&server.say("run-2", "go").await.with_status(202), "taskId");
    let first = server.claim(&server.run_of_thread().await, "runner-a").await;
    first.ack(&task).await;
    let steer = id(&server.steer(&first.run_id, "left").await, "commandId");
    server.steer(&first.run_id, "never accepted").await;
    for text in ["going", "going on"] {
        first.tell(&task, "assistant_message", json!({"messageId": text, "text": text})).await;
    }
    // The lease of the first runner expires, and another one repeats the turn.
    server.clock.advance_ms(LEASE_MS);
    let next = server.claim(&first.run_id, "runner-b").await;
    next.ack(&task).await;
    let accepted = json!({"phase": PHASE_STEER_ACCEPTED, "targetCommandId": task});
    next.tell(&steer, "backend_status", accepted).await;
    next.say(&task, "going left").await;
    next.end(&task, "completed").await;
    let shown = [
        remark("user", "hello"),
        remark("assistant", "hi"),
        remark("user", "go"),
        remark("user", "left"),
        remark("assistant", "going left"),
    ];
    assert_eq!(messages_for(&server, "UTC", latest_chat("number", 100)).await, shown);
    assert_eq!(messages_for(&server, "UTC", latest_chat("day", 1)).await, shown);
    // What is not shown does not count.
    for count in 1..=5 {
        let newest = &shown[5 - count..];
        assert_eq!(messages_for(&server, "UTC", latest_chat("number", count as u32)).await, newest, "{count}");
    }
}

#[both_engines]
async fn a_window_that_cannot_be_read_is_rejected(engine: Engine) {
    let server = server(engine, 0).await;
    for (context, rule) in [
        (json!({"source": "all_chats", "window_mode": "day", "window_count": 1}), "body-shape"),
        (json!({"source": "latest_chat", "window_mode": "week", "window_count": 1}), "body-shape"),
        (json!({"source": "latest_chat", "window_mode": "day"}), "body-shape"),
        (latest_chat("number", 0), "automation-shape"),
        (latest_chat("number", 101), "automation-shape"),
    ] {
        let mut body = daily("Digest", 7, "hi");
        body["config"]["context"] = context;
        server.post(AUTOMATIONS, &body).await.refused_by(RunInputInvalid, rule);
    }
}
