//! Logins of the mesh: chains of token pairs of which only the last is valid, and tickets that are valid once. Hashes only.

use ostler_protocol::{Timestamp, mesh::Aid};

use crate::{
    db::{Db, Statement, StoreError},
    mesh::identities::is_good,
    record::text,
};

/// A pair of tokens, by their hashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    pub access_hash: String,
    pub access_until: Timestamp,
    pub refresh_hash: String,
}

/// Begins a chain, proved with the certificate of this serial. Only the newest chains of a name are stored.
pub async fn insert(
    db: &Db,
    login_id: &str,
    (aid, serial): (&Aid, &str),
    pair: &Pair,
    ends_at: Timestamp,
    kept_max: u32,
) -> Result<(), StoreError> {
    const OLDER: &str = "DELETE FROM mesh_logins WHERE aid = $1 AND (ends_at, login_id) < (SELECT ends_at, login_id \
        FROM mesh_logins WHERE aid = $1 ORDER BY ends_at DESC, login_id DESC LIMIT 1 OFFSET $2)";
    const SQL: &str = "INSERT INTO mesh_logins (login_id, aid, serial, access_hash, access_until, refresh_hash, refreshes, \
        ends_at) VALUES ($1, $2, $3, $4, $5, $6, 0, $7)";
    let args = vec![
        login_id.into(),
        text(aid),
        serial.into(),
        pair.access_hash.as_str().into(),
        pair.access_until.into(),
        pair.refresh_hash.as_str().into(),
        ends_at.into(),
    ];
    let older = Statement::new(OLDER, vec![text(aid), (i64::from(kept_max) - 1).into()]);
    db.write_together(vec![Statement::new(SQL, args), older]).await.map(drop)
}

/// A login `l` is valid as long as the certificate it was proved with, even before its row is deleted.
fn is_valid() -> String {
    is_good("l.serial")
}

/// Lets a login continue with another certificate.
pub(crate) fn go_on(login_id: &str, serial: &str) -> Statement {
    let sql = "UPDATE mesh_logins SET serial = $1 WHERE login_id = $2";
    Statement::new(sql, vec![serial.into(), login_id.into()])
}

/// The identity and the login of an access token. `None` if it is unknown or no longer valid.
pub async fn find_by_access(db: &Db, hash: &str, now: Timestamp) -> Result<Option<(Aid, String)>, StoreError> {
    let is_valid = is_valid();
    let sql = format!(
        "SELECT l.aid, l.login_id FROM mesh_logins AS l WHERE l.access_hash = $1 AND l.access_until > $2 AND {is_valid}"
    );
    db.read_one(sql, vec![hash.into(), now.into()], |row| Ok((row.id()?, row.text()?))).await
}

/// Whether a login has not ended.
pub async fn is_live(db: &Db, login_id: &str, now: Timestamp) -> Result<bool, StoreError> {
    let sql = format!("SELECT 1 FROM mesh_logins AS l WHERE l.login_id = $1 AND l.ends_at > $2 AND {}", is_valid());
    Ok(db.read_one(sql, vec![login_id.into(), now.into()], |_| Ok(())).await?.is_some())
}

/// Replaces the pair of this refresh token by the next one. `None` if it is not the last of its chain, or the chain has
/// ended.
pub async fn update_refreshed(
    db: &Db,
    hash: &str,
    next: &Pair,
    refreshes_max: u32,
    now: Timestamp,
) -> Result<Option<Aid>, StoreError> {
    let sql = format!(
        "UPDATE mesh_logins AS l SET access_hash = $1, access_until = $2, refresh_hash = $3, spent_hash = $4, \
         refreshes = l.refreshes + 1 WHERE l.refresh_hash = $4 AND l.refreshes < $5 AND l.ends_at > $6 AND {} \
         RETURNING aid",
        is_valid()
    );
    let args = vec![
        next.access_hash.as_str().into(),
        next.access_until.into(),
        next.refresh_hash.as_str().into(),
        hash.into(),
        i64::from(refreshes_max).into(),
        now.into(),
    ];
    Ok(db.write(sql, args, |row| row.id()).await?.pop())
}

/// Ends the chain whose last refresh token but one is presented again: one of its two holders has stolen it. Returns the
/// identity.
pub async fn delete_by_spent(db: &Db, hash: &str) -> Result<Option<Aid>, StoreError> {
    const SQL: &str = "DELETE FROM mesh_logins WHERE spent_hash = $1 RETURNING aid";
    Ok(db.write(SQL, vec![hash.into()], |row| row.id()).await?.pop())
}

/// Deletes the chains of a name that are no longer valid.
pub async fn delete_fallen(db: &Db, aid: &Aid) -> Result<(), StoreError> {
    db.execute(format!("DELETE FROM mesh_logins AS l WHERE l.aid = $1 AND NOT {}", is_valid()), vec![text(aid)]).await
}

/// Uses a ticket that is valid once. False if it was used before.
pub async fn spend(db: &Db, ticket: &str, ends_at: Timestamp) -> Result<bool, StoreError> {
    const SQL: &str =
        "INSERT INTO mesh_spent (ticket, ends_at) VALUES ($1, $2) ON CONFLICT (ticket) DO NOTHING RETURNING 1";
    Ok(!db.write(SQL, vec![ticket.into(), ends_at.into()], |_| Ok(())).await?.is_empty())
}

/// Deletes what has ended.
pub async fn delete_ended(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    db.execute("DELETE FROM mesh_logins WHERE ends_at <= $1", vec![now.into()]).await?;
    db.execute("DELETE FROM mesh_spent WHERE ends_at <= $1", vec![now.into()]).await
}
