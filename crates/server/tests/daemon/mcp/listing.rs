//! What a list of servers shows.

use serde_json::{Value, json};

use super::{Desk, MCP};
use crate::{
    daemon::refused,
    harness::{Engine, TestServer, one_engine},
    mcp::configure_servers,
};

#[one_engine]
async fn tools_that_the_toolkit_cannot_offer_are_named_with_the_reason(engine: Engine) {
    let desk = Desk::start(engine, |setup| configure_servers(setup, &[("sloppy", "sloppy")])).await;
    let sloppy = desk.until("sloppy", "connected").await;
    let hint = sloppy["hint"].as_str().unwrap();
    for words in
        ["3 of its tools", "env (the name is listed more than once", "wrong (the schema", "two words (its name"]
    {
        assert!(hint.contains(words), "{words}: {hint}");
    }
    let tools = desk.tools("sloppy").await;
    let valid: Vec<_> = tools["tools"].as_array().unwrap().iter().filter(|tool| tool["isValid"] == true).collect();
    assert_eq!(valid.len(), 2, "{tools}");
}

#[one_engine]
async fn checks_before_a_prompt_count_the_servers(engine: Engine) {
    let desk = Desk::start(engine, |setup| configure_servers(setup, &[("good", "good"), ("other", "good")])).await;
    let discovery = async || {
        let checks = desk.server.get("/workspace/preflight").await.with_status(200);
        checks["cells"].as_array().unwrap().iter().find(|cell| cell["kind"] == "mcp_discovery").unwrap().clone()
    };
    desk.until("good", "connected").await;
    desk.until("other", "connected").await;
    let detail = json!({"total": 2, "connected": 2, "connecting": 0, "disconnected": 0, "discoveryState": "completed"});
    assert_eq!(
        discovery().await,
        json!({"kind": "mcp_discovery", "status": "ok", "locality": "acp", "detail": detail})
    );
    desk.act("other", "disable").await.with_status(200);
    let cell = discovery().await;
    assert_eq!((&cell["status"], &cell["detail"]["disconnected"]), (&json!("ok"), &json!(1)), "{cell}");
}

#[one_engine]
async fn servers_are_listed_without_a_workspace(engine: Engine) {
    let server = TestServer::with(engine, |setup| configure_servers(setup, &[("good", "good")])).await;
    let status = server.get(MCP).await.with_status(200);
    assert_eq!((&status["servers"][0]["name"], status.get("workspaceCwd")), (&json!("good"), None));
    server.get("/api/v1/tools").await.with_status(200);
    let tools = server.get(&format!("{MCP}/good/tools")).await.with_status(200);
    assert_eq!(tools["tools"][0]["name"], "mcp__good__echo");
    refused(server.post(&format!("{MCP}/good/restart"), &Value::Null).await, 409, "no_workspace");
}
