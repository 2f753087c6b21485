//! Messages between identities over the wire: pushed, pulled, acknowledged, recalled; to several devices, to one consumer
//! of several, and across servers.

use ostler_crypto::{
    certificates::Certificate, envelope::EnvelopeIdentity, keys::Curve, keys::PrivateKey, prekeys::Prekey,
};
use ostler_server::clock::fill;
use serde_json::{Value, json};

use crate::harness::{Engine, Identity, TestServer, Wire, both_engines, eventually, introduction};

pub(crate) const ALICE: &str = "alice.localhost.test";
pub(crate) const BOBBY: &str = "bobby.localhost.test";

pub(crate) async fn people(server: &TestServer) -> (Identity, Identity) {
    (Identity::register(server, "alice").await, Identity::register(server, "bobby").await)
}

pub(crate) fn text(to: &str, id: &str) -> Value {
    json!({"to": to, "payload": {"type": "text", "text": id}, "message_id": id})
}

/// The next event of this kind.
pub(crate) async fn event(wire: &mut Wire, name: &str) -> Value {
    loop {
        let heard = wire.socket.hear().await;
        assert!(heard.get("id").is_none(), "an event has no id: {heard}");
        if heard["method"] == format!("event/{name}") {
            return heard["params"].clone();
        }
    }
}

pub(crate) async fn connect_as(identity: &Identity, server: &TestServer, device: &str, delivery_mode: Value) -> Wire {
    let tokens = identity.login(server).await;
    let mut wire = Wire::open(server).await;
    let mut params = introduction(&wire, &tokens, device, "", "fanout");
    params["delivery_mode"] = delivery_mode;
    wire.call("auth.connect", params).await;
    wire
}

pub(crate) fn numbers(pulled: &Value) -> Vec<i64> {
    pulled["messages"].as_array().unwrap().iter().map(|message| message["seq"].as_i64().unwrap()).collect()
}

#[both_engines]
async fn a_message_is_pushed_pulled_and_acknowledged(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let (mut alice, mut bobby) = (alice.connect(&server, "desk").await, bobby.connect(&server, "desk").await);
    let mut params = text(BOBBY, "m-1");
    params["timestamp"] = json!(7);
    params["delivery_mode"] = json!({"mode": "queue"});
    let sent = alice.call("message.send", params).await;
    assert_eq!(
        (&sent["seq"], &sent["status"], &sent["delivery_mode"]),
        (&json!(1), &json!("delivered"), &json!("fanout"))
    );
    assert!(sent["timestamp"].as_i64().unwrap() > 1_000_000_000_000, "the server's time, in milliseconds");
    let pushed = event(&mut bobby, "message.received").await;
    assert_eq!(
        pushed,
        json!({
            "message_id": "m-1", "seq": 1, "from": ALICE, "to": BOBBY, "timestamp": sent["timestamp"],
            "payload": {"type": "text", "text": "m-1"}, "delivery_mode": "fanout", "encrypted": false, "direction": "inbound",
        })
    );
    for _ in 0..2 {
        let pulled = bobby.call("message.pull", json!({})).await;
        assert_eq!(pulled["messages"], json!([pushed]));
        assert_eq!(
            (&pulled["count"], &pulled["latest_seq"], &pulled["server_ack_seq"]),
            (&json!(1), &json!(1), &json!(0))
        );
        assert_eq!(pulled["ephemeral_earliest_available_seq"], Value::Null);
    }
    let acked = bobby.call("message.ack", json!({"seq": 1, "device_id": "desk"})).await;
    assert_eq!(acked, json!({"success": true, "ack_seq": 1}));
    let told = event(&mut alice, "message.ack").await;
    assert_eq!(
        (&told["to"], &told["device_id"], &told["slot_id"], &told["ack_seq"]),
        (&json!(BOBBY), &json!("desk"), &json!(""), &json!(1))
    );
    assert_eq!(bobby.call("message.ack", json!({"seq": 0})).await["ack_seq"], 1);
    assert_eq!(bobby.call("message.pull", json!({"after_seq": 1, "slot_id": ""})).await["server_ack_seq"], 1);
}

