//! Logging in: what is signed is what was transmitted, a nonce is good once, tokens go round, and certificates are renewed
//! in time.

use ostler_crypto::certificates::Certificate;
use ostler_protocol::FailureKind;
use ostler_server::clock::Clock;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::harness::{Engine, Identity, TestServer, Tokens, Wire, both_engines, eventually, fresh, id, introduction};

async fn second(server: &TestServer, proof: Value) -> i64 {
    let answer = fresh(server, "auth.aid_login2", proof).await;
    answer["error"]["code"].as_i64().unwrap_or_default()
}

/// Whether an access token opens a session.
async fn opens(server: &TestServer, tokens: &Tokens) -> bool {
    let mut wire = Wire::open(server).await;
    let params = introduction(&wire, tokens, "", "", "fanout");
    wire.ask("auth.connect", params).await["result"]["status"] == "ok"
}

#[both_engines]
async fn the_auth_service_and_the_identity_prove_themselves(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let begun = identity.begin(&server).await;
    let auth = Certificate::from_pem(&id(&begun.answer, "auth_cert")).unwrap();
    assert_eq!((auth.name(), &begun.answer["auth_curve"]), ("auth.localhost.test", &json!("P-384")));
    assert!(auth.public_key().verifies_base64(b"Y2xpZW50", &id(&begun.answer, "client_nonce_signature")));
    // Digits that a number would not keep.
    let proof = identity.proof(&begun, "1794700691.72879930");
    let answer = fresh(&server, "auth.aid_login2", proof).await["result"].clone();
    assert_eq!((&answer["expires_in"], &answer["new_cert"]), (&json!(3600), &Value::Null), "{answer}");
    let access = id(&answer, "access_token");
    assert!(opens(&server, &Tokens { access, refresh: String::new(), answer }).await);
    for kept in server.store("SELECT access_hash || refresh_hash FROM mesh_logins").await {
        assert_eq!(kept.len(), 128, "hashes only: {kept}");
    }
}

#[both_engines]
async fn a_nonce_is_good_once_for_its_login_and_for_a_minute(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let begun = alice.begin(&server).await;
    let mut other = bobby.proof(&begun, "1");
    other["aid"] = json!(bobby.aid);
    assert_eq!(second(&server, other).await, -32001, "another's login");
    let mut changed = alice.proof(&begun, "1");
    changed["client_time"] = json!("2");
    assert_eq!(second(&server, changed).await, -32001, "another text was signed");
    let mut forged = alice.proof(&begun, "1");
    forged["request_id"] = json!("00".repeat(64));
    assert_eq!(second(&server, forged).await, -32001);
    assert_eq!(second(&server, alice.proof(&begun, "1")).await, 0);
    assert_eq!(second(&server, alice.proof(&begun, "1")).await, -32001, "it was used");
    let late = alice.begin(&server).await;
    server.clock.advance_ms(60_001);
    assert_eq!(second(&server, alice.proof(&late, "1")).await, -32001);
}

#[both_engines]
async fn what_was_used_is_remembered_where_a_clock_is_behind(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 10).await;
    let identity = Identity::register(&server, "alice").await;
    identity.login(&server).await;
    let spent = async || server.store("SELECT ticket FROM mesh_spent").await;
    // Tokens that were used long ago have been swept.
    let planted = |ticket: &str, ms_ago: i64| {
        let ends_at = server.clock.now().as_microsecond() - ms_ago * 1_000;
        format!("INSERT INTO mesh_spent (ticket, ends_at) VALUES ('{ticket}', {ends_at})")
    };
    server.clock.advance_ms(120_000);
    server.store(&planted("long-ago", 300_000)).await;
    eventually("it was swept", async || (!spent().await.contains(&"long-ago".to_owned())).then_some(())).await;
    assert_eq!(spent().await.len(), 1, "a minute after its end, by this clock, the nonce is remembered");
    server.clock.advance_ms(300_000);
    eventually("it is forgotten", async || spent().await.is_empty().then_some(())).await;
}

