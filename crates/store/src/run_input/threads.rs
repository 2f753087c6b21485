//! Threads that retention erases. Everything else of a thread is a session of the kernel.

use ostler_protocol::{ids::SessionId, kernel::sessions::Session};

use crate::{
    db::Db,
    error::StoreError,
    record::text,
    retention::{Removable, RetentionScope, held_session, removable_columns},
};

/// Threads without work that were last changed before, each with the bytes of its payloads and pictures. In the order of
/// their ids.
pub async fn list_removable(
    db: &Db,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    let columns = removable_columns("s.session_id", "1", BYTES, &held_session("s.session_id", "s.tenant_id"));
    let sql = format!(
        "SELECT {columns} FROM sessions s WHERE s.session_id > $1 AND s.tenant_id = $2 AND s.owner IS NOT NULL
         AND s.erased_at IS NULL AND s.execution_state <> 'running' AND s.updated_at <= $3
         ORDER BY s.session_id LIMIT $4"
    );
    let tenant_id = scope.tenant_id.as_deref().unwrap_or_default();
    let args = vec![after.unwrap_or_default().into(), tenant_id.into(), scope.before.into(), i64::from(limit).into()];
    db.read(sql, args, Removable::decode).await
}

const BYTES: &str = "(SELECT COALESCE(SUM(octet_length(e.payload)), 0) FROM events e WHERE e.session_id = s.session_id)
    + (SELECT COALESCE(SUM(a.bytes), 0) FROM attachments a WHERE a.owner = s.owner AND a.thread_id = s.external_id)";

/// Bytes of a thread's payloads and pictures.
pub async fn count_bytes(db: &Db, session: SessionId) -> Result<i64, StoreError> {
    let sql = format!("SELECT CAST({BYTES} AS BIGINT) FROM sessions s WHERE s.session_id = $1");
    Ok(db.read_one(sql, vec![text(session)], |row| row.int()).await?.unwrap_or_default())
}

/// The thread, if it is still without work and was not changed since. `None` otherwise.
pub async fn find_removable(
    db: &Db,
    scope: &RetentionScope,
    session: SessionId,
) -> Result<Option<Session>, StoreError> {
    let idle =
        "WHERE t.session_id = $1 AND t.updated_at <= $2 AND t.erased_at IS NULL AND t.execution_state <> 'running'";
    Ok(db.select::<Session>(idle, vec![text(session), scope.before.into()]).await?.pop())
}
