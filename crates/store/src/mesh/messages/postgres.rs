//! Sends and acknowledgements on Postgres: everything that waits goes in one statement, which is the transaction. Numbering
//! locks the mailbox of each recipient, in one order everywhere, until the statement is durable.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeviceSlot, Mode},
        mailbox::{ACKED_SENDERS_MAX, QUEUED_BYTES_MAX, SendOp, StoredMessage, queued_since},
        messages::{Direction, MAILBOX_BYTES_MAX, MAILBOX_DRAIN_BYTES_PER_MS, QUEUED_MAX},
    },
};
use sqlx::{PgConnection, Row as _};
use tokio::sync::{mpsc, oneshot};

use super::{
    posts::{Ack, Acked, MailboxJob, MailboxOutcome, MailboxRequest, Recipients, Sent, delivered},
    rows::{MessageCopy, Queued, place_name},
};
use crate::{
    error::{StoreError, is_refusal},
    health::WriteHealth,
    lane::job::{Host, LaneError, gather, refused},
    postgres::{
        connections::{ANSWER_MAX, Connections, IdleConnection, connect, within},
        hosts::Hosts,
    },
    record::{Record, columns_replaced, insert_select, sql},
};

/// Messages of one flush. The statement joins them with each other, so they must be few.
const FLUSH_POSTS_MAX: usize = 128;

/// Numbers and stores the messages that were not sent before. `given` has one row per mailbox that a message goes to; both rows
/// of a message share `n`. If not all fit into a mailbox, the lightest are accepted. `LATERAL` forces an index lookup per
/// message: with stale statistics the planner chooses a full scan.
fn send_sql() -> &'static str {
    sql!(format!(
        "WITH given AS (
    SELECT * FROM UNNEST($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
        $9::text[], $10::bigint[], $11::bigint[], $17::bigint[])
    AS g (n, direction, owner, message_id, sender, recipient, type, encrypted, payload, may_queue, expires_at, weight)
), known AS (
    SELECT g.n, m.recipient, m.seq, m.sent_at, 0::bigint AS queued FROM given g, LATERAL (SELECT * FROM mesh_messages
        WHERE message_id = g.message_id AND sender = g.sender AND direction = 'inbound' LIMIT 1) m WHERE g.direction = 'inbound'
    UNION ALL SELECT g.n, q.recipient, q.seq, q.sent_at, 1 FROM given g JOIN mesh_queue q
        ON q.message_id = g.message_id AND q.sender = g.sender WHERE g.direction = 'inbound'
), filled AS (
    SELECT g.n, GREATEST(0, b.used_bytes - GREATEST(0, $12 - b.used_at) / 1000 * $18::bigint)
        + SUM(g.weight) OVER (PARTITION BY g.owner ORDER BY g.weight, g.n) AS bytes
    FROM given g JOIN mesh_mailboxes b ON b.aid = g.owner AND (b.mode <> 'queue' OR g.may_queue = 0)
    WHERE NOT EXISTS (SELECT 1 FROM known k WHERE k.n = g.n)
), fresh AS (
    SELECT * FROM given g WHERE NOT EXISTS (SELECT 1 FROM known k WHERE k.n = g.n)
        AND NOT EXISTS (SELECT 1 FROM filled f WHERE f.n = g.n AND f.bytes > $19::bigint)
), boxes AS (
    INSERT INTO mesh_mailboxes AS b (aid, last_seq, mode, dropped, used_bytes, used_at)
    SELECT f.owner, COUNT(*), 'fanout', 0, SUM(f.weight), $12::bigint FROM fresh f GROUP BY f.owner ORDER BY f.owner
    ON CONFLICT (aid) DO UPDATE SET last_seq = b.last_seq + excluded.last_seq,
        used_at = CASE WHEN b.mode = 'queue' AND NOT EXISTS (SELECT 1 FROM fresh f WHERE f.owner = b.aid AND f.may_queue = 0)
            THEN b.used_at ELSE excluded.used_at END,
        used_bytes = CASE WHEN b.mode <> 'queue'
            THEN GREATEST(0, b.used_bytes - GREATEST(0, $12 - b.used_at) / 1000 * $18) + excluded.used_bytes
            ELSE COALESCE((SELECT GREATEST(0, b.used_bytes - GREATEST(0, $12 - b.used_at) / 1000 * $18) + SUM(f.weight)
                FROM fresh f WHERE f.owner = b.aid AND f.may_queue = 0), b.used_bytes) END,
        queued_at = CASE WHEN b.mode = 'queue' AND EXISTS (SELECT 1 FROM fresh f WHERE f.owner = b.aid AND f.may_queue = 1)
            THEN $12::bigint ELSE b.queued_at END
    RETURNING b.aid, b.last_seq, b.mode
), numbered AS (
    SELECT f.*, b.last_seq - COUNT(*) OVER (PARTITION BY f.owner)
            + ROW_NUMBER() OVER (PARTITION BY f.owner ORDER BY f.n, f.direction) AS seq,
        CASE WHEN b.mode = 'queue' THEN f.may_queue ELSE 0 END AS queued
    FROM fresh f JOIN boxes b ON b.aid = f.owner
), kept AS (
    INSERT INTO mesh_messages ({message_names}, expires_at) SELECT {message_values}, m.expires_at
    FROM numbered m WHERE m.queued = 0
), copied AS (
    {insert_copies}
    FROM UNNEST($13::bigint[], $14::text[], $15::text[], $16::text[]) AS c (n, direction, device_id, payload)
    JOIN numbered m ON m.n = c.n AND m.direction = c.direction
), enqueued AS (
    INSERT INTO mesh_queue ({queued_names}) SELECT {queued_values} FROM numbered m WHERE m.queued = 1
)
SELECT n, direction, recipient, seq, $12 AS sent_at, queued, 0::bigint AS known FROM numbered
UNION ALL SELECT n, 'inbound', recipient, seq, sent_at, queued, 1 FROM known",
        message_names = StoredMessage::NAMES,
        message_values = columns_replaced::<StoredMessage>("m", "sent_at", "$12"),
        insert_copies = insert_select::<MessageCopy>(
            &[
                ("owner", "m.owner"),
                ("seq", "m.seq"),
                ("device_id", "c.device_id"),
                ("payload", "c.payload"),
                ("expires_at", "m.expires_at"),
            ],
            "",
        ),
        queued_names = Queued::NAMES,
        queued_values = columns_replaced::<Queued>("m", "sent_at", "$12"),
    ))
}