#[both_engines]
async fn a_recipient_that_was_away_finds_its_messages(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut wire = alice.connect(&server, "desk").await;
    for id in ["m-1", "m-2", "m-3"] {
        assert_eq!(wire.call("message.send", text(BOBBY, id)).await["status"], "sent");
    }
    let again = wire.call("message.send", text(BOBBY, "m-2")).await;
    assert_eq!((&again["seq"], &again["status"]), (&json!(2), &json!("duplicate")));
    let (code, message) = wire.refused("message.send", text(ALICE, "m-2")).await;
    assert_eq!(code, -32009, "{message}");
    server.restart().await;
    let mut bobby = bobby.connect(&server, "phone").await;
    assert_eq!(numbers(&bobby.call("message.pull", json!({"after_seq": 0, "limit": 2})).await), [1, 2]);
    assert_eq!(numbers(&bobby.call("message.pull", json!({"after_seq": 2})).await), [3]);
    let mut wire = alice.connect(&server, "desk").await;
    assert_eq!(wire.call("message.send", text(BOBBY, "m-3")).await["status"], "duplicate");
    assert_eq!(wire.call("message.send", text(BOBBY, "m-4")).await["seq"], 4);
    assert_eq!(event(&mut bobby, "message.received").await["seq"], 4);
    server.clock.advance_ms(24 * 3_600_000 + 1);
    assert_eq!(numbers(&bobby.call("message.pull", json!({})).await), Vec::<i64>::new(), "a day is over");
}

#[both_engines]
async fn a_message_to_a_revoked_name_is_rejected(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    alice.call("message.send", text(BOBBY, "m-1")).await;
    server.post(&format!("/api/v1/identities/{BOBBY}/revoke"), &json!({})).await.ok();
    for id in ["m-1", "m-2"] {
        let (code, message) = alice.refused("message.send", text(BOBBY, id)).await;
        assert_eq!((code, message), (-32008, format!("{BOBBY} was revoked")), "{id}");
    }
    // The next owner of the name receives messages.
    let body = json!({"aid": BOBBY, "publicKey": bobby.key.public_key().to_base64()});
    server.post("/api/v1/identities", &body).await.with_status(201);
    assert_eq!(alice.call("message.send", text(BOBBY, "m-2")).await["seq"], 2);
}

/// The name is revoked at one server, and its friends are connected to another.
#[tokio::test]
async fn a_message_to_a_name_that_was_revoked_at_another_server_is_rejected() {
    let server = TestServer::start(Engine::Postgres).await;
    let other = server.of_one_mesh().await;
    let (alice, _) = people(&server).await;
    let mut alice = alice.connect(&other, "desk").await;
    alice.call("message.send", text(BOBBY, "m-1")).await;
    server.post(&format!("/api/v1/identities/{BOBBY}/revoke"), &json!({})).await.ok();
    eventually("the other server hears of it", async || {
        let answer = alice.ask("message.send", text(BOBBY, "m-2")).await;
        (answer["error"]["code"] == -32008).then_some(())
    })
    .await;
}

/// As if the wake-up of the revocation was lost: the store is read again in time.
#[both_engines]
async fn a_revocation_without_a_wake_up_is_found(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, _) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    alice.call("message.send", text(BOBBY, "m-1")).await;
    let serial = format!("SELECT serial FROM mesh_certificates WHERE aid = '{BOBBY}'");
    server
        .store(&format!(
            "INSERT INTO mesh_certificates (number, operation, aid, serial, revoked_serial, reason, created_at) \
             SELECT MAX(number) + 1, 'revoke', '{BOBBY}', ({serial}), ({serial}), 'unspecified', 1 \
             FROM mesh_certificates RETURNING operation"
        ))
        .await;
    server.clock.advance_ms(30_000);
    assert_eq!(alice.refused("message.send", text(BOBBY, "m-2")).await.0, -32008);
}

