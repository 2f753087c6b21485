//! Users: people with tokens that this server signs. What their tokens open, whose marks they set, and how they end.

mod outside;

use ostler_protocol::{
    FailureKind::*,
    limits::{USER_TOKEN_LIFE_MS_DEFAULT, USER_TOKEN_LIFE_MS_MAX},
};
use serde_json::{Value, json};

use crate::harness::{Caller, Engine, TestServer, both_engines, id, run_body, start};

/// A user of these tenants, as a caller.
async fn user(server: &TestServer, name: &str, tenants: &[&str]) -> Caller {
    let body = json!({"name": name, "timezone": "Europe/Berlin", "tenants": tenants});
    server.post("/api/v1/users", &body).await.with_status(201);
    token(server, name, json!({})).await
}

async fn token(server: &TestServer, name: &str, body: Value) -> Caller {
    let made = server.post(&format!("/api/v1/users/{name}/token"), &body).await.with_status(201);
    server.with_token(Some(&id(&made, "token")))
}

#[both_engines]
async fn a_user_is_added_once_listed_and_removed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let body = json!({"name": "ada", "timezone": "europe/berlin"});
    let made = server.post("/api/v1/users", &body).await.with_status(201);
    assert_eq!((&made["timezone"], &made["tenants"]), (&json!("Europe/Berlin"), &json!(["local"])));
    assert_eq!((&made["issuer"], &made["subject"]), (&json!("ostler"), &made["userId"]));
    server.clock.advance_ms(1);
    assert_eq!(server.post("/api/v1/users", &body).await.with_status(200), made);
    let other = json!({"name": "ada", "timezone": "UTC"});
    server.post("/api/v1/users", &other).await.refused_by(StateConflict, "user-taken");
    assert_eq!(server.get("/api/v1/users").await.ok()["users"], json!([made]));
    let removal = || server.send(server.request("DELETE", "/api/v1/users/ada"));
    assert!(removal().await.with_status(200)["removedAt"].is_string());
    removal().await.refused(NotFound);
    server.post("/api/v1/users/ada/token", &json!({})).await.refused(NotFound);
    assert_eq!(server.get("/api/v1/users").await.ok()["users"], json!([]));
    // The name is free again, and the new user is another one.
    let again = server.post("/api/v1/users", &other).await.with_status(201);
    assert_ne!(again["userId"], made["userId"]);
}

#[both_engines]
async fn nothing_stays_granted_by_a_removed_user_or_to_their_agents(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, bob) = (user(&server, "ada", &["local"]).await, user(&server, "bob", &["local"]).await);
    let (others, _) = server.agent().await;
    let manifest = server.get(&format!("/agents/{others}")).await.ok()["capability_manifest"].clone();
    let owned =
        id(&ada.post("/agents", &json!({"name": "a", "capability_manifest": manifest})).await.with_status(201), "id");
    let grant = |agent: &str| json!({"agent_id": agent, "granted_scopes": ["notes:read"]});
    let given = id(&ada.post("/h2a/relations", &grant(&others)).await.with_status(201), "id");
    let taken = id(&bob.post("/h2a/relations", &grant(&owned)).await.with_status(201), "id");
    let kept = id(&bob.post("/h2a/relations", &grant(&others)).await.with_status(201), "id");
    server.send(server.request("DELETE", "/api/v1/users/ada")).await.with_status(200);
    let active = server.store("SELECT relation_id FROM relations WHERE revoked_at IS NULL").await;
    assert_eq!(active, [kept], "neither {given} nor {taken}");
    server.get(&format!("/agents/{owned}")).await.refused_by(Gone, "agent-retired");
    let ended = server.store("SELECT receipt FROM receipts WHERE receipt LIKE '%\"ended\"%' ORDER BY user_id").await;
    assert_eq!(ended.len(), 2, "each with a receipt: {ended:?}");
}

