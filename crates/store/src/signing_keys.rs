//! Signing keys: the public halves of the keys that servers of this store sign users' tokens with.

use ostler_protocol::Timestamp;

use crate::{
    db::Db,
    error::StoreError,
    record::{self, record},
};

pub(crate) struct SigningKey {
    kid: String,
    jwk: String,
    created_at: Timestamp,
}

record! {
    SigningKey, key in "signing_keys";
    key {
        kid: text;
    }
    fixed {
        jwk: text;
        created_at: time;
    }
    state {}
}

/// A server writes its key down at every start; the first time counts.
pub async fn insert(db: &Db, kid: &str, jwk: &str, now: Timestamp) -> Result<(), StoreError> {
    let key = SigningKey { kid: kid.to_owned(), jwk: jwk.to_owned(), created_at: now };
    db.execute_statement(record::insert(&key, vec![], "ON CONFLICT (kid) DO NOTHING")).await
}

pub async fn get(db: &Db, kid: &str) -> Result<Option<String>, StoreError> {
    let found: Vec<SigningKey> = db.select("WHERE kid = $1", vec![kid.into()]).await?;
    Ok(found.into_iter().next().map(|key| key.jwk))
}

/// Newest first.
pub async fn list(db: &Db, limit: u32) -> Result<Vec<String>, StoreError> {
    let rest = "ORDER BY created_at DESC, kid LIMIT $1";
    let found: Vec<SigningKey> = db.select(rest, vec![i64::from(limit).into()]).await?;
    Ok(found.into_iter().map(|key| key.jwk).collect())
}