#[both_engines]
async fn a_stranger_and_a_forged_certificate_get_nowhere(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let first = async |aid: &str, cert: &str| {
        let params = json!({"aid": aid, "cert": cert, "client_nonce": "bm9uY2U="});
        fresh(&server, "auth.aid_login1", params).await["error"].clone()
    };
    let unknown = first("carol.localhost.test", &alice.cert).await;
    assert!(id(&unknown, "message").contains("not registered"), "{unknown}");
    assert_eq!(unknown["code"], -32001, "the published client registers again on this code only");
    assert_eq!(first(&alice.aid, &bobby.cert).await["code"], -32001);
    assert_eq!(first(&alice.aid, "no certificate").await["code"], -32602);
    // Another server's certificate for the same name.
    let elsewhere = TestServer::start(engine).await;
    let other = Identity::register(&elsewhere, "alice").await;
    assert_eq!(first(&alice.aid, &other.cert).await["code"], -32001);
}

#[both_engines]
async fn tokens_go_round_until_their_chain_ends(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let first = identity.login(&server).await;
    let refresh = async |token: &str| fresh(&server, "auth.refresh_token", json!({"refresh_token": token})).await;
    let next = refresh(&first.refresh).await["result"].clone();
    assert_eq!((&next["success"], &next["expires_in"]), (&json!(true), &json!(3600)));
    let tokens = |answer: &Value| Tokens {
        access: id(answer, "access_token"),
        refresh: id(answer, "refresh_token"),
        answer: answer.clone(),
    };
    assert!(!opens(&server, &first).await, "the last pair only is good");
    assert!(opens(&server, &tokens(&next)).await);
    server.clock.advance_ms(3_600_001);
    assert!(!opens(&server, &tokens(&next)).await, "an hour is over");
    let next = refresh(&id(&next, "refresh_token")).await["result"].clone();
    assert!(opens(&server, &tokens(&next)).await);
    server.clock.advance_ms(30 * 86_400_000);
    let over = refresh(&id(&next, "refresh_token")).await["result"].clone();
    assert_eq!(over["success"], false, "a refused refresh is a result: {over}");
    assert!(over["error"].is_string() && over.get("access_token").is_none());
    assert_eq!(refresh("nonsense").await["result"]["success"], false);
}

#[both_engines]
async fn a_refresh_token_shown_twice_ends_the_login(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let (first, other) = (identity.login(&server).await, identity.login(&server).await);
    let refresh = async |token: &str| {
        let answer = fresh(&server, "auth.refresh_token", json!({"refresh_token": token})).await;
        answer["result"].clone()
    };
    let next = refresh(&first.refresh).await;
    let access = id(&next, "access_token");
    let thief = Tokens { access, refresh: String::new(), answer: next.clone() };
    let mut connected = Wire::open(&server).await;
    let params = introduction(&connected, &thief, "dev-1", "", "fanout");
    assert_eq!(connected.call("auth.connect", params).await["status"], "ok");
    assert_eq!(refresh(&first.refresh).await["success"], false);
    assert_eq!(connected.socket.closed().await, 1008, "so are its connections");
    assert_eq!(refresh(&id(&next, "refresh_token")).await["success"], false, "the thief's and the owner's are over");
    assert_eq!(refresh(&other.refresh).await["success"], true, "another login goes on");
}

const DAY_MS: i64 = 86_400_000;

#[both_engines]
async fn a_certificate_is_renewed_past_half_its_life(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    server.clock.advance_ms(182 * DAY_MS);
    assert_eq!(identity.login(&server).await.answer["new_cert"], Value::Null);
    server.clock.advance_ms(2 * DAY_MS);
    let renewed = id(&identity.login(&server).await.answer, "new_cert");
    let (old, new) = (Certificate::from_pem(&identity.cert).unwrap(), Certificate::from_pem(&renewed).unwrap());
    assert_eq!((new.name(), new.public_key()), (old.name(), old.public_key()));
    assert!(new.not_after() > old.not_after());
    let again = identity.login(&server).await.answer;
    assert_eq!(again["new_cert"], renewed.as_str(), "a client that lost it gets the same");
    let cert = server.with_token(None).get(&format!("/pki/cert/{}", identity.aid)).await.text;
    assert_eq!(cert, renewed);
    let identity = Identity { cert: renewed, ..identity };
    assert_eq!(identity.login(&server).await.answer["new_cert"], Value::Null);
    // Past its end, for a while: it is renewed. Later: not any more.
    server.clock.advance_ms((365 + 89) * DAY_MS);
    let last = identity.login(&server).await;
    assert!(last.answer["new_cert"].is_string());
    server.clock.advance_ms(2 * DAY_MS);
    let params = json!({"aid": identity.aid, "cert": identity.cert, "client_nonce": "bm9uY2U="});
    assert_eq!(fresh(&server, "auth.aid_login1", params).await["error"]["code"], -32001);
}

