//! Messages between identities, and the position that each device slot of an identity has acknowledged. Every message takes
//! the next number of its recipient's mailbox, whether it is stored until it expires or queued for one consumer. Sends and
//! acknowledgements go through the [`MailboxLane`], which numbers messages while the mailbox is locked.

mod lane;
pub(crate) mod postgres;
pub(crate) mod posts;
pub(crate) mod rows;
pub(crate) mod sqlite;

use std::collections::{BTreeSet, HashMap};

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeviceSlot, Mode},
        messages::{Message, RecallError, Recallable, recall as may_recall},
    },
};

use self::rows::{AckCursor, MailboxRow, MessageCopy};
pub use self::{
    lane::MailboxLane,
    posts::{Ack, Acked, MailboxOutcome, MailboxRequest, Recipients, Sent},
    rows::Mailbox,
};
use crate::{
    db::Db,
    error::StoreError,
    mesh::queue,
    record::{Reader, Record, Statement, Value, columns_replaced, insert_select, json, select, sql, text},
    retention::{Removable, RemovedItems, RetentionScope, gate, held_identity, removable_columns},
};

pub use ostler_protocol::mesh::mailbox::{ACKED_SENDERS_MAX, Contents, PLACES_MAX, SendOp, StoredMessage};

/// Messages read at once: each may be large.
const PAGE: u32 = 20;
/// Rows deleted at once.
const SWEEP: i64 = 1_000;

pub async fn get_mailbox(db: &Db, aid: &Aid) -> Result<Option<Mailbox>, StoreError> {
    let found: Vec<MailboxRow> = db.select("WHERE aid = $1", vec![text(aid)]).await?;
    Ok(found.into_iter().next().map(|row| row.mailbox))
}

/// The mailboxes of those of these identities that have one.
pub async fn list_mailboxes(db: &Db, aids: &[&Aid]) -> Result<HashMap<Aid, Mailbox>, StoreError> {
    let rest = format!("WHERE aid IN (SELECT one FROM {})", db.list("$1"));
    let found: Vec<MailboxRow> = db.select(&rest, vec![json(&aids)]).await?;
    Ok(found.into_iter().map(|row| (row.aid, row.mailbox)).collect())
}

/// Sets the delivery mode of the identity's later messages.
pub async fn update_mode(db: &Db, aid: &Aid, mode: Mode) -> Result<(), StoreError> {
    let sql = sql!({
        let columns = [("aid", "$1"), ("last_seq", "0"), ("mode", "$2"), ("dropped", "0")];
        let changed = "WHERE TRUE ON CONFLICT (aid) DO UPDATE SET mode = excluded.mode
            WHERE mesh_mailboxes.mode <> excluded.mode";
        insert_select::<MailboxRow>(&columns, changed)
    });
    db.execute(sql, vec![text(aid), mode.as_str().into()]).await
}

pub async fn get_ack(db: &Db, aid: &Aid, place: &DeviceSlot) -> Result<i64, StoreError> {
    let rest = "WHERE aid = $1 AND device_id = $2 AND slot_id = $3";
    let args = vec![text(aid), place.device_id.as_str().into(), place.slot_id.as_str().into()];
    let found: Vec<AckCursor> = db.select(rest, args).await?;
    Ok(found.first().map_or(0, |cursor| cursor.ack_seq))
}

/// `expires_at + 0` keeps the planner from using the index on `expires_at`: the one on numbers is right here.
fn list_sql() -> &'static str {
    sql!(format!(
        "SELECT {}, c.device_id AS copy_device_id FROM mesh_messages m
    LEFT JOIN mesh_message_copies c ON c.owner = m.owner AND c.seq = m.seq AND c.device_id = $1
    WHERE m.owner = $2 AND m.seq > $3 AND m.recalled_at IS NULL AND m.expires_at + 0 > $4
        AND (m.payload IS NOT NULL OR c.device_id IS NOT NULL)
    ORDER BY m.seq LIMIT $5",
        columns_replaced::<StoredMessage>("m", "payload", "COALESCE(m.payload, c.payload)")
    ))
}

