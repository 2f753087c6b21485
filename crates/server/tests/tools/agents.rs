//! Calls of runs that are of an agent: it needs the scope that the tool requires.

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