async fn renewal(server: &TestServer, identity: &Identity) -> Value {
    let begun = identity.begin(server).await;
    json!({"request_id": begun.request_id, "nonce": begun.nonce,
        "signature": identity.key.sign_base64(begun.nonce.as_bytes())})
}

#[both_engines]
async fn a_renewal_with_the_same_old_certificate_returns_the_same_next_one(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    server.clock.advance_ms(183 * DAY_MS);
    let mut wire = identity.connect(&server, "dev-1").await;
    let renewed = id(&wire.call("auth.renew_cert", renewal(&server, &identity).await).await, "cert");
    for method in ["auth.renew_cert", "auth.request_cert"] {
        assert_eq!(wire.call(method, renewal(&server, &identity).await).await["cert"], renewed.as_str(), "{method}");
    }
    assert_eq!(identity.login(&server).await.answer["new_cert"], renewed.as_str());
    let made = "SELECT serial FROM mesh_certificates WHERE aid = 'alice.localhost.test'";
    assert_eq!(server.store(made).await.len(), 2);
    // When that one is past half of its life too, there is another, whichever is shown.
    server.clock.advance_ms(183 * DAY_MS);
    let old = renewal(&server, &identity).await;
    let identity = Identity { cert: renewed, ..identity };
    // The login of the first connection has expired.
    let mut wire = identity.connect(&server, "dev-1").await;
    let third = id(&wire.call("auth.renew_cert", old).await, "cert");
    assert_ne!(third, identity.cert);
    assert_eq!(wire.call("auth.renew_cert", renewal(&server, &identity).await).await["cert"], third.as_str());
}

#[both_engines]
async fn an_identity_renews_its_certificate_and_changes_its_key(engine: Engine) {
    renews_and_changes_its_key(engine, "auth.renew_cert", "auth.rekey").await;
}

#[both_engines]
async fn one_method_does_for_both(engine: Engine) {
    renews_and_changes_its_key(engine, "auth.request_cert", "auth.request_cert").await;
}

async fn renews_and_changes_its_key(engine: Engine, renew: &str, rekey: &str) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let mut wire = identity.connect(&server, "dev-1").await;
    assert_eq!(wire.refused(renew, renewal(&server, &identity).await).await.0, -32009, "it is not due");
    server.clock.advance_ms(183 * DAY_MS);
    // The login of the first connection has expired.
    let mut wire = identity.connect(&server, "dev-1").await;
    let renewal = renewal(&server, &identity).await;
    let renewed = wire.call(renew, renewal.clone()).await;
    assert_ne!(renewed["cert"], identity.cert.as_str());
    assert_eq!(wire.refused(renew, renewal).await.0, -32001, "the nonce was used");
    let identity = Identity { cert: id(&renewed, "cert"), ..identity };
    let (begun, next) = (identity.begin(&server).await, Identity::stranger("alice"));
    let public_key = next.key.public_key().to_base64();
    let signature = identity.key.sign_base64(format!("{}{public_key}", begun.nonce).as_bytes());
    let changed = json!({"request_id": begun.request_id, "nonce": begun.nonce, "public_key": public_key,
        "signature": signature});
    let mut stolen = changed.clone();
    stolen["public_key"] = json!(Identity::stranger("x").key.public_key().to_base64());
    assert_eq!(wire.refused(rekey, stolen).await.0, -32001, "the old key signs for the new one");
    let answer = wire.call(rekey, changed).await;
    let next = Identity { cert: id(&answer, "cert"), ..next };
    assert!(opens(&server, &next.login(&server).await).await);
    let params = json!({"aid": identity.aid, "cert": identity.cert, "client_nonce": "bm9uY2U="});
    let refused = fresh(&server, "auth.aid_login1", params).await["error"].clone();
    assert!(id(&refused, "message").contains("revoked"), "{refused}");
}