fn list_args(owner: &Aid, device_id: &str, after: i64, now: Timestamp, limit: u32) -> Vec<Value> {
    vec![device_id.into(), text(owner), after.into(), now.into(), i64::from(limit).into()]
}

fn decode(row: &mut Reader<'_>) -> Result<Message, StoreError> {
    let stored = StoredMessage::decode(row)?;
    let Contents::Whole(payload) = stored.contents else {
        return Err(StoreError::corrupt("a message was read without its payload"));
    };
    Ok(Message {
        seq: stored.seq,
        message_id: stored.message_id,
        from: stored.from,
        to: stored.to,
        timestamp: stored.sent_at.as_millisecond(),
        kind: stored.kind,
        payload,
        delivery_mode: stored.mode,
        encrypted: stored.encrypted,
        direction: stored.direction,
        device_id: row.at("copy_device_id")?.opt_text()?,
    })
}

/// Some of the stored messages.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessages {
    pub messages: Vec<Message>,
    /// No message follows them.
    pub is_all: bool,
}

/// The stored messages that a device can read after a number, in order: as many as fit, and at least one.
pub async fn list(
    db: &Db,
    owner: &Aid,
    device_id: &str,
    after: i64,
    limit: u32,
    bytes_max: usize,
    now: Timestamp,
) -> Result<StoredMessages, StoreError> {
    let (mut messages, mut bytes, mut after): (Vec<Message>, usize, i64) = (vec![], 0, after);
    while messages.len() < limit as usize {
        let page = PAGE.min(limit - messages.len() as u32);
        let read = db.read(list_sql(), list_args(owner, device_id, after, now, page), decode).await?;
        let is_all = read.len() < page as usize;
        for message in read {
            bytes += message.payload.as_str().len();
            if bytes > bytes_max && !messages.is_empty() {
                return Ok(StoredMessages { messages, is_all: false });
            }
            after = message.seq;
            messages.push(message);
        }
        if is_all {
            return Ok(StoredMessages { messages, is_all });
        }
    }
    Ok(StoredMessages { messages, is_all: false })
}

fn stored_sql() -> &'static str {
    select!(
        StoredMessage,
        "WHERE owner = $1 AND seq > $2 AND recalled_at IS NULL AND expires_at + 0 > $3 ORDER BY seq LIMIT $4"
    )
}

fn copies_sql() -> &'static str {
    select!(MessageCopy, "WHERE owner = $1 AND seq > $2 AND seq <= $3 ORDER BY seq, device_id")
}

/// The stored messages after a number with the copies for all devices, for a server that pushes them.
pub async fn list_stored(
    db: &Db,
    owner: &Aid,
    after: i64,
    limit: u32,
    now: Timestamp,
) -> Result<Vec<StoredMessage>, StoreError> {
    let args = vec![text(owner), after.into(), now.into(), i64::from(limit).into()];
    let mut stored_messages = db.read(stored_sql(), args, StoredMessage::decode).await?;
    if let Some(last) = stored_messages.iter().rfind(|stored| stored.payload().is_none()) {
        let args = vec![text(owner), after.into(), last.seq.into()];
        for MessageCopy { seq, copy, .. } in db.read(copies_sql(), args, MessageCopy::decode).await? {
            let stored = stored_messages.iter_mut().find(|stored| stored.seq == seq);
            if let Some(StoredMessage { contents: Contents::Copies(copies), .. }) = stored {
                copies.push(copy);
            }
        }
    }
    Ok(stored_messages)
}

const FIND_SENT: &str = "SELECT sender, recipient, sent_at, recalled_at FROM mesh_messages
    WHERE message_id = $1 AND direction = 'inbound' AND expires_at > $2
    ORDER BY CASE WHEN sender = $3 THEN 0 ELSE 1 END LIMIT 1";

