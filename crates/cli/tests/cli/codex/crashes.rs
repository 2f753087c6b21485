//! `kill -9` in the middle of a turn: another runner takes over and resumes the same thread, without doing again what was
//! being done.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::inn::{Inn, is_phase, is_tool, processes};
use crate::{home::Engine, runner::count};

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
    killed(Inn::open("process"), "sleep 12301", |inn| {
        let server = inn.server.process.0.id();
        let (runner, _) = processes("runner --launched").into_iter().find(|(id, _)| parent(*id) == server).unwrap();
        kill_process(Pid::from_raw(runner).unwrap(), Signal::KILL).unwrap();
        inn
    });
}

#[test]
fn a_server_that_is_killed_resumes_the_thread_when_it_is_back() {
    killed(Inn::open("resident"), "sleep 12302", |inn| {
        let Inn { provider, server, home, .. } = inn;
        server.kill();
        let server = home.serve();
        Inn { provider, http: crate::http::Http::new(&server), server, home }
    });
}

#[test]
fn a_run_on_a_session_whose_storage_was_evicted_is_refused_before_anything_starts() {
    let mut inn = Inn::open_on(Engine::Sqlite, "resident", &[]);
    let session = json!({"sessionRef": {"sessionId": "kept-here"}});
    let (run, turn) = inn.submit_with("hello", json!({}), session.clone());
    inn.ended(&run, &turn);
    inn.http.post(&format!("/api/v1/runs/{run}/cancel"), &json!({})).good();
    let calls = inn.provider.seen().len();
    let evicted = inn.http.send("DELETE", "/api/v1/sessions/kept-here/storage", &[], "").unwrap();
    evicted.good();
    let mut body = json!({"tenantId": "local", "projectId": "local/default", "workspaceRef": {"kind": "none"},
        "providerId": "local", "backendProfile": "codex", "traceSink": null, "executionPolicy": {"secretScope":
        {"providerCredentials": [{"profile": "codex", "secretRef": {"name": "agentrun-v01-provider-codex",
        "keys": ["auth.json", "config.toml"]}}]}}, "command": {"type": "turn", "payload": {"prompt": "again"}}});
    body.as_object_mut().unwrap().extend(session.as_object().unwrap().clone());
    let (_, kind, _) = inn.http.post("/api/v1/runs", &body).refusal();
    assert_eq!(kind, "session-store-evicted");
    assert_eq!(inn.provider.seen().len(), calls, "nobody was asked");
    inn.close();
}

fn parent(id: i32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    fields.split(' ').nth(1).and_then(|parent| parent.parse().ok()).unwrap_or_default()
}
