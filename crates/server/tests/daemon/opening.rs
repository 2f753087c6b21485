//! What it takes to open a session: one commit.

use super::scene::attached;
use crate::{
    harness::{Engine, TestServer, both_engines},
    metrics::value,
};

const SESSIONS: usize = 10;

/// Flushes so far, and requests in them. On SQLite every write of the store is part of a flush.
async fn flushed(server: &TestServer) -> (f64, f64) {
    (value(server, "ostler_flush_requests_count").await, value(server, "ostler_flush_requests_sum").await)
}

/// The server also writes by itself, so that a few flushes more are no failure. Three times as many would be.
fn assert_about(found: f64, what: &str) {
    let most = SESSIONS as f64 * 2.5;
    assert!((SESSIONS as f64..most).contains(&found), "{found} {what} for {SESSIONS} sessions");
}

#[both_engines]
async fn a_session_and_its_first_client_are_stored_by_one_commit(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (flushes, requests) = flushed(&server).await;
    let mut last = None;
    for _ in 0..SESSIONS {
        last = Some(attached(&server).await);
    }
    let after = flushed(&server).await;
    assert_about(after.0 - flushes, "flushes");
    assert_about(after.1 - requests, "requests");
    let last = last.unwrap();
    let changes: Vec<_> =
        server.logged(&last.id).await.into_iter().map(|event| event["payload"]["change"].clone()).collect();
    assert_eq!(changes, ["created", "joined"]);
    last.post("heartbeat", &serde_json::json!({})).await.with_status(200);
}

#[both_engines]
async fn a_client_joins_a_session_by_one_commit(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.open().await;
    let (flushes, requests) = flushed(&server).await;
    for _ in 0..SESSIONS {
        assert_eq!(server.open().await["attached"], true);
    }
    let after = flushed(&server).await;
    assert_about(after.0 - flushes, "flushes");
    assert_about(after.1 - requests, "requests");
}
