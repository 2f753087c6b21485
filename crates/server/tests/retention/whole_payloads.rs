//! Payloads that are stored beside their commands go with them.

use serde_json::json;

use super::{DAY_MS, at_work, finished, hourly, sweep};
use crate::{
    harness::{Engine, TestServer, both_engines},
    run_input::runs::THREAD,
};

/// Stores a payload beside every command.
async fn store_beside(server: &TestServer) {
    let rows = "INSERT INTO command_payloads (command_id, session_id, payload) SELECT command_id, session_id, payload FROM commands";
    server.store(rows).await;
}

async fn stored_payloads(server: &TestServer) -> Vec<String> {
    server.store("SELECT command_id FROM command_payloads").await
}

#[both_engines]
async fn retention_removes_those_of_finished_commands(engine: Engine) {
    let server = hourly(engine).await;
    finished(&server, "hwlab", 0).await;
    let (_, unfinished) = at_work(&server, "hwlab").await;
    store_beside(&server).await;
    assert_eq!(stored_payloads(&server).await.len(), 2);
    server.clock.advance_ms(DAY_MS);
    sweep(&server, json!({})).await;
    assert_eq!(stored_payloads(&server).await, [unfinished]);
}

#[both_engines]
async fn an_erased_thread_leaves_none(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.say("run-1", "planted").await.with_status(202);
    store_beside(&server).await;
    assert_eq!(stored_payloads(&server).await.len(), 1);
    server.send(server.request("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"))).await.with_status(204);
    assert_eq!(stored_payloads(&server).await, [""; 0]);
}