#[both_engines]
async fn a_users_time_zone_can_be_changed(engine: Engine) {
    let server = TestServer::start(engine).await;
    let ada = user(&server, "ada", &["hwlab"]).await;
    let bob = user(&server, "bob", &["hwlab"]).await;
    let change = async |caller: &Caller, name: &str, zone: &str| {
        caller.call("PATCH", &format!("/api/v1/users/{name}"), &json!({"timezone": zone})).await
    };
    let changed = change(&server, "ada", "asia/tokyo").await.with_status(200);
    assert_eq!((&changed["name"], &changed["timezone"]), (&json!("ada"), &json!("Asia/Tokyo")));
    assert_eq!(change(&server, "ada", "Asia/Tokyo").await.with_status(200), changed, "again");
    let zones = async || {
        let listed = server.get("/api/v1/users").await.ok();
        let zone = |user: &Value| (id(user, "name"), id(user, "timezone"));
        listed["users"].as_array().unwrap().iter().map(zone).collect::<std::collections::BTreeMap<_, _>>()
    };
    let expected = [("ada", "Asia/Tokyo"), ("bob", "Europe/Berlin")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(zones().await, expected.clone().into());
    change(&server, "ada", "Mars/Olympus").await.refused_by(SchemaInvalid, "timezone");
    change(&server, "nobody", "UTC").await.refused(NotFound);
    for caller in [&ada, &bob] {
        change(caller, "ada", "UTC").await.refused_by(Forbidden, "role");
    }
    assert_eq!(zones().await, expected.into());
    // A token that was made before still works.
    ada.get("/api/v1/runs").await.with_status(200);
}

#[both_engines]
async fn users_that_make_no_sense_are_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let with = async |field: &str, value: Value| {
        let mut body = json!({"name": "ada", "timezone": "UTC", "tenants": ["hwlab"]});
        body[field] = value;
        server.post("/api/v1/users", &body).await
    };
    with("timezone", json!("Mars/Olympus")).await.refused_by(SchemaInvalid, "timezone");
    with("tenants", json!([])).await.refused_by(SchemaInvalid, "tenants");
    with("tenants", json!(["nowhere"])).await.refused_by(TenantPolicyDenied, "tenant-allow-list");
    with("subject", json!("7")).await.refused_by(SchemaInvalid, "user-subject");
    with("name", json!(" ada")).await.refused_by(SchemaInvalid, "name-shape");
    assert_eq!(server.get("/api/v1/users").await.ok()["users"], json!([]));
    with("name", json!("ada")).await.with_status(201);
    for life in [0, -1, USER_TOKEN_LIFE_MS_MAX + 1] {
        let asked = server.post("/api/v1/users/ada/token", &json!({"expiresInMs": life})).await;
        asked.refused_by(SchemaInvalid, "expires-in");
    }
}

#[both_engines]
async fn a_users_token_speaks_for_the_user_in_their_tenants(engine: Engine) {
    let server = TestServer::start(engine).await;
    let ada = user(&server, "ada", &["hwlab"]).await;
    let run_id = ada.create_run().await;
    let command_id = ada.turn(&run_id, "hi").await;
    ada.cancel_command(&command_id).await;
    let audit = server.events_of(&run_id, "audit").await;
    assert_eq!(audit.last().unwrap()["payload"]["by"], "user:ada");
    // As a client of those tenants, and no more.
    let mut elsewhere = run_body();
    elsewhere["tenantId"] = "unidesk".into();
    ada.post("/api/v1/runs", &elsewhere).await.refused_by(Forbidden, "tenant");
    let theirs = id(&server.post("/api/v1/runs", &elsewhere).await.with_status(201), "runId");
    ada.get(&format!("/api/v1/runs/{theirs}")).await.refused(NotFound);
    ada.try_claim(&run_id, "runner-a", 60_000).await.refused_by(Forbidden, "role");
    for path in ["/api/v1/users", "/api/v1/tokens"] {
        ada.get(path).await.refused_by(Forbidden, "role");
    }
    ada.post("/api/v1/users/ada/token", &json!({})).await.refused_by(Forbidden, "role");
}

