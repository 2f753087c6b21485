//! Leases.

use ostler_protocol::{
    Timestamp,
    ids::{RunId, SessionId},
    kernel::leases::Lease,
};

use super::session_and_run;
use crate::{
    db::Db,
    error::StoreError,
    record::{record, text},
};

record! {
    Lease, lease in "leases";
    key {
        run_id: id;
    }
    fixed {
        session = "session_id": id;
    }
    state {
        runner_id: text;
        epoch: int;
        attempt_id: id;
        duration_ms: int;
        acquired_at: time;
        heartbeat_at: time;
        expires_at: time;
        ended: flag;
        expired: flag;
        dismissed: flag;
        waiters: json;
    }
    on_conflict Replace;
}

pub async fn get(db: &Db, run_id: RunId) -> Result<Option<Lease>, StoreError> {
    Ok(db.select::<Lease>("WHERE t.run_id = $1", vec![text(run_id)]).await?.pop())
}

/// Held leases that have run out by `now`: work for the sweeper.
pub async fn list_expired(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql = "SELECT session_id, run_id FROM leases WHERE ended = 0 AND expires_at <= $1 ORDER BY expires_at LIMIT $2";
    db.read(sql, vec![now.into(), i64::from(limit).into()], session_and_run).await
}

/// Every held lease, except those of runners elsewhere: what a previous process left behind.
pub async fn list_held(db: &Db) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql = "SELECT session_id, run_id FROM leases l WHERE ended = 0 AND NOT EXISTS (SELECT 1 FROM runner_jobs j
         WHERE j.run_id = l.run_id AND j.runner_id = l.runner_id AND j.phase = 'running'
         AND j.launcher IN ('external', 'kubernetes'))";
    db.read(sql, vec![], session_and_run).await
}

pub async fn count_held(db: &Db) -> Result<i64, StoreError> {
    let sql = "SELECT COUNT(*) FROM leases WHERE ended = 0";
    Ok(db.read_one(sql, vec![], |row| row.int()).await?.unwrap_or_default())
}

/// Held leases of the runners that this launcher has started and that were not dismissed yet: first those without work, the
/// longest idle first.
pub async fn list_by_launcher(db: &Db, owner: &str, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql = "SELECT l.session_id, l.run_id FROM runner_jobs j
         JOIN leases l ON l.run_id = j.run_id AND l.runner_id = j.runner_id JOIN runs r ON r.run_id = j.run_id
         WHERE j.phase = 'running' AND j.owner = $1 AND l.ended = 0 AND l.dismissed = 0
         ORDER BY CASE WHEN r.unfinished_commands > 0 THEN 1 ELSE 0 END, r.updated_at LIMIT $2";
    db.read(sql, vec![owner.into(), i64::from(limit).into()], session_and_run).await
}

/// Runners of this launcher that have released their lease and still run.
pub async fn count_leaving(db: &Db, owner: &str) -> Result<i64, StoreError> {
    let sql = "SELECT COUNT(*) FROM runner_jobs j JOIN leases l ON l.run_id = j.run_id AND l.runner_id = j.runner_id
         WHERE j.phase = 'running' AND j.owner = $1 AND l.ended = 1";
    Ok(db.read_one(sql, vec![owner.into()], |row| row.int()).await?.unwrap_or_default())
}

/// Held leases of runners of this profile on all servers: those of one tenant's runs, or of every tenant's.
pub async fn list_by_profile(
    db: &Db,
    profile: &str,
    tenant_id: Option<&str>,
) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let mut sql = "SELECT l.session_id, l.run_id FROM leases l JOIN runs r ON r.run_id = l.run_id
         WHERE l.ended = 0 AND l.dismissed = 0 AND r.backend_profile = $1"
        .to_owned();
    let mut args = vec![profile.into()];
    if let Some(tenant_id) = tenant_id {
        sql += " AND r.tenant_id = $2";
        args.push(tenant_id.into());
    }
    db.read(sql, args, session_and_run).await
}
