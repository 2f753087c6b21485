//! Erases the rest of a session that was marked as erased, except its row and the digests of its events. The kernel marks it;
//! from then on nothing is written to the session, so this can be done in steps, and repeated.

use ostler_protocol::{
    ids::{RunId, SessionId},
    kernel::sessions::Session,
};

use crate::{db::Db, error::StoreError, record::text};

/// Events whose payloads are erased at once.
const CHUNK: i64 = 2_000;
/// Rows of a run, each found by its key or an index.
const OF_A_RUN: [&str; 6] = ["permissions", "runner_jobs", "append_batches", "leases", "commands", "runs"];
const OF_A_SESSION: [&str; 2] = ["command_aliases", "session_read_cursors"];

/// Sessions that were marked and are not erased completely.
pub async fn list_unfinished(db: &Db, limit: u32) -> Result<Vec<Session>, StoreError> {
    let marked = "WHERE t.erased_at IS NOT NULL AND t.external_id IS NOT NULL ORDER BY t.erased_at LIMIT $1";
    db.select::<Session>(marked, vec![i64::from(limit).into()]).await
}

/// The marked session that had this name in any tenant, if it is not erased completely.
pub async fn find_by_name(db: &Db, owner: &str, name: &str) -> Result<Option<Session>, StoreError> {
    let marked = "WHERE t.external_id = $1 AND t.owner = $2 AND t.erased_at IS NOT NULL";
    Ok(db.select::<Session>(marked, vec![name.into(), owner.into()]).await?.pop())
}

/// Erases payloads, commands, results, permission requests and names. Idempotent. The name goes last: while it stands, this
/// is not done.
pub async fn finish(db: &Db, session: &Session) -> Result<(), StoreError> {
    erase_payloads(db, session.session).await?;
    let runs = "SELECT run_id FROM runs WHERE session_name = $1 AND session_id = $2";
    let runs = db.read(runs, vec![session.public_id().into(), text(session.session)], |row| row.id::<RunId>()).await?;
    for run_id in runs {
        for table in OF_A_RUN {
            db.execute(format!("DELETE FROM {table} WHERE run_id = $1"), vec![text(run_id)]).await?;
        }
    }
    for table in OF_A_SESSION {
        db.execute(format!("DELETE FROM {table} WHERE session_id = $1"), vec![text(session.session)]).await?;
    }
    let sql = "UPDATE sessions SET external_id = NULL, idempotency_key = NULL, request_hash = NULL, owner = NULL,
        title = NULL, thread_id = NULL, storage_kind = 'none', storage = NULL, expires_at = NULL,
        active_run_id = NULL, active_command_id = NULL, last_run_id = NULL, last_command_id = NULL,
        revision = revision + 1 WHERE session_id = $1 AND erased_at IS NOT NULL";
    db.execute(sql, vec![text(session.session)]).await
}

async fn erase_payloads(db: &Db, session: SessionId) -> Result<(), StoreError> {
    let sql = "SELECT MAX(session_seq) FROM events WHERE session_id = $1";
    let last = db.read_one(sql, vec![text(session)], |row| row.opt_int()).await?.flatten().unwrap_or(0);
    for after in (0..last).step_by(CHUNK as usize) {
        let sql = "UPDATE events SET payload = NULL
            WHERE session_id = $1 AND session_seq > $2 AND session_seq <= $3 AND payload IS NOT NULL";
        db.execute(sql, vec![text(session), after.into(), (after + CHUNK).into()]).await?;
    }
    Ok(())
}