#[both_engines]
async fn a_users_marks_are_their_own(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("service", "client", &["hwlab"])).await;
    let (ada, bob) = (user(&server, "ada", &["hwlab"]).await, user(&server, "bob", &["hwlab"]).await);
    let run_id = ada.create_run().await;
    let command_id = ada.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    let session = id(&server.run(&run_id).await, "sessionId");
    let open = async |caller: &Caller| caller.get("/api/v1/sessions").await.ok()["sessions"].as_array().unwrap().len();
    assert_eq!([open(&ada).await, open(&bob).await, open(&server).await], [1, 1, 1]);
    let read = format!("/api/v1/sessions/{session}/read");
    ada.post(&read, &json!({})).await.with_status(200);
    assert_eq!([open(&ada).await, open(&bob).await, open(&server).await], [0, 1, 1]);
    // No user reads for another one.
    let people = server.get("/api/v1/users").await.ok();
    let bob_id = id(people["users"].as_array().unwrap().iter().find(|user| user["name"] == "bob").unwrap(), "userId");
    for caller in [&ada, server.caller("service")] {
        caller.post(&read, &json!({"readerId": bob_id})).await.refused_by(Forbidden, "reader");
        caller.get(&format!("/api/v1/sessions?readerId={bob_id}")).await.refused_by(Forbidden, "reader");
    }
    ada.post(&read, &json!({"readerId": "console"})).await.refused_by(Forbidden, "reader");
    bob.post(&read, &json!({"readerId": bob_id})).await.with_status(200);
    assert_eq!([open(&bob).await, open(&server).await], [0, 1]);
}

#[both_engines]
async fn what_ended_before_a_user_was_added_is_not_unread(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("service", "client", &["hwlab"])).await;
    let play = async |prompt: &str| {
        let run_id = server.create_run().await;
        let command_id = server.turn(&run_id, prompt).await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        runner.end(&command_id, "completed").await;
        runner.release().await;
        server.clock.advance_ms(1);
        id(&server.run(&run_id).await, "sessionId")
    };
    let old = play("before").await;
    let ada = user(&server, "ada", &["hwlab"]).await;
    let open = async || {
        let page = ada.get("/api/v1/sessions").await.ok();
        page["sessions"].as_array().unwrap().iter().map(|session| id(session, "sessionId")).collect::<Vec<_>>()
    };
    let shown = async |session: &str| ada.get(&format!("/api/v1/sessions/{session}")).await.ok()["unread"].clone();
    assert_eq!(open().await, Vec::<String>::new());
    assert_eq!(shown(&old).await, false);
    let all = ada.get("/api/v1/sessions?state=all").await.ok();
    assert_eq!(all["sessions"][0]["unread"], false);
    let new = play("after").await;
    for _ in 0..2 {
        assert_eq!(open().await, [new.as_str()]);
        assert_eq!((shown(&old).await, shown(&new).await), (json!(false), json!(true)));
        // Long enough for the marks to be written.
        server.clock.advance_ms(120_000);
    }
    // Other readers have not read it.
    let of_service = server.caller("service").get("/api/v1/sessions").await.ok();
    assert_eq!(of_service["sessions"].as_array().unwrap().len(), 2);
    // A repeated request does not reset it.
    let body = json!({"name": "ada", "timezone": "Europe/Berlin", "tenants": ["hwlab"]});
    server.post("/api/v1/users", &body).await.with_status(200);
    assert_eq!(open().await, [new.as_str()]);
    // A new end in an old session is news.
    let run_id = server.get(&format!("/api/v1/sessions/{old}")).await.ok()["lastRunId"].as_str().unwrap().to_owned();
    let command_id = server.turn(&run_id, "more").await;
    let runner = server.claim(&run_id, "runner-b").await;
    runner.ack(&command_id).await;
    runner.end(&command_id, "completed").await;
    assert_eq!(shown(&old).await, true);
    assert_eq!(open().await.len(), 2);
}

