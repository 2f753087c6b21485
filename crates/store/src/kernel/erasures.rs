//! Erases the rest of a session that was marked as erased, except its row and the digests of its events. The kernel marks it;
//! from then on nothing is written to the session, so this can be done in steps, and repeated.

use ostler_protocol::{
    ids::{RunId, SessionId},
    kernel::sessions::Session,
};

use crate::{
    db::Db,
    error::StoreError,
    kernel::payload_removals::blank,
    record::{Statement, text},
    retention::{held_session, unless_held},
};

/// Events whose payloads are erased at once.
const CHUNK: i64 = 500;

/// The tables from which an erasure deletes rows. The engine and each dialect declare theirs.
pub struct SessionTables {
    /// By the `run_id` of the session's runs, each found by its key or an index.
    pub by_run: Vec<&'static str>,
    /// By the `session_id`.
    pub by_session: Vec<&'static str>,
}

/// Sessions that were marked, are not erased completely and are under no hold.
pub async fn list_unfinished(db: &Db, limit: u32) -> Result<Vec<Session>, StoreError> {
    let marked = format!(
        "WHERE t.erased_at IS NOT NULL AND t.external_id IS NOT NULL AND NOT {} ORDER BY t.erased_at LIMIT $1",
        held_session("t.session_id", "t.tenant_id")
    );
    db.select::<Session>(&marked, vec![i64::from(limit).into()]).await
}

/// The marked session that had this name in any tenant, if it is not erased completely.
pub async fn find_by_name(db: &Db, owner: &str, name: &str) -> Result<Option<Session>, StoreError> {
    let marked = "WHERE t.external_id = $1 AND t.owner = $2 AND t.erased_at IS NOT NULL";
    Ok(db.select::<Session>(marked, vec![name.into(), owner.into()]).await?.pop())
}

/// Erases payloads, commands, results, permission requests and names. Idempotent. The name is deleted last: while it exists, the
/// erasure is not finished. `false` if the session is under a hold, also one that was placed concurrently; the rest of it stays.
pub async fn finish(db: &Db, session: &Session, tables: &SessionTables) -> Result<bool, StoreError> {
    let id = session.session;
    if !erase_payloads(db, id).await? {
        return Ok(false);
    }
    let runs = "SELECT run_id FROM runs WHERE session_name = $1 AND session_id = $2";
    let runs = db.read(runs, vec![session.public_id().into(), text(id)], |row| row.id::<RunId>()).await?;
    for run_id in runs {
        let delete =
            |table: &&str| Statement::new(format!("DELETE FROM {table} WHERE run_id = $1"), vec![text(run_id)]);
        // What was used stays counted, without its user.
        let forget = Statement::new("UPDATE usage SET user_id = NULL WHERE run_id = $1", vec![text(run_id)]);
        if !erase(db, id, tables.by_run.iter().map(delete).chain([forget])).await? {
            return Ok(false);
        }
    }
    let delete = |table: &&str| Statement::new(format!("DELETE FROM {table} WHERE session_id = $1"), vec![text(id)]);
    let sql = "UPDATE sessions SET external_id = NULL, idempotency_key = NULL, request_hash = NULL, owner = NULL,
        title = NULL, conversation_id = NULL, metadata = NULL, labels = NULL, participants = NULL, thread_id = NULL,
        storage_kind = 'none', storage = NULL, expires_at = NULL, active_run_id = NULL,
        active_command_id = NULL, last_run_id = NULL, last_command_id = NULL,
        revision = revision + 1 WHERE session_id = $1 AND erased_at IS NOT NULL";
    let names = Statement::new(sql, vec![text(id)]);
    erase(db, id, tables.by_session.iter().map(delete).chain([names])).await
}

/// Does one step, unless a hold covers the session.
async fn erase(
    db: &Db,
    session: SessionId,
    statements: impl IntoIterator<Item = Statement>,
) -> Result<bool, StoreError> {
    db.write_together(unless_held(db, session).into_iter().chain(statements).collect()).await
}

async fn erase_payloads(db: &Db, session: SessionId) -> Result<bool, StoreError> {
    let sql = "SELECT MAX(session_seq) FROM events WHERE session_id = $1";
    let last = db.read_one(sql, vec![text(session)], |row| row.opt_int()).await?.flatten().unwrap_or(0);
    let range = "session_id = $1 AND session_seq > $2 AND session_seq <= $3 AND payload IS NOT NULL";
    for after in (0..last).step_by(CHUNK as usize) {
        let args = vec![text(session), after.into(), (after + CHUNK).into()];
        if !erase(db, session, [Statement::new(blank(db, range), args)]).await? {
            return Ok(false);
        }
    }
    Ok(true)
}