#[both_engines]
async fn what_does_not_fit_is_refused_and_changes_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let (mut alice, mut bobby) = (alice.connect(&server, "desk").await, bobby.connect(&server, "desk").await);
    for (params, code) in [
        (json!({"to": BOBBY}), -32602),
        (json!({"to": BOBBY, "payload": "text"}), -32602),
        (json!({"to": "nobody.localhost.test", "payload": {}}), -32008),
        (json!({"to": "group.localhost.test", "payload": {}}), -32602),
        (json!({"to": "auth.localhost.test", "payload": {}}), -32602),
        (json!({"to": "mail.localhost.test", "payload": {}}), -32008),
        (json!({"to": "bob.localhost.test", "payload": {}}), -32008),
        (json!({"to": BOBBY, "payload": {"type": "e2ee.encrypted"}, "type": "text", "encrypted": true}), -32602),
        (json!({"to": BOBBY, "payload": {"type": "e2ee.multi_device"}}), -32602),
        (json!({"to": BOBBY, "payload": {}, "message_id": ""}), -32602),
    ] {
        assert_eq!(alice.refused("message.send", params.clone()).await.0, code, "{params}");
    }
    for (method, params) in [
        ("message.pull", json!({"device_id": "phone"})),
        ("message.pull", json!({"slot_id": "a"})),
        ("message.pull", json!({"limit": 201})),
        ("message.pull", json!({"after_seq": -1})),
        ("message.ack", json!({"seq": 1, "device_id": ""})),
        ("message.ack", json!({"seq": -1})),
        ("message.ack", json!({})),
        ("message.recall", json!({"message_ids": []})),
        ("message.query_online", json!({"aids": vec![ALICE; 101]})),
    ] {
        assert_eq!(bobby.refused(method, params.clone()).await.0, -32602, "{method} {params}");
    }
    assert_eq!(bobby.call("message.pull", json!({})).await["count"], 0);
    assert_eq!(alice.call("message.send", text(BOBBY, "m")).await["seq"], 1, "what was refused took no number");
}

#[both_engines]
async fn a_message_is_taken_back_within_two_minutes(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let (mut alice, mut bobby) = (alice.connect(&server, "desk").await, bobby.connect(&server, "desk").await);
    alice.call("message.send", text(BOBBY, "old")).await;
    bobby.call("message.send", text(ALICE, "theirs")).await;
    server.clock.advance_ms(120_001);
    for id in ["a", "b"] {
        alice.call("message.send", text(BOBBY, id)).await;
    }
    let recalled = alice.call("message.recall", json!({"message_ids": ["a"]})).await;
    assert_eq!(recalled, json!({"success": true, "accepted": 1, "recalled": 1, "errors": null}));
    let told = event(&mut bobby, "message.recalled").await;
    assert_eq!((&told["from"], &told["to"], &told["message_ids"]), (&json!(ALICE), &json!(BOBBY), &json!(["a"])));
    let refused = alice.call("message.recall", json!({"message_ids": ["a", "old", "theirs", "never"]})).await;
    assert_eq!((&refused["accepted"], &refused["recalled"]), (&json!(4), &json!(0)));
    let errors: Vec<&str> =
        refused["errors"].as_array().unwrap().iter().map(|one| one["error"].as_str().unwrap()).collect();
    assert_eq!(errors, ["already_recalled", "expired", "not_sender", "not_found"]);
    assert_eq!(numbers(&bobby.call("message.pull", json!({})).await), [1, 3]);
    assert!(
        !server
            .store("SELECT COALESCE(payload, '') FROM mesh_messages")
            .await
            .iter()
            .any(|kept| kept.contains("\"a\""))
    );
}

