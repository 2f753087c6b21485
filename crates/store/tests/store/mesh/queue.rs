//! Messages for one consumer, on both engines: each is claimed by one device slot, even if several try, and the queue counts
//! what it drops.

use ostler_protocol::mesh::{
    connections::Mode,
    messages::{QUEUED_MAX, QUEUED_MS_MAX, RecallError},
};
use ostler_store::mesh::{
    messages,
    queue::{self, Queue},
};

use crate::{
    mesh::messages::{AIDS, ack, aid, mailbox, outgoing, pull, send, spot},
    store_process::StoreProcess,
    test_store::{TestStore, both_engines},
};

/// Bobby's queue, with these messages.
async fn queue_of(place: &TestStore, ids: &[&str]) -> StoreProcess {
    let process = StoreProcess::open(place).await;
    messages::update_mode(&process.db, &aid(AIDS[1]), Mode::Queue).await.unwrap();
    for id in ids {
        assert_eq!(send(&process, outgoing(AIDS[0], AIDS[1], id, id)).await.mode, Mode::Queue);
    }
    process
}

async fn queue(process: &StoreProcess, device: &str) -> Queue {
    let mailbox = mailbox(process, AIDS[1]).await;
    queue::get(&process.db, &aid(AIDS[1]), &mailbox, &spot(device), process.now()).await.unwrap()
}

async fn open(process: &StoreProcess, device: &str) -> Vec<i64> {
    queue(process, device).await.open.into_iter().map(|(seq, _)| seq).collect()
}

async fn untaken(process: &StoreProcess) -> Vec<i64> {
    queue::list_untaken(&process.db, &aid(AIDS[1]), process.now()).await.unwrap()
}

async fn claim(process: &StoreProcess, seq: i64, device: &str) -> bool {
    queue::claim(&process.db, &aid(AIDS[1]), seq, &spot(device)).await.unwrap()
}

/// The numbers up to `upto` that the device slot has claimed then.
async fn claim_open(process: &StoreProcess, device: &str, upto: i64) -> Vec<i64> {
    let (owner, place) = (aid(AIDS[1]), spot(device));
    let claimed = queue::claim_open(&process.db, &owner, &place, 0, upto, process.now());
    let mut numbers: Vec<i64> = claimed.await.unwrap().iter().map(|stored| stored.seq).collect();
    numbers.sort_unstable();
    numbers
}

#[both_engines]
async fn a_full_queue_drops_its_oldest_and_counts_them(place: TestStore) {
    let process = queue_of(&place, &[]).await;
    let most = QUEUED_MAX as i64;
    for number in 0..most + 3 {
        assert_eq!(send(&process, outgoing(AIDS[0], AIDS[1], &format!("m-{number}"), "x")).await.mode, Mode::Queue);
    }
    let queue = async || queue(&process, "desk").await;
    let full = queue().await;
    assert_eq!((full.open.len() as i64, full.earliest_seq, full.dropped), (most, Some(4), 3));
    assert_eq!(pull(&process, AIDS[1], "desk", 0).await, [], "the message is not stored");
    // What was received is no loss.
    claim_open(&process, "desk", 103).await;
    ack(&process, AIDS[1], "desk", 103).await;
    assert_eq!((queue().await.open.len() as i64, queue().await.dropped), (most - 100, 3));
    assert!(send(&process, outgoing(AIDS[0], AIDS[1], "m-50", "x")).await.duplicate, "its id is still known");
    process.host.advance_ms(QUEUED_MS_MAX);
    let late = queue().await;
    assert_eq!((late.open.as_slice(), late.earliest_seq, late.dropped), (&[][..], None, 103));
    messages::delete_expired(&process.db, process.now(), jiff::Timestamp::MIN).await.unwrap();
    assert_eq!(queue().await.dropped, 103, "counted once");
    // Eight messages of a mebibyte are too much for it, however few they are.
    for number in 0..9 {
        let large = outgoing(AIDS[0], AIDS[1], &format!("l-{number}"), &"x".repeat(1024 * 1024));
        assert_eq!(send(&process, large).await.seq, most + 4 + number);
    }
    assert_eq!((queue().await.open.len(), queue().await.dropped), (7, 105));
}

