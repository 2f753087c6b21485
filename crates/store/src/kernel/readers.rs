//! Readers of sessions: which version each has seen, and which sessions it has not read.
//!
//! Most sessions have been read, or will never be, so the few unread ones must be found without a scan. A reader who has
//! marked anything is *settled* step by step: every session gets a mark of the reader, including the unread ones, which are
//! found by an index. A mark is right until another command of its session ends; sessions in which one has ended since the
//! reader was settled are read separately. Nothing of this is done when a command ends.

use jiff::SignedDuration;
use ostler_protocol::{Timestamp, ids::SessionId};

use crate::{
    db::{Db, StoreError},
    record::text,
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

/// The version this reader has seen.
pub async fn get_version(db: &Db, session: SessionId, reader_id: &str) -> Result<i64, StoreError> {
    let sql = "SELECT version FROM session_read_cursors WHERE session_id = $1 AND reader_id = $2";
    let found = db.read_one(sql, vec![text(session), reader_id.into()], |row| row.int()).await?;
    Ok(found.unwrap_or(0))
}

/// A reader's mark never moves back.
pub async fn update_version(
    db: &Db,
    session: SessionId,
    reader_id: &str,
    version: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO session_read_cursors (reader_id, version, read_at, session_id, created_at, unread)
        SELECT $1, $2, $3, s.session_id, s.created_at, CASE WHEN s.version > $2 THEN 1 ELSE 0 END
        FROM sessions s WHERE s.session_id = $4
        ON CONFLICT (session_id, reader_id) DO UPDATE
        SET version = excluded.version, read_at = excluded.read_at, unread = excluded.unread
        WHERE session_read_cursors.version <= excluded.version";
    db.execute(sql, vec![reader_id.into(), version.into(), now.into(), text(session)]).await?;
    let sql =
        "INSERT INTO session_readers (reader_id, settled_until) VALUES ($1, 0) ON CONFLICT (reader_id) DO NOTHING";
    db.execute(sql, vec![reader_id.into()]).await?;
    settle(db, reader_id, now).await.map(drop)
}

/// Settles the reader further, and returns how far it is. Idempotent and safe to run concurrently.
pub async fn settle(db: &Db, reader_id: &str, now: Timestamp) -> Result<Settled, StoreError> {
    let sql = "SELECT settled_until FROM session_readers WHERE reader_id = $1";
    let Some(from) = db.read_one(sql, vec![reader_id.into()], |row| row.time()).await? else {
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
    let sql = "INSERT INTO session_read_cursors (reader_id, version, read_at, session_id, created_at, unread)
        SELECT $1, 0, 0, s.session_id, s.created_at, 1 FROM sessions s WHERE s.ended_at >= $2 AND s.ended_at < $3
        ON CONFLICT (session_id, reader_id) DO UPDATE SET unread = CASE WHEN session_read_cursors.version <
            (SELECT s.version FROM sessions s WHERE s.session_id = excluded.session_id) THEN 1 ELSE 0 END";
    db.execute(sql, vec![reader_id.into(), from.into(), until.into()]).await?;
    let sql = "UPDATE session_readers SET settled_until = $1 WHERE reader_id = $2 AND settled_until < $1";
    db.execute(sql, vec![until.into(), reader_id.into()]).await?;
    Ok(if all { Settled::Until(until) } else { Settled::No })
}
