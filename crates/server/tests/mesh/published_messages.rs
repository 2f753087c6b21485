//! The published client `aun-core` 0.2.10, unmodified, talks through a whole server: with another of its kind, and with ours.
//! What it sends is sealed; that it reads what came shows that it could open it.

use jiff::Timestamp;
use ostler_client::mesh::{Ambient, GatewayClient, IdentityKeys, Sealer, SealerEvent};
use ostler_crypto::keys::{Curve, PrivateKey};
use ostler_protocol::mesh::{
    Aid,
    connections::{DeliveryMode, DeviceSlot},
    messages::PAYLOAD_BYTES_MAX,
};
use ostler_server::clock::fill;
use serde_json::{Value, json};

use super::published_client::{Published, start};
use crate::harness::{Engine, TestServer, both_engines, eventually, one_engine};

const ALICE: &str = "alice.localhost.test";
const BOBBY: &str = "bobby.localhost.test";

/// Registers, logs in and connects, and waits until it has left a prekey.
async fn enter(server: &TestServer, published: &mut Published, who: &str) {
    published.add(server, who).await;
    published.enter(who).await;
    connect(server, published, who).await;
}

async fn connect(server: &TestServer, published: &mut Published, who: &str) {
    let before = prekeys(server).await;
    published.ok(json!({"do": "connect", "who": who})).await;
    eventually("it has left a prekey", async || (prekeys(server).await != before).then_some(())).await;
}

async fn prekeys(server: &TestServer) -> Vec<String> {
    server.store("SELECT aid || device_id || prekey FROM mesh_prekeys ORDER BY aid, device_id").await
}

/// The next event of this name.
async fn event(published: &mut Published, who: &str, name: &str) -> Value {
    loop {
        let told = published.ok(json!({"do": "event", "who": who})).await;
        assert_ne!(told["ok"]["event"], "message.undecryptable", "{told}");
        if told["ok"]["event"] == name {
            return told["ok"]["data"].clone();
        }
    }
}

fn call(who: &str, method: &str, params: Value) -> Value {
    json!({"do": "call", "who": who, "method": method, "params": params})
}

fn say(who: &str, to: &str, text: &str) -> Value {
    call(who, "message.send", json!({"to": to, "payload": {"type": "text", "text": text}}))
}

#[one_engine]
async fn two_of_them_talk_sealed(engine: Engine) {
    let (server, mut published) = start(engine).await;
    for who in ["alice", "bobby"] {
        enter(&server, &mut published, who).await;
    }
    for (from, to, name, text) in [("alice", BOBBY, "bobby", "hello 你好"), ("bobby", ALICE, "alice", "and back")] {
        let sent = published.ok(say(from, to, text)).await;
        assert_eq!(sent["ok"]["status"], "delivered", "{sent}");
        let received = event(&mut published, name, "message.received").await;
        assert_eq!(received["payload"], json!({"type": "text", "text": text}), "{received}");
        // It acknowledges by itself, and its sender hears of it.
        assert_eq!(event(&mut published, from, "message.ack").await["to"], to);
    }
    assert!(!server.store("SELECT payload FROM mesh_messages").await.iter().any(|kept| kept.contains("hello")));
    let pulled = published.ok(call("bobby", "message.pull", json!({"after_seq": 0}))).await;
    assert_eq!(pulled["ok"]["messages"][0]["payload"]["text"], "hello 你好");
    let online =
        published.ok(call("alice", "message.query_online", json!({"aids": [BOBBY, "nobody.localhost.test"]}))).await;
    assert_eq!(online["ok"]["online"], json!({BOBBY: true, "nobody.localhost.test": false}));
    let sent = published.ok(say("alice", BOBBY, "oh no")).await;
    event(&mut published, "bobby", "message.received").await;
    let id = sent["ok"]["message_id"].clone();
    let recalled = published.ok(call("alice", "message.recall", json!({"message_ids": [id]}))).await;
    assert_eq!(recalled["ok"]["recalled"], 1);
    assert_eq!(event(&mut published, "bobby", "message.recalled").await["message_ids"], json!([id]));
    let clear = json!({"to": BOBBY, "payload": {"type": "text", "text": "in the open"}, "encrypt": false});
    published.ok(call("alice", "message.send", clear)).await;
    assert_eq!(event(&mut published, "bobby", "message.received").await["payload"]["text"], "in the open");
}

