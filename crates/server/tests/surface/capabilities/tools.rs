//! Proofs of the tags about tools.

use serde_json::json;

use crate::harness::TestServer;

pub(crate) async fn listed(server: &TestServer) {
    let listed = server.get("/api/v1/tools").await.with_status(200);
    assert!(listed["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "time_now"), "{listed}");
    let called = server.post("/api/v1/tools/time_now/calls", &json!({"arguments": {}})).await.with_status(200);
    assert_eq!(called["status"], "completed");
}

pub(crate) async fn of_run(server: &TestServer) {
    let run_id = server.create_run().await;
    let turn = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&turn).await;
    let listed = server.get(&format!("/api/v1/runs/{run_id}/tools")).await.with_status(200);
    assert!(listed["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "time_now"), "{listed}");
    let body = json!({"commandId": turn, "callId": "call_1", "name": "time_now", "waitMs": 20_000});
    let path = format!("/api/v1/runs/{run_id}/tools/calls");
    assert_eq!(server.post(&path, &runner.signed(body)).await.with_status(200)["status"], "completed");
    assert_eq!(server.events_of(&run_id, "tool_call").await.len(), 2);
}
