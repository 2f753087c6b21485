//! Who gets a name: one key each, from this domain, by invitation where that is asked for.

use futures_util::future::join_all;
use ostler_crypto::certificates::{Certificate, Chain};
use ostler_mesh::config::{MeshSection, Registration};
use ostler_protocol::FailureKind;
use ostler_server::clock::Clock;
use serde_json::{Value, json};

use crate::harness::{Engine, Identity, TestServer, Wire, both_engines, fresh, id};

#[both_engines]
async fn a_name_is_given_once(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::stranger("alice");
    let answer = fresh(&server, "auth.create_aid", identity.registration()).await["result"].clone();
    assert_eq!((&answer["aid"], &answer["curve"]), (&json!(identity.aid), &json!("P-256")));
    let chain = server.with_token(None).get("/pki/chain").await.text;
    let authorities = Certificate::list_from_pem(&chain).unwrap();
    assert_eq!(authorities[0].to_pem(), id(&answer, "ca_cert"));
    let root = authorities.last().unwrap().clone();
    let chain = Chain::verify(authorities, &[root], server.clock.now()).unwrap();
    let certificate = Certificate::from_pem(&id(&answer, "cert")).unwrap();
    let peer = chain.verify_identity(certificate, &identity.aid, server.clock.now()).unwrap();
    assert_eq!(*peer.certificate().public_key(), identity.key.public_key());
    // Again, and by another client: the name is taken. A client that was cut off checks whether it was itself.
    for other in [identity.registration(), Identity::stranger("alice").registration()] {
        let error = fresh(&server, "auth.create_aid", other).await["error"].clone();
        assert_eq!(error["code"], -32009, "{error}");
        assert!(id(&error, "message").contains("already exists"), "{error}");
    }
    assert_eq!(server.with_token(None).get(&format!("/pki/cert/{}", identity.aid)).await.text, id(&answer, "cert"));
}

#[both_engines]
async fn names_and_keys_that_cannot_be_are_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut wire = Wire::open(&server).await;
    let good = Identity::stranger("alice").registration();
    let mut with = async |field: &str, value: Value| {
        let mut params = good.clone();
        params[field] = value;
        wire.refused("auth.create_aid", params).await.0
    };
    assert_eq!(with("aid", json!("alice.elsewhere.test")).await, -32602);
    assert_eq!(with("aid", json!("Alice.localhost.test")).await, -32602);
    assert_eq!(with("aid", json!("group.localhost.test")).await, -32004);
    assert_eq!(with("aid", json!("auth.localhost.test")).await, -32004);
    assert_eq!(with("aid", json!("mail.localhost.test")).await, -32004, "the operator gives it");
    assert_eq!(with("aid", json!("bob.localhost.test")).await, -32602, "three letters are a peer's name only");
    assert_eq!(with("aid", json!(format!("{}.localhost.test", "b".repeat(65)))).await, -32602);
    assert_eq!(with("curve", json!("P-384")).await, -32602);
    assert_eq!(with("public_key", json!("AAAA")).await, -32602);
    assert_eq!(with("public_key", Value::Null).await, -32602);
}

#[both_engines]
async fn at_once_only_one_gets_a_name(engine: Engine) {
    let server = TestServer::start(engine).await;
    let strangers: Vec<_> = (0..8).map(|_| Identity::stranger("alice").registration()).collect();
    let answers = join_all(strangers.into_iter().map(|one| fresh(&server, "auth.create_aid", one)));
    let answers = answers.await;
    assert_eq!(answers.iter().filter(|answer| answer["result"].is_object()).count(), 1, "{answers:?}");
}

#[both_engines]
async fn names_are_given_out_slowly(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|mesh: &mut MeshSection| mesh.registrations_per_hour_total_max = 2)
    })
    .await;
    for name in ["alice", "bobby"] {
        Identity::register(&server, name).await;
    }
    let registration = Identity::stranger("carol").registration();
    let refused = fresh(&server, "auth.create_aid", registration.clone()).await["error"].clone();
    assert_eq!((&refused["code"], &refused["data"]["rule"]), (&json!(-32029), &json!("mesh-registrations-total")));
    server.clock.advance_ms(refused["data"]["retryAfterMs"].as_i64().unwrap());
    assert!(fresh(&server, "auth.create_aid", registration).await["result"].is_object());
}

#[both_engines]
async fn an_invitation_is_good_for_one_name(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|mesh: &mut MeshSection| mesh.registration = Registration::Invite)
    })
    .await;
    let mut wire = Wire::open(&server).await;
    let mut register = async |name: &str, invite: Option<&str>| {
        let mut params = Identity::stranger(name).registration();
        params["invite"] = json!(invite);
        wire.ask("auth.create_aid", params).await["error"]["code"].as_i64()
    };
    assert_eq!(register("alice", None).await, Some(-32004));
    assert_eq!(register("alice", Some("00")).await, Some(-32004));
    let invite =
        async |body: Value| id(&server.post("/api/v1/identities/invites", &body).await.with_status(201), "invite");
    let any = invite(json!({})).await;
    assert_eq!(register("alice", Some(&any)).await, None);
    assert_eq!(register("bobby", Some(&any)).await, Some(-32004), "it was used");
    let named = invite(json!({"aid": "bobby.localhost.test", "expiresInMs": 60_000})).await;
    assert_eq!(register("carol", Some(&named)).await, Some(-32004), "it is for another name");
    assert_eq!(register("bobby", Some(&named)).await, None);
    let late = invite(json!({"expiresInMs": 60_000})).await;
    server.clock.advance_ms(60_001);
    assert_eq!(register("carol", Some(&late)).await, Some(-32004));
    // Whom the operator has certified needs none: the published client finds its own key there.
    let carol = Identity::stranger("carol");
    let body = json!({"aid": carol.aid, "publicKey": carol.key.public_key().to_base64()});
    server.post("/api/v1/identities", &body).await.with_status(201);
    assert_eq!(register("carol", None).await, Some(-32009));
}