async fn close_bobby(published: &mut Published) {
    published.ok(json!({"do": "close", "who": "bobby"})).await;
    eventually("it has left", async || {
        let online = published.ok(call("alice", "message.query_online", json!({"aids": [BOBBY]}))).await;
        (online["ok"]["online"][BOBBY] == false).then_some(())
    })
    .await;
}

async fn reopen_bobby(server: &TestServer, published: &mut Published) {
    published.add(server, "bobby").await;
    published.ok(json!({"do": "login", "who": "bobby", "aid": BOBBY})).await;
    connect(server, published, "bobby").await;
}

/// It acknowledges up to the first number that it has not seen, so it must receive the numbers of deleted messages, too.
#[both_engines]
async fn it_gets_past_a_message_that_is_no_longer_there(engine: Engine) {
    let (server, mut published) = start(engine).await;
    for who in ["alice", "bobby"] {
        enter(&server, &mut published, who).await;
    }
    published.ok(say("alice", BOBBY, "first")).await;
    assert_eq!(event(&mut published, "alice", "message.ack").await["ack_seq"], 1);
    close_bobby(&mut published).await;
    let second = published.ok(say("alice", BOBBY, "second")).await["ok"]["message_id"].clone();
    published.ok(say("alice", BOBBY, "third")).await;
    let recalled = published.ok(call("alice", "message.recall", json!({"message_ids": [second]}))).await;
    assert_eq!(recalled["ok"]["recalled"], 1);
    reopen_bobby(&server, &mut published).await;
    let pulled = published.ok(call("bobby", "message.pull", json!({"after_seq": 1}))).await;
    assert_eq!(pulled["ok"]["messages"][0]["payload"]["text"], "third", "{pulled}");
    assert_eq!(event(&mut published, "alice", "message.ack").await["ack_seq"], 3);
    published.ok(say("alice", BOBBY, "fourth")).await;
    assert_eq!(event(&mut published, "alice", "message.ack").await["ack_seq"], 4);
}

#[both_engines]
async fn one_who_was_away_finds_its_messages(engine: Engine) {
    let (mut server, mut published) = start(engine).await;
    for who in ["alice", "bobby"] {
        enter(&server, &mut published, who).await;
    }
    close_bobby(&mut published).await;
    assert_eq!(published.ok(say("alice", BOBBY, "for later")).await["ok"]["status"], "sent");
    server.restart().await;
    reopen_bobby(&server, &mut published).await;
    let pulled = published.ok(call("bobby", "message.pull", json!({"after_seq": 0}))).await;
    assert_eq!(pulled["ok"]["messages"][0]["payload"]["text"], "for later", "{pulled}");
}

#[one_engine]
async fn every_device_opens_its_own_copy(engine: Engine) {
    let (server, mut published) = start(engine).await;
    for who in ["alice", "bobby"] {
        enter(&server, &mut published, who).await;
    }
    // The same keys on another device: a copy of its home without the device's name.
    published.copy_home("bobby", "phone");
    published.add(&server, "phone").await;
    published.ok(json!({"do": "login", "who": "phone", "aid": BOBBY})).await;
    connect(&server, &mut published, "phone").await;
    published.ok(say("alice", BOBBY, "to both")).await;
    for who in ["bobby", "phone"] {
        assert_eq!(event(&mut published, who, "message.received").await["payload"]["text"], "to both");
    }
    // What one device sends, its other one sees.
    published.ok(say("phone", ALICE, "from the phone")).await;
    assert_eq!(event(&mut published, "alice", "message.received").await["payload"]["text"], "from the phone");
    let own = event(&mut published, "bobby", "message.received").await;
    assert_eq!((&own["payload"]["text"], &own["from"]), (&json!("from the phone"), &json!(BOBBY)));
}

