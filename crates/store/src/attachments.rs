//! Attachments: whose they are, how large, and whether a message has used them. Their bytes are in the object store.

use ostler_protocol::{
    Timestamp,
    attachments::{NoPath, ObjectPath},
};

use crate::{
    db::{Db, StoreError},
    record::{Reader, text},
};

/// What one user may have.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub bytes: i64,
    pub files: i64,
}

fn path(row: &mut Reader<'_>) -> Result<ObjectPath, StoreError> {
    row.str()?.parse().map_err(|NoPath| StoreError::corrupt("an attachment lies where none can be"))
}

/// False: with it the user would have more than they may. On Postgres, several at once may go beyond by one another.
pub async fn insert(db: &Db, file: &ObjectPath, bytes: i64, quota: Quota, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "INSERT INTO attachments (path, owner, thread_id, bytes, used_at, created_at)
        SELECT $1, $2, $3, $4, NULL, $5
        WHERE (SELECT COALESCE(SUM(a.bytes), 0) FROM attachments a WHERE a.owner = $2) + $4 <= $6
        AND (SELECT COUNT(*) FROM attachments a WHERE a.owner = $2) < $7 RETURNING path";
    let args = vec![
        text(file),
        file.owner.as_str().into(),
        file.thread_id.as_str().into(),
        bytes.into(),
        now.into(),
        quota.bytes.into(),
        quota.files.into(),
    ];
    Ok(!db.write(sql, args, path).await?.is_empty())
}

/// A message uses it. False: it is not there any more.
pub async fn update_used(db: &Db, file: &ObjectPath, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE attachments SET used_at = COALESCE(used_at, $1) WHERE path = $2 RETURNING path";
    Ok(!db.write(sql, vec![now.into(), text(file)], path).await?.is_empty())
}

pub async fn exists(db: &Db, file: &ObjectPath) -> Result<bool, StoreError> {
    let sql = "SELECT path FROM attachments WHERE path = $1";
    Ok(db.read_one(sql, vec![text(file)], path).await?.is_some())
}

/// What no message has used since then, the oldest first.
pub async fn list_unused(db: &Db, before: Timestamp, limit: u32) -> Result<Vec<ObjectPath>, StoreError> {
    let sql = "SELECT path FROM attachments WHERE used_at IS NULL AND created_at < $1 ORDER BY created_at LIMIT $2";
    db.read(sql, vec![before.into(), i64::from(limit).into()], path).await
}

/// Everything of a thread.
pub async fn list_by_thread(db: &Db, owner: &str, thread_id: &str, limit: u32) -> Result<Vec<ObjectPath>, StoreError> {
    let sql = "SELECT path FROM attachments WHERE owner = $1 AND thread_id = $2 LIMIT $3";
    db.read(sql, vec![owner.into(), thread_id.into(), i64::from(limit).into()], path).await
}

/// False: a message has used it meanwhile, and it stays.
pub async fn delete_unused(db: &Db, file: &ObjectPath) -> Result<bool, StoreError> {
    let sql = "DELETE FROM attachments WHERE path = $1 AND used_at IS NULL RETURNING path";
    Ok(!db.write(sql, vec![text(file)], path).await?.is_empty())
}

pub async fn delete(db: &Db, file: &ObjectPath) -> Result<(), StoreError> {
    db.execute("DELETE FROM attachments WHERE path = $1", vec![text(file)]).await
}