/// Whatever comes between: the invitation is used up together with the name, or not at all.
#[both_engines]
async fn an_invitation_that_gave_no_name_is_good_still(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|mesh: &mut MeshSection| mesh.registration = Registration::Invite)
    })
    .await;
    let invite = async || {
        let made = server.post("/api/v1/identities/invites", &json!({})).await.with_status(201);
        id(&made, "invite")
    };
    let register = async |name: &str, invite: &str| {
        let mut params = Identity::stranger(name).registration();
        params["invite"] = json!(invite);
        fresh(&server, "auth.create_aid", params).await["error"]["code"].as_i64()
    };
    // The store takes no new names for a while.
    let (close, open) = match engine {
        Engine::Sqlite => (
            "CREATE TRIGGER closed BEFORE INSERT ON mesh_certificates BEGIN SELECT RAISE(ABORT, 'closed'); END",
            "DROP TRIGGER closed",
        ),
        Engine::Postgres => (
            "ALTER TABLE mesh_certificates ADD CONSTRAINT closed CHECK (aid <> 'alice.localhost.test')",
            "ALTER TABLE mesh_certificates DROP CONSTRAINT closed",
        ),
    };
    let one = invite().await;
    server.store(close).await;
    assert!(register("alice", &one).await.is_some());
    server.store(open).await;
    assert_eq!(register("alice", &one).await, None);
    assert_eq!(register("bobby", &one).await, Some(-32004), "now it was used");
    // Of several who want a name at once, those who do not get it have their invitations still; an invitation that several
    // show at once gives one name.
    let two = [invite().await, invite().await];
    let tried = join_all(two.iter().map(|one| register("carol", one))).await;
    assert_eq!(tried.iter().filter(|code| code.is_none()).count(), 1, "{tried:?}");
    for (invite, code) in two.iter().zip(&tried) {
        assert_eq!(register("david", invite).await.is_none(), code.is_some(), "{tried:?}");
    }
    let shared = invite().await;
    let tried = join_all(["emily", "frank", "grace"].map(|name| register(name, &shared))).await;
    assert_eq!(tried.iter().filter(|code| **code == Some(-32004)).count(), 2, "{tried:?}");
}

#[both_engines]
async fn the_operator_gives_lists_and_takes_names(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::stranger("alice");
    let body = json!({"aid": identity.aid, "publicKey": identity.key.public_key().to_base64()});
    let first = server.post("/api/v1/identities", &body).await.with_status(201);
    assert_eq!(server.post("/api/v1/identities", &body).await.with_status(200), first, "the same again");
    server.clock.advance_ms(1);
    let other = Identity::stranger("alice");
    let body = json!({"aid": identity.aid, "publicKey": other.key.public_key().to_base64()});
    let second = server.post("/api/v1/identities", &body).await.with_status(201);
    assert_ne!(first["serial"], second["serial"]);
    let old = format!("/pki/cert/{}?cert_fingerprint={}", identity.aid, id(&first, "certFingerprint"));
    assert_eq!(server.with_token(None).get(&old).await.text, id(&first, "certificate"), "old versions stay");
    let page = server.get("/api/v1/identities?limit=1").await.ok();
    assert_eq!(page["identities"], json!([second]));
    let rest = server.get(&format!("/api/v1/identities?limit=9&cursor={}", id(&page, "nextCursor"))).await.ok();
    assert_eq!(rest["identities"][0]["aid"], "auth.localhost.test");
    let path = format!("/api/v1/identities/{}", identity.aid);
    let revoked = server.post(&format!("{path}/revoke"), &json!({"reason": "key-compromise"})).await.ok();
    assert_eq!(revoked["revocationReason"], "key-compromise");
    let again = server.post(&format!("{path}/revoke"), &json!({"reason": "superseded"})).await.ok();
    assert_eq!(again, revoked, "the first reason is final");
    assert_eq!(server.get(&path).await.ok(), revoked);
    server.get("/api/v1/identities/nobody.localhost.test").await.refused(FailureKind::NotFound);
    server.get("/api/v1/identities/x").await.refused(FailureKind::NotFound);
}

#[both_engines]
async fn everything_done_to_certificates_is_written_down(engine: Engine) {
    let server = TestServer::start(engine).await;
    let identity = Identity::register(&server, "alice").await;
    let body = json!({"aid": identity.aid, "publicKey": Identity::stranger("x").key.public_key().to_base64()});
    server.post("/api/v1/identities", &body).await.with_status(201);
    server.post(&format!("/api/v1/identities/{}/revoke", identity.aid), &json!({})).await.ok();
    let sql = "SELECT number || ' ' || operation || ' ' || aid || ' ' || (revoked_serial IS NOT NULL) \
               FROM mesh_certificates ORDER BY number";
    let written: Vec<String> =
        server.store(sql).await.iter().map(|row| row.replace("true", "1").replace("false", "0")).collect();
    assert_eq!(
        written,
        [
            "1 issue auth.localhost.test 0",
            "2 issue alice.localhost.test 0",
            "3 rekey alice.localhost.test 1",
            "4 revoke alice.localhost.test 1",
        ]
    );
}
