//! Service tokens: made by the operator, shown once, kept as hashes, good until they end or are revoked.

use ostler_protocol::{FailureKind::*, limits::TOKEN_LIFE_MS_MAX};
use serde_json::{Value, json};

use crate::harness::{Caller, Engine, TestServer, both_engines, id, start};

async fn make(server: &TestServer, change: impl FnOnce(&mut Value)) -> Value {
    let mut body = json!({"name": "ci", "role": "client", "tenants": ["hwlab"]});
    change(&mut body);
    server.post("/api/v1/tokens", &body).await.with_status(201)
}

#[both_engines]
async fn a_key_makes_one_token(engine: Engine) {
    let server = TestServer::start(engine).await;
    let made = make(&server, |body| body["idempotencyKey"] = "k1".into()).await;
    let again = json!({"name": "ci", "role": "client", "tenants": ["hwlab"], "idempotencyKey": "k1"});
    let refused = server.post("/api/v1/tokens", &again).await.refused_by(StateConflict, "idempotency-key-used");
    assert_eq!(refused.details["tokenId"], made["tokenId"]);
    let listed = server.get("/api/v1/tokens").await.ok();
    assert_eq!(listed["tokens"].as_array().unwrap().iter().filter(|token| token["name"] == "ci").count(), 1);
    make(&server, |body| body["idempotencyKey"] = "k2".into()).await;
}

fn bearer(server: &Caller, made: &Value) -> Caller {
    server.with_token(Some(&id(made, "token")))
}

async fn revoke(server: &Caller, made: &Value) -> Value {
    let path = format!("/api/v1/tokens/{}", id(made, "tokenId"));
    server.send(server.request("DELETE", &path)).await.with_status(200)
}

#[both_engines]
async fn a_token_is_shown_once_and_stored_as_a_hash(engine: Engine) {
    let server = TestServer::start(engine).await;
    let made = make(&server, |_| ()).await;
    let token = id(&made, "token");
    assert!(token.starts_with("ost_svc_") && token.len() >= 64, "{token}");
    let listed = server.get("/api/v1/tokens").await;
    assert!(!listed.text.contains(&token), "{}", listed.text);
    let [listed] = listed.ok()["tokens"].as_array().unwrap().clone().try_into().unwrap();
    assert_eq!(listed["tokenId"], made["tokenId"]);
    assert_eq!(listed["token"], Value::Null);
    assert_eq!((&listed["role"], &listed["tenants"]), (&json!("client"), &json!(["hwlab"])));
    let kept = server.store("SELECT token_hash FROM tokens").await;
    assert_eq!(kept, [ostler_protocol::json::hex(&ostler_crypto::sha256(token.as_bytes()))]);
}

#[both_engines]
async fn a_token_lets_into_its_tenants_in_its_role(engine: Engine) {
    let server = TestServer::start(engine).await;
    let client = bearer(&server, &make(&server, |_| ()).await);
    let runner = bearer(&server, &make(&server, |body| body["role"] = "runner".into()).await);
    let both = make(&server, |body| body["tenants"] = json!(["hwlab", "unidesk"])).await;
    let run_id = client.create_run().await;
    client.try_claim(&run_id, "runner-a", 60_000).await.refused_by(Forbidden, "role");
    runner.claim(&run_id, "runner-a").await;
    runner.post("/api/v1/runs", &crate::harness::run_body()).await.refused_by(Forbidden, "role");
    let mut elsewhere = crate::harness::run_body();
    elsewhere["tenantId"] = "unidesk".into();
    client.post("/api/v1/runs", &elsewhere).await.refused_by(Forbidden, "tenant");
    bearer(&server, &both).post("/api/v1/runs", &elsewhere).await.with_status(201);
    // A token cannot be used to make another.
    for caller in [&client, &runner] {
        let body = json!({"name": "more", "role": "client", "tenants": ["hwlab"]});
        caller.post("/api/v1/tokens", &body).await.refused_by(Forbidden, "role");
        caller.get("/api/v1/tokens").await.refused_by(Forbidden, "role");
    }
}

