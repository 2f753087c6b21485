//! Tools of MCP servers, also of hostile ones.

use ostler_protocol::mcp::config::McpExposure;
use serde_json::{Value, json};

use super::Work;
use crate::{
    harness::{Engine, TestServer, id, one_engine},
    mcp::{SECRET, configure_servers},
};

/// A server with MCP servers, and a run in its workspace.
async fn scene(engine: Engine, servers: &[(&str, &str)]) -> (TestServer, Work) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        workspace = Some(setup.bind_workspace());
        configure_servers(setup, servers);
        setup.config.mcp.servers.insert("direct".into(), setup.config.mcp.servers["good"].clone());
        setup.config.mcp.servers.get_mut("direct").unwrap().expose = McpExposure::Direct;
        for silent in setup.config.mcp.servers.iter_mut().filter(|(name, _)| *name == "silent") {
            silent.1.timeout_ms = 300;
        }
    })
    .await;
    let path = workspace.unwrap();
    let work = Work::begin(&server, |run| in_workspace(run, &path)).await;
    (server, work)
}

fn in_workspace(run: &mut Value, path: &std::path::Path) {
    run["tenantId"] = json!("local");
    run["workspaceRef"] = json!({"kind": "local", "path": path});
}

async fn names(server: &TestServer, work: &Work) -> Vec<String> {
    let listed = server.get(&format!("/api/v1/runs/{}/tools", work.run_id())).await.with_status(200);
    listed["tools"].as_array().unwrap().iter().map(|tool| id(tool, "name")).collect()
}

#[one_engine]
async fn runs_in_the_workspace_get_the_tools_of_mcp_servers(engine: Engine) {
    let (server, work) = scene(engine, &[("good", "good")]).await;
    let offered = ["calendar_read", "calendar_write", "mcp__good__echo", "mcp__good__env", "time_now"];
    assert_eq!(names(&server, &work).await, offered);
    let called = work.call(&server, "mcp__good__echo", r#"{"a": 1}"#).await;
    assert_eq!((&called["status"], &called["content"]), (&json!("completed"), &json!(r#"{"a": 1}"#)));
    let recorded = work.recorded(&server).await;
    assert_eq!((&recorded[0]["source"], &recorded[0]["changes"]), (&json!("mcp:good"), &json!(false)));
    let called = work.call(&server, "mcp__direct__echo", "{}").await;
    assert_eq!(called["status"], "failed", "agents connect to it themselves");
    let elsewhere = Work::begin(&server, |_| ()).await;
    assert_eq!(names(&server, &elsewhere).await, ["calendar_read", "calendar_write", "time_now"]);
    let called = elsewhere.call(&server, "mcp__good__echo", "{}").await;
    assert_eq!(called["status"], "failed", "it has the operator's credentials");
}

#[one_engine]
async fn a_hostile_server_harms_only_its_own_calls(engine: Engine) {
    let servers = [("dies", "dies"), ("good", "good"), ("leaks", "leaks"), ("lying", "lying"), ("silent", "silent")];
    let (server, work) = scene(engine, &servers).await;
    let offered = names(&server, &work).await;
    assert!(!offered.iter().any(|name| name.starts_with("mcp__silent__")), "{offered:?}");
    assert!(offered.contains(&"mcp__lying__leak".to_owned()) && !offered.contains(&"mcp__lying__text".to_owned()));
    let died = work.call(&server, "mcp__dies__die", "{}").await;
    assert_eq!(died["status"], "outcome-unknown", "{died}");
    assert_eq!(work.call(&server, "mcp__good__echo", "{}").await["status"], "completed");
    let response = work.call(&server, "mcp__leaks__tell", "{}").await;
    assert_eq!(response["status"], "completed");
    let listed = server.get("/api/v1/tools").await.text;
    for text in [response.to_string(), listed, Value::from(server.events(work.run_id()).await).to_string()] {
        assert!(!text.contains(SECRET), "{text}");
    }
}
