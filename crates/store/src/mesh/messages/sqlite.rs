//! Sends and acknowledgements on SQLite: part of the next flush, each in a savepoint of its own.

use std::sync::Arc;

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::Mode,
        mailbox::{ACKED_SENDERS_MAX, QUEUED_BYTES_MAX, SendOp, StoredMessage, drain, queued_since},
        messages::{MAILBOX_BYTES_MAX, MAILBOX_DRAIN_BYTES_PER_MS, QUEUED_MAX},
    },
};
use rusqlite::Connection;

use super::{
    posts::{Ack, Acked, MailboxJob, MailboxOutcome, MailboxRequest, Sent, delivered},
    rows::{AckCursor, MailboxRow, MessageCopy, Queued, place_name},
};
use crate::{
    error::{StoreError, StoreFault},
    lane::job::{Host, LaneError},
    record::{ColumnValue, Record, Value, insert_row, insert_row_with, insert_select, select, sql, text},
    sqlite::{
        Sqlite,
        query::query,
        writes::{Write, Written, is_lost},
    },
};

/// Sends or acknowledges with the next flush.
pub(crate) fn post(sqlite: &Sqlite, job: MailboxJob, host: Arc<dyn Host>) -> Result<(), LaneError> {
    sqlite.offer(Box::new(PostWrite { job, host }))
}

/// A message or an acknowledgement. It is delivered, and its caller gets a reply, once it is durable.
struct PostWrite {
    job: MailboxJob,
    host: Arc<dyn Host>,
}

impl Write for PostWrite {
    fn run(self: Box<Self>, tx: &Connection) -> Written {
        let Self { job, host } = *self;
        let now = host.now();
        let done = in_savepoint(tx, || match &job.post {
            MailboxRequest::Send(outgoing) => send(tx, outgoing, now),
            MailboxRequest::Ack(ack) => acknowledge(tx, ack, now).map(|acked| (MailboxOutcome::Acked(acked), vec![])),
        });
        let fault = done.as_ref().err().and_then(StoreFault::of);
        let answer = move |committed: Result<(), StoreError>| {
            let done = done.and_then(|done| committed.map(|()| done));
            let posted = done.map(|(posted, stored_messages)| delivered(&*job.recipients, posted, &stored_messages));
            drop(job.answer.send(posted.map_err(LaneError::from)));
        };
        Written { fault, answer: Box::new(answer) }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        drop(self.job.answer.send(Err(LaneError::Store(error))));
    }
}

/// Runs `work` in a savepoint: if it fails, only its own changes are rolled back.
fn in_savepoint<T>(tx: &Connection, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    tx.prepare_cached("SAVEPOINT post")?.execute([])?;
    let done = work();
    if is_lost(tx) {
        return done;
    }
    if done.is_err() {
        tx.prepare_cached("ROLLBACK TO post")?.execute([])?;
    }
    tx.prepare_cached("RELEASE post")?.execute([])?;
    done
}

fn send(
    tx: &Connection,
    outgoing: &SendOp,
    now: Timestamp,
) -> Result<(MailboxOutcome, Vec<StoredMessage>), StoreError> {
    if let Some(first) = find(tx, outgoing)? {
        return Ok((MailboxOutcome::Sent(first), vec![]));
    }
    let (mut stored, own) = outgoing.stored_messages(now);
    let both: Vec<&StoredMessage> = [Some(&stored), own.as_ref()].into_iter().flatten().collect();
    for stored in &both {
        let same_mailbox = both.iter().filter(|other| other.owner == stored.owner);
        if !has_room(tx, &stored.owner, same_mailbox.copied(), now)? {
            return Ok((MailboxOutcome::Full, vec![]));
        }
    }
    put(tx, &mut stored, outgoing.expires_at(now))?;
    let to = stored.owner.clone();
    let sent = Sent { to, seq: stored.seq, sent_at: now, mode: stored.mode, duplicate: false, delivered: false };
    let mut stored_messages = vec![stored];
    if let Some(mut own) = own {
        put(tx, &mut own, outgoing.expires_at(now))?;
        stored_messages.push(own);
    }
    Ok((MailboxOutcome::Sent(sent), stored_messages))
}

