//! `kill -9` in the middle of a turn: another runner takes over and resumes the same thread, without doing again what was
//! being done.

use serde_json::{Value, json};

use crate::{
    home::Engine,
    inn::{CODEX, Inn, is_phase, is_tool},
    runner::count,
};

/// Kills in mid-tool, and checks what becomes of the turn.
fn killed(mut inn: Inn, sleep: &str, kill: impl FnOnce(Inn) -> Inn) {
    let (run, turn) = inn.submit(&format!("[[tool:{sleep}]] once"));
    inn.event(&run, "the tool runs", |event| is_tool(event, "started"));
    inn.event(&run, "the thread is known", |event| {
        !event["payload"]["threadId"].is_null() && event["type"] == "session"
    });
    let mut inn = kill(inn);
    let result = inn.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let events = inn.events(&run);
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
    inn.gone(sleep);
    inn.close();
}

#[test]
fn a_runner_that_is_killed_is_replaced_and_its_thread_resumed() {
    killed(Inn::open(&CODEX, "process"), "sleep 12301", |inn| {
        inn.kill_runner();
        inn
    });
}

#[test]
fn a_server_that_is_killed_resumes_the_thread_when_it_is_back() {
    killed(Inn::open(&CODEX, "resident"), "sleep 12302", Inn::kill_server);
}

#[test]
fn a_run_on_a_session_whose_storage_was_evicted_is_refused_before_anything_starts() {
    let kept_for = [("OSTLER_SESSIONS__STORAGE_TTL_MS", "86400000")];
    let mut inn = Inn::open_on(Engine::Sqlite, &CODEX, "resident", &kept_for);
    let session = json!({"sessionRef": {"sessionId": "kept-here"}});
    let (run, turn) = inn.submit_with("hello", json!({}), session.clone());
    inn.ended(&run, &turn);
    inn.http.post(&format!("/api/v1/runs/{run}/cancel"), &json!({})).good();
    let calls = inn.provider.seen().len();
    let cli = |arguments: &[&str]| {
        let output = inn.home.cli(Some(&inn.server), arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = cli(&["sessions", "show", "kept-here"]);
    assert!(shown.contains("storage  local · ") && shown.contains(" · kept until "), "{shown}");
    assert_eq!(cli(&["sessions", "evict", "kept-here", "--dry-run"]), "");
    assert_eq!(cli(&["sessions", "evict", "kept-here", "--yes"]), "kept-here evicted\n");
    assert!(cli(&["sessions", "show", "kept-here"]).contains("storage  evicted "));
    let body = inn.request("again", json!({}), session);
    let (_, kind, _) = inn.http.post("/api/v1/runs", &body).refusal();
    assert_eq!(kind, "session-store-evicted");
    assert_eq!(inn.provider.seen().len(), calls, "nobody was asked");
    inn.close();
}