const ACKNOWLEDGE: &str = "WITH given AS (
    SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[]) AS g (aid, device_id, slot_id, seq, place)
), prior AS (
    SELECT g.aid, g.device_id, g.slot_id, g.place, COALESCE(c.ack_seq, 0) AS before FROM given g LEFT JOIN mesh_cursors c
        ON c.aid = g.aid AND c.device_id = g.device_id AND c.slot_id = g.slot_id
), moved AS (
    INSERT INTO mesh_cursors AS c (aid, device_id, slot_id, ack_seq, updated_at)
    SELECT g.aid, g.device_id, g.slot_id, LEAST(g.seq, b.last_seq), $6::bigint
    FROM given g JOIN mesh_mailboxes b ON b.aid = g.aid ORDER BY g.aid, g.device_id, g.slot_id
    ON CONFLICT (aid, device_id, slot_id) DO UPDATE
    SET ack_seq = GREATEST(c.ack_seq, excluded.ack_seq), updated_at = excluded.updated_at
    RETURNING c.aid, c.device_id, c.slot_id, c.ack_seq
), covered AS (
    SELECT p.aid, p.device_id, p.slot_id, p.place, p.before, m.ack_seq
    FROM moved m JOIN prior p ON p.aid = m.aid AND p.device_id = m.device_id AND p.slot_id = m.slot_id
), taken AS (
    SELECT m.aid, m.place, q.seq FROM covered m JOIN mesh_queue q ON q.owner = m.aid AND q.taken_by = m.place
    WHERE q.seq <= m.ack_seq AND q.received = 0 ORDER BY q.owner, q.seq FOR UPDATE OF q
), consumed AS (
    UPDATE mesh_queue q SET received = 1, payload = '{}' FROM taken t WHERE q.owner = t.aid AND q.seq = t.seq
    RETURNING t.aid, t.place, q.sender
)
SELECT m.aid, m.device_id, m.slot_id, m.before, m.ack_seq, ARRAY(
    SELECT DISTINCT s.sender FROM (SELECT sender FROM mesh_messages
        WHERE owner = m.aid AND seq > m.before AND seq <= m.ack_seq AND direction = 'inbound' ORDER BY seq DESC LIMIT $7) s
    UNION SELECT c.sender FROM consumed c WHERE c.aid = m.aid AND c.place = m.place) AS senders