/// The message with this id, if its sender sent it before.
fn find(tx: &Connection, outgoing: &SendOp) -> Result<Option<Sent>, StoreError> {
    let sql = "SELECT recipient, seq, sent_at, 'fanout' AS mode FROM mesh_messages
            WHERE message_id = ?1 AND sender = ?2 AND direction = 'inbound'
        UNION ALL SELECT recipient, seq, sent_at, 'queue' FROM mesh_queue WHERE message_id = ?1 AND sender = ?2";
    let found = query(tx, sql, &[outgoing.message_id.as_str().into(), text(&outgoing.from)], |row| {
        let (to, seq, sent_at) = (row.at("recipient")?.id()?, row.at("seq")?.int()?, row.at("sent_at")?.time()?);
        Ok(Sent { to, seq, sent_at, mode: row.at("mode")?.named(Mode::parse)?, duplicate: true, delivered: false })
    })?;
    Ok(found.into_iter().next())
}

/// Whether a mailbox has room for these messages. Queued ones have a limit of their own.
fn has_room<'a>(
    tx: &Connection,
    owner: &Aid,
    stored_messages: impl Iterator<Item = &'a StoredMessage>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let found = query(tx, select!(MailboxRow, "WHERE aid = $1"), &[text(owner)], MailboxRow::decode)?;
    let Some(MailboxRow { mailbox, used_bytes, used_at, .. }) = found.into_iter().next() else { return Ok(true) };
    let stored = stored_messages.filter(|stored| mailbox.mode != Mode::Queue || !stored.may_queue());
    let weight: i64 = stored.map(StoredMessage::weight).sum();
    Ok(weight == 0 || drain(used_bytes, used_at, now) + weight <= MAILBOX_BYTES_MAX)
}

/// Gives the message the next number of its mailbox, and stores or queues it.
fn put(tx: &Connection, stored: &mut StoredMessage, expires_at: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO mesh_mailboxes (aid, last_seq, mode, dropped) VALUES (?1, 1, 'fanout', 0)
        ON CONFLICT (aid) DO UPDATE SET last_seq = last_seq + 1 RETURNING last_seq, mode";
    let numbered = query(tx, sql, &[text(&stored.owner)], |row| {
        Ok((row.at("last_seq")?.int()?, row.at("mode")?.named(Mode::parse)?))
    })?;
    let (seq, mode) = numbered.into_iter().next().ok_or_else(|| StoreError::corrupt("a mailbox without a number"))?;
    stored.seq = seq;
    if mode == Mode::Queue && stored.may_queue() {
        stored.mode = Mode::Queue;
        return enqueue(tx, stored);
    }
    let sql = sql!(insert_row_with::<StoredMessage>(&["expires_at"]));
    let row: Vec<_> = stored.fixed().into_iter().chain([Value::from(expires_at)]).collect();
    execute(tx, sql, &row)?;
    for copy in stored.copies() {
        let stored = MessageCopy { owner: stored.owner.clone(), seq, copy: copy.clone(), expires_at };
        execute(tx, sql!(insert_row::<MessageCopy>()), &stored.fixed())?;
    }
    let sql = "UPDATE mesh_mailboxes
        SET used_bytes = MAX(0, used_bytes - MAX(0, ?1 - used_at) / 1000 * ?2) + ?3, used_at = ?1 WHERE aid = ?4";
    let row = [stored.sent_at.into(), MAILBOX_DRAIN_BYTES_PER_MS.into(), stored.weight().into(), text(&stored.owner)];
    execute(tx, sql, &row)
}

fn enqueue(tx: &Connection, stored: &StoredMessage) -> Result<(), StoreError> {
    execute(tx, sql!(insert_row::<Queued>()), &Queued(stored.clone()).fixed())?;
    execute(
        tx,
        "UPDATE mesh_mailboxes SET queued_at = ?1 WHERE aid = ?2",
        &[stored.sent_at.into(), text(&stored.owner)],
    )?;
    trim(tx, stored.owner.as_str(), stored.sent_at)
}

