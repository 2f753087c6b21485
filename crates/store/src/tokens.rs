//! Service tokens: only their hashes are kept.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::TokenId,
    tokens::{ServiceToken, TokenRole},
};

use crate::{
    db::{Db, StoreError},
    record::{Reader, Value, json, opt_text, text},
};

const COLUMNS: &str = "token_id, name, role, tenants, created_at, expires_at, revoked_at";

fn decode(row: &mut Reader<'_>) -> Result<ServiceToken, StoreError> {
    Ok(ServiceToken {
        token_id: row.id()?,
        name: row.text()?,
        role: row.named(TokenRole::parse)?,
        tenants: row.json()?,
        created_at: row.time()?,
        expires_at: row.opt_time()?,
        revoked_at: row.opt_time()?,
    })
}

/// False: the key has been used.
pub async fn insert(db: &Db, token: &ServiceToken, token_hash: &str, key: Option<&str>) -> Result<bool, StoreError> {
    let sql = format!(
        "INSERT INTO tokens ({COLUMNS}, token_hash, idempotency_key) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    );
    let args = vec![
        text(token.token_id),
        token.name.as_str().into(),
        token.role.as_str().into(),
        json(&token.tenants),
        token.created_at.into(),
        token.expires_at.into(),
        token.revoked_at.into(),
        token_hash.into(),
        opt_text(key),
    ];
    match db.execute(sql, args).await {
        Err(error) if error.is_unique_violation() => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

pub async fn find_by_key(db: &Db, key: &str) -> Result<Option<ServiceToken>, StoreError> {
    db.read_one(format!("SELECT {COLUMNS} FROM tokens WHERE idempotency_key = $1"), vec![key.into()], decode).await
}

/// Also one that was revoked or has expired: whether it is good is the caller's question.
pub async fn find_by_hash(db: &Db, token_hash: &str) -> Result<Option<ServiceToken>, StoreError> {
    db.read_one(format!("SELECT {COLUMNS} FROM tokens WHERE token_hash = $1"), vec![token_hash.into()], decode).await
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
    let sql =
        format!("SELECT {COLUMNS} FROM tokens {filter} ORDER BY created_at DESC, token_id{order} DESC LIMIT ${last}");
    db.read(sql, args, decode).await
}

/// The first revocation stands. `None`: there is no such token.
pub async fn update_revoked(db: &Db, token_id: TokenId, now: Timestamp) -> Result<Option<ServiceToken>, StoreError> {
    let sql =
        format!("UPDATE tokens SET revoked_at = COALESCE(revoked_at, $1) WHERE token_id = $2 RETURNING {COLUMNS}");
    Ok(db.write(sql, vec![now.into(), text(token_id)], decode).await?.pop())
}