#[both_engines]
async fn each_device_gets_its_own_copy(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let (mut alice, mut tablet) = (alice.connect(&server, "desk").await, alice.connect(&server, "tablet").await);
    let (mut desk, mut phone) = (bobby.connect(&server, "desk").await, bobby.connect(&server, "phone").await);
    let copy = |device: &str| json!({"device_id": device, "envelope": {"type": "e2ee.encrypted", "for": device}});
    let sent = alice
        .call(
            "message.send",
            json!({
                "to": BOBBY, "type": "e2ee.multi_device", "encrypted": true, "message_id": "m",
                "payload": {"type": "e2ee.multi_device", "logical_message_id": "m",
                    "recipient_copies": [copy("desk"), copy("phone")], "self_copies": [copy("tablet")]},
            }),
        )
        .await;
    assert_eq!((&sent["seq"], &sent["status"]), (&json!(1), &json!("delivered")));
    for (wire, device) in [(&mut desk, "desk"), (&mut phone, "phone")] {
        let pushed = event(wire, "message.received").await;
        assert_eq!(pushed["payload"], json!({"type": "e2ee.encrypted", "for": device}));
        assert_eq!((&pushed["type"], &pushed["encrypted"]), (&json!("e2ee.encrypted"), &json!(true)));
        assert_eq!(
            (&pushed["direction"], &pushed["device_id"], &pushed["seq"]),
            (&json!("inbound"), &json!(device), &json!(1))
        );
        assert_eq!(wire.call("message.pull", json!({})).await["messages"], json!([pushed]));
    }
    let own = event(&mut tablet, "message.received").await;
    assert_eq!((&own["direction"], &own["from"], &own["to"]), (&json!("outbound_sync"), &json!(ALICE), &json!(BOBBY)));
    assert_eq!(own["payload"]["for"], "tablet");
    assert_eq!(alice.call("message.pull", json!({})).await["count"], 0, "the sending device has no copy");
    let mut late = bobby.connect(&server, "new").await;
    assert_eq!(late.call("message.pull", json!({})).await["count"], 0);
}

pub(crate) fn queue(routing: &str) -> Value {
    json!({"mode": "queue", "routing": routing, "affinity_ttl_ms": 0})
}

#[both_engines]
async fn a_queue_gives_each_message_to_one_consumer(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    let mut first = connect_as(&bobby, &server, "one", queue("round_robin")).await;
    let mut second = connect_as(&bobby, &server, "two", queue("round_robin")).await;
    for number in 1..=4 {
        let sent = alice.call("message.send", text(BOBBY, &format!("m-{number}"))).await;
        assert_eq!(
            (&sent["delivery_mode"], &sent["status"], &sent["seq"]),
            (&json!("queue"), &json!("delivered"), &json!(number))
        );
    }
    let mut got = vec![];
    for wire in [&mut first, &mut second] {
        let mut own = [event(wire, "message.received").await, event(wire, "message.received").await];
        own.sort_by_key(|message| message["seq"].as_i64());
        assert!(own.iter().all(|message| message["delivery_mode"] == "queue"));
        let pulled = wire.call("message.pull", json!({})).await;
        assert_eq!(pulled["messages"], json!(own), "what another took is the other's");
        assert_eq!(pulled["ephemeral_earliest_available_seq"], 1);
        got.extend(numbers(&pulled));
    }
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3, 4]);
    first.call("message.ack", json!({"seq": 4})).await;
    assert_eq!(first.call("message.pull", json!({})).await["count"], 0, "what was acknowledged is gone");
    assert_eq!(second.call("message.pull", json!({})).await["count"], 2);
    drop((first, second));
    // Without a consumer it waits for a time, and the next one gets it. After that it is dropped, and counted.
    eventually("both have gone", async || {
        let online = alice.call("message.query_online", json!({"aids": [BOBBY]})).await;
        (online["online"][BOBBY] == false).then_some(())
    })
    .await;
    assert_eq!(alice.call("message.send", text(BOBBY, "m-5")).await["status"], "sent");
    let mut third = connect_as(&bobby, &server, "three", queue("")).await;
    assert_eq!(event(&mut third, "message.received").await["seq"], 5);
    server.clock.advance_ms(300_000);
    let pulled = third.call("message.pull", json!({})).await;
    assert_eq!((&pulled["count"], &pulled["ephemeral_earliest_available_seq"]), (&json!(0), &Value::Null));
    assert_eq!(pulled["ephemeral_dropped_count"], 0, "each of them was claimed");
    drop(third);
    eventually("it has gone", async || {
        let online = alice.call("message.query_online", json!({"aids": [BOBBY]})).await;
        (online["online"][BOBBY] == false).then_some(())
    })
    .await;
    alice.call("message.send", text(BOBBY, "m-6")).await;
    server.clock.advance_ms(300_000);
    let mut fourth = connect_as(&bobby, &server, "four", queue("")).await;
    assert_eq!(fourth.call("message.pull", json!({})).await["ephemeral_dropped_count"], 1);
}

