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
    place::{Place, both_engines},
    workshop::Workshop,
};

/// Bobby's queue, with these messages.
async fn queue_of(place: &Place, ids: &[&str]) -> Workshop {
    let workshop = Workshop::open(place).await;
    messages::update_mode(&workshop.db, &aid(AIDS[1]), Mode::Queue).await.unwrap();
    for id in ids {
        assert_eq!(send(&workshop, outgoing(AIDS[0], AIDS[1], id, id)).await.mode, Mode::Queue);
    }
    workshop
}

async fn queue(workshop: &Workshop, device: &str) -> Queue {
    let mailbox = mailbox(workshop, AIDS[1]).await;
    queue::get(&workshop.db, &aid(AIDS[1]), &mailbox, &spot(device), workshop.now()).await.unwrap()
}

async fn open(workshop: &Workshop, device: &str) -> Vec<i64> {
    queue(workshop, device).await.open.into_iter().map(|(seq, _)| seq).collect()
}

async fn untaken(workshop: &Workshop) -> Vec<i64> {
    queue::list_untaken(&workshop.db, &aid(AIDS[1]), workshop.now()).await.unwrap()
}

async fn claim(workshop: &Workshop, seq: i64, device: &str) -> bool {
    queue::claim(&workshop.db, &aid(AIDS[1]), seq, &spot(device)).await.unwrap()
}

/// The numbers up to `upto` that the device slot has claimed then.
async fn claim_open(workshop: &Workshop, device: &str, upto: i64) -> Vec<i64> {
    let (owner, place) = (aid(AIDS[1]), spot(device));
    let claimed = queue::claim_open(&workshop.db, &owner, &place, 0, upto, workshop.now());
    let mut numbers: Vec<i64> = claimed.await.unwrap().iter().map(|stored| stored.seq).collect();
    numbers.sort_unstable();
    numbers
}

#[both_engines]
async fn a_full_queue_drops_its_oldest_and_counts_them(place: Place) {
    let workshop = queue_of(&place, &[]).await;
    let most = QUEUED_MAX as i64;
    for number in 0..most + 3 {
        assert_eq!(send(&workshop, outgoing(AIDS[0], AIDS[1], &format!("m-{number}"), "x")).await.mode, Mode::Queue);
    }
    let queue = async || queue(&workshop, "desk").await;
    let full = queue().await;
    assert_eq!((full.open.len() as i64, full.earliest_seq, full.dropped), (most, Some(4), 3));
    assert_eq!(pull(&workshop, AIDS[1], "desk", 0).await, [], "nothing of it is kept");
    // What was received is no loss.
    claim_open(&workshop, "desk", 103).await;
    ack(&workshop, AIDS[1], "desk", 103).await;
    assert_eq!((queue().await.open.len() as i64, queue().await.dropped), (most - 100, 3));
    assert!(send(&workshop, outgoing(AIDS[0], AIDS[1], "m-50", "x")).await.duplicate, "its id is still known");
    workshop.host.advance_ms(QUEUED_MS_MAX);
    let late = queue().await;
    assert_eq!((late.open.as_slice(), late.earliest_seq, late.dropped), (&[][..], None, 103));
    messages::delete_expired(&workshop.db, workshop.now(), jiff::Timestamp::MIN).await.unwrap();
    assert_eq!(queue().await.dropped, 103, "counted once");
    // Eight messages of a mebibyte are too much for it, however few they are.
    for number in 0..9 {
        let large = outgoing(AIDS[0], AIDS[1], &format!("l-{number}"), &"x".repeat(1024 * 1024));
        assert_eq!(send(&workshop, large).await.seq, most + 4 + number);
    }
    assert_eq!((queue().await.open.len(), queue().await.dropped), (7, 105));
}

