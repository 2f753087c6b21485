//! Reads of the consent ledger: the receipts of one relation, or a person's whole chain as it was written.

use ostler_protocol::{
    Failure, cursors,
    ids::RelationId,
    trust::receipts::{ListReceipts, ReceiptPage},
};
use ostler_store::{
    self as store,
    trust::receipts::{Of, StoredReceipts},
};

use super::relations::find_own;
use ostler_server::{app::App, auth::Principal};

/// Receipts read at a time while a ledger is exported.
const EXPORTED_AT_ONCE: u32 = 500;

pub(crate) async fn list(
    app: &App,
    caller: &Principal,
    relation_id: RelationId,
    request: ListReceipts,
) -> Result<ReceiptPage, Failure> {
    find_own(app, caller, relation_id).await?;
    let (after_seq, limit) = (cursors::after_seq(request.after_seq)?, cursors::limit(request.limit)?);
    let page = read(app, Of::Relation(relation_id), after_seq, limit).await?;
    let receipts = page.receipts.iter().map(|(_, text)| serde_json::from_str(text)).collect::<Result<Vec<_>, _>>();
    let receipts = receipts.map_err(Failure::internal)?;
    let next_after_seq = page.receipts.last().filter(|_| page.has_more).map(|(seq, _)| *seq);
    Ok(ReceiptPage { receipts, next_after_seq })
}

/// The next lines of the caller's ledger, and the number of the last of them. `None` at the end.
pub(crate) async fn lines(app: &App, user_id: &str, after_seq: i64) -> Result<Option<(i64, String)>, Failure> {
    let page = read(app, Of::Person(user_id), after_seq, EXPORTED_AT_ONCE).await?;
    Ok(page.receipts.last().map(|(last, _)| *last).map(|last| {
        let text: String = page.receipts.iter().flat_map(|(_, line)| [line.as_str(), "\n"]).collect();
        (last, text)
    }))
}

async fn read(app: &App, of: Of<'_>, after_seq: i64, limit: u32) -> Result<StoredReceipts, Failure> {
    Ok(store::trust::receipts::list(&app.db, of, after_seq, limit).await?)
}
