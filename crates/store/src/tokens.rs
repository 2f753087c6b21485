//! Service tokens: only their hashes are kept.

use ostler_protocol::{Timestamp, ids::TokenId};

use crate::{
    db::{Db, StoreError},
    record::{json, text},
};

#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub token_id: TokenId,
    pub name: String,
    pub role: String,
    pub tenants: Vec<String>,
}

pub async fn insert(db: &Db, token: &Token, token_hash: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql =
        "INSERT INTO tokens (token_id, token_hash, name, role, tenants, created_at) VALUES ($1, $2, $3, $4, $5, $6)";
    let args = vec![
        text(token.token_id),
        token_hash.into(),
        token.name.as_str().into(),
        token.role.as_str().into(),
        json(&token.tenants),
        now.into(),
    ];
    db.execute(sql, args).await
}

pub async fn find_by_hash(db: &Db, token_hash: &str) -> Result<Option<Token>, StoreError> {
    let sql = "SELECT token_id, name, role, tenants FROM tokens WHERE token_hash = $1 AND revoked_at IS NULL";
    db.read_one(sql, vec![token_hash.into()], |row| {
        Ok(Token { token_id: row.id()?, name: row.text()?, role: row.text()?, tenants: row.json()? })
    })
    .await
}
