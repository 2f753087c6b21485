//! Mailboxes of the mesh, on both engines, promise by promise: numbers without gaps whichever server sends, one message per
//! id, acknowledged positions that only move forward. Random histories are in `mailbox.rs`.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use ostler_protocol::{
    RawJson,
    mesh::{
        Aid,
        connections::{DeviceSlot as Spot, Mode},
        messages::{DeviceCopy, MESSAGE_LIFE_MS_DEFAULT, Message, SEALED, SendContents},
        prekeys::{PREKEY_DEVICES_MAX, Prekey},
    },
};
use ostler_store::mesh::{
    messages::{self, Ack, Acked, Mailbox, MailboxOutcome, MailboxRequest, SendOp, Sent},
    prekeys,
};
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    holds::{release_all, while_placing},
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

const BYTES_MAX: usize = 1024 * 1024;
pub(crate) const AIDS: [&str; 3] = ["alice.probe.test", "bobby.probe.test", "carol.probe.test"];

pub(crate) fn aid(name: &str) -> Aid {
    name.parse().unwrap()
}

pub(crate) fn spot(device_id: &str) -> Spot {
    Spot { device_id: device_id.into(), slot_id: String::new() }
}

fn sealed(text: &str) -> RawJson {
    RawJson::of(&json!({"type": SEALED, "ciphertext": text}))
}

pub(crate) fn copies(devices: &[&str], text: &str) -> Vec<DeviceCopy> {
    let copy =
        |device: &&str| DeviceCopy { device_id: (*device).into(), envelope: sealed(&format!("{text}@{device}")) };
    devices.iter().map(copy).collect()
}

pub(crate) fn outgoing(from: &str, to: &str, message_id: &str, text: &str) -> SendOp {
    SendOp {
        message_id: message_id.into(),
        from: aid(from),
        to: aid(to),
        kind: None,
        encrypted: false,
        payload: RawJson::of(&json!({"type": "text", "text": text})),
        contents: SendContents::Whole,
        life: SignedDuration::from_millis(MESSAGE_LIFE_MS_DEFAULT),
    }
}

pub(crate) async fn send(process: &StoreProcess, message: SendOp) -> Sent {
    match process.post(MailboxRequest::Send(Box::new(message))).await.unwrap() {
        MailboxOutcome::Sent(sent) => sent,
        other => panic!("a send was answered with {other:?}"),
    }
}

pub(crate) async fn ack(process: &StoreProcess, owner: &str, device: &str, seq: i64) -> Acked {
    match process.post(MailboxRequest::Ack(Ack { aid: aid(owner), place: spot(device), seq })).await.unwrap() {
        MailboxOutcome::Acked(acked) => acked,
        other => panic!("an acknowledgement was answered with {other:?}"),
    }
}

pub(crate) async fn mailbox(process: &StoreProcess, owner: &str) -> Mailbox {
    messages::get_mailbox(&process.db, &aid(owner)).await.unwrap().unwrap()
}

pub(crate) async fn pull(process: &StoreProcess, owner: &str, device: &str, after: i64) -> Vec<Message> {
    let kept = messages::list(&process.db, &aid(owner), device, after, 200, BYTES_MAX, process.now()).await.unwrap();
    assert!(kept.is_all || kept.messages.len() == 200);
    kept.messages
}

#[both_engines]
async fn numbers_have_no_gap_whichever_server_sends(test_store: TestStore) {
    let here = StoreProcess::open(&test_store).await;
    let there = match test_store.engine() {
        Engine::Sqlite => None,
        Engine::Postgres => Some(StoreProcess::numbered(&test_store, 1).await),
    };
    let servers = [&here, there.as_ref().unwrap_or(&here)];
    // Each message is sent twice at the same time, by way of both where there are two.
    let sends = (0..200).flat_map(|number| {
        let id = format!("m-{number}");
        let from = AIDS[number % 3];
        servers.map(|server| send(server, outgoing(from, "daisy.probe.test", &id, "x")))
    });
    let sent = futures_util::future::join_all(sends).await;
    let mut fresh: Vec<i64> = sent.iter().filter(|sent| !sent.duplicate).map(|sent| sent.seq).collect();
    fresh.sort_unstable();
    assert_eq!(fresh, (1..=200).collect::<Vec<i64>>());
    for pair in sent.chunks(2) {
        assert_eq!((pair[0].seq, pair[0].sent_at), (pair[1].seq, pair[1].sent_at), "one message, one number");
    }
    assert_eq!(pull(&here, "daisy.probe.test", "desk", 0).await.len(), 200);
}