FROM covered m";

/// Rows that another statement has locked are left to the next trim.
const TRIM: &str = "WITH ranked AS (
    SELECT owner, seq, sent_at, ROW_NUMBER() OVER w AS place, SUM(OCTET_LENGTH(payload)) OVER w AS bytes
    FROM mesh_queue WHERE owner = ANY($1) WINDOW w AS (PARTITION BY owner, received ORDER BY seq DESC)
), doomed AS (
    SELECT q.owner, q.seq FROM ranked r JOIN mesh_queue q ON q.owner = r.owner AND q.seq = r.seq
    WHERE r.place > $2 OR r.bytes > $3 OR r.sent_at <= $4 FOR UPDATE OF q SKIP LOCKED
), gone AS (
    DELETE FROM mesh_queue q USING doomed d WHERE q.owner = d.owner AND q.seq = d.seq 
    RETURNING q.owner, q.received = 0 AND q.taken_by IS NULL AS was_dropped
), counted AS (SELECT owner, COUNT(*) AS dropped FROM gone WHERE was_dropped GROUP BY owner
), locked AS (
    SELECT b.aid, c.dropped FROM counted c JOIN mesh_mailboxes b ON b.aid = c.owner ORDER BY b.aid FOR UPDATE OF b
)
UPDATE mesh_mailboxes b SET dropped = b.dropped + l.dropped FROM locked l WHERE b.aid = l.aid";

pub(crate) struct PostLane {
    hosts: Hosts,
    health: Arc<WriteHealth>,
    connection: Option<IdleConnection>,
}

/// The outcome of one write, and the messages to deliver now.
type Done = (MailboxOutcome, Vec<StoredMessage>);

/// Who receives the messages of a post, and who waits for its outcome.
type To = (Arc<dyn Recipients>, oneshot::Sender<Result<MailboxOutcome, LaneError>>);

impl PostLane {
    pub(crate) fn new(connections: &Connections) -> Self {
        Self { hosts: connections.hosts.clone(), health: connections.health.clone(), connection: None }
    }

    pub(crate) async fn run(mut self, mut inbox: mpsc::Receiver<MailboxJob>, host: Arc<dyn Host>) {
        while let Some(first) = inbox.recv().await {
            let jobs = gather(first, &mut inbox, FLUSH_POSTS_MAX, |job| job.post.bytes());
            if AssertUnwindSafe(self.flush(jobs, &*host)).catch_unwind().await.is_err() {
                tracing::error!("a flush of messages panicked; nothing of it was answered");
            }
        }
        if let Some(connection) = self.connection {
            connection.close().await;
        }
    }