#[both_engines]
async fn a_users_token_ends_by_itself(engine: Engine) {
    let server = TestServer::start(engine).await;
    let short = user(&server, "ada", &["hwlab"]).await;
    let long = token(&server, "ada", json!({"expiresInMs": USER_TOKEN_LIFE_MS_MAX})).await;
    const LEEWAY_MS: i64 = 30_000;
    server.clock.advance_ms(USER_TOKEN_LIFE_MS_DEFAULT + LEEWAY_MS - 1);
    short.get("/api/v1/runs").await.with_status(200);
    server.clock.advance_ms(1);
    short.get("/api/v1/runs").await.refused(Unauthenticated);
    long.get("/api/v1/runs").await.with_status(200);
}

#[both_engines]
async fn a_removed_users_token_stops_working_at_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, bob) = (user(&server, "ada", &["hwlab"]).await, user(&server, "bob", &["hwlab"]).await);
    for caller in [&ada, &bob] {
        caller.get("/api/v1/runs").await.with_status(200);
    }
    server.send(server.request("DELETE", "/api/v1/users/ada")).await.with_status(200);
    let refused = ada.get("/api/v1/runs").await.refused_by(Forbidden, "user-unknown");
    assert!(refused.message.ends_with("or has removed the user"), "{refused:?}");
    bob.get("/api/v1/runs").await.with_status(200);
    // A namesake is not the one who left.
    user(&server, "ada", &["hwlab"]).await;
    ada.get("/api/v1/runs").await.refused_by(Forbidden, "user-unknown");
}

/// Each server signs with its own key; the store tells them of each other's public ones.
#[test]
fn servers_of_one_store_know_each_others_users() {
    crate::harness::run(async {
        let server = TestServer::start(Engine::Postgres).await;
        let elsewhere = tempfile::TempDir::new().unwrap();
        let mut config = server.config.clone();
        config.server.data_dir = Some(elsewhere.path().to_owned());
        let second = start(config, server.clock.clone()).await.unwrap();
        let operator_there = Caller::new(&second);
        let here = user(&server, "ada", &["hwlab"]).await;
        let made = operator_there.post("/api/v1/users/ada/token", &json!({})).await.with_status(201);
        let there = operator_there.with_token(Some(&id(&made, "token")));
        for caller in [&here, &there, &server.with_token(there.token()), &operator_there.with_token(here.token())] {
            caller.get("/api/v1/runs").await.with_status(200);
        }
        assert_eq!(server.get("/.well-known/jwks.json").await.ok()["keys"].as_array().unwrap().len(), 2);
        // Removed on one, gone on the other when it looks again.
        server.send(server.request("DELETE", "/api/v1/users/ada")).await.with_status(200);
        server.clock.advance_ms(5_000);
        there.get("/api/v1/runs").await.refused(Forbidden);
        second.stop().await;
    });
}

#[both_engines]
async fn the_private_key_stays_in_its_file(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let ada = user(&server, "ada", &["hwlab"]).await;
    let file = server.config.server.data_dir.clone().unwrap().join("signing-key");
    let private = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_eq!(private.len(), 64);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let published = server.with_token(None).get("/.well-known/jwks.json").await;
    let [key] = published.body["keys"].as_array().unwrap().clone().try_into().unwrap();
    assert_eq!((&key["kty"], &key["crv"], &key["d"]), (&json!("OKP"), &json!("Ed25519"), &Value::Null));
    let kept = server.store("SELECT jwk FROM signing_keys").await.concat();
    assert!(!kept.contains(&private) && !published.text.contains(&private) && !kept.contains("\"d\""));
    // The key is the server's own: it outlives a restart, and with it the tokens it signed.
    server.restart().await;
    server.with_token(ada.token()).get("/api/v1/runs").await.with_status(200);
}
