//! Restores of a session's files that are under way. One server works on a session's files at once, for as long as it extends
//! its row; the row of a server that stopped expires.

use ostler_protocol::{Timestamp, ids::SessionId};

use crate::{
    db::Db,
    error::StoreError,
    record::{record, text},
};

/// A restore that is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Restore {
    pub session: SessionId,
    /// Tells it from other restores of the session.
    pub restore_id: String,
    pub expires_at: Timestamp,
}

record! {
    Restore, restore in "daemon_restores";
    key {
        session = "session_id": id;
    }
    fixed {
        restore_id: text;
    }
    state {
        expires_at: time;
    }
}

/// Begins a restore. False if another one of the session is under way.
pub async fn insert(db: &Db, new: &Restore, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "INSERT INTO daemon_restores (session_id, restore_id, expires_at) VALUES ($1, $2, $3)
        ON CONFLICT (session_id) DO UPDATE SET restore_id = excluded.restore_id, expires_at = excluded.expires_at
        WHERE daemon_restores.expires_at <= $4 RETURNING 1";
    let args = vec![text(new.session), new.restore_id.as_str().into(), new.expires_at.into(), now.into()];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// Extends a restore. False if it has expired, or another one has taken its place.
pub async fn update_expiry(db: &Db, restore: &Restore, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE daemon_restores SET expires_at = $1 WHERE session_id = $2 AND restore_id = $3 AND expires_at > $4
        RETURNING 1";
    let args = vec![restore.expires_at.into(), text(restore.session), restore.restore_id.as_str().into(), now.into()];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

pub async fn delete(db: &Db, restore: &Restore) -> Result<(), StoreError> {
    let sql = "DELETE FROM daemon_restores WHERE session_id = $1 AND restore_id = $2 RETURNING 1";
    let args = vec![text(restore.session), restore.restore_id.as_str().into()];
    db.write(sql, args, |_| Ok(())).await.map(drop)
}

/// Whether files of the session are being restored.
pub async fn is_under_way(db: &Db, session: SessionId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM daemon_restores WHERE session_id = $1 AND expires_at > $2";
    Ok(!db.read(sql, vec![text(session), now.into()], |_| Ok(())).await?.is_empty())
}
