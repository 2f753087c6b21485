//! Permission requests.

use ostler_protocol::{
    Timestamp,
    ids::{PermissionId, RunId, SessionId},
    kernel::permissions::{PermissionRequest, PermissionStatus},
    limits::PAGE_ITEMS_MAX,
};

use super::{conditions::unfinished, session_and_run};
use crate::{
    db::Db,
    error::StoreError,
    record::{record, text},
};

record! {
    PermissionRequest, request in "permissions";
    key {
        run_id: id;
        permission_id: id;
    }
    fixed {
        session = "session_id": id;
        command_id: id;
        title: text;
        command: opt_text;
        tool_call_id: opt_text;
        options: json;
        digest: text;
        deadline: time;
        round: int;
        created_at: time;
    }
    state {
        status: named(PermissionStatus);
        option_id: opt_text;
        resolved_by: opt_text;
        resolved_at: opt_time;
        resolved_seq: opt_int;
    }
}

pub async fn get(db: &Db, run_id: RunId, id: PermissionId) -> Result<Option<PermissionRequest>, StoreError> {
    Ok(db.select("WHERE t.run_id = $1 AND t.permission_id = $2", vec![text(run_id), text(id)]).await?.pop())
}

/// The run's requests, newest first.
pub async fn list(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    let limit = i64::from(PAGE_ITEMS_MAX).into();
    let rest = "WHERE t.run_id = $1 ORDER BY t.created_at DESC, t.permission_id DESC LIMIT $2";
    db.select(rest, vec![text(run_id), limit]).await
}

/// Every request of the run.
pub async fn list_by_run(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    db.select("WHERE t.run_id = $1 ORDER BY t.permission_id", vec![text(run_id)]).await
}

/// The run's open requests, oldest first; never more than may be open at once.
pub async fn list_open(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    db.select("WHERE t.run_id = $1 AND t.status = 'pending' ORDER BY t.created_at", vec![text(run_id)]).await
}

/// What has been resolved of the requests of the run's unfinished commands, in that order.
pub async fn list_resolved(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    let rest = format!(
        "JOIN commands c ON c.command_id = t.command_id AND {}
         WHERE t.run_id = $1 AND t.status <> 'pending' ORDER BY t.resolved_at, t.permission_id LIMIT $2",
        unfinished("c.")
    );
    db.select(&rest, vec![text(run_id), i64::from(PAGE_ITEMS_MAX).into()]).await
}

/// Open requests whose deadline has passed by `now`: work for the sweeper.
pub async fn list_overdue(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql =
        "SELECT DISTINCT session_id, run_id FROM permissions WHERE status = 'pending' AND deadline <= $1 LIMIT $2";
    db.read(sql, vec![now.into(), i64::from(limit).into()], session_and_run).await
}
