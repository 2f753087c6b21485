//! Logins of the mesh: chains of token pairs of which only the last is valid, and tickets that are valid once. Hashes only.

use ostler_protocol::{Timestamp, mesh::Aid};

use crate::{
    db::Db,
    error::StoreError,
    mesh::certificates::is_good,
    record::{self, Record, Statement, columns, record, text},
};

/// A pair of tokens, by their hashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    pub access_hash: String,
    pub access_until: Timestamp,
    pub refresh_hash: String,
}

pub(crate) struct Login {
    login_id: String,
    aid: Aid,
    /// The serial of the certificate that it was proved with.
    serial: String,
    pair: Pair,
    /// The refresh token before.
    spent_hash: Option<String>,
    refreshes: i64,
    ends_at: Timestamp,
}

record! {
    Login, login in "mesh_logins";
    key {
        login_id: text;
    }
    fixed {
        aid: id;
        ends_at: time;
    }
    state {
        serial: text;
        access_hash: text from login.pair.access_hash;
        access_until: time from login.pair.access_until;
        refresh_hash: text from login.pair.refresh_hash;
        spent_hash: opt_text;
        refreshes: int;
    }
    build Login {
        login_id,
        aid,
        ends_at,
        serial,
        pair: Pair { access_hash, access_until, refresh_hash },
        spent_hash,
        refreshes,
    };
}

/// What may be used once.
pub(crate) struct SpentTicket {
    ticket: String,
    ends_at: Timestamp,
}

record! {
    SpentTicket, spent in "mesh_spent";
    key {
        ticket: text;
    }
    fixed {
        ends_at: time;
    }
    state {}
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
    let login = Login {
        login_id: login_id.to_owned(),
        aid: aid.clone(),
        serial: serial.to_owned(),
        pair: pair.clone(),
        spent_hash: None,
        refreshes: 0,
        ends_at,
    };
    let older = Statement::new(OLDER, vec![text(aid), (i64::from(kept_max) - 1).into()]);
    db.write_together(vec![record::insert(&login, vec![], ""), older]).await.map(drop)
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
    let columns = columns::<Login>("l");
    let sql = format!(
        "SELECT {columns} FROM mesh_logins AS l WHERE l.access_hash = $1 AND l.access_until > $2 AND {}",
        is_valid()
    );
    let found = db.read_one(sql, vec![hash.into(), now.into()], Login::decode).await?;
    Ok(found.map(|login| (login.aid, login.login_id)))
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
    let spent = SpentTicket { ticket: ticket.to_owned(), ends_at };
    let Statement { sql, args, .. } = record::insert(&spent, vec![], "ON CONFLICT (ticket) DO NOTHING RETURNING 1");
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// Deletes what has ended.
pub async fn delete_ended(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    db.execute("DELETE FROM mesh_logins WHERE ends_at <= $1", vec![now.into()]).await?;
    db.execute("DELETE FROM mesh_spent WHERE ends_at <= $1", vec![now.into()]).await
}
