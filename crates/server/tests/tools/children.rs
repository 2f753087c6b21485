//! Runs that `run_agent` starts.

use serde_json::{Value, json};

use super::Work;
use crate::harness::{Engine, TestServer, eventually, id, one_engine};

const CALL: &str = r#"{"profile": "scripted", "prompt": "hello"}"#;

/// A server without runners of its own, so that children wait.
async fn scene(engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.config.runner.slots = 0;
        setup.config.tools.run_agent.profiles = vec!["scripted".into()];
    })
    .await
}

async fn child_of(server: &TestServer, work: &Work) -> Value {
    eventually("the child is created", async || {
        let listed = server.get("/api/v1/runs?tenantId=hwlab").await.with_status(200);
        let runs = listed["runs"].as_array().unwrap();
        runs.iter().find(|run| run["runId"] != work.run_id()).cloned()
    })
    .await
}

#[one_engine]
async fn a_child_is_cancelled_with_the_command_that_started_it(engine: Engine) {
    let server = scene(engine).await;
    let work = Work::begin(&server, |_| ()).await;
    let (called, child) = tokio::join!(work.call(&server, "run_agent", CALL), async {
        let child = child_of(&server, &work).await;
        server.cancel_command(&work.command_id).await;
        child
    });
    assert_eq!(called["status"], "failed", "{called}");
    assert!(called["content"].as_str().unwrap().contains("the command has ended"), "{called}");
    eventually("the child is cancelled", async || {
        (server.run(&id(&child, "runId")).await["status"] == "cancelled").then_some(())
    })
    .await;
}

#[one_engine]
async fn a_child_of_an_agents_run_is_a_run_of_the_same_agent(engine: Engine) {
    let server = scene(engine).await;
    let scope = json!({"id": "agents:run", "label_i18n_key": "a.b", "label_fallback": "Run agents",
        "description_fallback": "Runs other agents.", "sensitivity": "low"});
    let manifest =
        json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [], "permission_scopes": [scope]});
    let agent = json!({"name": "delegates", "capability_manifest": manifest});
    let agent = server.post("/agents", &agent).await.with_status(201);
    let grant = json!({"agent_id": agent["id"], "granted_scopes": ["agents:run"], "denied_scopes": [],
        "manifest_hash": agent["capability_manifest_hash"]});
    server.post("/h2a/relations", &grant).await.with_status(201);
    let work = Work::begin(&server, |run| run["agentId"] = agent["id"].clone()).await;
    let (_, child) = tokio::join!(work.call(&server, "run_agent", CALL), async {
        let child = child_of(&server, &work).await;
        server.cancel_command(&work.command_id).await;
        child
    });
    let parent = server.run(work.run_id()).await;
    assert!(parent["agentId"].is_string(), "{parent}");
    assert_eq!(child["agentId"], parent["agentId"]);
}
