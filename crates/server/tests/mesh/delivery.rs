//! Pushes: messages that arrive faster than the client reads wait in the store, its connection stays open, and messages whose
//! wake-up was lost are found nevertheless.

use std::sync::Arc;

use jiff::SignedDuration;
use ostler_protocol::{RawJson, Timestamp, mesh::messages::SendContents};
use ostler_server::clock::Clock;
use ostler_store::{
    Db,
    lane::{Committed, Host, Lanes},
    mesh::messages::{MailboxLane, MailboxRequest, Recipients, SendOp, StoredMessage},
};
use serde_json::json;

use super::messages::{ALICE, BOBBY, connect_as, event, numbers, people, queue, text};
use crate::harness::{Engine, Identity, TestServer, Wire, both_engines, eventually};

async fn received_numbers(wire: &mut Wire, count: usize) -> Vec<i64> {
    let mut received = vec![];
    while received.len() < count {
        received.push(event(wire, "message.received").await["seq"].as_i64().unwrap());
    }
    received
}

#[both_engines]
async fn a_reader_that_pauses_receives_everything_in_order(engine: Engine) {
    const COUNT: usize = 300;
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let (mut alice, mut desk) = (alice.connect(&server, "desk").await, bobby.connect(&server, "desk").await);
    // More than its queue and its socket hold together.
    let large = "x".repeat(100_000);
    for number in 0..COUNT {
        let payload = json!({"type": "text", "text": large});
        let params = json!({"to": BOBBY, "payload": payload, "message_id": format!("m-{number}")});
        alice.call("message.send", params).await;
    }
    assert_eq!(received_numbers(&mut desk, COUNT).await, (1..=COUNT as i64).collect::<Vec<_>>());
    alice.call("message.send", text(BOBBY, "last")).await;
    assert_eq!(received_numbers(&mut desk, 1).await, [COUNT as i64 + 1]);
}

#[both_engines]
async fn a_long_queue_is_handed_out_bit_by_bit(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    drop(connect_as(&bobby, &server, "one", queue("round_robin")).await);
    gone(&mut alice).await;
    for number in 1..=180 {
        assert_eq!(alice.call("message.send", text(BOBBY, &format!("m-{number}"))).await["status"], "sent");
    }
    let mut wire = connect_as(&bobby, &server, "two", queue("round_robin")).await;
    assert_eq!(received_numbers(&mut wire, 180).await, (1..=180).collect::<Vec<_>>());
    wire.call("message.ack", json!({"seq": 180})).await;
    assert_eq!(wire.call("message.pull", json!({})).await["count"], 0);
}

async fn gone(alice: &mut Wire) {
    eventually("bobby has gone", async || {
        let online = alice.call("message.query_online", json!({"aids": [BOBBY]})).await;
        (online["online"][BOBBY] == false).then_some(())
    })
    .await;
}

/// Bobby is away, and takes messages by a queue.
async fn away(server: &TestServer) -> (Wire, Identity) {
    let (alice, bobby) = people(server).await;
    let mut alice = alice.connect(server, "desk").await;
    drop(connect_as(&bobby, server, "one", queue("round_robin")).await);
    gone(&mut alice).await;
    (alice, bobby)
}

#[both_engines]
async fn what_one_consumer_pulled_no_other_gets(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (mut alice, bobby) = away(&server).await;
    // The mode has changed: no connection is handed what waits, and the first to pull gets it.
    for id in ["a", "b", "c"] {
        assert_eq!(alice.call("message.send", text(BOBBY, id)).await["delivery_mode"], "queue");
    }
    let (mut desk, mut phone) = (bobby.connect(&server, "desk").await, bobby.connect(&server, "phone").await);
    let pulled = desk.call("message.pull", json!({"limit": 2})).await;
    assert_eq!(numbers(&pulled), [1, 2]);
    assert_eq!(numbers(&phone.call("message.pull", json!({})).await), [3]);
    assert_eq!(numbers(&desk.call("message.pull", json!({})).await), [1, 2], "until it acknowledges them");
    desk.call("message.ack", json!({"seq": 3})).await;
    assert_eq!(numbers(&phone.call("message.pull", json!({})).await), [3], "the phone has not said so");
}