#[both_engines]
async fn the_lane_of_mailboxes_ends_once_it_is_dropped(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let host = process.host.clone();
    assert_eq!(send(&process, outgoing(AIDS[0], AIDS[1], "m", "x")).await.seq, 1);
    process.db.close().await;
    drop(process);
    let ended = async {
        while Arc::strong_count(&host) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("no lane holds the host");
}

#[both_engines]
async fn a_recall_waits_for_a_hold_that_is_being_placed(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let mut message = outgoing(AIDS[0], AIDS[1], "m-1", "x");
    message.encrypted = true;
    message.contents = SendContents::Copies { recipient: copies(&["desk"], "r"), own: copies(&["phone"], "o") };
    send(&process, message).await;
    let sender = aid(AIDS[0]);
    let recall = || messages::recall(&process.db, &sender, "m-1", process.now());
    assert_eq!(while_placing(&test_store, "identity", AIDS[1], recall()).await.unwrap(), None);
    assert_eq!(pull(&process, AIDS[1], "desk", 0).await.len(), 1, "it has its copy");
    release_all(&test_store).await;
    assert_eq!(recall().await.unwrap(), Some(Ok(aid(AIDS[1]))));
    assert_eq!(pull(&process, AIDS[1], "desk", 0).await.len(), 0);
}

#[both_engines]
async fn messages_are_delivered_in_the_order_of_their_mailbox_before_any_reply(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let sends = (0..60).map(|number| {
        let mut message = outgoing(AIDS[number % 2], AIDS[2], &format!("m-{number}"), "x");
        if number % 3 == 0 {
            message.encrypted = true;
            message.contents = SendContents::Copies { recipient: copies(&["desk"], "r"), own: copies(&["phone"], "o") };
        }
        async {
            let id = message.message_id.clone();
            let sent = send(&process, message).await;
            let stored_messages = process.host.stored_messages.lock().unwrap();
            assert!(stored_messages.iter().any(|stored| stored.message_id == id && stored.seq == sent.seq), "{id}");
        }
    });
    futures_util::future::join_all(sends).await;
    let stored_messages = process.host.stored_messages.lock().unwrap();
    for owner in AIDS {
        let numbers: Vec<i64> = stored_messages.iter().filter(|l| l.owner.as_str() == owner).map(|l| l.seq).collect();
        assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>(), "{owner}");
    }
    assert_eq!(stored_messages.len(), 80, "every third has one for the sender's own devices, too");
}

#[both_engines]
async fn a_pull_gives_as_many_as_fit_and_at_least_one(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    for number in 0..50 {
        send(&process, outgoing(AIDS[0], AIDS[1], &format!("m-{number}"), &"x".repeat(1_000))).await;
    }
    let list = async |limit, bytes_max| {
        let owner = aid(AIDS[1]);
        let found = messages::list(&process.db, &owner, "desk", 0, limit, bytes_max, process.now()).await.unwrap();
        (found.messages.iter().map(|message| message.seq).collect::<Vec<_>>(), found.is_all)
    };
    assert_eq!(list(200, BYTES_MAX).await, ((1..=50).collect(), true));
    assert_eq!(list(33, BYTES_MAX).await, ((1..=33).collect(), false));
    assert_eq!(list(200, 10_500).await, ((1..=10).collect(), false));
    assert_eq!(list(200, 10).await, (vec![1], false));
}

#[both_engines]
async fn an_id_is_that_of_one_message_to_one_recipient(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    messages::update_mode(&process.db, &aid(AIDS[2]), Mode::Queue).await.unwrap();
    for (id, first, second) in [("kept", AIDS[1], AIDS[2]), ("queued", AIDS[2], AIDS[1])] {
        let sent = send(&process, outgoing(AIDS[0], first, id, "x")).await;
        let again = send(&process, outgoing(AIDS[0], second, id, "x")).await;
        assert_eq!((again.to, again.seq, again.duplicate), (aid(first), sent.seq, true), "{id}");
        assert!(!send(&process, outgoing(AIDS[1], second, id, "x")).await.duplicate, "each sender has its own ids");
    }
    // Both at once.
    let both = AIDS.map(|to| send(&process, outgoing(AIDS[0], to, "at once", "x")));
    let sent = futures_util::future::join_all(both).await;
    let first = sent.iter().find(|sent| !sent.duplicate).unwrap().to.clone();
    assert!(sent.iter().all(|sent| sent.to == first), "{sent:?}");
    assert_eq!(sent.iter().filter(|sent| sent.duplicate).count(), 2);
}

#[both_engines]
async fn a_mark_goes_forward_only_and_no_further_than_there_is(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    assert_eq!(ack(&process, AIDS[1], "desk", 7).await, Acked::default(), "there is nothing to acknowledge");
    for (from, id) in [(AIDS[0], "a"), (AIDS[2], "b"), (AIDS[0], "c")] {
        send(&process, outgoing(from, AIDS[1], id, id)).await;
    }
    let both = vec![aid(AIDS[0]), aid(AIDS[2])];
    assert_eq!(ack(&process, AIDS[1], "desk", 2).await, Acked { before: 0, ack_seq: 2, senders: both });
    assert_eq!(ack(&process, AIDS[1], "desk", 1).await, Acked { before: 2, ack_seq: 2, senders: vec![] });
    assert_eq!(ack(&process, AIDS[1], "desk", 99).await, Acked { before: 2, ack_seq: 3, senders: vec![aid(AIDS[0])] });
    let many = futures_util::future::join_all([1, 3, 2, 3].map(|seq| ack(&process, AIDS[1], "phone", seq))).await;
    assert!(many.iter().all(|acked| acked.ack_seq <= 3));
    assert_eq!(many.iter().map(|acked| acked.senders.len()).max(), Some(2));
    assert_eq!(messages::get_ack(&process.db, &aid(AIDS[1]), &spot("phone")).await.unwrap(), 3);
    // A position that was not written for long enough is deleted.
    messages::delete_expired(&process.db, process.now(), process.now()).await.unwrap();
    assert_eq!(messages::get_ack(&process.db, &aid(AIDS[1]), &spot("phone")).await.unwrap(), 0);
}