/// Recalls a message. Returns its recipient. `None`: a hold covers the message, and it keeps its payload.
pub async fn recall(
    db: &Db,
    caller: &Aid,
    message_id: &str,
    now: Timestamp,
) -> Result<Option<Result<Aid, RecallError>>, StoreError> {
    let decode = |row: &mut Reader<'_>| {
        let (from, to): (Aid, Aid) = (row.at("sender")?.id()?, row.at("recipient")?.id()?);
        Ok((from, to, row.at("sent_at")?.time()?, row.at("recalled_at")?.opt_time()?.is_some()))
    };
    let found = db.read_one(FIND_SENT, vec![message_id.into(), now.into(), text(caller)], decode).await?;
    let recallable = found.as_ref().map(|(from, _, sent_at, recalled)| Recallable {
        from,
        sent_ms: sent_at.as_millisecond(),
        recalled: *recalled,
    });
    if let Err(error) = may_recall(recallable, caller, now.as_millisecond()) {
        return Ok(Some(Err(error)));
    }
    let unless_held = format!(
        "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM mesh_messages m
             WHERE m.message_id = $1 AND m.sender = $2 AND m.recalled_at IS NULL AND {})",
        held_identity(&MESSAGE_IDENTITIES)
    );
    let update = "UPDATE mesh_messages SET recalled_at = $1, payload = NULL
        WHERE message_id = $2 AND sender = $3 AND recalled_at IS NULL RETURNING 1";
    let delete_copies = "DELETE FROM mesh_message_copies WHERE (owner, seq) IN (SELECT owner, seq FROM mesh_messages
        WHERE message_id = $1 AND sender = $2 AND recalled_at IS NOT NULL)";
    let message = || vec![message_id.into(), text(caller)];
    let statements = vec![
        gate(db),
        Statement::guard(unless_held, message()),
        Statement::new(update, vec![now.into(), message_id.into(), text(caller)]),
        Statement::new(delete_copies, message()),
    ];
    let Some(recalled) = db.write_together_returning(statements, 2, |_| Ok(())).await? else { return Ok(None) };
    if recalled.is_empty() {
        // Another call was first.
        return Ok(Some(Err(RecallError::AlreadyRecalled)));
    }
    let (_, recipient, ..) = found.ok_or_else(|| StoreError::corrupt("a message that is gone was recalled"))?;
    Ok(Some(Ok(recipient)))
}

/// The engine's plan for each statement that reads, by name.
pub async fn explain(db: &Db, owner: &Aid, now: Timestamp) -> Result<Vec<(&'static str, String)>, StoreError> {
    let few: Value = SWEEP.into();
    let mut plans = vec![];
    for (name, sql, args) in [
        ("list", list_sql(), list_args(owner, "desk", 7, now, PAGE)),
        ("stored", stored_sql(), vec![text(owner), 7.into(), now.into(), few.clone()]),
        ("copies", copies_sql(), vec![text(owner), 7.into(), 57.into()]),
        ("recall", FIND_SENT, vec!["m".into(), now.into(), text(owner)]),
        (
            "expired",
            "SELECT owner, seq FROM mesh_messages WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2",
            vec![now.into(), few],
        ),
    ] {
        plans.push((name, db.explain(sql, args).await?.join("\n")));
    }
    Ok(plans)
}

/// Deletes what has expired, and acknowledged positions not written since `idle`, a few rows at a time. Returns how many.
/// Messages of an identity under a hold stay.
pub async fn delete_expired(db: &Db, now: Timestamp, idle: Timestamp) -> Result<usize, StoreError> {
    let mut deleted = 0;
    // Copies go first: whether a hold covers one is known from its message.
    for (table, key, column, before, kept) in [
        ("mesh_message_copies", "owner, seq, device_id", "expires_at", now, held_copy()),
        ("mesh_messages", "owner, seq", "expires_at", now, held_identity(&MESSAGE_IDENTITIES)),
        ("mesh_cursors", "aid, device_id, slot_id", "updated_at", idle, "FALSE".to_owned()),
    ] {
        let sql = format!(
            "DELETE FROM {table} WHERE ({key}) IN
                (SELECT {key} FROM {table} AS m WHERE {column} <= $1 AND NOT {kept} ORDER BY {column} LIMIT $2) RETURNING 1"
        );
        loop {
            let delete = Statement::new(sql.clone(), vec![before.into(), SWEEP.into()]);
            let gone = db.write_together_returning(vec![gate(db), delete], 1, |_| Ok(())).await?;
            let gone = gone.map_or(0, |gone| gone.len());
            deleted += gone;
            if gone < SWEEP as usize {
                break;
            }
        }
    }
    deleted += delete_excess_positions(db).await?;
    Ok(deleted + queue::delete_expired(db, now).await?)
}

