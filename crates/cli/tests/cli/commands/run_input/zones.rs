//! Time zones: the zone of the server's process decides nothing. An automation has its own zone or that of its owner. An event
//! that an agent writes has the zone of the call, of the device, of the user, or UTC.

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, stdout_of},
    test_home::{Engine, TestHome},
};

/// No test expects a time of this zone.
const ZONE_OF_SERVER: &str = "Asia/Tokyo";
const THREADS: [&str; 2] = ["550e8400-e29b-41d4-a716-446655440000", "550e8400-e29b-41d4-a716-446655440001"];

/// A server in Tokyo. Its commands run elsewhere.
fn start(mut home: TestHome) -> (TestHome, Server) {
    home.set("TZ", ZONE_OF_SERVER);
    let server = home.serve();
    home.environment.retain(|(name, _)| name != "TZ");
    (home, server)
}

#[test]
fn an_automation_is_planned_for_times_of_its_own_zone_and_not_of_the_servers() {
    let (home, server) = start(TestHome::new(Engine::Sqlite));
    let ostler = |args: &[&str]| stdout_of(home.cli(Some(&server), &[&["automations"][..], args].concat()));
    let json = |args: &[&str]| -> Value { serde_json::from_str(&ostler(&[args, &["-o", "json"]].concat())).unwrap() };
    ostler(&["create", "Digest", "--at", "07:30", "--timezone", "Europe/Berlin", "--message", "hi"]);
    // Five times without --count. The clocks of Berlin change on 31 March.
    let next = json(&["next", "Digest", "--from", "2030-03-29"]);
    let times: Vec<_> = next["times"].as_array().unwrap().iter().map(|time| time["at"].as_str().unwrap()).collect();
    let expected = [
        "2030-03-29T06:30:00Z",
        "2030-03-30T06:30:00Z",
        "2030-03-31T05:30:00Z",
        "2030-04-01T05:30:00Z",
        "2030-04-02T05:30:00Z",
    ];
    assert_eq!(times, expected);
    assert_eq!(ostler(&["next", "Digest"]).lines().count(), 6, "a head and five times");
    // The operator has no zone.
    ostler(&["create", "Plain", "--at", "07:30", "--message", "hi"]);
    assert_eq!(json(&["show", "Plain"])["timezone"], "UTC");
    assert_eq!(json(&["next", "Plain", "--from", "2030-03-29"])["times"][0]["at"], "2030-03-29T07:30:00Z");
    server.stop();
}

/// The result of a call of `calendar_write` that names no zone, in a new chat. The test acts as the runner.
fn write_event(http: &mut Http, thread: &str, client_time: Option<Value>) -> Value {
    let mut message = json!({"threadId": thread, "runId": "run-1", "forwardedProps": {"runtime_mode": "chat"},
        "messages": [{"id": "m-1", "role": "user", "content": "hi"}]});
    if let Some(time) = client_time {
        message["forwardedProps"]["client_time"] = time;
    }
    let accepted = http.post("/api/v1/agent/runs", &message);
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let session = http.get(&format!("/api/v1/sessions/{thread}")).good();
    let run = format!("/api/v1/runs/{}", session["lastRunId"].as_str().unwrap());
    let command = http.get(&format!("{run}/result")).good()["commandId"].as_str().unwrap().to_owned();
    let claimed = http.post(&format!("{run}/claim"), &json!({"runnerId": "runner-a", "leaseMs": 60_000})).good();
    let lease = json!({"runnerId": "runner-a", "leaseEpoch": claimed["leaseEpoch"]});
    http.post(&format!("/api/v1/commands/{command}/ack"), &lease).good();
    let event = json!({"action": "create", "title": "Breakfast", "starts_at": "2030-03-17T09:00"});
    let call = json!({"runnerId": "runner-a", "leaseEpoch": claimed["leaseEpoch"], "commandId": command,
        "callId": "call_1", "name": "calendar_write", "arguments": event.to_string(), "waitMs": 20_000});
    let called = http.post(&format!("{run}/tools/calls"), &call).good();
    assert_eq!(called["status"], "completed", "{called}");
    serde_json::from_str(called["content"].as_str().unwrap()).unwrap()
}

#[test]
fn an_event_without_a_zone_has_that_of_the_device_or_utc_and_never_the_servers() {
    let mut home = TestHome::new(Engine::Sqlite).without_runner();
    home.set("OSTLER_RUN_INPUT__APPROVAL", "never");
    let (home, server) = start(home);
    let mut http = Http::new(&server);
    let device = json!({"device_timezone": "America/Los_Angeles", "client_now_iso": "2026-03-16T09:12:33-07:00",
        "client_epoch_ms": 1_773_677_553_000_i64});
    let calls = [
        (None, "UTC", "utc", "2030-03-17T09:00:00Z"),
        (Some(device), "America/Los_Angeles", "device", "2030-03-17T16:00:00Z"),
    ];
    for (thread, (client_time, zone, source, at)) in THREADS.into_iter().zip(calls) {
        let written = write_event(&mut http, thread, client_time);
        assert_eq!((&written["event_timezone"], &written["timezone_source"]), (&json!(zone), &json!(source)));
        assert_eq!(written["starts_at_utc"], at);
    }
    let listed = home.cli(Some(&server), &["calendar", "list", "--from", "2030-03-16T00:00:00Z", "-o", "json"]);
    let listed: Vec<Value> = serde_json::from_str(&stdout_of(listed)).unwrap();
    let local: Vec<_> = listed.iter().map(|event| event["local"].as_str().unwrap()).collect();
    assert_eq!(local, ["2030-03-17T09:00:00+00:00", "2030-03-17T09:00:00-07:00"]);
    server.stop();
}
