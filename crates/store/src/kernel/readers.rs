//! Readers of sessions: which version each has seen, and which sessions it has not read.
//!
//! Most sessions have been read, or will never be, so the few unread ones must be found without a scan. A user, and any reader who
//! has marked anything, is *settled* step by step: every session gets a mark of the reader, including the unread ones, which are
//! found by an index. A mark is right until another command of its session ends; sessions in which one has ended since the
//! reader was settled are read separately. Nothing of this is done when a command ends.

use jiff::SignedDuration;
use ostler_protocol::{Timestamp, ids::SessionId};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, insert_select, record, replace_stored, sql, text},
};

/// Sessions settled at once.
const SETTLED_MAX: u32 = 500;
/// Later ends are not settled yet: they may not be committed, or have the time of another clock.
const UNSETTLED: SignedDuration = SignedDuration::from_secs(60);

/// How far a reader is settled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Settled {
    /// Not at all, or not yet as far as possible.
    No,
    /// Every session that last ended something before this has a mark.
    Until(Timestamp),
}

/// A reader's mark on a session.
pub(crate) struct ReadCursor {
    session: SessionId,
    reader_id: String,
    version: i64,
    read_at: Timestamp,
    /// Of the session, for the order.
    created_at: Timestamp,
    unread: bool,
}

record! {
    ReadCursor, cursor in "session_read_cursors";
    key {
        session = "session_id": id;
        reader_id: text;
    }
    fixed {
        created_at: time;
    }
    state {
        version: int;
        read_at: time;
        unread: flag;
    }
}

/// A reader who has marked anything, or who has a beginning.
pub(crate) struct SessionReader {
    reader_id: String,
    settled_until: Timestamp,
}

record! {
    SessionReader, reader in "session_readers";
    key {
        reader_id: text;
    }
    fixed {}
    state {
        settled_until: time;
    }
}

/// Whether the session of this alias has a run that a call of an agent has started, so that it is never unread.
macro_rules! is_for_a_run {
    ($alias:literal) => {
        concat!("(", $alias, ".background = 1 AND ", $alias, ".external_id IS NULL)")
    };
}

/// The version of the session `t` that the reader `$1` has seen. Lookups, where joins might be planned as a walk over all marks.
///
/// Up to where a reader is settled, every session has a mark of the reader, except those that ended before [`begin`]: these count
/// as read.
pub(crate) const READ_VERSION: &str = concat!(
    "CASE WHEN ",
    is_for_a_run!("t"),
    " THEN t.version ELSE COALESCE((SELECT m.version FROM session_read_cursors m
     WHERE m.session_id = t.session_id AND m.reader_id = $1),
     CASE WHEN t.ended_at < (SELECT r.settled_until FROM session_readers r WHERE r.reader_id = $1) THEN t.version ELSE 0 END) END"
);

/// The version this reader has seen.
pub async fn get_version(db: &Db, session: SessionId, reader_id: &str) -> Result<i64, StoreError> {
    let sql = format!("SELECT {READ_VERSION} FROM sessions t WHERE t.session_id = $2");
    let found = db.read(sql, vec![reader_id.into(), text(session)], |row| row.int()).await?;
    Ok(found.first().copied().unwrap_or(0))
}

/// Makes a reader for whom every session that ended before this time counts as read. Does nothing if the reader exists.
pub async fn begin(db: &Db, reader_id: &str, time: Timestamp) -> Result<(), StoreError> {
    let reader = SessionReader { reader_id: reader_id.to_owned(), settled_until: time };
    db.execute_statement(record::insert(&reader, vec![], "ON CONFLICT (reader_id) DO NOTHING")).await
}

/// A reader's mark never moves back.
pub async fn update_version(
    db: &Db,
    session: SessionId,
    reader_id: &str,
    version: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = sql!({
        let columns = [
            ("reader_id", "$1"),
            ("version", "$2"),
            ("read_at", "$3"),
            ("session_id", "s.session_id"),
            ("created_at", "s.created_at"),
            ("unread", concat!("CASE WHEN s.version > $2 AND NOT ", is_for_a_run!("s"), " THEN 1 ELSE 0 END")),
        ];
        let replaced = replace_stored::<ReadCursor>();
        let rest = format!(
            "FROM sessions s WHERE s.session_id = $4 {replaced} WHERE session_read_cursors.version <= excluded.version"
        );
        insert_select::<ReadCursor>(&columns, &rest)
    });
    db.execute(sql, vec![reader_id.into(), version.into(), now.into(), text(session)]).await?;
    begin(db, reader_id, Timestamp::UNIX_EPOCH).await?;
    settle(db, reader_id, now).await.map(drop)
}

/// Settles the reader further, and returns how far it is. Idempotent and safe to run concurrently.
pub async fn settle(db: &Db, reader_id: &str, now: Timestamp) -> Result<Settled, StoreError> {
    let found: Vec<SessionReader> = db.select("WHERE reader_id = $1", vec![reader_id.into()]).await?;
    let Some(SessionReader { settled_until: from, .. }) = found.into_iter().next() else {
        return Ok(Settled::No);
    };
    let horizon = now.checked_sub(UNSETTLED).unwrap_or(Timestamp::MIN);
    let sql = "SELECT ended_at FROM sessions WHERE ended_at >= $1 AND ended_at < $2 ORDER BY ended_at LIMIT $3";
    let args = vec![from.into(), horizon.into(), i64::from(SETTLED_MAX).into()];
    let ended = db.read(sql, args, |row| row.time()).await?;
    if ended.is_empty() {
        return Ok(Settled::Until(from));
    }
    let all = ended.len() < SETTLED_MAX as usize;
    // Of those at the last moment there may be more than these.
    let until = if all { horizon } else { ended[ended.len() - 1] };
    let sql = sql!({
        let columns = [
            ("reader_id", "$1"),
            ("version", "0"),
            ("read_at", "0"),
            ("session_id", "s.session_id"),
            ("created_at", "s.created_at"),
            ("unread", concat!("CASE WHEN ", is_for_a_run!("s"), " THEN 0 ELSE 1 END")),
        ];
        let rest = "FROM sessions s WHERE s.ended_at >= $2 AND s.ended_at < $3
            ON CONFLICT (session_id, reader_id) DO UPDATE SET unread = CASE WHEN excluded.unread = 1
                AND session_read_cursors.version <
                (SELECT s.version FROM sessions s WHERE s.session_id = excluded.session_id) THEN 1 ELSE 0 END";
        insert_select::<ReadCursor>(&columns, rest)
    });
    db.execute(sql, vec![reader_id.into(), from.into(), until.into()]).await?;
    let sql = "UPDATE session_readers SET settled_until = $1 WHERE reader_id = $2 AND settled_until < $1";
    db.execute(sql, vec![until.into(), reader_id.into()]).await?;
    Ok(if all { Settled::Until(until) } else { Settled::No })
}
