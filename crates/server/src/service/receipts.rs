//! The consent ledger, read: the receipts of one relation, or a person's whole chain as it was written.

use ostler_protocol::{
    Failure, cursors,
    ids::RelationId,
    receipts::{ListReceipts, ReceiptPage},
};
use ostler_store as store;

use super::relations::own;
use crate::{
    app::{App, store_failure},
    auth::Principal,
};

/// Read at a time while a ledger is written out.
const EXPORTED_AT_ONCE: u32 = 500;

pub async fn list(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    asked: ListReceipts,
) -> Result<ReceiptPage, Failure> {
    own(app, caller, relation_id).await?;
    let (after_seq, limit) = (cursors::after_seq(asked.after_seq)?, cursors::limit(asked.limit)?);
    let found = store::receipts::list_by_relation(&app.db, relation_id, after_seq, limit + 1).await;
    let mut receipts = found.map_err(store_failure)?;
    let more = receipts.len() > limit as usize;
    receipts.truncate(limit as usize);
    let next_after_seq = receipts.last().filter(|_| more).map(|last| last.seq);
    Ok(ReceiptPage { receipts, next_after_seq })
}

/// The next lines of the caller's ledger, and the number of the last of them. `None`: that was all.
pub async fn lines(app: &App, user_id: &str, after_seq: i64) -> Result<Option<(i64, String)>, Failure> {
    let found = store::receipts::list(&app.db, user_id, after_seq, EXPORTED_AT_ONCE).await.map_err(store_failure)?;
    Ok(found.last().map(|(last, _)| *last).map(|last| {
        let text: String = found.iter().flat_map(|(_, line)| [line.as_str(), "\n"]).collect();
        (last, text)
    }))
}