    /// Sends are delivered and get their replies before acknowledgements are tried, so that a failure of those cannot affect them.
    async fn flush(&mut self, jobs: Vec<MailboxJob>, host: &dyn Host) {
        let (sends, acks): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| matches!(job.post, MailboxRequest::Send(_)));
        for alike in [sends, acks] {
            if !alike.is_empty() {
                self.flush_alike(alike, host).await;
            }
        }
    }

    #[expect(clippy::expect_used, reason = "one post, one outcome")]
    async fn flush_alike(&mut self, jobs: Vec<MailboxJob>, host: &dyn Host) {
        let (posts, answers): (Vec<_>, Vec<_>) =
            jobs.into_iter().map(|job| (job.post, (job.recipients, job.answer))).unzip();
        let answer = |(recipients, to): To, outcome: Result<Done, LaneError>| {
            let posted = outcome.map(|(posted, stored_messages)| delivered(&*recipients, posted, &stored_messages));
            let _ = to.send(posted);
        };
        match self.carry_out(&posts, host.now()).await {
            Ok(done) => answers.into_iter().zip(done).for_each(|(to, done)| answer(to, Ok(done))),
            // One caller's message must not fail another's. The usual reason is the same message sent through another server.
            Err(error) if refused(&error) => {
                for (post, to) in posts.into_iter().zip(answers) {
                    let alone = std::slice::from_ref(&post);
                    let mut outcome = self.carry_out(alone, host.now()).await;
                    if outcome.as_ref().is_err_and(refused) {
                        outcome = self.carry_out(alone, host.now()).await;
                    }
                    let done = outcome.map(|mut done| done.pop().expect("one post, one outcome"));
                    answer(to, done.map_err(LaneError::from));
                }
            }
            Err(error) => {
                tracing::error!(%error, posts = posts.len(), "a flush of messages failed; nothing of it was answered");
                answers.into_iter().for_each(|to| answer(to, Err(LaneError::Store(error.shared()))));
            }
        }
    }

    /// Executes the writes. The outcomes are in their order.
    async fn carry_out(&mut self, posts: &[MailboxRequest], now: Timestamp) -> Result<Vec<Done>, StoreError> {
        let outcome = self.carry_out_once(posts, now).await;
        self.health.record_failure(&outcome);
        outcome
    }

    async fn carry_out_once(&mut self, posts: &[MailboxRequest], now: Timestamp) -> Result<Vec<Done>, StoreError> {
        let mut connection = self.connection().await?;
        let outcome = within(ANSWER_MAX, "no answer", flush_posts(&mut connection, posts, now)).await;
        self.keep(connection, &outcome);
        let done = outcome?;
        let stored_messages = done.iter().flat_map(|(_, stored_messages)| stored_messages);
        let owners: Vec<_> = stored_messages
            .filter(|stored| stored.mode == Mode::Queue)
            .map(|stored| stored.owner.to_string())
            .collect();
        // The messages are sent even if this fails: the next send trims the queue.
        if !owners.is_empty()
            && let Err(error) = self.trim(owners, now).await
        {
            tracing::warn!(%error, "queues could not be trimmed");
        }
        Ok(done)
    }

    async fn trim(&mut self, owners: Vec<String>, now: Timestamp) -> Result<(), StoreError> {
        let mut connection = self.connection().await?;
        let outcome = within(ANSWER_MAX, "no answer", trim(&mut connection, owners, now)).await;
        self.keep(connection, &outcome);
        Ok(outcome?)
    }

    async fn connection(&mut self) -> Result<PgConnection, StoreError> {
        let kept = match self.connection.take() {
            Some(kept) => kept.take_up().await,
            None => None,
        };
        match kept {
            Some(connection) => Ok(connection),
            None => Ok(connect(&self.hosts).await?),
        }
    }

    fn keep<T>(&mut self, connection: PgConnection, outcome: &Result<T, sqlx::Error>) {
        if outcome.as_ref().err().is_none_or(is_refusal) {
            self.connection = Some(IdleConnection::new(connection));
        }
    }
}

#[expect(clippy::expect_used, reason = "each has an outcome")]
async fn flush_posts(
    connection: &mut PgConnection,
    posts: &[MailboxRequest],
    now: Timestamp,
) -> Result<Vec<Done>, sqlx::Error> {
    let (mut sends, mut acks) = (vec![], vec![]);
    for (index, post) in posts.iter().enumerate() {
        match post {
            MailboxRequest::Send(outgoing) => sends.push((index, &**outgoing)),
            MailboxRequest::Ack(ack) => acks.push((index, ack)),
        }
    }
    let mut done: Vec<Option<Done>> = vec![None; posts.len()];
    if !sends.is_empty() {
        send(connection, &sends, now, &mut done).await?;
    }
    if !acks.is_empty() {
        acknowledge(connection, &acks, now, &mut done).await?;
    }
    Ok(done.into_iter().map(|done| done.expect("each has an outcome")).collect())
}

