//! Tools of MCP servers, also of hostile ones.

use ostler_protocol::mcp::config::{McpExposure, McpServer};
use serde_json::{Value, json};

use super::Work;
use crate::{
    harness::{Engine, TestServer, eventually, id, one_engine},
    mcp::{SECRET, configure_servers},
};

/// A server with MCP servers, and a run in its workspace.
async fn scene(engine: Engine, servers: &[(&str, &str)]) -> (TestServer, Work) {
    scene_with(engine, servers, json!({})).await
}

/// As [`scene`], with a policy of the run.
async fn scene_with(engine: Engine, servers: &[(&str, &str)], policy: Value) -> (TestServer, Work) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        workspace = Some(setup.bind_workspace());
        configure_servers(setup, servers);
        if let Some(good) = setup.config.mcp.servers.get("good").cloned() {
            setup.config.mcp.servers.insert("direct".into(), McpServer { expose: McpExposure::Direct, ..good });
        }
        for (name, server) in &mut setup.config.mcp.servers {
            server.timeout_ms = match name.as_str() {
                "silent" => 300,
                // It has to start, too.
                "slow" => 1_500,
                _ => server.timeout_ms,
            };
        }
    })
    .await;
    let path = workspace.unwrap();
    let work = Work::begin(&server, |run| {
        in_workspace(run, &path);
        run["executionPolicy"] = policy;
    })
    .await;
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
async fn callers_whose_runs_may_work_in_the_workspace_list_the_tools_of_mcp_servers(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.bind_workspace();
        configure_servers(setup, &[("good", "good")]);
        setup.token("own", "client", &["local"]);
        setup.token("other", "client", &["hwlab"]);
    })
    .await;
    for (caller, count) in [("own", 2), ("other", 0)] {
        let listed = server.caller(caller).get("/api/v1/tools").await.with_status(200);
        let tools = listed["tools"].as_array().unwrap().iter();
        let of_mcp = tools.filter(|tool| tool["source"] == "mcp:good").count();
        assert_eq!(of_mcp, count, "{caller}: {listed}");
    }
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

async fn asked(server: &TestServer, work: &Work) -> Value {
    eventually("permission is asked for", async || server.permissions(work.run_id()).await.pop()).await
}

#[one_engine]
async fn a_server_that_was_disabled_while_a_person_decided_is_not_called(engine: Engine) {
    let policy = json!({"approval": "on-request"});
    let (server, work) = scene_with(engine, &[("good", "good")], policy).await;
    let (called, ()) = tokio::join!(work.call(&server, "mcp__good__env", "{}"), async {
        let request = asked(&server, &work).await;
        server.post("/workspace/mcp/good/disable", &Value::Null).await.with_status(200);
        server.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!(called["status"], "declined", "{called}");
    assert!(called["content"].as_str().unwrap().contains("no longer available"), "{called}");
    let again = work.call(&server, "mcp__good__echo", "{}").await;
    assert_eq!(again["status"], "failed", "{again}");
    assert!(names(&server, &work).await.iter().all(|name| !name.starts_with("mcp__good__")));
}

#[one_engine]
async fn a_tool_is_called_as_its_server_lists_it_now(engine: Engine) {
    let policy = json!({"approval": "on-request"});
    let (server, work) = scene_with(engine, &[("fickle", "withdraws")], policy).await;
    let offered = names(&server, &work).await;
    assert!(offered.contains(&"mcp__fickle__gone".to_owned()), "{offered:?}");
    assert_eq!(work.call(&server, "mcp__fickle__strict", "{}").await["status"], "completed");
    let (called, ()) = tokio::join!(work.call(&server, "mcp__fickle__gone", "{}"), async {
        let request = asked(&server, &work).await;
        assert_eq!(work.call(&server, "mcp__fickle__withdraw", "{}").await["status"], "completed");
        eventually("the list has changed", async || {
            (!names(&server, &work).await.contains(&"mcp__fickle__gone".to_owned())).then_some(())
        })
        .await;
        server.answer(&request, "allow", request["digest"].as_str().unwrap()).await.with_status(200);
    });
    assert_eq!(called["status"], "declined", "it was withdrawn while a person decided: {called}");
    let gone = work.call(&server, "mcp__fickle__gone", "{}").await;
    assert!(gone["content"].as_str().unwrap().contains("there is no tool"), "{gone}");
    let strict = work.call(&server, "mcp__fickle__strict", "{}").await;
    assert!(strict["content"].as_str().unwrap().contains("invalid arguments"), "{strict}");
    assert_eq!(work.call(&server, "mcp__fickle__strict", r#"{"b": 1}"#).await["status"], "completed");
}

#[one_engine]
async fn a_server_that_is_slow_huge_or_asks_for_samples_harms_only_its_own_calls(engine: Engine) {
    let (server, work) = scene(engine, &[("asks", "asks"), ("large", "large"), ("slow", "slow")]).await;
    assert_eq!(names(&server, &work).await.iter().filter(|name| name.starts_with("mcp__")).count(), 8);
    let (slow, sampled, large) = tokio::join!(
        work.call(&server, "mcp__slow__sleep", "{}"),
        work.call(&server, "mcp__asks__echo", r#"{"a": 1}"#),
        work.call(&server, "mcp__large__large", r#"{"bytes": 500000}"#)
    );
    assert_eq!(slow["status"], "outcome-unknown", "{slow}");
    assert_eq!((&sampled["status"], &sampled["content"]), (&json!("completed"), &json!(r#"{"a": 1}"#)));
    assert_eq!((&large["status"], &large["truncated"]), (&json!("completed"), &json!(true)));
    assert!(large["content"].as_str().unwrap().len() < 300_000);
}

#[one_engine]
async fn a_result_that_is_too_large_fails_its_call_at_once(engine: Engine) {
    let (server, work) = scene(engine, &[("large", "large")]).await;
    assert!(names(&server, &work).await.contains(&"mcp__large__large".to_owned()));
    let began = tokio::time::Instant::now();
    let called = work.call(&server, "mcp__large__large", r#"{"bytes": 5000000}"#).await;
    assert_eq!(called["status"], "failed", "{called}");
    assert!(called["content"].as_str().unwrap().contains("its result is too large"), "{called}");
    assert!(began.elapsed().as_secs() < 10, "the server's deadline is 20 s");
    assert_eq!(work.call(&server, "mcp__large__echo", "{}").await["status"], "completed", "it can still be used");
}
