//! Limits of mailboxes, on both engines, and writes that fail in the same flush as a message.

use std::time::Duration;

use jiff::Timestamp;
use ostler_protocol::{
    RawJson,
    mesh::messages::{DeviceCopy, MAILBOX_BYTES_MAX, MAILBOX_DRAIN_BYTES_PER_MS, MESSAGE_OVERHEAD_BYTES, SendContents},
};
use ostler_store::mesh::messages::{self, Ack, MailboxOutcome, MailboxRequest, PLACES_MAX, SendOp, Sent};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::{
    mesh::messages::{AIDS, ack, aid, mailbox, outgoing, pull, send, spot},
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

pub(crate) async fn run(test_store: &TestStore, sql: String) {
    match test_store.engine() {
        Engine::Sqlite => rusqlite::Connection::open(test_store.file()).unwrap().execute_batch(&sql).unwrap(),
        Engine::Postgres => {
            let mut connection = PgConnection::connect(&test_store.url()).await.unwrap();
            connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
        }
    }
}

/// From now on no acknowledged position can be inserted.
async fn refuse_positions(test_store: &TestStore) {
    let sql = match test_store.engine() {
        Engine::Sqlite => "CREATE TRIGGER no BEFORE INSERT ON mesh_cursors BEGIN SELECT RAISE(ABORT, 'no'); END",
        Engine::Postgres => {
            "CREATE FUNCTION no() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'no'; END $$ LANGUAGE plpgsql;
                CREATE TRIGGER no BEFORE INSERT ON mesh_cursors FOR EACH ROW EXECUTE FUNCTION no()"
        }
    };
    run(test_store, sql.into()).await;
}

/// Sends a message whose flush is held up, and two writes that wait together in the meantime.
async fn in_one_flush<T, U>(
    process: &StoreProcess,
    one: impl Future<Output = T>,
    other: impl Future<Output = U>,
) -> (Sent, T, U) {
    // On SQLite a flush ends a little after its answers; if it were held, what is sent now would never be delivered.
    for _ in 0..50 {
        if process.host.flush_count() >= process.host.stored_messages.lock().unwrap().len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    process.host.shut();
    let is_held = || process.host.stored_messages.lock().unwrap().iter().any(|stored| stored.message_id == "held");
    let until = async |holds: &dyn Fn() -> bool| {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    let beside = async {
        until(&is_held).await;
        tokio::join!(one, other)
    };
    let open = async {
        until(&is_held).await;
        until(&|| process.lanes.waiting().0 == 3).await;
        process.host.open();
    };
    let held = send(process, outgoing(AIDS[0], AIDS[1], "held", "x"));
    let (held, (one, other), ()) = tokio::join!(held, beside, open);
    (held, one, other)
}

#[both_engines]
async fn a_light_message_is_accepted_beside_one_that_does_not_fit(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    send(&process, outgoing(AIDS[0], AIDS[1], "first", "x")).await;
    let left = 3 * (outgoing(AIDS[0], AIDS[1], "any", "x").payload.as_str().len() as i64 + MESSAGE_OVERHEAD_BYTES);
    let used = MAILBOX_BYTES_MAX - left;
    run(&test_store, format!("UPDATE mesh_mailboxes SET used_bytes = {used} WHERE aid = '{}'", AIDS[1])).await;
    let heavy = post(&process, outgoing(AIDS[0], AIDS[1], "heavy", &"x".repeat(2 * left as usize)));
    let light = post(&process, outgoing(AIDS[2], AIDS[1], "light", "x"));
    let (held, heavy, light) = in_one_flush(&process, heavy, light).await;
    assert_eq!((held.seq, heavy), (2, MailboxOutcome::Full));
    assert!(matches!(light, MailboxOutcome::Sent(Sent { seq: 3, .. })), "{light:?}");
}

#[both_engines]
async fn a_send_succeeds_even_if_an_acknowledgement_in_its_flush_fails(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    refuse_positions(&test_store).await;
    let mark = MailboxRequest::Ack(Ack { aid: aid(AIDS[1]), place: spot("desk"), seq: 1 });
    let beside = send(&process, outgoing(AIDS[0], AIDS[1], "beside", "x"));
    let (held, sent, marked) = in_one_flush(&process, beside, process.post(mark)).await;
    assert!(marked.is_err());
    assert_eq!((held.seq, sent.seq, sent.duplicate), (1, 2, false));
    let delivered: Vec<i64> = process.host.stored_messages.lock().unwrap().iter().map(|stored| stored.seq).collect();
    assert_eq!(delivered, [1, 2]);
}

async fn post(process: &StoreProcess, message: SendOp) -> MailboxOutcome {
    process.post(MailboxRequest::Send(Box::new(message))).await.unwrap()
}

#[both_engines]
async fn a_mailbox_accepts_up_to_its_allowance_and_more_as_it_drains(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let message = |id: &str| outgoing(AIDS[0], AIDS[1], id, "x");
    let weight = message("a").payload.as_str().len() as i64 + MESSAGE_OVERHEAD_BYTES;
    send(&process, message("a")).await;
    // As if much had come before it: there is room for one more.
    let used = MAILBOX_BYTES_MAX - weight;
    run(&test_store, format!("UPDATE mesh_mailboxes SET used_bytes = {used} WHERE aid = '{}'", AIDS[1])).await;
    assert_eq!(send(&process, message("b")).await.seq, 2);
    assert_eq!(post(&process, message("c")).await, MailboxOutcome::Full);
    assert!(send(&process, message("b")).await.duplicate, "what was sent before was sent");
    // A message that is for two mailboxes goes to both or to none.
    let envelope = RawJson::of(&json!({"type": "e2ee.encrypted"}));
    let copies = |device: &str| vec![DeviceCopy { device_id: device.into(), envelope: envelope.clone() }];
    let both = |from: &str, to: &str| SendOp {
        encrypted: true,
        contents: SendContents::Copies { recipient: copies("desk"), own: copies("phone") },
        ..outgoing(from, to, "both", "x")
    };
    assert_eq!(
        post(&process, both(AIDS[1], AIDS[2])).await,
        MailboxOutcome::Full,
        "there is no room for its sender's copy"
    );
    assert_eq!(messages::get_mailbox(&process.db, &aid(AIDS[2])).await.unwrap(), None);
    assert_eq!(send(&process, both(AIDS[0], AIDS[2])).await.seq, 1, "others have room");
    process.host.advance_ms(weight / MAILBOX_DRAIN_BYTES_PER_MS + 1);
    assert_eq!(send(&process, message("c")).await.seq, 3, "what was refused took no number");
    assert_eq!(post(&process, message("d")).await, MailboxOutcome::Full);
    assert_eq!(pull(&process, AIDS[1], "desk", 0).await.len(), 3);
    assert_eq!(mailbox(&process, AIDS[1]).await.last_seq, 3);
}

#[both_engines]
async fn of_too_many_device_slots_the_least_recently_written_are_deleted(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    send(&process, outgoing(AIDS[0], AIDS[1], "a", "x")).await;
    send(&process, outgoing(AIDS[0], AIDS[2], "b", "x")).await;
    ack(&process, AIDS[2], "desk", 1).await;
    for number in 0..PLACES_MAX + 2 {
        process.host.advance_ms(1);
        ack(&process, AIDS[1], &format!("device-{number}"), 1).await;
    }
    messages::delete_expired(&process.db, process.now(), Timestamp::MIN).await.unwrap();
    let mark =
        async |owner: &str, device: &str| messages::get_ack(&process.db, &aid(owner), &spot(device)).await.unwrap();
    assert_eq!((mark(AIDS[1], "device-0").await, mark(AIDS[1], "device-1").await), (0, 0));
    assert_eq!((mark(AIDS[1], "device-2").await, mark(AIDS[2], "desk").await), (1, 1));
}
