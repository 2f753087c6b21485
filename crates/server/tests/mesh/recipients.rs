//! Who receives what: services that are registered like other identities, and envelopes that only their recipient can read.

use ostler_protocol::FailureKind;
use serde_json::{Value, json};

use super::messages::{BOBBY, event, people, text};
use crate::harness::{Engine, Identity, TestServer, both_engines, id};

#[both_engines]
async fn an_envelope_of_an_unknown_kind_is_stored_and_forwarded(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let (mut alice, mut connected) = (alice.connect(&server, "desk").await, bobby.connect(&server, "desk").await);
    for (message_id, payload) in [
        ("m-1", json!({"type": "e2ee.of-tomorrow", "ciphertext": "b3BhcXVl"})),
        ("m-2", json!({"type": 7, "ciphertext": "b3BhcXVl"})),
        ("m-3", json!({"ciphertext": "b3BhcXVl"})),
    ] {
        let params = json!({"to": BOBBY, "encrypted": true, "message_id": message_id, "payload": payload});
        assert_eq!(alice.call("message.send", params).await["status"], "delivered");
        let pushed = event(&mut connected, "message.received").await;
        assert_eq!((&pushed["payload"], &pushed["encrypted"]), (&payload, &json!(true)));
        assert_eq!(pushed.get("type"), None, "the sender named no kind of envelope");
    }
    // Another device, which was away, pulls the same.
    let mut phone = bobby.connect(&server, "phone").await;
    let pulled = phone.call("message.pull", json!({})).await;
    assert_eq!(pulled["count"], 3);
    assert_eq!(pulled["messages"][0]["payload"]["type"], "e2ee.of-tomorrow");
}

#[both_engines]
async fn a_service_with_an_identity_receives_messages(engine: Engine) {
    const MAIL: &str = "mail.localhost.test";
    let server = TestServer::start(engine).await;
    let (alice, _) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    let (code, message) = alice.refused("message.send", text(MAIL, "m-0")).await;
    assert_eq!(code, -32008, "{message}");

    let mut mail = Identity::stranger("mail");
    let body = json!({"aid": mail.aid, "publicKey": mail.key.public_key().to_base64()});
    let made = server.post("/api/v1/identities", &body).await.with_status(201);
    mail.cert = id(&made, "certificate");
    assert_eq!(alice.call("message.send", text(MAIL, "m-1")).await["status"], "sent");
    let mut service = mail.connect(&server, "main").await;
    let pulled = service.call("message.pull", json!({})).await;
    assert_eq!(pulled["messages"][0]["message_id"], "m-1");
    assert_eq!(alice.call("message.send", text(MAIL, "m-2")).await["status"], "delivered");
    assert_eq!(event(&mut service, "message.received").await["message_id"], "m-2");

    // The gateway's own services have methods and no mailbox, and the operator cannot give their names away.
    for built_in in ["group", "auth", "gateway"] {
        let to = format!("{built_in}.localhost.test");
        assert_eq!(alice.refused("message.send", text(&to, "m-3")).await.0, -32602, "{to}");
        let body = json!({"aid": to, "publicKey": mail.key.public_key().to_base64()});
        server.post("/api/v1/identities", &body).await.refused_by(FailureKind::Forbidden, "aid-reserved");
    }
    server.post(&format!("/api/v1/identities/{MAIL}/revoke"), &json!({})).await.ok();
    assert_eq!(alice.refused("message.send", text(MAIL, "m-4")).await.0, -32008);
}

#[both_engines]
async fn names_of_three_letters_are_peers_without_a_registration(engine: Engine) {
    const BOB: &str = "bob.localhost.test";
    let server = TestServer::start(engine).await;
    let (alice, _) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    let online = alice.call("message.query_online", json!({"aids": [BOB]})).await;
    assert_eq!(online["online"], json!({BOB: false}));
    let found: Value = alice.call("message.e2ee.get_prekey", json!({"aid": BOB})).await;
    assert_eq!(found["found"], false);
    assert_eq!(alice.refused("message.send", text(BOB, "m")).await.0, -32008);
    let body = json!({"aid": BOB, "publicKey": Identity::stranger("bob").key.public_key().to_base64()});
    server.post("/api/v1/identities", &body).await.refused_by(FailureKind::SchemaInvalid, "aid-length");
}