#[both_engines]
async fn a_queued_message_is_claimed_by_one_device_slot(place: TestStore) {
    let process = queue_of(&place, &["a", "b", "c"]).await;
    let owner = aid(AIDS[1]);
    let claims = ["desk", "phone", "desk", "phone"].map(|device| claim(&process, 1, device));
    let claimed = futures_util::future::join_all(claims).await;
    assert_eq!(claimed.into_iter().filter(|claimed| *claimed).count(), 1);
    assert!(claim(&process, 2, "desk").await);
    assert_eq!(untaken(&process).await, [3]);
    let queued = queue::get_queued(&process.db, &owner, 3).await.unwrap().unwrap();
    let message = queued.for_device("whatever").unwrap();
    assert_eq!(
        (message.seq, message.delivery_mode, message.payload.to_value()["text"].as_str()),
        (3, Mode::Queue, Some("c"))
    );
    assert!(claim(&process, 3, "phone").await);
    // The phone acknowledges everything: what the desk took is still the desk's.
    let acked = ack(&process, AIDS[1], "phone", 3).await;
    assert_eq!(acked.senders, [aid(AIDS[0])]);
    let left = open(&process, "desk").await;
    assert!(left.contains(&2) && !left.contains(&3), "{left:?}");
    let recalled = messages::recall(&process.db, &aid(AIDS[0]), "b", process.now()).await.unwrap();
    assert_eq!(recalled, Some(Err(RecallError::NotFound)), "the queue has no history");
}

#[both_engines]
async fn an_unclaimed_message_is_not_acknowledged(place: TestStore) {
    let process = queue_of(&place, &["first", "second"]).await;
    // The second is handed out before the first, and acknowledged at once.
    assert!(claim(&process, 2, "desk").await);
    assert_eq!(ack(&process, AIDS[1], "desk", 2).await.senders, [aid(AIDS[0])]);
    assert_eq!(untaken(&process).await, [1], "another device slot can claim it");
    assert!(claim(&process, 1, "phone").await);
    assert_eq!(open(&process, "phone").await, [1]);
}

#[both_engines]
async fn a_pull_claims_the_messages_it_returns(place: TestStore) {
    let ids: Vec<String> = (1..=40).map(|number| format!("m-{number}")).collect();
    let process = queue_of(&place, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(claim_open(&process, "desk", 3).await, [1, 2, 3]);
    assert_eq!(
        claim_open(&process, "desk", 3).await,
        [1, 2, 3],
        "what it has taken is its own until it acknowledges it"
    );
    assert_eq!(claim_open(&process, "phone", 5).await, [4, 5]);
    assert_eq!(open(&process, "phone").await, (4..=40).collect::<Vec<_>>());
    let devices: Vec<String> = (0..8).map(|number| format!("device-{number}")).collect();
    let pulls = devices.iter().map(|device| claim_open(&process, device, 40));
    let mut taken = futures_util::future::join_all(pulls).await.concat();
    taken.sort_unstable();
    assert_eq!(taken, (6..=40).collect::<Vec<_>>(), "each once, and all of them");
    assert_eq!(untaken(&process).await, [0; 0]);
    ack(&process, AIDS[1], "desk", 40).await;
    assert_eq!((open(&process, "desk").await, open(&process, "phone").await), (vec![], vec![4, 5]));
    process.host.advance_ms(QUEUED_MS_MAX);
    assert_eq!(claim_open(&process, "phone", 40).await, [0; 0], "it waited too long");
}

#[both_engines]
async fn a_released_message_can_be_claimed_again(place: TestStore) {
    let process = queue_of(&place, &["a"]).await;
    let release = async |device: &str| {
        queue::release(&process.db, &aid(AIDS[1]), 1, &spot(device)).await.unwrap();
    };
    assert!(claim(&process, 1, "desk").await);
    release("phone").await;
    assert!(!claim(&process, 1, "phone").await, "it is not the phone's to give back");
    release("desk").await;
    assert!(claim(&process, 1, "phone").await);
    ack(&process, AIDS[1], "phone", 1).await;
    release("phone").await;
    assert!(!claim(&process, 1, "desk").await, "it was received");
}