/// The identities by which a hold covers a message.
const MESSAGE_IDENTITIES: [&str; 3] = ["m.owner", "m.sender", "m.recipient"];

/// A condition: a hold covers the message that this row is a copy of.
fn held_copy() -> String {
    let held = held_identity(&["w.owner", "w.sender", "w.recipient"]);
    format!("EXISTS (SELECT 1 FROM mesh_messages w WHERE w.owner = m.owner AND w.seq = m.seq AND {held})")
}

/// Stored messages that were sent before, by mailbox and number. An item is a message in a mailbox, with all its copies.
pub async fn list_removable(
    db: &Db,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    let (owner, seq) = after.and_then(split_key).unwrap_or(("", 0));
    let order = db.byte_order();
    let columns = removable_columns("m.owner || ' ' || m.seq", "1", MESSAGE_BYTES, &held_identity(&MESSAGE_IDENTITIES));
    let sql = format!(
        "SELECT {columns} FROM mesh_messages m WHERE (m.owner{order}, m.seq) > ($1, $2) AND m.sent_at <= $3
         ORDER BY m.owner{order}, m.seq LIMIT $4"
    );
    let args = vec![owner.into(), seq.into(), scope.before.into(), i64::from(limit).into()];
    db.read(sql, args, Removable::decode).await
}

const MESSAGE_BYTES: &str = "COALESCE(octet_length(m.payload), 0) + COALESCE((SELECT SUM(octet_length(c.payload))
    FROM mesh_message_copies c WHERE c.owner = m.owner AND c.seq = m.seq), 0)";

fn split_key(key: &str) -> Option<(&str, i64)> {
    let (owner, seq) = key.split_once(' ')?;
    Some((owner, seq.parse().ok()?))
}

/// Deletes those of these messages that were sent before, with their copies, unless a hold covers them.
pub async fn remove(db: &Db, scope: &RetentionScope, keys: &[String]) -> Result<RemovedItems, StoreError> {
    let removable = format!(
        "FROM mesh_messages m WHERE m.owner || ' ' || m.seq IN (SELECT one FROM {keys}) AND m.sent_at <= $2
         AND m.owner IN (SELECT one FROM {owners}) AND NOT {held}",
        keys = db.list("$1"),
        owners = db.list("$3"),
        held = held_identity(&MESSAGE_IDENTITIES)
    );
    let owners: BTreeSet<&str> = keys.iter().filter_map(|key| split_key(key)).map(|(owner, _)| owner).collect();
    let args = || vec![json(&keys), scope.before.into(), json(&owners)];
    let statements = vec![
        gate(db),
        Statement::new(format!("SELECT CAST({MESSAGE_BYTES} AS BIGINT) {removable}"), args()),
        Statement::new(
            format!("DELETE FROM mesh_message_copies WHERE (owner, seq) IN (SELECT m.owner, m.seq {removable})"),
            args(),
        ),
        Statement::new(
            format!("DELETE FROM mesh_messages WHERE (owner, seq) IN (SELECT m.owner, m.seq {removable})"),
            args(),
        ),
    ];
    let removed = db.write_together_returning(statements, 1, |row| row.int()).await?;
    Ok(RemovedItems::of(&removed.unwrap_or_default()))
}

/// Deletes the least recently written positions of identities that have too many.
async fn delete_excess_positions(db: &Db) -> Result<usize, StoreError> {
    let sql = "DELETE FROM mesh_cursors WHERE (aid, device_id, slot_id) IN (
        SELECT aid, device_id, slot_id FROM (
            SELECT aid, device_id, slot_id,
                ROW_NUMBER() OVER (PARTITION BY aid ORDER BY updated_at DESC, device_id, slot_id) AS place
            FROM mesh_cursors WHERE aid IN (SELECT aid FROM mesh_cursors GROUP BY aid HAVING COUNT(*) > $1)) AS ranked
        WHERE place > $2) RETURNING 1";
    Ok(db.write(sql, vec![PLACES_MAX.into(), PLACES_MAX.into()], |_| Ok(())).await?.len())
}