#[expect(clippy::expect_used, reason = "the first has an outcome")]
async fn send(
    connection: &mut PgConnection,
    sends: &[(usize, &SendOp)],
    now: Timestamp,
    done: &mut [Option<Done>],
) -> Result<(), sqlx::Error> {
    // The same message twice in one flush: the second gets the outcome of the first.
    let mut firsts: HashMap<(&str, &str), usize> = HashMap::new();
    let mut again: Vec<(usize, usize)> = vec![];
    let mut stored_messages: HashMap<(usize, &str), StoredMessage> = HashMap::new();
    let mut rows: Vec<(usize, &str, Timestamp)> = vec![];
    for (index, outgoing) in sends {
        let first = *firsts.entry((&outgoing.message_id, outgoing.from.as_str())).or_insert(*index);
        if first != *index {
            again.push((*index, first));
            continue;
        }
        let (stored, own) = outgoing.stored_messages(now);
        for stored in [Some(stored), own].into_iter().flatten() {
            let name = stored.direction.as_str();
            rows.push((*index, name, outgoing.expires_at(now)));
            stored_messages.insert((*index, name), stored);
        }
    }
    let column = |write: fn(&StoredMessage) -> &str| {
        rows.iter().map(|(n, d, _)| write(&stored_messages[&(*n, *d)])).collect::<Vec<_>>()
    };
    let number = |write: fn(&StoredMessage) -> i64| {
        rows.iter().map(|(n, d, _)| write(&stored_messages[&(*n, *d)])).collect::<Vec<_>>()
    };
    let option = |write: fn(&StoredMessage) -> Option<&str>| {
        rows.iter().map(|(n, d, _)| write(&stored_messages[&(*n, *d)])).collect::<Vec<_>>()
    };
    let copies: Vec<_> = rows
        .iter()
        .flat_map(|(n, d, _)| stored_messages[&(*n, *d)].copies().iter().map(|copy| (*n as i64, *d, copy)))
        .collect();
    let found = sqlx::query(send_sql())
        .bind(rows.iter().map(|(n, ..)| *n as i64).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, direction, _)| *direction).collect::<Vec<_>>())
        .bind(column(|stored| stored.owner.as_str()))
        .bind(column(|stored| &stored.message_id))
        .bind(column(|stored| stored.from.as_str()))
        .bind(column(|stored| stored.to.as_str()))
        .bind(option(|stored| stored.kind.as_deref()))
        .bind(number(|stored| stored.encrypted.into()))
        .bind(option(|stored| stored.payload().map(|payload| payload.as_str())))
        .bind(number(|stored| stored.may_queue().into()))
        .bind(rows.iter().map(|(.., expires_at)| expires_at.as_microsecond()).collect::<Vec<_>>())
        .bind(now.as_microsecond())
        .bind(copies.iter().map(|(n, ..)| *n).collect::<Vec<_>>())
        .bind(copies.iter().map(|(_, direction, _)| *direction).collect::<Vec<_>>())
        .bind(copies.iter().map(|(.., copy)| copy.device_id.as_str()).collect::<Vec<_>>())
        .bind(copies.iter().map(|(.., copy)| copy.envelope.as_str()).collect::<Vec<_>>())
        .bind(number(|stored| stored.weight()))
        .bind(MAILBOX_DRAIN_BYTES_PER_MS)
        .bind(MAILBOX_BYTES_MAX)
        .fetch_all(connection)
        .await?;
    for row in &found {
        let (n, direction): (i64, &str) = (row.try_get("n")?, row.try_get("direction")?);
        let (to, seq): (&str, i64) = (row.try_get("recipient")?, row.try_get("seq")?);
        let sent_at_us: i64 = row.try_get("sent_at")?;
        let (queued, known) = (row.try_get::<i64, _>("queued")? == 1, row.try_get::<i64, _>("known")? == 1);
        let to: Aid = to.parse().map_err(|_| sqlx::Error::Decode("a recipient that is no name".into()))?;
        let sent_at = Timestamp::from_microsecond(sent_at_us).map_err(|error| sqlx::Error::Decode(error.into()))?;
        let mode = if queued { Mode::Queue } else { Mode::Fanout };
        let index = n as usize;
        let sent = MailboxOutcome::Sent(Sent { to, seq, sent_at, mode, duplicate: known, delivered: false });
        let (posted, to_deliver) = done[index].get_or_insert_with(|| (sent.clone(), vec![]));
        if direction == Direction::Inbound.as_str() {
            *posted = sent;
        }
        if let Some(stored) = stored_messages.remove(&(index, direction)).filter(|_| !known) {
            to_deliver.push(StoredMessage { seq, mode, ..stored });
        }
    }
    // A message without a number found no room.
    for (index, _) in sends.iter().filter(|(index, _)| !again.iter().any(|(later, _)| later == index)) {
        done[*index].get_or_insert((MailboxOutcome::Full, vec![]));
    }
    for (index, first) in again {
        let mut posted = done[first].clone().expect("the first has an outcome").0;
        if let MailboxOutcome::Sent(sent) = &mut posted {
            sent.duplicate = true;
        }
        done[index] = Some((posted, vec![]));
    }
    Ok(())
}