#[both_engines]
async fn a_page_of_both_kinds_skips_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = people(&server).await;
    let mut alice = alice.connect(&server, "desk").await;
    let sized = |id: &str, bytes: usize| json!({"to": BOBBY, "payload": {"text": "x".repeat(bytes)}, "message_id": id});
    // A small and a large one are kept; a third waits in the queue.
    alice.call("message.send", sized("small", 10_000)).await;
    alice.call("message.send", sized("large", 800_000)).await;
    drop(connect_as(&bobby, &server, "one", queue("")).await);
    gone(&mut alice).await;
    assert_eq!(alice.call("message.send", sized("queued", 10)).await["delivery_mode"], "queue");
    let mut desk = bobby.connect(&server, "desk").await;
    let (mut seen, mut after) = (vec![], 0);
    while after < 3 {
        let pulled = desk.call("message.pull", json!({"after_seq": after})).await;
        seen.extend(numbers(&pulled));
        after = pulled["latest_seq"].as_i64().unwrap();
    }
    assert_eq!(seen, [1, 2, 3]);
}

/// Another server of the same store, which stops before it notifies others of what it stored.
struct Mute(Timestamp);

impl Host for Mute {
    fn now(&self) -> Timestamp {
        self.0
    }

    fn committed(&self, _: Committed) {}
}

impl Recipients for Mute {
    fn deliver(&self, _: &StoredMessage) -> bool {
        false
    }
}

/// Stores a message from Alice to Bobby, and sends no wake-up.
async fn keep(server: &TestServer, id: &str) {
    let mute = Mute(server.clock.now());
    let db = Db::open(&server.config.store().unwrap(), mute.now()).await.unwrap();
    let mute = Arc::new(mute);
    let lanes = Lanes::start(&db, mute.clone()).await.unwrap();
    let mailboxes = MailboxLane::start(&db, &lanes);
    let outgoing = SendOp {
        message_id: id.into(),
        from: ALICE.parse().unwrap(),
        to: BOBBY.parse().unwrap(),
        kind: None,
        encrypted: false,
        payload: RawJson::of(&json!({"type": "text", "text": id})),
        contents: SendContents::Whole,
        life: SignedDuration::from_hours(24),
    };
    mailboxes.submit(MailboxRequest::Send(Box::new(outgoing)), mute).await.unwrap();
    drop((mailboxes, lanes));
    db.close().await;
}

#[both_engines]
async fn a_message_without_a_wake_up_is_found(engine: Engine) {
    if engine == Engine::Sqlite {
        // One process has one store.
        return;
    }
    let server = TestServer::with(engine, |setup| setup.config.limits.recheck_ms = 20).await;
    let (_, bobby) = people(&server).await;
    let mut desk = bobby.connect(&server, "desk").await;
    keep(&server, "m-1").await;
    assert_eq!(received_numbers(&mut desk, 1).await, [1]);
}

#[both_engines]
async fn a_message_sent_again_is_pushed_to_connections_that_lack_it(engine: Engine) {
    if engine == Engine::Sqlite {
        return;
    }
    // The store is not reread periodically.
    let server = TestServer::with(engine, |setup| setup.config.limits.recheck_ms = 3_600_000).await;
    let (alice, bobby) = people(&server).await;
    let (mut alice, mut desk) = (alice.connect(&server, "desk").await, bobby.connect(&server, "desk").await);
    keep(&server, "m-1").await;
    let again = alice.call("message.send", text(BOBBY, "m-1")).await;
    assert_eq!((&again["status"], &again["seq"]), (&json!("duplicate"), &json!(1)));
    assert_eq!(received_numbers(&mut desk, 1).await, [1]);
}
