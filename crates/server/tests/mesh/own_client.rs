//! Our own client against a whole server: whom it believes, and what it can still open.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use ostler_client::mesh::{
    Ambient, CertificateTrust, GatewayClient, OpenError, OpenedMessage, RegisterError, Sealer, StoredIdentity,
    is_slot_in_use,
};
use ostler_crypto::certificates::Certificate;
use ostler_protocol::{Failure, FailureKind, mesh::Aid};
use ostler_server::clock::fill;
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, eventually};

/// How far both sides' clocks are behind this machine's. Each test has a process of its own.
static DAYS_BEHIND: AtomicI64 = AtomicI64::new(0);

#[expect(
    clippy::disallowed_methods,
    reason = "the client's clock must go with the server's, which is set by the machine's"
)]
fn now() -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(24 * DAYS_BEHIND.load(Ordering::SeqCst))
}

const AMBIENT: Ambient = Ambient { now, fill };

async fn start(engine: Engine) -> TestServer {
    let server = TestServer::start(engine).await;
    set_clocks(&server, 0);
    server
}

fn set_clocks(server: &TestServer, days_behind: i64) {
    DAYS_BEHIND.store(days_behind, Ordering::SeqCst);
    server.clock.catch_up(days_behind);
}

fn aid(name: &str) -> Aid {
    format!("{name}.localhost.test").parse().unwrap()
}

async fn gateway(server: &TestServer) -> GatewayClient {
    let base = format!("http://{}", server.address());
    GatewayClient::new(&base, &GatewayClient::fetch_root(&base).await.unwrap(), AMBIENT).unwrap()
}

async fn register(server: &TestServer, name: &str) -> StoredIdentity {
    let mut member = StoredIdentity::new(aid(name), "", String::new(), AMBIENT);
    let certificate = member.register(&gateway(server).await, None).await.unwrap();
    member.adopt(&certificate);
    member
}

/// Connects and publishes a prekey, as a receiving client does.
async fn enter(server: &TestServer, member: &mut StoredIdentity) -> Sealer {
    let gateway = gateway(server).await;
    // The connection before may be closing.
    let mut sealer = eventually("the place is free", async || match member.enter(&gateway, "inbox").await {
        Err(failure) if is_slot_in_use(&failure) => None,
        entered => Some(entered.unwrap()),
    })
    .await;
    member.adopt(sealer.certificate());
    if sealer.needs_prekey().await.unwrap() {
        let own = sealer.new_prekey();
        member.keep_prekey(&own, AMBIENT);
        sealer.put_prekey(&own).await.unwrap();
        assert!(!sealer.needs_prekey().await.unwrap(), "one is enough");
    }
    sealer
}

fn texts(opened: &[OpenedMessage]) -> Vec<&Value> {
    opened.iter().map(|one| &one.contents.as_ref().unwrap()["text"]).collect()
}

fn say(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[both_engines]
async fn what_was_sealed_for_the_certificate_before_still_opens(engine: Engine) {
    let server = start(engine).await;
    set_clocks(&server, 183);
    let (mut alice, mut bobby) = (register(&server, "alice").await, register(&server, "bobby").await);
    // A day before half of its life.
    set_clocks(&server, 1);
    enter(&server, &mut bobby).await.close().await;
    let first = bobby.certificate().unwrap();
    set_clocks(&server, 0);
    enter(&server, &mut alice).await.send(&aid("bobby"), &say("for the old one")).await.unwrap();
    let mut sealer = enter(&server, &mut bobby).await;
    assert_ne!(*sealer.certificate(), first, "it was renewed");
    assert_eq!(texts(&sealer.pull(0).await.unwrap().0), ["for the old one"]);
    sealer.close().await;
    // The stored messages are the same for the next client.
    let kept = serde_json::to_string(&bobby).unwrap();
    let mut bobby: StoredIdentity = serde_json::from_str(&kept).unwrap();
    assert_eq!(texts(&enter(&server, &mut bobby).await.pull(0).await.unwrap().0), ["for the old one"]);
}

/// Writes so many rows into the log of certificates; all but the number is SQL, of a number `i`.
async fn log(server: &TestServer, first: u32, count: u32, rest: &str) {
    let numbers = format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})");
    let columns =
        "(number, operation, aid, serial, fingerprint, certificate, ends_at, revoked_serial, reason, created_at)";
    let sql = format!("{numbers} INSERT INTO mesh_certificates {columns} SELECT {first} + i, {rest} FROM n");
    server.store(&sql).await;
}