async fn acknowledge(
    connection: &mut PgConnection,
    acks: &[(usize, &Ack)],
    now: Timestamp,
    done: &mut [Option<Done>],
) -> Result<(), sqlx::Error> {
    // A device slot may acknowledge several numbers in one flush: the highest counts.
    let mut highest: HashMap<(&str, &DeviceSlot), i64> = HashMap::new();
    for (_, ack) in acks {
        let seq = highest.entry((ack.aid.as_str(), &ack.place)).or_insert(ack.seq);
        *seq = (*seq).max(ack.seq);
    }
    let given: Vec<_> = highest.into_iter().collect();
    let found = sqlx::query(ACKNOWLEDGE)
        .bind(given.iter().map(|((aid, _), _)| *aid).collect::<Vec<_>>())
        .bind(given.iter().map(|((_, place), _)| place.device_id.as_str()).collect::<Vec<_>>())
        .bind(given.iter().map(|((_, place), _)| place.slot_id.as_str()).collect::<Vec<_>>())
        .bind(given.iter().map(|(_, seq)| *seq).collect::<Vec<_>>())
        .bind(given.iter().map(|((_, place), _)| place_name(place)).collect::<Vec<_>>())
        .bind(now.as_microsecond())
        .bind(ACKED_SENDERS_MAX)
        .fetch_all(connection)
        .await?;
    for row in &found {
        let (aid, device_id): (&str, &str) = (row.try_get("aid")?, row.try_get("device_id")?);
        let (slot_id, senders): (&str, Vec<String>) = (row.try_get("slot_id")?, row.try_get("senders")?);
        let mut senders: Vec<_> = senders.iter().filter_map(|sender| sender.parse().ok()).collect();
        senders.sort_unstable();
        let mut acked = Acked { before: row.try_get("before")?, ack_seq: row.try_get("ack_seq")?, senders };
        let of =
            |ack: &Ack| ack.aid.as_str() == aid && ack.place.device_id == device_id && ack.place.slot_id == slot_id;
        for (index, _) in acks.iter().filter(|(_, ack)| of(ack)) {
            done[*index] = Some((MailboxOutcome::Acked(acked.clone()), vec![]));
            // Only the first has moved the position.
            acked = Acked { before: acked.ack_seq, senders: vec![], ..acked };
        }
    }
    // An identity without a mailbox has nothing to acknowledge.
    for (index, _) in acks {
        done[*index].get_or_insert_with(|| (MailboxOutcome::Acked(Acked::default()), vec![]));
    }
    Ok(())
}

async fn trim(connection: &mut PgConnection, owners: Vec<String>, now: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query(TRIM)
        .bind(owners)
        .bind(QUEUED_MAX as i64)
        .bind(QUEUED_BYTES_MAX)
        .bind(queued_since(now).as_microsecond())
        .execute(connection)
        .await?;
    Ok(())
}

/// As a separate write.
pub(crate) async fn trim_queue(connections: &Connections, owner: String, now: Timestamp) -> Result<(), StoreError> {
    let mut connection = connect(&connections.hosts).await?;
    within(ANSWER_MAX, "no answer", trim(&mut connection, vec![owner], now)).await?;
    IdleConnection::new(connection).close().await;
    Ok(())
}
