//! Service tokens: only their hashes are kept.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::TokenId,
    tokens::{ServiceToken, TokenRole},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Record, Value, opt_text, record, text},
};

record! {
    ServiceToken, token in "tokens";
    key {
        token_id: id;
    }
    fixed {
        name: text;
        role: named(TokenRole);
        tenants: json;
        created_at: time;
        expires_at: opt_time;
        revoked_at: opt_time;
    }
    state {}
    beside { token_hash idempotency_key }
}

/// False: the key has been used.
pub async fn insert(db: &Db, token: &ServiceToken, token_hash: &str, key: Option<&str>) -> Result<bool, StoreError> {
    let beside = vec![("token_hash", token_hash.into()), ("idempotency_key", opt_text(key))];
    match db.execute_statement(record::insert(token, beside, "")).await {
        Err(error) if error.is_unique_violation() => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

pub async fn find_by_key(db: &Db, key: &str) -> Result<Option<ServiceToken>, StoreError> {
    Ok(db.select("WHERE idempotency_key = $1", vec![key.into()]).await?.pop())
}

/// Also one that was revoked or has expired: whether it is good is the caller's question.
pub async fn find_by_hash(db: &Db, token_hash: &str) -> Result<Option<ServiceToken>, StoreError> {
    Ok(db.select("WHERE token_hash = $1", vec![token_hash.into()]).await?.pop())
}

/// Also one that was revoked or has expired.
pub async fn get(db: &Db, token_id: TokenId) -> Result<Option<ServiceToken>, StoreError> {
    Ok(db.select("WHERE token_id = $1", vec![text(token_id)]).await?.pop())
}

/// Newest first.
pub async fn list(db: &Db, after: Option<&Cursor>, limit: u32) -> Result<Vec<ServiceToken>, StoreError> {
    let (mut args, mut filter): (Vec<Value>, _) = (vec![], String::new());
    let order = db.byte_order();
    if let Some(cursor) = after {
        args = vec![cursor.created_at_us.into(), cursor.id.as_str().into()];
        filter = format!("WHERE (created_at, token_id{order}) < ($1, $2)");
    }
    args.push(i64::from(limit).into());
    let last = args.len();
    db.select(&format!("{filter} ORDER BY created_at DESC, token_id{order} DESC LIMIT ${last}"), args).await
}

/// The first revocation is final. `None` if there is no such token.
pub async fn update_revoked(db: &Db, token_id: TokenId, now: Timestamp) -> Result<Option<ServiceToken>, StoreError> {
    let names = ServiceToken::NAMES;
    let sql = format!("UPDATE tokens SET revoked_at = COALESCE(revoked_at, $1) WHERE token_id = $2 RETURNING {names}");
    Ok(db.write(sql, vec![now.into(), text(token_id)], ServiceToken::decode).await?.pop())
}