fn revocation(serial: &str, name: &str) -> String {
    let at = now().as_microsecond();
    format!("'revoke', {name}, {serial}, NULL, NULL, CAST(NULL AS BIGINT), {serial}, 'unspecified', {at}")
}

fn refusal(outcome: Result<Sealer, Failure>) -> Failure {
    outcome.err().expect("it is refused")
}

#[both_engines]
async fn a_client_does_not_log_in_at_an_auth_service_whose_certificate_was_revoked(engine: Engine) {
    let server = start(engine).await;
    let alice = register(&server, "alice").await;
    alice.enter(&gateway(&server).await, "").await.unwrap().close().await;
    let file = server.config.server.data_dir.clone().unwrap().join("pki/auth-localhost.test.crt");
    let auth = Certificate::from_pem(&std::fs::read_to_string(file).unwrap()).unwrap();
    log(&server, 1_000_000, 1, &revocation(&format!("'{}'", auth.serial()), "'auth.localhost.test'")).await;
    let refused = refusal(alice.enter(&gateway(&server).await, "").await);
    assert_eq!(refused.rule_name(), Some("mesh-not-believed"));
    assert!(refused.message.contains("auth.localhost.test was revoked"), "{refused}");
}

#[both_engines]
async fn a_long_list_of_revocations_is_read(engine: Engine) {
    let server = start(engine).await;
    let bobby = register(&server, "bobby").await;
    let serial = "'100000000000000000000000' || CAST(1000000 + i AS TEXT)";
    let name = "'name-' || CAST(i AS TEXT) || '.localhost.test'";
    let (at, until) = (now().as_microsecond(), (now() + SignedDuration::from_hours(24)).as_microsecond());
    let made = format!("'issue', {name}, {serial}, {serial}, 'PEM', {until}, NULL, NULL, {at}");
    log(&server, 1_000_000, 30_000, &made).await;
    log(&server, 2_000_000, 30_000, &revocation(serial, name)).await;
    let list = server.with_token(None).get("/pki/crl.json").await.text;
    assert!(list.len() > 1024 * 1024, "{}", list.len());
    let standing = gateway(&server).await.check_certificate(&bobby.aid, None).await.unwrap();
    assert!(matches!(standing, CertificateTrust::Trusted(_)));
}

#[both_engines]
async fn a_device_that_is_not_believed_keeps_nothing_from_the_others(engine: Engine) {
    let server = start(engine).await;
    let mut alice = register(&server, "alice").await;
    let mut lost = register(&server, "bobby").await;
    enter(&server, &mut lost).await.close().await;
    let stale = server.store("SELECT prekey FROM mesh_prekeys").await.remove(0);
    let was_lost = lost.certificate().unwrap();
    // The name gets another key, and with it everything of the old one ends.
    let mut bobby = StoredIdentity::new(aid("bobby"), "", String::new(), AMBIENT);
    let asked = json!({"aid": bobby.aid, "publicKey": bobby.public_key()});
    server.post("/api/v1/identities", &asked).await.ok();
    let certificate = bobby.register(&gateway(&server).await, None).await.unwrap();
    bobby.adopt(&certificate);
    enter(&server, &mut bobby).await.close().await;
    // A gateway that still hands out what is of no use any more.
    let now_us = now().as_microsecond();
    let put = format!("INSERT INTO mesh_prekeys VALUES ('bobby.localhost.test', 'lost', '{stale}', {now_us})");
    server.store(&put).await;
    let gateway = gateway(&server).await;
    let standing = gateway.check_certificate(&bobby.aid, Some(&was_lost.fingerprint())).await.unwrap();
    assert!(matches!(standing, CertificateTrust::Untrusted { .. }));
    let mut sender = enter(&server, &mut alice).await;
    sender.send(&bobby.aid, &say("to the one that is left")).await.unwrap();
    assert_eq!(texts(&enter(&server, &mut bobby).await.pull(0).await.unwrap().0), ["to the one that is left"]);
    // When none is left, nothing is sent.
    server.store("DELETE FROM mesh_prekeys WHERE aid = 'bobby.localhost.test' AND device_id <> 'lost'").await;
    let refused = sender.send(&bobby.aid, &say("to nobody")).await.unwrap_err();
    assert_eq!(refused.rule_name(), Some("mesh-not-believed"), "{refused}");
    assert_eq!(sender.send(&aid("nobody"), &say("?")).await.unwrap_err().rule_name(), Some("aid-unknown"));
}

