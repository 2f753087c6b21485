//! Users. A removed one stays as a row, and its name is free again.

use std::collections::BTreeMap;

use ostler_protocol::{Timestamp, cursors::Cursor, ids::UserId, users::User};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Reader, Record, Value, json, record, text},
};

const NAMES: &str = <User as Record>::NAMES;

record! {
    User, user in "users";
    key {
        user_id: id;
    }
    fixed {
        name: text;
        issuer: text;
        subject: text;
        tenants: json;
        timezone: text;
        created_at: time;
        removed_at: opt_time;
    }
    state {}
}

/// False: the name, or the issuer's subject, is another user's.
pub async fn insert(db: &Db, user: &User) -> Result<bool, StoreError> {
    match db.execute_statement(record::insert(user, vec![], "")).await {
        Err(error) if error.is_unique_violation() => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

pub async fn find_by_name(db: &Db, name: &str) -> Result<Option<User>, StoreError> {
    Ok(db.select("WHERE name = $1 AND removed_at IS NULL", vec![name.into()]).await?.pop())
}

pub async fn find_by_subject(db: &Db, issuer: &str, subject: &str) -> Result<Option<User>, StoreError> {
    let rest = "WHERE issuer = $1 AND subject = $2 AND removed_at IS NULL";
    Ok(db.select(rest, vec![issuer.into(), subject.into()]).await?.pop())
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
    db.select(&format!("{filter} ORDER BY created_at DESC, user_id{order} DESC LIMIT ${last}"), args).await
}

/// The names of these users by their ids, also of those who were removed. Ids of no user are left out.
pub async fn list_names(db: &Db, user_ids: &[String]) -> Result<BTreeMap<String, String>, StoreError> {
    if user_ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!("SELECT user_id, name FROM users WHERE user_id IN (SELECT one FROM {})", db.list("$1"));
    let decode = |row: &mut Reader<'_>| Ok((row.at("user_id")?.text()?, row.at("name")?.text()?));
    Ok(db.read(sql, vec![json(&user_ids)], decode).await?.into_iter().collect())
}

/// `None`: there is no such user.
pub async fn update_removed(db: &Db, name: &str, now: Timestamp) -> Result<Option<User>, StoreError> {
    let sql = format!("UPDATE users SET removed_at = $1 WHERE name = $2 AND removed_at IS NULL RETURNING {NAMES}");
    Ok(db.write(sql, vec![now.into(), name.into()], User::decode).await?.pop())
}

/// `None` if there is no such user.
pub async fn update_timezone(db: &Db, name: &str, timezone: &str) -> Result<Option<User>, StoreError> {
    let sql = format!("UPDATE users SET timezone = $1 WHERE name = $2 AND removed_at IS NULL RETURNING {NAMES}");
    Ok(db.write(sql, vec![timezone.into(), name.into()], User::decode).await?.pop())
}

pub async fn get(db: &Db, user_id: UserId) -> Result<Option<User>, StoreError> {
    Ok(db.select("WHERE user_id = $1", vec![text(user_id)]).await?.pop())
}
