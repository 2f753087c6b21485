//! Messages for one consumer: a short queue per identity, which need not survive a crash. On SQLite it is in the memory of the
//! connection that writes, on Postgres in an unlogged table. A message belongs to the device slot that claims it first.

pub use ostler_protocol::mesh::mailbox::QUEUED_BYTES_MAX;
use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::DeviceSlot,
        mailbox::{StoredMessage, queued_since},
    },
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    mesh::messages::rows::{Mailbox, Queued, place_name},
    record::{Reader, Record, Value, select, text},
};

/// The queue of an identity as one device slot reads it, without the contents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// The messages that are unclaimed or claimed by the device slot: their numbers and sizes in bytes.
    pub open: Vec<(i64, usize)>,
    pub earliest_seq: Option<i64>,
    pub dropped: i64,
}

/// On SQLite only the connection that writes can read it.
async fn read<T: Send + 'static>(
    db: &Db,
    sql: &'static str,
    args: Vec<Value>,
    decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    match &db.engine {
        Engine::Sqlite(_) => db.write(sql, args, decode).await,
        Engine::Postgres(_) => db.read(sql, args, decode).await,
    }
}

pub async fn get(
    db: &Db,
    owner: &Aid,
    mailbox: &Mailbox,
    place: &DeviceSlot,
    now: Timestamp,
) -> Result<Queue, StoreError> {
    let mut queue = Queue { dropped: mailbox.dropped, ..Queue::default() };
    if mailbox.queued_at.is_none() {
        return Ok(queue);
    }
    let sql = "SELECT seq, CAST(OCTET_LENGTH(payload) AS BIGINT) AS bytes, sent_at, taken_by FROM mesh_queue
        WHERE owner = $1 AND received = 0 ORDER BY seq";
    let decode = |row: &mut Reader<'_>| {
        let message = (row.at("seq")?.int()?, row.at("bytes")?.int()? as usize);
        Ok((message, row.at("sent_at")?.time()?, row.at("taken_by")?.opt_text()?))
    };
    let (since, name) = (queued_since(now), place_name(place));
    for ((seq, size), sent_at, taken_by) in read(db, sql, vec![text(owner)], decode).await? {
        if sent_at <= since {
            queue.dropped += i64::from(taken_by.is_none());
            continue;
        }
        queue.earliest_seq.get_or_insert(seq);
        queue.open.extend(taken_by.is_none_or(|taken_by| taken_by == name).then_some((seq, size)));
    }
    Ok(queue)
}

/// One message of the queue. `None` if it was acknowledged or dropped.
pub async fn get_queued(db: &Db, owner: &Aid, seq: i64) -> Result<Option<StoredMessage>, StoreError> {
    let sql = select!(Queued, "WHERE owner = $1 AND seq = $2 AND received = 0");
    let found = read(db, sql, vec![text(owner), seq.into()], Queued::decode).await?.pop();
    Ok(found.map(|Queued(stored)| stored))
}

/// Unclaimed messages of the queue.
pub async fn list_untaken(db: &Db, owner: &Aid, now: Timestamp) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT seq FROM mesh_queue
        WHERE owner = $1 AND sent_at > $2 AND taken_by IS NULL AND received = 0 ORDER BY seq";
    read(db, sql, vec![text(owner), queued_since(now).into()], |row| row.int()).await
}

/// Claims a message of the queue for a device slot. False if it is claimed already, or gone.
pub async fn claim(db: &Db, owner: &Aid, seq: i64, place: &DeviceSlot) -> Result<bool, StoreError> {
    let sql = "UPDATE mesh_queue SET taken_by = $1
        WHERE owner = $2 AND seq = $3 AND taken_by IS NULL AND received = 0 RETURNING seq";
    let args = vec![place_name(place).into(), text(owner), seq.into()];
    Ok(!db.write(sql, args, |row| row.int()).await?.is_empty())
}

/// Whether a device slot has claimed a message of the queue.
pub async fn is_taken(db: &Db, owner: &Aid, seq: i64) -> Result<bool, StoreError> {
    let sql = "SELECT seq FROM mesh_queue WHERE owner = $1 AND seq = $2 AND taken_by IS NOT NULL";
    Ok(!read(db, sql, vec![text(owner), seq.into()], |row| row.int()).await?.is_empty())
}

/// Claims every unclaimed message after `after` up to `upto`. Also returns those that the device slot had claimed before.
pub async fn claim_open(
    db: &Db,
    owner: &Aid,
    place: &DeviceSlot,
    after: i64,
    upto: i64,
    now: Timestamp,
) -> Result<Vec<StoredMessage>, StoreError> {
    let lock = match &db.engine {
        Engine::Sqlite(_) => "",
        // In one order everywhere, which prevents deadlocks.
        Engine::Postgres(_) => "FOR UPDATE",
    };
    let sql = format!(
        "UPDATE mesh_queue SET taken_by = $1 WHERE owner = $2 AND seq IN
            (SELECT seq FROM mesh_queue WHERE owner = $2 AND seq > $3 AND seq <= $4 AND sent_at > $5 AND received = 0
                AND (taken_by IS NULL OR taken_by = $1) ORDER BY seq {lock})
        RETURNING {}",
        Queued::NAMES
    );
    let args = vec![place_name(place).into(), text(owner), after.into(), upto.into(), queued_since(now).into()];
    let claimed = db.write(sql, args, Queued::decode).await?;
    Ok(claimed.into_iter().map(|Queued(stored)| stored).collect())
}

/// Releases a claimed message that could not be delivered.
pub async fn release(db: &Db, owner: &Aid, seq: i64, place: &DeviceSlot) -> Result<(), StoreError> {
    let sql = "UPDATE mesh_queue SET taken_by = NULL WHERE owner = $1 AND seq = $2 AND taken_by = $3 AND received = 0";
    db.execute(sql, vec![text(owner), seq.into(), place_name(place).into()]).await
}

/// Drops and counts messages that are too old. Returns how many queues had any.
pub async fn delete_expired(db: &Db, now: Timestamp) -> Result<usize, StoreError> {
    // Of the owners themselves SQLite would read every one in the order of their index, instead of the old messages only.
    let sql = "SELECT DISTINCT owner || '' FROM mesh_queue WHERE sent_at <= $1";
    let owners = read(db, sql, vec![queued_since(now).into()], |row| row.text()).await?;
    let count = owners.len();
    for owner in owners {
        trim(db, owner, now).await?;
    }
    Ok(count)
}

/// Drops and counts messages of an identity's queue that are too old or too many.
async fn trim(db: &Db, owner: String, now: Timestamp) -> Result<(), StoreError> {
    match &db.engine {
        Engine::Sqlite(sqlite) => crate::mesh::messages::sqlite::trim_queue(sqlite, owner, now).await,
        Engine::Postgres(connections) => crate::mesh::messages::postgres::trim_queue(connections, owner, now).await,
    }
}
