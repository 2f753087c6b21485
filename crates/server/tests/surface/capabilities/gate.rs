//! Proofs of what the gate promises to clients of every dialect.

use std::collections::BTreeSet;

use serde_json::json;

use crate::harness::TestServer;

/// The origin that the server allows while the toggle is on.
pub(crate) const PAGE_ORIGIN: &str = "https://console.example";

pub(crate) async fn requires_tokens_everywhere(server: &TestServer) -> bool {
    let anonymous = server.with_token(None);
    let mut refused = BTreeSet::new();
    for path in ["/health", "/health/live", "/health/readiness", "/capabilities"] {
        server.get(path).await.with_status(200);
        let response = anonymous.get(path).await;
        let is_uniform = !["/health", "/capabilities"].contains(&path) || response.body["error"] == "Unauthorized";
        refused.insert(response.status == 401 && is_uniform);
    }
    assert_eq!(refused.len(), 1, "all of them or none");
    refused.contains(&true)
}

pub(crate) async fn shares_responses_with_pages(server: &TestServer) -> bool {
    let response = server.send(server.request("GET", "/health").header("origin", PAGE_ORIGIN)).await;
    let foreign = server.send(server.request("GET", "/health").header("origin", "https://evil.example")).await;
    assert!(!foreign.headers.contains_key("access-control-allow-origin"));
    foreign.with_status(403);
    let shared = response.headers.get("access-control-allow-origin").is_some_and(|origin| origin == PAGE_ORIGIN);
    assert_eq!(response.status == 200, shared);
    let preflight = server.with_token(None).request("OPTIONS", "/capabilities").header("origin", PAGE_ORIGIN);
    assert_eq!(server.send(preflight).await.status == 204, shared);
    shared
}

/// Callers have a limit on every path, clients of the daemon on its own.
pub(crate) async fn limits_rates(server: &TestServer) -> bool {
    let of_caller = server.get("/health").await.headers.contains_key("ratelimit-remaining");
    let of_client = server.get("/capabilities").await.headers.contains_key("x-ratelimit-remaining");
    assert_eq!(of_caller, of_client);
    of_client
}

pub(crate) async fn caller_actions(server: &TestServer) {
    let caller = server.get("/api/v1/caller").await.with_status(200);
    assert_eq!((&caller["actions"][0]["allowed"], &caller["ownerId"]), (&json!(true), &json!("local")));
}
