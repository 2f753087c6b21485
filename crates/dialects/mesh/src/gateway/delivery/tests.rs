use ostler_protocol::{
    RawJson, Timestamp,
    mesh::{
        connections::{DeliveryMode, Live},
        messages::{DeviceCopy, Direction},
    },
};
use serde_json::json;

use super::*;
use crate::gateway::connections::ConnectionGuard;
use ostler_server::net::sockets::{Inbox, QUEUE_FRAMES_MAX, queue};

const BOBBY: &str = "bobby.probe.test";

fn stored(seq: i64) -> StoredMessage {
    StoredMessage {
        owner: BOBBY.parse().unwrap(),
        seq,
        message_id: format!("m-{seq}"),
        from: "alice.probe.test".parse().unwrap(),
        to: BOBBY.parse().unwrap(),
        direction: Direction::Inbound,
        kind: None,
        encrypted: false,
        mode: Mode::Fanout,
        sent_at: Timestamp::UNIX_EPOCH,
        contents: Contents::Whole(RawJson::of(&json!({}))),
    }
}

struct Device {
    _guard: ConnectionGuard,
    inbox: Inbox,
}

impl Device {
    fn join(delivery: &MessageDelivery, device_id: &str, last_seq: i64) -> Self {
        let (outbox, inbox) = queue();
        let place = DeviceSlot { device_id: device_id.into(), slot_id: String::new() };
        let live = Live { place, delivery_mode: DeliveryMode::default() };
        Self { _guard: delivery.connections.join(&BOBBY.parse().unwrap(), live, outbox, last_seq).unwrap(), inbox }
    }

    async fn receive(&mut self) -> i64 {
        let frame = self.inbox.next().await.expect("the connection is open");
        serde_json::from_str::<serde_json::Value>(&frame).unwrap()["params"]["seq"].as_i64().unwrap()
    }

    fn has_received_nothing(&mut self) -> bool {
        futures_util::FutureExt::now_or_never(self.inbox.next()).is_none()
    }
}

fn is_behind(delivery: &MessageDelivery) -> bool {
    !std::mem::take(&mut *delivery.behind()).waiting.is_empty()
}

#[tokio::test]
async fn a_device_that_connects_takes_no_message_from_the_others() {
    let delivery = MessageDelivery::new(Arc::default());
    let mut desk = Device::join(&delivery, "desk", 14);
    // The fifteenth is durable, and the phone knows of it before it is delivered.
    let mut phone = Device::join(&delivery, "phone", 15);
    assert!(delivery.deliver(&stored(15)));
    assert_eq!(desk.receive().await, 15);
    assert!(phone.has_received_nothing(), "it came before the phone did");
    // Another server has committed the sixteenth: the desk's mailbox is read when the next one arrives, at the latest.
    let mut tablet = Device::join(&delivery, "tablet", 16);
    assert!(delivery.deliver(&stored(17)));
    assert_eq!(tablet.receive().await, 17);
    assert!(desk.has_received_nothing() && phone.has_received_nothing(), "no message overtakes one that they lack");
    assert!(is_behind(&delivery));
}

#[tokio::test]
async fn a_burst_waits_in_the_store_and_closes_no_connection() {
    let delivery = MessageDelivery::new(Arc::default());
    let mut desk = Device::join(&delivery, "desk", 0);
    let burst = 2 * QUEUE_FRAMES_MAX as i64;
    let given = (1..=burst).filter(|seq| delivery.deliver(&stored(*seq))).count() as i64;
    assert!(given < burst);
    assert!(!is_behind(&delivery), "its queue is full, so there is no use in reading");
    for seq in 1..=given {
        assert_eq!(desk.receive().await, seq);
    }
    assert_eq!(delivery.connections.pushed_seq(&BOBBY.parse().unwrap()), Some(given), "reading starts here");
    let mut phone = Device::join(&delivery, "phone", burst);
    assert!(delivery.deliver(&stored(burst + 1)));
    assert_eq!(phone.receive().await, burst + 1, "a slow device holds up no other");
    assert!(is_behind(&delivery) && desk.has_received_nothing());
}

#[tokio::test]
async fn a_device_without_a_copy_skips_the_message() {
    let delivery = MessageDelivery::new(Arc::default());
    let (mut desk, mut phone) = (Device::join(&delivery, "desk", 0), Device::join(&delivery, "phone", 0));
    let copy = DeviceCopy { device_id: "desk".into(), envelope: RawJson::of(&json!({"for": "desk"})) };
    delivery.deliver(&StoredMessage { contents: Contents::Copies(vec![copy]), ..stored(1) });
    delivery.deliver(&stored(2));
    assert_eq!((desk.receive().await, desk.receive().await), (1, 2));
    assert_eq!(phone.receive().await, 2);
    assert!(!is_behind(&delivery));
}

#[tokio::test]
async fn a_mailbox_has_one_reader_at_a_time() {
    let delivery = MessageDelivery::new(Arc::default());
    let _desk = Device::join(&delivery, "desk", 0);
    let bobby: Aid = BOBBY.parse().unwrap();
    delivery.look_again(&bobby);
    assert_eq!(delivery.next_behind().await, bobby);
    delivery.look_again(&bobby);
    let mut second = std::pin::pin!(delivery.next_behind());
    assert!(futures_util::poll!(second.as_mut()).is_pending());
    delivery.finish_reading(&bobby);
    assert_eq!(second.await, bobby, "there may be more messages since");
}

#[test]
fn the_mailbox_that_has_waited_longest_is_read_next() {
    let mut behind = Behind::default();
    let aid = |name: &str| format!("{name}.probe.test").parse::<Aid>().unwrap();
    for name in ["aaaa", "bbbb", "cccc", "aaaa"] {
        behind.add(&aid(name));
    }
    assert_eq!(behind.take(), Some(aid("aaaa")));
    behind.add(&aid("aaaa"));
    assert_eq!([behind.take(), behind.take()], [Some(aid("bbbb")), Some(aid("cccc"))]);
    assert_eq!(behind.take(), None, "it is being read");
    behind.reading.remove(&aid("aaaa"));
    assert_eq!((behind.take(), behind.order.len(), behind.waiting.len()), (Some(aid("aaaa")), 0, 0));
}