#[both_engines]
async fn the_auth_service_renews_its_own_certificate_while_it_serves(engine: Engine) {
    let mut server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 20).await;
    let identity = Identity::register(&server, "alice").await;
    let mut wire = identity.connect(&server, "dev-1").await;
    let shown = async |server: &TestServer| id(&identity.begin(server).await.answer, "auth_cert");
    let first = shown(&server).await;
    // It is for two years, and renewed in the second.
    server.clock.advance_ms(366 * DAY_MS);
    let next = eventually("it has the next certificate", async || {
        let begun = identity.begin(&server).await;
        let next = Certificate::from_pem(&id(&begun.answer, "auth_cert")).unwrap();
        let signature = id(&begun.answer, "client_nonce_signature");
        assert!(next.public_key().verifies_base64(b"Y2xpZW50", &signature), "what is shown is what signs");
        (next.to_pem() != first).then_some(next)
    })
    .await;
    let (first, now) = (Certificate::from_pem(&first).unwrap(), server.clock.now());
    assert_eq!((next.name(), next.is_valid_at(now), next.is_due_for_renewal(now)), (first.name(), true, false));
    assert!(next.not_after() > first.not_after());
    // It was recorded before any client saw it, and the one before is good to its end.
    for certificate in [&first, &next] {
        let status = server.with_token(None).get(&format!("/pki/ocsp/{}", certificate.serial())).await.ok();
        assert_eq!(status["status"], "good");
    }
    assert_eq!(wire.call("meta.ping", json!({})).await["pong"], true, "connected clients stay");
    drop(wire);
    server.restart().await;
    assert_eq!(shown(&server).await, next.to_pem());
}

/// Revokes a name as soon as a statement that begins so waits for a lock, and lets go of it.
async fn revoke_while_it_waits(server: &TestServer, identity: &Identity, mut holder: PgConnection, statement: &str) {
    let waiting = format!(
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
         AND query LIKE '{statement}%'"
    );
    eventually("it waits", async || server.store(&waiting).await.pop()).await;
    revoke(server, identity).await;
    holder.execute("COMMIT").await.unwrap();
}

/// The certificate was looked at, and is revoked before the nonce is used up.
#[tokio::test]
async fn a_login_does_not_outlive_a_concurrent_revocation() {
    let server = TestServer::start(Engine::Postgres).await;
    let identity = Identity::register(&server, "alice").await;
    let begun = identity.begin(&server).await;
    let mut holder = server.connection().await;
    holder.execute("BEGIN; LOCK TABLE mesh_spent IN EXCLUSIVE MODE").await.unwrap();
    let login = fresh(&server, "auth.aid_login2", identity.proof(&begun, "1"));
    let meanwhile = revoke_while_it_waits(&server, &identity, holder, "INSERT INTO mesh_spent");
    let (answer, ()) = tokio::join!(login, meanwhile);
    if answer["result"].is_object() {
        let (access, refresh) = (id(&answer["result"], "access_token"), id(&answer["result"], "refresh_token"));
        let again = fresh(&server, "auth.refresh_token", json!({"refresh_token": refresh})).await;
        assert_eq!(again["result"]["success"], false);
        assert!(!opens(&server, &Tokens { access, refresh, answer }).await);
    }
}

