//! Calendars: events with zones that recur, listed by window, exported, and each closed to all users but its own.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::{
    harness::{Engine, TestServer, both_engines, id},
    operations::calendar_event,
    run_input::runs::user,
};

const EVENTS: &str = "/api/v1/calendar-events";

fn window(from: &str, to: &str) -> String {
    format!("{EVENTS}/occurrences?from={from}&to={to}")
}

fn starts(found: &Value) -> Vec<&str> {
    found["occurrences"].as_array().unwrap().iter().map(|one| one["starts_at"].as_str().unwrap()).collect()
}

#[both_engines]
async fn an_event_is_created_changed_and_deleted_by_its_owner_alone(engine: Engine) {
    let server = TestServer::start(engine).await;
    let ada = user(&server, "ada", &["local"]).await;
    let bob = user(&server, "bob", &["local"]).await;
    let made = ada.post(EVENTS, &calendar_event()).await.with_status(201);
    assert_eq!((&made["starts_at"], &made["revision"]), (&json!("2026-03-16T09:00:00"), &json!(1)));
    let path = format!("{EVENTS}/{}", id(&made, "id"));
    assert_eq!(ada.get(&path).await.with_status(200), made);
    for method in ["GET", "DELETE"] {
        bob.send(bob.request(method, &path)).await.refused_as(NotFound, "CALENDAR_EVENT_NOT_FOUND");
    }
    bob.patch(&path, &json!({"title": "mine"})).await.refused_as(NotFound, "CALENDAR_EVENT_NOT_FOUND");
    assert_eq!(bob.get(EVENTS).await.ok()["events"], json!([]));
    assert!(!bob.send(bob.request("GET", &format!("{EVENTS}/export"))).await.text.contains("VEVENT"));
    // It recurs every Monday, at 9:00 of Berlin on both sides of the change of the clocks.
    let found = ada.get(&window("2026-03-20T00:00:00Z", "2026-04-01T00:00:00Z")).await.ok();
    assert_eq!(starts(&found), ["2026-03-23T08:00:00Z", "2026-03-30T07:00:00Z"]);
    let moved = json!({"starts_at": "2026-03-17T10:00", "recurrence": "FREQ=WEEKLY;COUNT=2", "location": ""});
    let moved = ada.patch(&path, &moved).await.with_status(200);
    assert_eq!((&moved["ends_at"], &moved["location"]), (&json!("2026-03-17T10:30:00"), &Value::Null));
    assert_eq!(moved["revision"], 2);
    let found = ada.get(&window("2026-03-01T00:00:00Z", "2027-03-01T00:00:00Z")).await.ok();
    assert_eq!(starts(&found), ["2026-03-17T09:00:00Z", "2026-03-24T09:00:00Z"]);
    assert_eq!(bob.get(&window("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z")).await.ok()["occurrences"], json!([]));
    ada.send(ada.request("DELETE", &path)).await.with_status(204);
    ada.get(&path).await.refused_as(NotFound, "CALENDAR_EVENT_NOT_FOUND");
}

#[both_engines]
async fn a_missing_and_an_ambiguous_local_time_are_shown(engine: Engine) {
    let server = TestServer::start(engine).await;
    for (local, at, kind) in [
        ("2026-03-29T02:30", "2026-03-29T01:30:00Z", "missing"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00Z", "ambiguous"),
        ("2026-07-01T02:30", "2026-07-01T00:30:00Z", "exact"),
    ] {
        let body = json!({"title": local, "starts_at": local, "event_timezone": "Europe/Berlin"});
        server.post(EVENTS, &body).await.with_status(201);
        let day = &at[..10];
        let found = server.get(&window(&format!("{day}T00:00:00Z"), &format!("{day}T23:00:00Z"))).await.ok();
        assert_eq!(starts(&found), [at]);
        assert_eq!(found["occurrences"][0]["local_time"], kind);
    }
}

#[both_engines]
async fn what_breaks_a_rule_of_events_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    for (field, value, rule) in [
        ("title", json!(""), "calendar-shape"),
        ("title", json!("x".repeat(501)), "calendar-shape"),
        ("starts_at", json!("2026-03-16T09:00:00Z"), "calendar-time"),
        ("starts_at", json!("tomorrow"), "calendar-time"),
        ("ends_at", json!("2026-03-16T08:00"), "calendar-time"),
        ("ends_at", json!("2028-03-16T08:00"), "calendar-time"),
        ("event_timezone", json!("PST"), "timezone"),
        ("recurrence", json!("FREQ=HOURLY"), "calendar-rule"),
        ("recurrence", json!("FREQ=WEEKLY;BYDAY=TU"), "calendar-rule"),
    ] {
        let mut bad = calendar_event();
        bad[field] = value.clone();
        let answer = server.post(EVENTS, &bad).await;
        assert_eq!(answer.status, 422, "{field} {value}: {}", answer.text);
        answer.refused_by(RunInputInvalid, rule);
    }
    let mut without = calendar_event();
    without.as_object_mut().unwrap().remove("event_timezone");
    server.post(EVENTS, &without).await.refused_by(RunInputInvalid, "body-shape");
    for (from, to) in [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00Z", "2028-01-01T00:00:00Z"),
        ("yesterday", "2026-01-01T00:00:00Z"),
    ] {
        server.get(&window(from, to)).await.refused_by(RunInputInvalid, "calendar-window");
    }
}

#[both_engines]
async fn a_list_has_at_most_a_thousand_occurrences_and_a_flag_for_more(engine: Engine) {
    let server = TestServer::start(engine).await;
    for n in 0..3 {
        let body = json!({"title": format!("Daily {n}"), "starts_at": "2026-01-01T09:00", "event_timezone": "UTC",
            "recurrence": "FREQ=DAILY"});
        server.post(EVENTS, &body).await.with_status(201);
    }
    let found = server.get(&window("2026-01-01T00:00:00Z", "2026-12-31T00:00:00Z")).await.ok();
    assert_eq!((found["occurrences"].as_array().unwrap().len(), &found["has_more"]), (1_000, &json!(true)));
    let found = server.get(&window("2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z")).await.ok();
    assert_eq!((found["occurrences"].as_array().unwrap().len(), &found["has_more"]), (177, &json!(false)));
}
