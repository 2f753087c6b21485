//! Retention of what clients did beside turns: it goes with the events of runs.

use ostler_protocol::{Failure, ids::SessionId, retention::RetentionNoun};
use ostler_server::{
    app::App,
    dialect::{Ownership, RemovedItems, RetentionScope, RetentionStep},
};
use ostler_store as store;

pub(crate) fn notes() -> RetentionStep {
    RetentionStep::new(
        RetentionNoun::Events,
        Ownership::Tenant,
        |app, page| async move {
            store::daemon::notes::list_removable(&app.db, &page.scope, page.after.as_deref(), page.limit).await
        },
        |app, scope, keys| async move { remove(&app, &scope, &keys).await },
    )
    .tables(&["events"])
}

async fn remove(app: &App, scope: &RetentionScope, keys: &[String]) -> Result<RemovedItems, Failure> {
    let session = keys.first().and_then(|key| key.parse::<SessionId>().ok());
    let Some(session) = session else { return Ok(RemovedItems::default()) };
    let rows = app.config.retention.step_rows;
    Ok(store::kernel::session_payloads::remove(&app.db, session, scope, rows, app.now()).await?)
}
