//! `kill -9` of a server whose resident runner is in the middle of a turn, with an open tool call: the turn ends by itself
//! after the restart, as another visible attempt.

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::eventually,
    runner::{count, select, submit},
    test_home::{Engine, TestHome, both_engines},
};

const KILLS: usize = 2;
/// Long enough to be killed in the middle, short enough to wait for.
const TOOL_MS: u64 = 3_000;

#[both_engines]
fn a_turn_whose_server_died_ends_by_itself_in_the_next_attempt(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    if engine == Engine::Postgres {
        // On Postgres other servers may hold leases, so these must expire first.
        home.set("OSTLER_RUNNER__LEASE_MS", "2000");
        home.set("OSTLER_RUNNER__JOB_SILENCE_MS", "3000");
        home.set("OSTLER_RUNNER__SWEEP_INTERVAL_MS", "50");
    }
    let script = json!({"script": [{"say": "an early answer", "final": true},
        {"tool": {"name": "shell", "command": "make", "output": "ok", "waitMs": TOOL_MS}}, {"wait": 50}]});
    let mut server = home.serve();
    let (run_id, command_id) = submit(&mut Http::new(&server), &script.to_string());
    for killed in 0..KILLS {
        let mut http = Http::new(&server);
        eventually("a tool is in flight", || {
            (count(&http.events(&run_id), "tool_call", "/status", "started") > killed).then_some(())
        });
        server.kill();
        server = home.serve();
    }
    let mut http = Http::new(&server);
    let result_path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
    let result = eventually("the command ends", || {
        Some(http.get(&result_path).good()).filter(|result| !result["terminalStatus"].is_null())
    });
    check(&http.events(&run_id), &result);
    eventually("the lease is given back", || {
        (count(&http.events(&run_id), "lease", "/state", "released") == 1).then_some(())
    });
    server.stop();
    home.assert_verified();
}

fn check(events: &[Value], result: &Value) {
    let attempts = KILLS + 1;
    let all = |event_type: &str| events.iter().filter(|event| event["type"] == event_type).count();
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(all("terminal_status"), 1, "one end, stated once");
    let claims = count(events, "lease", "/state", "claimed") + count(events, "lease", "/state", "recovered");
    assert_eq!(claims, attempts, "each attempt holds a lease of its own");
    let restarts = select(events, "backend_status", "/phase", "attempt-restarted");
    assert_eq!(restarts.len(), KILLS, "each new attempt is visible");
    // Every open tool call is reported as unknown once, before the turn is attempted again; none continues.
    assert_eq!(count(events, "tool_call", "/status", "started"), attempts);
    assert_eq!(count(events, "tool_call", "/status", "completed"), 1);
    let unknown = select(events, "tool_call", "/status", "outcome-unknown");
    let started = select(events, "tool_call", "/status", "started");
    assert_eq!(unknown.len(), KILLS);
    for ((unknown, started), restart) in unknown.iter().zip(started).zip(&restarts) {
        assert_eq!(unknown["payload"]["toolCallId"], started["payload"]["toolCallId"]);
        assert!(unknown["seq"].as_i64() < restart["seq"].as_i64(), "{unknown} comes before {restart}");
    }
    assert_eq!(result["reply"], "an early answer");
    let last_restart = restarts.last().unwrap();
    assert!(result["finalAssistantSeq"].as_i64() > last_restart["seq"].as_i64(), "the reply is the last attempt's");
    assert_eq!(result["attemptId"], last_restart["payload"]["attemptId"]);
    assert_eq!(result["liveness"]["openToolCalls"], json!([]));
}