#[both_engines]
async fn a_queued_message_is_claimed_by_one_device_slot(place: Place) {
    let workshop = queue_of(&place, &["a", "b", "c"]).await;
    let owner = aid(AIDS[1]);
    let claims = ["desk", "phone", "desk", "phone"].map(|device| claim(&workshop, 1, device));
    let claimed = futures_util::future::join_all(claims).await;
    assert_eq!(claimed.into_iter().filter(|claimed| *claimed).count(), 1);
    assert!(claim(&workshop, 2, "desk").await);
    assert_eq!(untaken(&workshop).await, [3]);
    let queued = queue::get_queued(&workshop.db, &owner, 3).await.unwrap().unwrap();
    let message = queued.for_device("whatever").unwrap();
    assert_eq!(
        (message.seq, message.delivery_mode, message.payload.to_value()["text"].as_str()),
        (3, Mode::Queue, Some("c"))
    );
    assert!(claim(&workshop, 3, "phone").await);
    // The phone acknowledges everything: what the desk took is still the desk's.
    let acked = ack(&workshop, AIDS[1], "phone", 3).await;
    assert_eq!(acked.senders, [aid(AIDS[0])]);
    let left = open(&workshop, "desk").await;
    assert!(left.contains(&2) && !left.contains(&3), "{left:?}");
    let recalled = messages::recall(&workshop.db, &aid(AIDS[0]), "b", workshop.now()).await.unwrap();
    assert_eq!(recalled, Some(Err(RecallError::NotFound)), "the queue has no history");
}

#[both_engines]
async fn an_unclaimed_message_is_not_acknowledged(place: Place) {
    let workshop = queue_of(&place, &["first", "second"]).await;
    // The second is handed out before the first, and acknowledged at once.
    assert!(claim(&workshop, 2, "desk").await);
    assert_eq!(ack(&workshop, AIDS[1], "desk", 2).await.senders, [aid(AIDS[0])]);
    assert_eq!(untaken(&workshop).await, [1], "another device slot can claim it");
    assert!(claim(&workshop, 1, "phone").await);
    assert_eq!(open(&workshop, "phone").await, [1]);
}

#[both_engines]
async fn a_pull_claims_the_messages_it_returns(place: Place) {
    let ids: Vec<String> = (1..=40).map(|number| format!("m-{number}")).collect();
    let workshop = queue_of(&place, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(claim_open(&workshop, "desk", 3).await, [1, 2, 3]);
    assert_eq!(claim_open(&workshop, "desk", 3).await, [1, 2, 3], "what it has taken is its own until it says so");
    assert_eq!(claim_open(&workshop, "phone", 5).await, [4, 5]);
    assert_eq!(open(&workshop, "phone").await, (4..=40).collect::<Vec<_>>());
    let devices: Vec<String> = (0..8).map(|number| format!("device-{number}")).collect();
    let pulls = devices.iter().map(|device| claim_open(&workshop, device, 40));
    let mut taken = futures_util::future::join_all(pulls).await.concat();
    taken.sort_unstable();
    assert_eq!(taken, (6..=40).collect::<Vec<_>>(), "each once, and all of them");
    assert_eq!(untaken(&workshop).await, [0; 0]);
    ack(&workshop, AIDS[1], "desk", 40).await;
    assert_eq!((open(&workshop, "desk").await, open(&workshop, "phone").await), (vec![], vec![4, 5]));
    workshop.host.advance_ms(QUEUED_MS_MAX);
    assert_eq!(claim_open(&workshop, "phone", 40).await, [0; 0], "it waited too long");
}

#[both_engines]
async fn a_released_message_can_be_claimed_again(place: Place) {
    let workshop = queue_of(&place, &["a"]).await;
    let release = async |device: &str| {
        queue::release(&workshop.db, &aid(AIDS[1]), 1, &spot(device)).await.unwrap();
    };
    assert!(claim(&workshop, 1, "desk").await);
    release("phone").await;
    assert!(!claim(&workshop, 1, "phone").await, "it is not the phone's to give back");
    release("desk").await;
    assert!(claim(&workshop, 1, "phone").await);
    ack(&workshop, AIDS[1], "phone", 1).await;
    release("phone").await;
    assert!(!claim(&workshop, 1, "desk").await, "it was received");
}