/// The token was good when it was looked at; then the name is revoked, before and after the connection is introduced.
#[tokio::test]
async fn a_connection_does_not_outlive_a_concurrent_revocation() {
    let server = TestServer::start(Engine::Postgres).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let (mut wire, tokens) = (Wire::open(&server).await, alice.login(&server).await);
    let params = introduction(&wire, &tokens, "dev-1", "", "fanout");
    let mut holder = server.connection().await;
    holder.execute("BEGIN; LOCK TABLE mesh_mailboxes IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let meanwhile = revoke_while_it_waits(&server, &alice, holder, "SELECT t.aid, t.last_seq");
    let (refused, ()) = tokio::join!(wire.refused("auth.connect", params), meanwhile);
    assert_eq!(refused.0, 4001);
    // How it takes messages is written down last.
    let (mut wire, tokens) = (Wire::open(&server).await, bobby.login(&server).await);
    let params = introduction(&wire, &tokens, "dev-1", "", "queue");
    let mut holder = server.connection().await;
    holder.execute("BEGIN; LOCK TABLE mesh_mailboxes IN EXCLUSIVE MODE").await.unwrap();
    let meanwhile = revoke_while_it_waits(&server, &bobby, holder, "INSERT INTO mesh_mailboxes");
    let (answer, ()) = tokio::join!(wire.call("auth.connect", params), meanwhile);
    assert_eq!(answer["status"], "ok");
    assert_eq!(wire.socket.closed().await, 4003);
}

async fn revoke(server: &TestServer, identity: &Identity) {
    server.post(&format!("/api/v1/identities/{}/revoke", identity.aid), &json!({})).await.ok();
}

#[both_engines]
async fn whose_certificate_was_revoked_is_out(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let tokens = identity.login(&server).await;
    let mut wire = identity.connect(&server, "dev-1").await;
    server.post(&format!("/api/v1/identities/{}/revoke", identity.aid), &json!({})).await.ok();
    let told = wire.socket.hear().await;
    assert_eq!((&told["method"], &told["params"]["code"]), (&json!("event/gateway.disconnect"), &json!(4003)));
    assert_eq!(wire.socket.closed().await, 4003);
    assert!(!opens(&server, &tokens).await);
    let refresh = fresh(&server, "auth.refresh_token", json!({"refresh_token": tokens.refresh})).await;
    assert_eq!(refresh["result"]["success"], false);
    let params = json!({"aid": identity.aid, "cert": identity.cert, "client_nonce": "bm9uY2U="});
    let refused = fresh(&server, "auth.aid_login1", params).await["error"].clone();
    assert_eq!((&refused["code"], &refused["message"]), (&json!(-32004), &json!("the certificate was revoked")));
}

#[both_engines]
async fn an_earlier_certificate_does_not_undo_a_revocation(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    server.clock.advance_ms(183 * DAY_MS);
    assert!(identity.login(&server).await.answer["new_cert"].is_string(), "it has two now");
    let begun = identity.begin(&server).await;
    let path = format!("/api/v1/identities/{}/revoke", identity.aid);
    server.post(&path, &json!({"reason": "key-compromise"})).await.ok();
    assert_eq!(second(&server, identity.proof(&begun, "1")).await, -32004, "it was begun before");
    let params = json!({"aid": identity.aid, "cert": identity.cert, "client_nonce": "bm9uY2U="});
    assert_eq!(fresh(&server, "auth.aid_login1", params).await["error"]["code"], -32004);
    let serial = Certificate::from_pem(&identity.cert).unwrap().serial().to_string();
    let status = server.with_token(None).get(&format!("/pki/ocsp/{serial}")).await.ok();
    assert_eq!(status["status"], "revoked");
    let auth = server.post("/api/v1/identities/auth.localhost.test/revoke", &json!({})).await;
    auth.refused_by(FailureKind::Forbidden, "aid-reserved");
}

#[both_engines]
async fn a_new_key_ends_what_the_old_one_began(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let (mut own, mut thief) = (identity.connect(&server, "dev-1").await, identity.connect(&server, "dev-2").await);
    let (begun, next) = (identity.begin(&server).await, Identity::stranger("alice"));
    let public_key = next.key.public_key().to_base64();
    let signature = identity.key.sign_base64(format!("{}{public_key}", begun.nonce).as_bytes());
    let rekey = json!({"request_id": begun.request_id, "nonce": begun.nonce, "public_key": public_key,
        "signature": signature});
    own.call("auth.rekey", rekey).await;
    assert_eq!(thief.socket.closed().await, 1008);
    assert_eq!(own.call("meta.ping", json!({})).await["pong"], true, "the client that changed it stays");
}

/// As when a server dies between writing down that a certificate is revoked and ending its logins.
#[both_engines]
async fn a_login_ends_with_its_certificate_even_if_another_program_revokes_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let (tokens, other) = (identity.login(&server).await, identity.login(&server).await);
    let mut wire = Wire::open(&server).await;
    assert!(opens(&server, &tokens).await);
    let serial = Certificate::from_pem(&identity.cert).unwrap().serial();
    let revoked = format!(
        "INSERT INTO mesh_certificates (number, operation, aid, serial, revoked_serial, reason, created_at) \
         SELECT MAX(number) + 1, 'revoke', '{}', '{serial}', '{serial}', 'unspecified', 1 FROM mesh_certificates",
        identity.aid
    );
    server.store(&revoked).await;
    let params = introduction(&wire, &tokens, "dev-1", "", "fanout");
    assert_eq!(wire.ask("auth.connect", params).await["error"]["code"], 4001);
    let refresh = fresh(&server, "auth.refresh_token", json!({"refresh_token": other.refresh})).await;
    assert_eq!(refresh["result"]["success"], false);
    assert_eq!(server.store("SELECT login_id FROM mesh_logins").await.len(), 2, "nobody came to delete them");
}