#[expect(
    clippy::disallowed_methods,
    reason = "the published client reads the machine's clock, and so must we beside it"
)]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Our own client, registered, logged in and connected.
async fn ours(server: &TestServer, name: &str) -> Sealer {
    let base = format!("http://{}", server.address());
    let root = GatewayClient::fetch_root(&base).await.unwrap();
    let gateway = GatewayClient::new(&base, &root, Ambient { now, fill }).unwrap();
    let aid: Aid = format!("{name}.localhost.test").parse().unwrap();
    let key = PrivateKey::generate(Curve::P256, &mut fill);
    let identity = gateway.register(&aid, &key, None).await.unwrap();
    let tokens = gateway.login(&identity).await.unwrap();
    let desk = DeviceSlot { device_id: "desk".into(), slot_id: String::new() };
    let session = gateway.connect(&tokens.access, &desk, DeliveryMode::default()).await.unwrap();
    let keys = IdentityKeys { identity, earlier: vec![], prekeys: vec![] };
    let mut sealer = Sealer::new(gateway, session, keys, "desk").unwrap();
    let prekey = sealer.new_prekey();
    sealer.put_prekey(&prekey).await.unwrap();
    sealer
}

#[one_engine]
async fn they_and_we_open_each_others_messages(engine: Engine) {
    let (server, mut published) = start(engine).await;
    enter(&server, &mut published, "alice").await;
    let mut carol = ours(&server, "carol").await;
    published.ok(say("alice", "carol.localhost.test", "hello, stranger")).await;
    let SealerEvent::Message(opened) = carol.next_event().await.unwrap() else { panic!("something else came") };
    assert_eq!(opened.contents.unwrap(), json!({"type": "text", "text": "hello, stranger"}));
    let (pulled, _) = carol.pull(0).await.unwrap();
    assert_eq!(pulled[0].contents.as_ref().unwrap()["text"], "hello, stranger");
    assert_eq!(carol.ack(1).await.unwrap(), 1);
    assert_eq!(event(&mut published, "alice", "message.ack").await["ack_seq"], 1);
    let alice: Aid = ALICE.parse().unwrap();
    carol.send(&alice, &json!({"type": "text", "text": "你好"})).await.unwrap();
    assert_eq!(event(&mut published, "alice", "message.received").await["payload"]["text"], "你好");
    // With several devices on either side, each has its copy.
    published.copy_home("alice", "phone");
    published.add(&server, "phone").await;
    published.ok(json!({"do": "login", "who": "phone", "aid": ALICE})).await;
    connect(&server, &mut published, "phone").await;
    carol.send(&alice, &json!({"type": "text", "text": "to both"})).await.unwrap();
    for who in ["alice", "phone"] {
        assert_eq!(event(&mut published, who, "message.received").await["payload"]["text"], "to both");
    }
}

/// Its connection ends when it receives more than a mebibyte at once.
#[both_engines]
async fn the_largest_message_reaches_them(engine: Engine) {
    let (server, mut published) = start(engine).await;
    for who in ["alice", "bobby"] {
        enter(&server, &mut published, who).await;
    }
    // As the client writes it.
    let around = r#"{"type": "text", "text": ""}"#.len();
    let say = |length: usize| {
        let payload = json!({"type": "text", "text": "x".repeat(length)});
        call("alice", "message.send", json!({"to": BOBBY, "payload": payload, "encrypt": false}))
    };
    let length = PAYLOAD_BYTES_MAX - around;
    let refused = published.ask(say(length + 1)).await;
    assert_eq!(refused["code"], -32602, "{}", refused["error"]);
    published.ok(say(length)).await;
    let received = event(&mut published, "bobby", "message.received").await;
    assert_eq!(received["payload"]["text"].as_str().map(str::len), Some(length));
    let pulled = published.ok(call("bobby", "message.pull", json!({"after_seq": 0}))).await;
    assert_eq!(pulled["ok"]["count"], 1);
    published.ok(call("bobby", "meta.ping", json!({}))).await;
}
