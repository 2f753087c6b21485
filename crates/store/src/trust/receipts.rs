//! The consent ledger: receipts, appended and never changed.

use ostler_protocol::{ids::RelationId, json::text_of, limits::PAGE_BYTES_MAX, trust::receipts::Receipt};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Statement, record, text},
};

/// A receipt as the text that was hashed, with what it is found by.
pub(crate) struct StoredReceipt {
    user_id: String,
    seq: i64,
    relation_id: RelationId,
    /// The call that has used a grant up, if that is what it records.
    call_id: Option<String>,
    hash: String,
    receipt: String,
}

record! {
    StoredReceipt, stored in "receipts";
    key {
        user_id: text;
        seq: int;
    }
    fixed {
        relation_id: id;
        call_id: opt_text;
        hash: text;
        receipt: text;
    }
    state {}
}

/// Fails if another receipt was appended concurrently: numbers are unique.
pub(crate) fn appended(receipt: &Receipt) -> Statement {
    let stored = StoredReceipt {
        user_id: receipt.user_id.clone(),
        seq: receipt.seq,
        relation_id: receipt.relation_id,
        call_id: receipt.call_id.clone(),
        hash: receipt.hash.clone(),
        receipt: text_of(receipt),
    };
    record::insert(&stored, vec![], "")
}

/// Whose receipts are read.
#[derive(Clone, Copy, Debug)]
pub enum Of<'a> {
    Relation(RelationId),
    Person(&'a str),
}

/// Receipts by number, each as the text that was written, with its number.
#[derive(Debug, Default)]
pub struct StoredReceipts {
    pub receipts: Vec<(i64, String)>,
    pub has_more: bool,
}

/// Read at a time: a receipt may be as long as a manifest.
const CHUNK: usize = 16;

/// So many at most, and no more bytes than a page may have, but at least one.
pub async fn list(db: &Db, of: Of<'_>, after_seq: i64, limit: u32) -> Result<StoredReceipts, StoreError> {
    let (column, whose) = match of {
        Of::Relation(relation_id) => ("relation_id", text(relation_id)),
        Of::Person(user_id) => ("user_id", user_id.into()),
    };
    let rest = format!("WHERE {column} = $1 AND seq > $2 ORDER BY seq LIMIT $3");
    let (mut page, mut bytes, mut after) = (StoredReceipts::default(), 0, after_seq);
    loop {
        let args = vec![whose.clone(), after.into(), (CHUNK as i64).into()];
        let chunk: Vec<StoredReceipt> = db.select(&rest, args).await?;
        let is_last = chunk.len() < CHUNK;
        for (seq, receipt) in chunk.into_iter().map(|stored| (stored.seq, stored.receipt)) {
            bytes += receipt.len();
            page.has_more = page.receipts.len() == limit as usize || (bytes > PAGE_BYTES_MAX && after > after_seq);
            if page.has_more {
                return Ok(page);
            }
            after = seq;
            page.receipts.push((seq, receipt));
        }
        if is_last {
            return Ok(page);
        }
    }
}