/// A consumer that has just come has its queue looked through, which races with its sender's call for each message.
#[both_engines]
async fn a_message_of_the_queue_is_delivered_whichever_task_pushed_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    let mut consumers = vec![];
    for number in 0..20 {
        let device = format!("device-{number}");
        consumers.push(connect_as(&bobby, &server, &device, queue("round_robin")).await);
        let sent = alice.call("message.send", text(BOBBY, &device)).await;
        assert_eq!(sent["status"], "delivered", "{number}");
    }
}

#[both_engines]
async fn a_sender_stays_with_its_consumer(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    let mut consumers = vec![];
    for device in ["one", "two", "three"] {
        consumers.push(connect_as(&bobby, &server, device, queue("sender_affinity")).await);
    }
    for number in 0..6 {
        alice.call("message.send", text(BOBBY, &format!("m-{number}"))).await;
    }
    let mut counts = vec![];
    for wire in &mut consumers {
        counts.push(wire.call("message.pull", json!({})).await["count"].as_i64().unwrap());
    }
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 6]);
}

#[both_engines]
async fn a_prekey_is_stored_if_its_owner_signed_it(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let signed = |identity: &Identity, id: &str, device: &str| {
        let certificate = Certificate::from_pem(&identity.cert).unwrap();
        let signer = EnvelopeIdentity::new(identity.key.clone(), certificate).unwrap();
        let key = PrivateKey::generate(Curve::P256, &mut fill);
        json!(Prekey::sign(&signer, id, &key, 1_794_700_691_728, device))
    };
    let (mut desk, mut phone) = (bobby.connect(&server, "desk").await, bobby.connect(&server, "phone").await);
    let mut wire = alice.connect(&server, "desk").await;
    let get = json!({"aid": BOBBY});
    assert_eq!(wire.call("message.e2ee.get_prekey", get.clone()).await, json!({"found": false}));
    let (first, second) = (signed(&bobby, "k-1", "desk"), signed(&bobby, "k-2", "phone"));
    assert_eq!(desk.call("message.e2ee.put_prekey", first.clone()).await["ok"], true);
    server.clock.advance_ms(1);
    assert_eq!(phone.call("message.e2ee.put_prekey", second.clone()).await["ok"], true);
    for _ in 0..2 {
        let found = wire.call("message.e2ee.get_prekey", get.clone()).await;
        assert_eq!(found, json!({"found": true, "prekey": second, "device_prekeys": [second, first]}));
    }
    let mut forged = signed(&bobby, "k-3", "desk");
    forged["created_at"] = json!(7);
    assert_eq!(desk.refused("message.e2ee.put_prekey", forged).await.0, -32004);
    assert_eq!(desk.refused("message.e2ee.put_prekey", signed(&bobby, "k-4", "phone")).await.0, -32602);
    assert_eq!(desk.refused("message.e2ee.put_prekey", signed(&alice, "k-5", "desk")).await.0, -32008);
    server.post(&format!("/api/v1/identities/{BOBBY}/revoke"), &json!({})).await.ok();
    assert_eq!(wire.call("message.e2ee.get_prekey", get).await, json!({"found": false}), "nobody seals for them");
}

