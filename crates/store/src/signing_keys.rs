//! Signing keys: the public halves of the keys that servers of this store sign users' tokens with.

use ostler_protocol::Timestamp;

use crate::db::{Db, StoreError};

/// A server writes its key down at every start; the first time counts.
pub async fn insert(db: &Db, kid: &str, jwk: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO signing_keys (kid, jwk, created_at) VALUES ($1, $2, $3) ON CONFLICT (kid) DO NOTHING";
    db.execute(sql, vec![kid.into(), jwk.into(), now.into()]).await
}

pub async fn get(db: &Db, kid: &str) -> Result<Option<String>, StoreError> {
    db.read_one("SELECT jwk FROM signing_keys WHERE kid = $1", vec![kid.into()], |row| row.text()).await
}

/// Newest first.
pub async fn list(db: &Db, limit: u32) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT jwk FROM signing_keys ORDER BY created_at DESC, kid LIMIT $1";
    db.read(sql, vec![i64::from(limit).into()], |row| row.text()).await
}
