//! A request with several invalid fields is rejected once, with all of them.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};

use crate::harness::{Answer, Engine, TestServer, both_engines, run_body};

/// The rules of all listed problems, in order.
fn rules(answer: &Answer) -> Vec<String> {
    let problems = answer.body["details"]["problems"].as_array().unwrap_or_else(|| panic!("{}", answer.text));
    let rule = |problem: &Value| problem["rule"].as_str().unwrap_or_else(|| panic!("{}", answer.text)).to_owned();
    assert!(problems.iter().all(|problem| problem["message"].is_string()), "{}", answer.text);
    problems.iter().map(rule).collect()
}

#[both_engines]
async fn a_run_names_all_its_invalid_fields(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut body = run_body();
    body["tenantId"] = json!("nosuch");
    body["projectId"] = json!(" p");
    body["providerId"] = json!("p ");
    body["workspaceRef"] = json!({"kind": "Not A Slug"});
    body["executionPolicy"] = json!({"timeoutMs": -1, "maxTurns": 0, "sandbox": "danger-full-access"});
    let answer = server.post("/api/v1/runs", &body).await;
    let policy = [
        "tenant-allow-list",
        "name-shape",
        "slug-shape",
        "name-shape",
        "timeout-positive",
        "sandbox-widened",
        "budget-positive",
    ];
    assert_eq!(rules(&answer), policy);
    body["labels"] = json!({"Team": "a,b"});
    body["idempotencyKey"] = json!(" k");
    body["command"] = json!({"type": "turn", "payload": {}});
    let answer = server.post("/api/v1/runs", &body).await;
    let own = ["prompt-required", "label-key", "label-value", "name-shape"];
    assert_eq!(rules(&answer), [&own[..], &policy[..]].concat());
    // One problem is an ordinary failure.
    let mut one = run_body();
    one["projectId"] = json!(" p");
    assert_eq!(server.post("/api/v1/runs", &one).await.body["details"]["problems"], Value::Null);
}

#[both_engines]
async fn a_session_names_all_its_invalid_fields(engine: Engine) {
    let server = TestServer::start(engine).await;
    let body = json!({"tenantId": "nosuch", "backendProfile": "Not A Slug", "sessionId": "ses_mine", "title": "a\nb",
        "labels": {"A": "x"}, "idempotencyKey": " k"});
    let answer = server.post("/api/v1/sessions", &body).await;
    let expected = ["tenant-allow-list", "slug-shape", "session-id-reserved", "title-shape", "label-key", "name-shape"];
    assert_eq!(rules(&answer), expected);
}

#[both_engines]
async fn tokens_and_users_name_all_their_invalid_fields(engine: Engine) {
    let server = TestServer::start(engine).await;
    let token = json!({"name": " t", "role": "client", "tenants": ["nosuch", "other"], "expiresInMs": 0});
    let answer = server.post("/api/v1/tokens", &token).await;
    assert_eq!(rules(&answer), ["name-shape", "expires-in", "tenant-allow-list", "tenant-allow-list"]);
    let user = json!({"name": " u", "tenants": ["nosuch"], "timezone": "Nowhere/Else", "issuer": "https://x.test"});
    let answer = server.post("/api/v1/users", &user).await;
    assert_eq!(rules(&answer), ["name-shape", "user-subject", "timezone", "tenant-allow-list", "issuer"]);
}

#[both_engines]
async fn holds_and_credentials_name_all_their_problems(engine: Engine) {
    let server = TestServer::start(engine).await;
    let hold = json!({"tenantId": "hwlab", "identity": "a.test", "reason": " because"});
    assert_eq!(rules(&server.post("/api/v1/retention/holds", &hold).await), ["hold-target", "hold-reason"]);
    let credential = json!({"apiKey": "k", "files": {"auth.json": "no json", "config.toml": "= nonsense"}});
    let answer = server.call("PUT", "/api/v1/provider-profiles/codex/credential", &credential).await;
    let found = rules(&answer);
    assert_eq!(found[..2], ["credential-shape", "credential-json"], "{}", answer.text);
    assert!(found.len() > 2, "{}", answer.text);
}

#[both_engines]
async fn a_run_names_its_unknown_agent_with_its_other_problems(engine: Engine) {
    let server = TestServer::start(engine).await;
    let messages = |answer: &Answer| -> Vec<String> {
        let problems = answer.body["details"]["problems"].as_array().unwrap_or_else(|| panic!("{}", answer.text));
        problems.iter().map(|problem| problem["message"].as_str().unwrap().to_owned()).collect()
    };
    let mut body = run_body();
    body["agentId"] = json!(format!("agt_{:032x}", 1));
    server.post("/api/v1/runs", &body).await.refused(NotFound);
    body["projectId"] = json!(" p");
    body["backendProfile"] = json!(null);
    // The profile is the agent's, so that it is not missed.
    let answer = server.post("/api/v1/runs", &body).await;
    assert_eq!((answer.status, messages(&answer).len()), (404, 2), "{}", answer.text);
    body["labels"] = json!({"Team": "x"});
    let answer = server.post("/api/v1/runs", &body).await;
    let listed = messages(&answer);
    assert_eq!((answer.status, listed.len()), (400, 3), "{}", answer.text);
    assert!(listed[0].contains("key of a label") && listed[2].contains("projectId"), "{listed:?}");
    assert_eq!(listed[1], "no such agent");
    // An agent that exists, and another profile than its own.
    let agent =
        server.post("/agents", &json!({"name": "builder", "backend_profile": "scripted"})).await.with_status(201);
    body["agentId"] = agent["id"].clone();
    body["backendProfile"] = json!("model");
    let answer = server.post("/api/v1/runs", &body).await;
    assert_eq!(rules(&answer), ["label-key", "agent-profile", "name-shape"]);
    body["backendProfile"] = json!(null);
    let answer = server.post("/api/v1/runs", &body).await;
    assert_eq!(rules(&answer), ["label-key", "name-shape"]);
}