#[both_engines]
async fn who_is_connected_is_online(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut alice = alice.connect(&server, "").await;
    let ask = json!({"aids": [ALICE, BOBBY, "nobody.localhost.test"]});
    let online = alice.call("message.query_online", ask.clone()).await;
    assert_eq!(online, json!({"online": {ALICE: true, BOBBY: false, "nobody.localhost.test": false}}));
    // Names of elsewhere, and what is none.
    let foreign = json!({"aids": ["alice.aid.pub", "bob.example.com", "x", "", ALICE]});
    let online = alice.call("message.query_online", foreign).await["online"].clone();
    assert_eq!(online, json!({"alice.aid.pub": false, "bob.example.com": false, "x": false, "": false, ALICE: true}));
    let _bobby = bobby.connect(&server, "desk").await;
    assert_eq!(alice.call("message.query_online", ask).await["online"][BOBBY], true);
}

#[both_engines]
async fn servers_deliver_to_each_others_connections(engine: Engine) {
    if engine == Engine::Sqlite {
        // One process has one store.
        return;
    }
    let here = TestServer::start(engine).await;
    let there = here.of_one_mesh().await;
    let (alice, bobby) = people(&here).await;
    let (mut alice, mut bobby) = (alice.connect(&here, "desk").await, bobby.connect(&there, "desk").await);
    let mut expected = vec![];
    for number in 1..=20 {
        let sent = alice.call("message.send", text(BOBBY, &format!("m-{number}"))).await;
        expected.push(sent["seq"].as_i64().unwrap());
    }
    let mut pushed = vec![];
    while pushed.len() < 20 {
        pushed.push(event(&mut bobby, "message.received").await["seq"].as_i64().unwrap());
    }
    assert_eq!(pushed, expected, "each once, in order");
    bobby.call("message.ack", json!({"seq": 20})).await;
    assert_eq!(event(&mut alice, "message.ack").await["ack_seq"], 20);
    alice.call("message.recall", json!({"message_ids": ["m-7"]})).await;
    assert_eq!(event(&mut bobby, "message.recalled").await["message_ids"], json!(["m-7"]));
    eventually("who is connected there is known here", async || {
        let online = alice.call("message.query_online", json!({"aids": [BOBBY]})).await;
        (online["online"][BOBBY] == true).then_some(())
    })
    .await;
}

#[both_engines]
async fn a_message_that_does_not_fit_a_wake_up_is_pushed_as_well(engine: Engine) {
    if engine == Engine::Sqlite {
        // One process has one store.
        return;
    }
    let here = TestServer::start(engine).await;
    let there = here.of_one_mesh().await;
    let (alice, bobby) = people(&here).await;
    let (mut alice, mut bobby) = (alice.connect(&here, "desk").await, bobby.connect(&there, "desk").await);
    let ids: Vec<String> = (0..100).map(|number| format!("{number:-<128}")).collect();
    for id in &ids {
        alice.call("message.send", text(BOBBY, id)).await;
    }
    assert_eq!(alice.call("message.recall", json!({"message_ids": ids})).await["recalled"], 100);
    assert_eq!(event(&mut bobby, "message.recalled").await["message_ids"], json!(ids));
    // An acknowledgement that covers the messages of many tells each of them.
    let mut senders = vec![];
    for number in 0..48 {
        let mut sender = Identity::register(&here, &format!("sender-{number}")).await.connect(&here, "desk").await;
        sender.call("message.send", text(BOBBY, "hello")).await;
        senders.push(sender);
    }
    let pulled = bobby.call("message.pull", json!({"limit": 200})).await;
    bobby.call("message.ack", json!({"seq": pulled["latest_seq"]})).await;
    for sender in &mut senders {
        assert_eq!(event(sender, "message.ack").await["ack_seq"], pulled["latest_seq"]);
    }
}