fn trim(tx: &Connection, owner: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM mesh_queue WHERE owner = ?1 AND seq IN
        (SELECT seq FROM (SELECT seq, sent_at, ROW_NUMBER() OVER w AS place, SUM(OCTET_LENGTH(payload)) OVER w AS bytes
            FROM mesh_queue WHERE owner = ?1 WINDOW w AS (PARTITION BY received ORDER BY seq DESC))
        WHERE place > ?2 OR bytes > ?3 OR sent_at <= ?4) RETURNING received = 0 AND taken_by IS NULL";
    let most = QUEUED_MAX as i64;
    let args = [owner.into(), most.into(), QUEUED_BYTES_MAX.into(), queued_since(now).into()];
    let were_dropped = query(tx, sql, &args, |row| row.flag())?;
    let dropped = were_dropped.iter().filter(|was_dropped| **was_dropped).count() as i64;
    if dropped > 0 {
        execute(
            tx,
            "UPDATE mesh_mailboxes SET dropped = dropped + ?1 WHERE aid = ?2",
            &[dropped.into(), owner.into()],
        )?;
    }
    Ok(())
}

/// As a separate write.
pub(crate) async fn trim_queue(sqlite: &Sqlite, owner: String, now: Timestamp) -> Result<(), StoreError> {
    sqlite.plain(move |tx| in_savepoint(tx, || trim(tx, &owner, now))).await
}

fn acknowledge(tx: &Connection, ack: &Ack, now: Timestamp) -> Result<Acked, StoreError> {
    let place = [text(&ack.aid), ack.place.device_id.as_str().into(), ack.place.slot_id.as_str().into()];
    let sql = select!(AckCursor, "WHERE aid = ?1 AND device_id = ?2 AND slot_id = ?3");
    let before = query(tx, sql, &place, AckCursor::decode)?.pop().map_or(0, |cursor| cursor.ack_seq);
    let sql = sql!({
        let columns = [
            ("aid", "?1"),
            ("device_id", "?2"),
            ("slot_id", "?3"),
            ("ack_seq", "MIN(?4, last_seq)"),
            ("updated_at", "?5"),
        ];
        let rest = "FROM mesh_mailboxes WHERE aid = ?1 ON CONFLICT (aid, device_id, slot_id) DO UPDATE
            SET ack_seq = MAX(ack_seq, excluded.ack_seq), updated_at = excluded.updated_at RETURNING ack_seq";
        insert_select::<AckCursor>(&columns, rest)
    });
    let args = [&place[..], &[ack.seq.into(), now.into()]].concat();
    let ack_seq = query(tx, sql, &args, |row| row.int())?.pop().unwrap_or(0);
    let mut acked = Acked { before, ack_seq, senders: vec![] };
    if ack_seq > before {
        let sql = "SELECT DISTINCT sender FROM (SELECT sender FROM mesh_messages
            WHERE owner = ?1 AND seq > ?2 AND seq <= ?3 AND direction = 'inbound' ORDER BY seq DESC LIMIT ?4)";
        let args = [text(&ack.aid), before.into(), ack_seq.into(), ACKED_SENDERS_MAX.into()];
        acked.senders = query(tx, sql, &args, |row| row.id())?;
    }
    let sql = "UPDATE mesh_queue SET received = 1, payload = '{}' WHERE owner = ?1 AND seq <= ?2 AND received = 0
        AND taken_by = ?3 RETURNING sender";
    acked
        .senders
        .extend(query(tx, sql, &[text(&ack.aid), ack_seq.into(), place_name(&ack.place).into()], |row| row.id())?);
    acked.senders.sort_unstable();
    acked.senders.dedup();
    Ok(acked)
}

fn execute(tx: &Connection, sql: &str, args: &[ColumnValue<'_>]) -> Result<(), StoreError> {
    tx.prepare_cached(sql)?.execute(rusqlite::params_from_iter(args))?;
    Ok(())
}
