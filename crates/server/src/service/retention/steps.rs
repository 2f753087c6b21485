//! The engine's own nouns: payloads of events, and session storage.

use ostler_protocol::{Failure, FailureKind, Rule, ids::SessionId, retention::RetentionNoun};
use ostler_store as store;

use crate::{
    app::App,
    dialect::{Ownership, RemovedItems, RetentionScope, RetentionStep},
    service::session_storage,
};

pub(crate) fn engine() -> [RetentionStep; 2] {
    let events = RetentionStep::new(
        RetentionNoun::Events,
        Ownership::Tenant,
        |app, page| async move {
            store::kernel::payload_removals::list_removable(&app.db, &page.scope, page.after.as_deref(), page.limit)
                .await
        },
        |app, scope, keys| async move { remove_payloads(&app, &scope, &keys).await },
    );
    let storage = RetentionStep::new(
        RetentionNoun::Storage,
        Ownership::Tenant,
        |app, page| async move {
            store::kernel::sessions::list_removable_storage(&app.db, &page.scope, page.after.as_deref(), page.limit)
                .await
        },
        |app, scope, keys| async move { evict(&app, &scope, &keys).await },
    );
    [events.tables(&["events", "commands", "permissions", "runner_jobs"]), storage]
}

async fn remove_payloads(app: &App, scope: &RetentionScope, keys: &[String]) -> Result<RemovedItems, Failure> {
    let Some(key) = keys.first() else { return Ok(RemovedItems::default()) };
    let rows = app.config.retention.step_rows;
    Ok(store::kernel::payload_removals::remove(&app.db, key, scope, rows, app.now()).await?)
}

async fn evict(app: &App, scope: &RetentionScope, keys: &[String]) -> Result<RemovedItems, Failure> {
    let Some(session) = keys.first().and_then(|key| key.parse::<SessionId>().ok()) else {
        return Ok(RemovedItems::default());
    };
    let found = store::kernel::sessions::get(&app.db, session).await?;
    let Some(found) = found.filter(|session| session.updated_at <= scope.before) else {
        return Ok(RemovedItems::default());
    };
    let bytes = found.storage.storage_size_bytes.unwrap_or_default();
    match session_storage::evict_unused(app, session).await {
        Ok(()) => Ok(RemovedItems { items: 1, bytes, has_more: false }),
        // It was used, or a hold was placed, since it was listed.
        Err(failure) if failure.kind == FailureKind::SessionBusy => Ok(RemovedItems::default()),
        Err(failure) if failure.broken_rule() == Some(Rule::LegalHold) => Ok(RemovedItems::default()),
        Err(failure) => Err(failure),
    }
}