/// The name is revoked at one server, and its connection is to another.
#[tokio::test]
async fn a_revocation_reaches_the_connections_of_other_servers() {
    let server = TestServer::start(Engine::Postgres).await;
    let other = server.of_one_mesh().await;
    let identity = Identity::register(&server, "alice").await;
    let mut wire = identity.connect(&other, "dev-1").await;
    server.post(&format!("/api/v1/identities/{}/revoke", identity.aid), &json!({})).await.ok();
    assert_eq!(wire.socket.hear().await["method"], "event/gateway.disconnect");
    assert_eq!(wire.socket.closed().await, 4003);
}

/// Only Postgres lets a test hold up a write that has begun.
#[tokio::test]
async fn an_operator_who_hangs_up_leaves_nothing_half_revoked() {
    let server = TestServer::start(Engine::Postgres).await;
    let identity = Identity::register(&server, "alice").await;
    identity.login(&server).await;
    server.store(&format!("INSERT INTO mesh_prekeys VALUES ('{}', 'dev-1', '{{}}', 1)", identity.aid)).await;
    let mut holder = server.connection().await;
    holder.execute("BEGIN; LOCK TABLE mesh_logins IN EXCLUSIVE MODE").await.unwrap();
    let request = format!(
        "POST /api/v1/identities/{}/revoke HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}",
        identity.aid,
        server.token().unwrap()
    );
    let mut operator = TcpStream::connect(server.address()).await.unwrap();
    operator.write_all(request.as_bytes()).await.unwrap();
    let waiting = "SELECT 'waits' FROM pg_locks WHERE NOT granted AND relation = 'mesh_logins'::regclass";
    eventually("its logins are about to be cleared away", async || server.store(waiting).await.pop()).await;
    drop(operator);
    for _ in 0..20 {
        server.get("/health").await.with_status(200);
    }
    holder.execute("COMMIT").await.unwrap();
    let left = async || server.store("SELECT aid FROM mesh_logins UNION ALL SELECT aid FROM mesh_prekeys").await;
    eventually("nothing is left of it", async || left().await.is_empty().then_some(())).await;
}

/// A thief changes a stolen key at another server while the operator revokes the name.
#[tokio::test]
async fn a_revocation_is_not_outrun_by_a_change_of_key() {
    let server = TestServer::start(Engine::Postgres).await;
    let identity = Identity::register(&server, "alice").await;
    let stolen = Certificate::from_pem(&identity.cert).unwrap().serial();
    let mut thief = server.connection().await;
    let changed = format!(
        "INSERT INTO mesh_certificates (number, operation, aid, serial, fingerprint, certificate, ends_at, \
         revoked_serial, reason, created_at) SELECT MAX(number) + 1, 'rekey', '{}', 'abc', 'sha256:abc', 'PEM', 1, \
         '{stolen}', 'superseded', 1 FROM mesh_certificates",
        identity.aid
    );
    thief.execute("BEGIN").await.unwrap();
    thief.execute(AssertSqlSafe(changed)).await.unwrap();
    let path = format!("/api/v1/identities/{}/revoke", identity.aid);
    let (revoking, reason) = (server.with_token(server.token()), json!({"reason": "key-compromise"}));
    let revoking = tokio::spawn(async move { revoking.post(&path, &reason).await.ok() });
    // It has read that the stolen certificate is the newest, and waits for the number that the thief has taken.
    let waiting = "SELECT 'waits' FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND pid IN \
        (SELECT pid FROM pg_stat_activity WHERE datname = current_database())";
    eventually("it is being revoked", async || server.store(waiting).await.pop()).await;
    thief.execute("COMMIT").await.unwrap();
    let revoked = revoking.await.unwrap();
    assert_eq!((&revoked["serial"], &revoked["revocationReason"]), (&json!("abc"), &json!("key-compromise")));
    assert!(revoked["revokedAt"].is_string(), "{revoked}");
}

#[both_engines]
async fn a_login_survives_a_restart_of_the_server(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let (tokens, begun) = (identity.login(&server).await, identity.begin(&server).await);
    let chain = server.with_token(None).get("/pki/chain").await.text;
    server.restart().await;
    assert_eq!(server.with_token(None).get("/pki/chain").await.text, chain, "the keys are the same");
    assert!(opens(&server, &tokens).await);
    assert_eq!(second(&server, identity.proof(&begun, "1")).await, 0, "so is what was begun");
}
