//! The consent ledger: receipts, appended and never changed.

use ostler_protocol::{
    ids::RelationId,
    receipts::{Head, Receipt},
};

use crate::{
    db::{Db, Statement, StoreError},
    record::{json, text},
};

/// Fails when somebody else has appended meanwhile: a number is given once.
pub(crate) fn appended(receipt: &Receipt) -> Statement {
    let sql = "INSERT INTO receipts (user_id, seq, relation_id, hash, receipt) VALUES ($1, $2, $3, $4, $5)";
    let args = vec![
        receipt.user_id.as_str().into(),
        receipt.seq.into(),
        text(receipt.relation_id),
        receipt.hash.as_str().into(),
        json(receipt),
    ];
    Statement::new(sql, args)
}

/// Where a person's ledger ends.
pub async fn head(db: &Db, user_id: &str) -> Result<Head, StoreError> {
    let sql = "SELECT seq, hash FROM receipts WHERE user_id = $1 ORDER BY seq DESC LIMIT 1";
    let head = db.read_one(sql, vec![user_id.into()], |row| Ok(Head { seq: row.int()?, hash: row.text()? })).await?;
    Ok(head.unwrap_or_default())
}

/// Of one relation, by number.
pub async fn list_by_relation(
    db: &Db,
    relation_id: RelationId,
    after_seq: i64,
    limit: u32,
) -> Result<Vec<Receipt>, StoreError> {
    let sql = "SELECT receipt FROM receipts WHERE relation_id = $1 AND seq > $2 ORDER BY seq LIMIT $3";
    db.read(sql, vec![text(relation_id), after_seq.into(), i64::from(limit).into()], |row| row.json()).await
}

/// A person's whole ledger, by number, each receipt as the text that was written, with its number.
pub async fn list(db: &Db, user_id: &str, after_seq: i64, limit: u32) -> Result<Vec<(i64, String)>, StoreError> {
    let sql = "SELECT seq, receipt FROM receipts WHERE user_id = $1 AND seq > $2 ORDER BY seq LIMIT $3";
    let args = vec![user_id.into(), after_seq.into(), i64::from(limit).into()];
    db.read(sql, args, |row| Ok((row.int()?, row.text()?))).await
}
