//! Calls of runs that are of an agent: it needs the scope that the tool requires.

use std::sync::atomic::AtomicUsize;

use serde_json::json;

use super::{Notebook, Work};
use crate::harness::{Engine, TestServer, both_engines, eventually, id, one_engine};

#[both_engines]
async fn an_agent_needs_the_scope_that_a_tool_requires(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let (agent_id, manifest_hash) = server.agent().await;
    let work = Work::begin(&server, |run| run["agentId"] = json!(agent_id)).await;
    let note = r#"{"text": "x"}"#;
    let path = format!("/api/v1/runs/{}/tools", work.run_id());
    let offers = async |name: &str| server.get(&path).await.with_status(200).to_string().contains(name);
    assert!(!offers("write_note").await && !offers("calendar_").await && offers("slow_read").await);
    let called = work.call(&server, "write_note", note).await;
    assert_eq!(called["status"], "declined");
    assert!(called["content"].as_str().unwrap().contains("was not granted the scope"), "{called}");
    let grant = json!({"agent_id": agent_id, "granted_scopes": ["notes:read"], "denied_scopes": [],
        "manifest_hash": manifest_hash});
    let relation = id(&server.post("/h2a/relations", &grant).await.with_status(201), "id");
    assert_eq!(work.call(&server, "write_note", note).await["status"], "completed");
    assert!(offers("write_note").await, "it is offered once its scope is granted");
    server.call("DELETE", &format!("/h2a/relations/{relation}"), &serde_json::Value::Null).await;
    assert_eq!(work.call(&server, "write_note", note).await["status"], "declined", "it was revoked");
    assert_eq!(notebook.written(), 1);
}

#[one_engine]
async fn a_scope_that_is_revoked_while_a_person_decides_is_not_used(engine: Engine) {
    let notebook = Notebook::new();
    let server = TestServer::with(engine, |setup| notebook.install(setup)).await;
    let (agent_id, manifest_hash) = server.agent().await;
    let grant = json!({"agent_id": agent_id, "granted_scopes": ["notes:read"], "denied_scopes": [],
        "manifest_hash": manifest_hash});
    let relation = id(&server.post("/h2a/relations", &grant).await.with_status(201), "id");
    let work = Work::begin(&server, |run| {
        run["agentId"] = json!(agent_id);
        run["executionPolicy"] = json!({"approval": "on-request"});
    })
    .await;
    let (called, ()) = tokio::join!(work.call(&server, "write_note", r#"{"text": "x"}"#), async {
        let request =
            eventually("permission is asked for", async || server.permissions(work.run_id()).await.pop()).await;
        server.call("DELETE", &format!("/h2a/relations/{relation}"), &serde_json::Value::Null).await;
        server.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!((&called["status"], notebook.written()), (&json!("declined"), 0));
    assert!(called["content"].as_str().unwrap().contains("was not granted the scope"), "{called}");
}

/// An agent to which the operator has granted this scope, the only one that it declares.
async fn agent_with(server: &TestServer, name: &str, scope: &str) -> String {
    let declared = json!({"id": scope, "label_i18n_key": "a.b", "label_fallback": "Use the network",
        "description_fallback": "Connects to other machines.", "sensitivity": "low"});
    let manifest =
        json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [], "permission_scopes": [declared]});
    let agent = server.post("/agents", &json!({"name": name, "capability_manifest": manifest})).await.with_status(201);
    let grant = json!({"agent_id": agent["id"], "granted_scopes": [scope], "denied_scopes": [],
        "manifest_hash": agent["capability_manifest_hash"]});
    server.post("/h2a/relations", &grant).await.with_status(201);
    id(&agent, "id")
}

#[one_engine]
async fn an_agent_needs_a_scope_for_each_tool_that_uses_the_network(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.tools.enabled = vec!["web_fetch".into(), "http_request".into()];
        setup.config.tools.web_fetch.allow = vec!["127.0.0.1".into()];
        setup.config.tools.http_request.hosts = vec!["127.0.0.1".into()];
    })
    .await;
    let url = format!("http://{}/health/live", server.address());
    let tools = [
        ("web_fetch", "network:read", json!({"url": url}).to_string()),
        ("http_request", "network:request", json!({"method": "GET", "url": url}).to_string()),
    ];
    for (own_tool, own_scope, _) in &tools {
        let agent_id = agent_with(&server, &format!("agent-with-{own_tool}"), own_scope).await;
        let work = Work::begin(&server, |run| run["agentId"] = json!(agent_id)).await;
        let listed = server.get(&format!("/api/v1/runs/{}/tools", work.run_id())).await.with_status(200);
        for (tool, scope, arguments) in &tools {
            let has_scope = scope == own_scope;
            assert_eq!(listed.to_string().contains(tool), has_scope, "{tool} with {own_scope}: {listed}");
            let called = work.call(&server, tool, arguments).await;
            let status = if has_scope { "completed" } else { "declined" };
            assert_eq!(called["status"], status, "{tool} with {own_scope}: {called}");
            let reason = format!("the agent was not granted the scope {scope:?}, which {tool} requires");
            assert!(has_scope || called["content"] == reason, "{called}");
        }
    }
    let work = Work::begin(&server, |_| ()).await;
    for (tool, _, arguments) in &tools {
        assert_eq!(work.call(&server, tool, arguments).await["status"], "completed", "a run without an agent");
    }
}

#[both_engines]
async fn another_callers_turn_in_the_operators_run_does_not_act_for_the_operator(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("client", "client", &["hwlab"])).await;
    let run_id = server.create_run().await;
    let event =
        r#"{"action": "create", "title": "Breakfast", "starts_at": "2026-03-17T09:00", "event_timezone": "UTC"}"#;
    let window = "/api/v1/calendar-events/occurrences?from=2026-03-17T00:00:00Z&to=2026-03-18T00:00:00Z";
    for (caller, is_offered, status, events) in
        [(server.caller("client"), false, "failed", 0), (&*server, true, "completed", 1)]
    {
        let command_id = caller.turn(&run_id, "hi").await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        let work = Work { runner, command_id, calls: AtomicUsize::new(events) };
        let offered = server.get(&format!("/api/v1/runs/{run_id}/tools?commandId={}", work.command_id)).await;
        assert_eq!(offered.with_status(200).to_string().contains("calendar_write"), is_offered);
        let called = work.call(&server, "calendar_write", event).await;
        assert_eq!(called["status"], status, "{called}");
        let found = server.get(window).await.with_status(200);
        assert_eq!(found["occurrences"].as_array().unwrap().len(), events, "the calendar of the operator: {found}");
        work.runner.end(&work.command_id, "completed").await;
    }
}