#[both_engines]
async fn a_revoked_token_stops_working_at_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (first, second) = (make(&server, |_| ()).await, make(&server, |_| ()).await);
    let (revoked, other) = (bearer(&server, &first), bearer(&server, &second));
    for caller in [&revoked, &other] {
        caller.get("/api/v1/runs").await.with_status(200);
    }
    let answer = revoke(&server, &first).await;
    assert!(answer["revokedAt"].is_string());
    revoked.get("/api/v1/runs").await.refused(Unauthenticated);
    other.get("/api/v1/runs").await.with_status(200);
    server.clock.advance_ms(1_000);
    assert_eq!(revoke(&server, &first).await["revokedAt"], answer["revokedAt"]);
    let unknown = server.request("DELETE", &format!("/api/v1/tokens/tok_{:032x}", 0));
    server.send(unknown).await.refused(NotFound);
}

/// A revocation reaches another server of the same store when that one looks again.
#[test]
fn a_revoked_token_stops_working_on_another_server_within_five_seconds() {
    crate::harness::run(async {
        let server = TestServer::start(Engine::Postgres).await;
        let elsewhere = tempfile::TempDir::new().unwrap();
        let mut config = server.config.clone();
        config.server.data_dir = Some(elsewhere.path().to_owned());
        let second = start(config, server.clock.clone()).await.unwrap();
        let made = make(&server, |_| ()).await;
        let there = bearer(&Caller::new(&second), &made);
        there.get("/api/v1/runs").await.with_status(200);
        revoke(&server, &made).await;
        bearer(&server, &made).get("/api/v1/runs").await.refused(Unauthenticated);
        server.clock.advance_ms(5_000);
        there.get("/api/v1/runs").await.refused(Unauthenticated);
        second.stop().await;
    });
}

#[both_engines]
async fn a_token_expires_at_its_time(engine: Engine) {
    let server = TestServer::start(engine).await;
    let made = make(&server, |body| body["expiresInMs"] = 1_500.into()).await;
    let caller = bearer(&server, &made);
    caller.get("/api/v1/runs").await.with_status(200);
    server.clock.advance_ms(1_499);
    caller.get("/api/v1/runs").await.with_status(200);
    server.clock.advance_ms(1);
    caller.get("/api/v1/runs").await.refused(Unauthenticated);
    assert_eq!(server.get("/api/v1/tokens").await.ok()["tokens"][0]["revokedAt"], Value::Null);
}

#[both_engines]
async fn tokens_that_make_no_sense_are_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let refused = async |field: &str, value: Value| {
        let mut body = json!({"name": "ci", "role": "client", "tenants": ["hwlab"]});
        body[field] = value;
        server.post("/api/v1/tokens", &body).await
    };
    refused("tenants", json!([])).await.refused_by(SchemaInvalid, "tenants");
    refused("tenants", json!(["hwlab", "hwlab"])).await.refused_by(SchemaInvalid, "tenants");
    refused("tenants", json!(["nowhere"])).await.refused_by(TenantPolicyDenied, "tenant-allow-list");
    refused("role", json!("operator")).await.refused_by(SchemaInvalid, "body-shape");
    refused("name", json!("")).await.refused_by(SchemaInvalid, "name-shape");
    for life in [0, -1, TOKEN_LIFE_MS_MAX + 1] {
        refused("expiresInMs", json!(life)).await.refused_by(SchemaInvalid, "expires-in");
    }
    assert_eq!(server.get("/api/v1/tokens").await.ok()["tokens"], json!([]));
    refused("expiresInMs", json!(TOKEN_LIFE_MS_MAX)).await.with_status(201);
}

#[both_engines]
async fn tokens_are_listed_in_pages_newest_first(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut made = vec![];
    for number in 0..5 {
        made.push(id(&make(&server, |body| body["name"] = format!("ci-{number}").into()).await, "tokenId"));
        server.clock.advance_ms(number % 2);
    }
    let whole = server.get("/api/v1/tokens").await.ok();
    let ids = |page: &Value| page["tokens"].as_array().unwrap().iter().map(|t| id(t, "tokenId")).collect::<Vec<_>>();
    let (mut paged, mut cursor) = (vec![], String::new());
    loop {
        let page = server.get(&format!("/api/v1/tokens?limit=2{cursor}")).await.ok();
        paged.extend(ids(&page));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(paged, ids(&whole));
    made.sort();
    paged.sort();
    assert_eq!(paged, made);
}
