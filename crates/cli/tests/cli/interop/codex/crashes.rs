//! `kill -9` in the middle of a turn: another runner takes over and resumes the same thread, without repeating open tool
//! calls.

use serde_json::{Value, json};

use crate::fixtures::{
    backend_server::{BackendServer, CODEX, is_phase, is_tool},
    runner::count,
    test_home::Engine,
};

/// Kills a process while a tool runs, and checks the outcome of the turn.
fn killed(mut server: BackendServer, sleep: &str, kill: impl FnOnce(BackendServer) -> BackendServer) {
    let (run, turn) = server.submit(&format!("[[tool:{sleep}]] once"));
    server.event(&run, "the tool runs", |event| is_tool(event, "started"));
    server.event(&run, "the thread is known", |event| {
        !event["payload"]["threadId"].is_null() && event["type"] == "session"
    });
    let mut server = kill(server);
    let result = server.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let events = server.events(&run);
    let reply = result["reply"].as_str().unwrap();
    assert!(reply.starts_with("You said: The work on this request was cut off"), "{reply}");
    assert_eq!(events.iter().filter(|event| is_tool(event, "started")).count(), 1, "it is not run again");
    assert_eq!(events.iter().filter(|event| is_tool(event, "outcome-unknown")).count(), 1);
    let threads: Vec<&Value> = events
        .iter()
        .filter(|event| is_phase(event, "thread/start:completed") || is_phase(event, "thread/resume:completed"))
        .map(|event| &event["payload"])
        .collect();
    assert_eq!(threads.len(), 2, "{threads:?}");
    assert_eq!(threads[0]["threadId"], threads[1]["threadId"]);
    assert_eq!(count(&events, "backend_status", "/phase", "attempt-restarted"), 1);
    server.gone(sleep);
    server.close();
}

#[test]
fn a_killed_runner_is_replaced_and_its_thread_resumed() {
    killed(BackendServer::open(&CODEX, "process"), "sleep 12301", |server| {
        server.kill_runner();
        server
    });
}

#[test]
fn a_killed_server_resumes_the_thread_after_its_restart() {
    killed(BackendServer::open(&CODEX, "resident"), "sleep 12302", BackendServer::kill_server);
}

#[test]
fn a_run_on_an_evicted_session_is_rejected_before_anything_starts() {
    let kept_for = [("OSTLER_SESSIONS__STORAGE_TTL_MS", "86400000")];
    let mut server = BackendServer::open_on(Engine::Sqlite, &CODEX, "resident", &kept_for);
    let session = json!({"sessionRef": {"sessionId": "kept-here"}});
    let (run, turn) = server.submit_with("hello", json!({}), session.clone());
    server.ended(&run, &turn);
    server.http.post(&format!("/api/v1/runs/{run}/cancel"), &json!({})).good();
    let calls = server.provider.seen().len();
    let cli = |arguments: &[&str]| {
        let output = server.home.cli(Some(&server.server), arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = cli(&["sessions", "show", "kept-here"]);
    assert!(shown.contains("storage  local · ") && shown.contains(" · kept until "), "{shown}");
    assert_eq!(cli(&["sessions", "evict", "kept-here", "--dry-run"]), "");
    assert_eq!(cli(&["sessions", "evict", "kept-here", "--yes"]), "kept-here evicted\n");
    assert!(cli(&["sessions", "show", "kept-here"]).contains("storage  evicted "));
    let body = server.request("again", json!({}), session);
    let (_, kind, _) = server.http.post("/api/v1/runs", &body).refusal();
    assert_eq!(kind, "session-store-evicted");
    assert_eq!(server.provider.seen().len(), calls, "the provider was not called");
    server.close();
}
