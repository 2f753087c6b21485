//! Permission requests.

use ostler_protocol::{
    Timestamp,
    ids::{RunId, SessionId},
    kernel::permissions::{PermissionRequest, PermissionStatus},
    limits::PAGE_ITEMS_MAX,
};

use crate::{
    db::{Db, StoreError},
    kernel::commands::UNFINISHED,
    record::{Kind::*, Reader, Record, Value, json, text},
};

impl Record for PermissionRequest {
    const TABLE: &'static str = "permissions";
    const KEY: usize = 2;
    const FIXED: usize = 12;
    const COLUMNS: &'static [(&'static str, crate::record::Kind)] = &[
        ("run_id", Text),
        ("permission_id", Text),
        ("session_id", Text),
        ("command_id", Text),
        ("title", Text),
        ("command", Text),
        ("tool_call_id", Text),
        ("options", Text),
        ("digest", Text),
        ("deadline", Int),
        ("round", Int),
        ("created_at", Int),
        ("status", Text),
        ("option_id", Text),
        ("resolved_by", Text),
        ("resolved_at", Int),
        ("resolved_seq", Int),
    ];

    fn key(&self) -> Vec<Value> {
        vec![text(self.run_id), text(self.permission_id)]
    }

    fn fixed(&self) -> Vec<Value> {
        vec![
            text(self.run_id),
            text(self.permission_id),
            text(self.session),
            text(self.command_id),
            self.title.as_str().into(),
            self.command.clone().into(),
            self.tool_call_id.clone().into(),
            json(&self.options),
            self.digest.as_str().into(),
            self.deadline.into(),
            self.round.into(),
            self.created_at.into(),
        ]
    }

    fn state(&self) -> Vec<Value> {
        vec![
            self.status.as_str().into(),
            self.option_id.clone().into(),
            self.resolved_by.clone().into(),
            self.resolved_at.into(),
            Value::Int(self.resolved_seq),
        ]
    }

    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            run_id: row.id()?,
            permission_id: row.id()?,
            session: row.id()?,
            command_id: row.id()?,
            title: row.text()?,
            command: row.opt_text()?,
            tool_call_id: row.opt_text()?,
            options: row.json()?,
            digest: row.text()?,
            deadline: row.time()?,
            round: row.int()?,
            created_at: row.time()?,
            status: row.named(PermissionStatus::parse)?,
            option_id: row.opt_text()?,
            resolved_by: row.opt_text()?,
            resolved_at: row.opt_time()?,
            resolved_seq: row.opt_int()?,
        })
    }
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
        "JOIN commands c ON c.command_id = t.command_id AND c.{UNFINISHED}
         WHERE t.run_id = $1 AND t.status <> 'pending' ORDER BY t.resolved_at, t.permission_id LIMIT $2"
    );
    db.select(&rest, vec![text(run_id), i64::from(PAGE_ITEMS_MAX).into()]).await
}

/// Open requests whose deadline has passed by `now`: work for the sweeper.
pub async fn list_overdue(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql =
        "SELECT DISTINCT session_id, run_id FROM permissions WHERE status = 'pending' AND deadline <= $1 LIMIT $2";
    db.read(sql, vec![now.into(), i64::from(limit).into()], |row| Ok((row.id()?, row.id()?))).await
}
