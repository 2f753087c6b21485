//! Users. A removed one stays as a row, and its name is free again.

use ostler_protocol::{Timestamp, cursors::Cursor, ids::UserId, users::User};

use crate::{
    db::{Db, StoreError},
    record::{Reader, Value, json, text},
};

const COLUMNS: &str = "user_id, name, issuer, subject, tenants, timezone, created_at, removed_at";

fn decode(row: &mut Reader<'_>) -> Result<User, StoreError> {
    Ok(User {
        user_id: row.id()?,
        name: row.text()?,
        issuer: row.text()?,
        subject: row.text()?,
        tenants: row.json()?,
        timezone: row.text()?,
        created_at: row.time()?,
        removed_at: row.opt_time()?,
    })
}

/// False: the name, or the issuer's subject, is somebody else's.
pub async fn insert(db: &Db, user: &User) -> Result<bool, StoreError> {
    let sql = format!("INSERT INTO users ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)");
    let args = vec![
        text(user.user_id),
        user.name.as_str().into(),
        user.issuer.as_str().into(),
        user.subject.as_str().into(),
        json(&user.tenants),
        user.timezone.as_str().into(),
        user.created_at.into(),
        user.removed_at.into(),
    ];
    match db.execute(sql, args).await {
        Err(error) if error.is_unique_violation() => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

pub async fn find_by_name(db: &Db, name: &str) -> Result<Option<User>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM users WHERE name = $1 AND removed_at IS NULL");
    db.read_one(sql, vec![name.into()], decode).await
}

pub async fn find_by_subject(db: &Db, issuer: &str, subject: &str) -> Result<Option<User>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM users WHERE issuer = $1 AND subject = $2 AND removed_at IS NULL");
    db.read_one(sql, vec![issuer.into(), subject.into()], decode).await
}

/// Newest first, without those who were removed.
pub async fn list(db: &Db, after: Option<&Cursor>, limit: u32) -> Result<Vec<User>, StoreError> {
    let (mut args, mut filter): (Vec<Value>, _) = (vec![], "WHERE removed_at IS NULL".to_owned());
    let order = db.byte_order();
    if let Some(cursor) = after {
        args = vec![cursor.created_at_us.into(), cursor.id.as_str().into()];
        filter += &format!(" AND (created_at, user_id{order}) < ($1, $2)");
    }
    args.push(i64::from(limit).into());
    let last = args.len();
    let sql =
        format!("SELECT {COLUMNS} FROM users {filter} ORDER BY created_at DESC, user_id{order} DESC LIMIT ${last}");
    db.read(sql, args, decode).await
}

/// `None`: there is no such user.
pub async fn update_removed(db: &Db, name: &str, now: Timestamp) -> Result<Option<User>, StoreError> {
    let sql = format!("UPDATE users SET removed_at = $1 WHERE name = $2 AND removed_at IS NULL RETURNING {COLUMNS}");
    Ok(db.write(sql, vec![now.into(), name.into()], decode).await?.pop())
}

/// `None` if there is no such user.
pub async fn update_timezone(db: &Db, name: &str, timezone: &str) -> Result<Option<User>, StoreError> {
    let sql = format!("UPDATE users SET timezone = $1 WHERE name = $2 AND removed_at IS NULL RETURNING {COLUMNS}");
    Ok(db.write(sql, vec![timezone.into(), name.into()], decode).await?.pop())
}

pub async fn get(db: &Db, user_id: UserId) -> Result<Option<User>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM users WHERE user_id = $1");
    db.read_one(sql, vec![text(user_id)], decode).await
}
