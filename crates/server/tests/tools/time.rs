//! The time zone of `time_now`.

use std::sync::atomic::AtomicUsize;

use serde_json::{Value, json};

use super::Work;
use crate::{
    harness::{Caller, Engine, TestServer, both_engines, id},
    run_input::runs::message,
};

/// A user whose clock is in this zone.
async fn user_in(server: &TestServer, timezone: &str) -> Caller {
    server.post("/api/v1/users", &json!({"name": "kei", "timezone": timezone})).await.with_status(201);
    let token = server.post("/api/v1/users/kei/token", &json!({})).await.with_status(201);
    server.with_token(Some(&id(&token, "token")))
}

/// Calls `time_now` in a turn of a user's chat. `number`: of the turn. `device`: the zone that the user's front end reports.
async fn call_in_chat(
    server: &TestServer,
    user: &Caller,
    number: usize,
    device: Option<&str>,
    arguments: &Value,
) -> Value {
    let mut body = message(&format!("run-{number}"), "what time is it?");
    if let Some(device) = device {
        body["forwardedProps"]["client_time"] = json!({"device_timezone": device,
            "client_now_iso": "2026-01-01T00:00:00Z", "client_epoch_ms": 1_767_225_600_000_i64});
    }
    let command_id = id(&user.post("/api/v1/agent/runs", &body).await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&command_id).await;
    // Ids of calls are unique in their run.
    let work = Work { runner, command_id, calls: AtomicUsize::new(number) };
    let called = work.call(server, "time_now", &arguments.to_string()).await;
    work.runner.end(&work.command_id, "completed").await;
    work.runner.release().await;
    called
}

fn zone_and_time(called: &Value) -> (String, String) {
    assert_eq!(called["status"], "completed", "{called}");
    let result: Value = serde_json::from_str(called["content"].as_str().unwrap()).unwrap();
    (id(&result, "timezone"), id(&result, "now"))
}

#[both_engines]
async fn the_zone_is_that_of_the_argument_else_of_the_device_else_of_the_user_else_utc(engine: Engine) {
    let server = TestServer::start(engine).await;
    let kei = user_in(&server, "Asia/Tokyo").await;
    let berlin = json!({"timezone": "Europe/Berlin"});
    for (number, device, arguments, zone, time) in [
        (1, Some("America/New_York"), &berlin, "Europe/Berlin", "2026-01-01T01:00:00+01:00"),
        (2, Some("America/New_York"), &json!({}), "America/New_York", "2025-12-31T19:00:00-05:00"),
        (3, None, &json!({}), "Asia/Tokyo", "2026-01-01T09:00:00+09:00"),
    ] {
        let called = call_in_chat(&server, &kei, number, device, arguments).await;
        assert_eq!(zone_and_time(&called), (zone.to_owned(), time.to_owned()), "{number}");
    }
    // The operator's own run has neither a device nor a user.
    let work = Work::begin(&server, |_| ()).await;
    let called = work.call(&server, "time_now", "{}").await;
    assert_eq!(zone_and_time(&called), ("UTC".to_owned(), "2026-01-01T00:00:00+00:00".to_owned()));
}

#[both_engines]
async fn a_name_that_is_no_zone_of_the_database_is_rejected(engine: Engine) {
    let server = TestServer::start(engine).await;
    let work = Work::begin(&server, |_| ()).await;
    for name in ["Etc/Unknown", "Mars/Olympus", "+02:00", "local", ""] {
        let called = work.call(&server, "time_now", &json!({"timezone": name}).to_string()).await;
        let expected = format!("there is no time zone {name:?}");
        assert_eq!((&called["status"], &called["content"]), (&json!("failed"), &json!(expected)));
    }
}
