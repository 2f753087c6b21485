//! Logins of the mesh: chains of tokens, of which only the last pair is good, and what may be used once. Hashes only.

use ostler_protocol::{Timestamp, mesh::Aid};

use crate::{
    db::{Db, StoreError},
    record::text,
};

/// A pair of tokens, by their hashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    pub access_hash: String,
    pub access_until: Timestamp,
    pub refresh_hash: String,
}

/// Begins a chain.
pub async fn insert(db: &Db, login_id: &str, aid: &Aid, pair: &Pair, ends_at: Timestamp) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO mesh_logins (login_id, aid, access_hash, access_until, refresh_hash, refreshes, ends_at) \
        VALUES ($1, $2, $3, $4, $5, 0, $6)";
    let args = vec![
        login_id.into(),
        text(aid),
        pair.access_hash.as_str().into(),
        pair.access_until.into(),
        pair.refresh_hash.as_str().into(),
        ends_at.into(),
    ];
    db.execute(SQL, args).await
}

/// Whose access token this is, and of which login. `None`: nobody's, or not any more.
pub async fn find_by_access(db: &Db, hash: &str, now: Timestamp) -> Result<Option<(Aid, String)>, StoreError> {
    const SQL: &str = "SELECT aid, login_id FROM mesh_logins WHERE access_hash = $1 AND access_until > $2";
    db.read_one(SQL, vec![hash.into(), now.into()], |row| Ok((row.id()?, row.text()?))).await
}

/// Whether a login has not ended.
pub async fn is_live(db: &Db, login_id: &str, now: Timestamp) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM mesh_logins WHERE login_id = $1 AND ends_at > $2";
    Ok(db.read_one(SQL, vec![login_id.into(), now.into()], |_| Ok(())).await?.is_some())
}

/// Puts the next pair in the place of the one whose refresh token is shown. `None`: it is not the chain's last, or the
/// chain is over.
pub async fn update_refreshed(
    db: &Db,
    hash: &str,
    next: &Pair,
    refreshes_max: u32,
    now: Timestamp,
) -> Result<Option<Aid>, StoreError> {
    const SQL: &str = "UPDATE mesh_logins SET access_hash = $1, access_until = $2, refresh_hash = $3, spent_hash = $4, \
        refreshes = refreshes + 1 WHERE refresh_hash = $4 AND refreshes < $5 AND ends_at > $6 RETURNING aid";
    let args = vec![
        next.access_hash.as_str().into(),
        next.access_until.into(),
        next.refresh_hash.as_str().into(),
        hash.into(),
        i64::from(refreshes_max).into(),
        now.into(),
    ];
    Ok(db.write(SQL, args, |row| row.id()).await?.pop())
}

/// Ends the chain whose refresh token was shown a second time: one of the two who have it has stolen it.
pub async fn delete_by_spent(db: &Db, hash: &str) -> Result<bool, StoreError> {
    let ended =
        db.write("DELETE FROM mesh_logins WHERE spent_hash = $1 RETURNING aid", vec![hash.into()], |row| row.text());
    Ok(!ended.await?.is_empty())
}

pub async fn delete(db: &Db, login_id: &str) -> Result<(), StoreError> {
    db.execute("DELETE FROM mesh_logins WHERE login_id = $1", vec![login_id.into()]).await
}

/// Ends every chain of a name, or all but one.
pub async fn delete_of(db: &Db, aid: &Aid, except: Option<&str>) -> Result<(), StoreError> {
    const SQL: &str = "DELETE FROM mesh_logins WHERE aid = $1 AND login_id <> $2";
    db.execute(SQL, vec![text(aid), except.unwrap_or_default().into()]).await
}

/// Uses up what may be used once. False: it was used before.
pub async fn spend(db: &Db, ticket: &str, ends_at: Timestamp) -> Result<bool, StoreError> {
    const SQL: &str =
        "INSERT INTO mesh_spent (ticket, ends_at) VALUES ($1, $2) ON CONFLICT (ticket) DO NOTHING RETURNING 1";
    Ok(!db.write(SQL, vec![ticket.into(), ends_at.into()], |_| Ok(())).await?.is_empty())
}

/// Forgets what is over.
pub async fn delete_ended(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    db.execute("DELETE FROM mesh_logins WHERE ends_at <= $1", vec![now.into()]).await?;
    db.execute("DELETE FROM mesh_spent WHERE ends_at <= $1", vec![now.into()]).await
}
