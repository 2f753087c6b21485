//! A stored row that cannot be read fails the requests that need it, at once and for good. Other requests are not affected.

use ostler_protocol::FailureKind::InfraFailed;
use serde_json::json;

use crate::harness::{Engine, TestServer, both_engines, of_program};

async fn make_unreadable(server: &TestServer, run_id: &str) {
    server.store(&format!("UPDATE runs SET status = 'nonsense' WHERE run_id = '{run_id}'")).await;
}

#[both_engines]
async fn a_job_whose_run_cannot_be_read_leaves_the_runner_slot_to_others(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let (unreadable, _) = server.start("lost").await;
    make_unreadable(&server, &unreadable).await;
    // The only slot goes to the older job first. The restart forgets the run that is cached.
    server.config.runner.slots = 1;
    server.restart().await;
    let (run_id, command_id) = server.start("hello").await;
    assert_eq!(server.ended(&run_id, &command_id).await["reply"], "hello");
}

#[both_engines]
async fn an_unreadable_row_is_named_as_the_reason(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    make_unreadable(&server, &run_id).await;
    server.restart().await;
    let path = format!("/api/v1/runs/{run_id}");
    let refused = server.get(&path).await.refused_by(InfraFailed, "store-corrupt");
    assert!(refused.message.contains("hint:") && !refused.message.contains("nonsense"), "{}", refused.message);
    server.post(&format!("{path}/cancel"), &json!({})).await.refused_by(InfraFailed, "store-corrupt");
    server.create_run().await;
}

#[both_engines]
async fn a_changed_credential_does_not_wait_for_a_run_that_cannot_be_read(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    server.equip().await;
    let (unreadable, other) = (server.create_run_with(of_program).await, server.create_run_with(of_program).await);
    server.claim(&unreadable, "runner-a").await;
    server.claim(&other, "runner-b").await;
    make_unreadable(&server, &unreadable).await;
    server.restart().await;
    let path = "/api/v1/provider-profiles/codex/credential";
    server.call("PUT", path, &json!({"apiKey": "k-another-0123"})).await.with_status(200);
    let dismissed = "SELECT run_id FROM leases WHERE dismissed = 1 OR ended = 1";
    assert_eq!(server.store(dismissed).await, [other]);
}
