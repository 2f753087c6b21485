//! What was recorded in sessions of the daemon beside their runs, such as shell commands and their output.

use crate::{
    db::Db,
    error::StoreError,
    kernel::session_payloads,
    retention::{Removable, RetentionScope},
};

/// Sessions with notes or messages from before the limit.
pub async fn list_removable(
    db: &Db,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    session_payloads::list_removable(db, "daemon_sessions", scope, after, limit).await
}