#[both_engines]
async fn a_message_is_found_by_an_index(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let sends = (0..600).map(|number| {
        let mut message = outgoing(AIDS[number % 2], AIDS[2], &format!("m-{number}"), "x");
        message.contents = match number % 2 {
            0 => SendContents::Copies { recipient: copies(&["desk", "phone"], "r"), own: vec![] },
            _ => SendContents::Whole,
        };
        send(&process, message)
    });
    futures_util::future::join_all(sends).await;
    if test_store.engine() == Engine::Postgres {
        // As its own daemon would, sooner or later.
        PgConnection::connect(&test_store.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    for (statement, plan) in messages::explain(&process.db, &aid(AIDS[2]), process.now()).await.unwrap() {
        let index = match statement {
            "list" => vec!["mesh_messages_seq", "mesh_message_copies_device"],
            "stored" => vec!["mesh_messages_seq"],
            "copies" => vec!["mesh_message_copies_device"],
            "recall" => vec!["mesh_messages_id"],
            "expired" => vec!["mesh_messages_expiring"],
            other => panic!("{other}"),
        };
        for index in index {
            assert!(plan.contains(index), "{statement} does not use {index}:\n{plan}");
        }
        let walked = |line: &&str| line.contains("Seq Scan") || (line.starts_with("SCAN") && line.contains("mesh_"));
        let walked = plan.lines().find(walked).filter(|line| !line.contains("INDEX"));
        assert_eq!(walked, None, "{statement}:\n{plan}");
    }
}

/// Postgres knows nothing of a table until its daemon has come by, and may think it empty for a minute.
#[both_engines]
async fn whether_a_message_is_known_is_looked_up_before_the_table_is_known(test_store: TestStore) {
    if test_store.engine() == Engine::Sqlite {
        // It makes its plans without knowing any table.
        return;
    }
    let process = StoreProcess::open(&test_store).await;
    let sends = (0..SENDS).map(|number| send(&process, outgoing(AIDS[0], AIDS[1], &format!("m-{number}"), "x")));
    futures_util::future::join_all(sends).await;
    const SENDS: i64 = 600;
    let mut postgres = PgConnection::connect(&test_store.url()).await.unwrap();
    let read = "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'mesh_messages_id'";
    for number in 0.. {
        // A connection tells what it did when it does something again.
        send(&process, outgoing(AIDS[0], AIDS[1], &format!("again-{number}"), "x")).await;
        let (lookups, read): (i64, i64) = sqlx::query_as(read).fetch_one(&mut postgres).await.unwrap();
        if lookups >= SENDS {
            assert!(read <= lookups, "{lookups} were looked up, {read} entries were read");
            return;
        }
        assert!(number < 400, "Postgres counts nothing");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn prekey(number: usize, device: &str) -> Prekey {
    Prekey {
        prekey_id: format!("k-{number}"),
        public_key: "a2V5".into(),
        signature: "c2lnbmVk".into(),
        created_at: number as i64,
        cert_fingerprint: "sha256:00".into(),
        device_id: Some(device.into()),
    }
}

#[both_engines]
async fn a_device_has_one_prekey_and_an_agent_so_many_devices(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let (db, alice) = (&process.db, aid(AIDS[0]));
    assert_eq!(prekeys::list(db, &alice).await.unwrap(), []);
    for (number, device) in [(1, "desk"), (2, "phone"), (3, "desk")] {
        process.host.advance_ms(1);
        prekeys::update(db, &alice, device, &prekey(number, device), process.now()).await.unwrap();
    }
    assert_eq!(prekeys::list(db, &alice).await.unwrap(), [prekey(3, "desk"), prekey(2, "phone")]);
    assert_eq!(prekeys::list(db, &aid(AIDS[1])).await.unwrap(), []);
    for number in 0..PREKEY_DEVICES_MAX {
        process.host.advance_ms(1);
        let device = format!("device-{number}");
        prekeys::update(db, &alice, &device, &prekey(number, &device), process.now()).await.unwrap();
    }
    let kept = prekeys::list(db, &alice).await.unwrap();
    assert_eq!(kept.len(), PREKEY_DEVICES_MAX);
    assert_eq!(kept.last().unwrap().device_id.as_deref(), Some("device-0"), "the two oldest went");
}