#[both_engines]
async fn what_cannot_be_checked_now_is_not_shut_for_good(engine: Engine) {
    let server = start(engine).await;
    let (mut alice, mut bobby) = (register(&server, "alice").await, register(&server, "bobby").await);
    enter(&server, &mut bobby).await.close().await;
    enter(&server, &mut alice).await.send(&bobby.aid, &say("once more")).await.unwrap();
    let mut sealer = enter(&server, &mut bobby).await;
    // Ours is two days behind: the list of revocations that the gateway shows is not of this time.
    DAYS_BEHIND.store(2, Ordering::SeqCst);
    let (opened, _) = sealer.pull(0).await.unwrap();
    assert!(matches!(opened[0].contents, Err(OpenError::Temporary(_))), "{opened:?}");
    DAYS_BEHIND.store(0, Ordering::SeqCst);
    assert_eq!(texts(&sealer.pull(0).await.unwrap().0), ["once more"]);
}

#[both_engines]
async fn a_key_whose_name_may_be_registered_is_not_given_up(engine: Engine) {
    let server = start(engine).await;
    let member = |name: &str| StoredIdentity::new(aid(name), "", String::new(), AMBIENT);
    let gateway = async || gateway(&server).await;
    let alice = member("alice");
    // A clock that is a day behind the server's.
    let (early, right) = (gateway().await, gateway().await);
    DAYS_BEHIND.store(1, Ordering::SeqCst);
    match alice.register(&early, None).await {
        Err(RegisterError::Unsettled(failure)) => assert_eq!(failure.rule_name(), Some("mesh-clock"), "{failure}"),
        other => panic!("{other:?}"),
    }
    DAYS_BEHIND.store(0, Ordering::SeqCst);
    assert_eq!(alice.register(&right, None).await.unwrap().name(), "alice.localhost.test", "it was registered");
    // A client with another key, or with a request that is rejected, stores nothing.
    for (member, kind) in [(member("alice"), FailureKind::StateConflict), (member("auth"), FailureKind::Forbidden)] {
        match member.register(&right, None).await {
            Err(RegisterError::Refused(failure)) => assert_eq!(failure.kind, kind, "{failure}"),
            other => panic!("{other:?}"),
        }
    }
}

#[both_engines]
async fn a_message_to_oneself_arrives_once_at_each_device(engine: Engine) {
    let server = start(engine).await;
    let mut first = register(&server, "alice").await;
    // The same name and key, on another device.
    let mut kept = serde_json::to_value(&first).unwrap();
    kept["device_id"] = json!("another-device");
    let mut second: StoredIdentity = serde_json::from_value(kept).unwrap();
    let mut here = enter(&server, &mut first).await;
    let mut there = enter(&server, &mut second).await;
    here.send(&aid("alice"), &say("a note")).await.unwrap();
    for device in [&mut here, &mut there] {
        let (came, _) = device.pull(0).await.unwrap();
        assert_eq!(texts(&came), ["a note"]);
    }
}
