//! Permission requests.

use ostler_protocol::{
    Timestamp,
    ids::{PermissionId, RunId, SessionId},
    limits::PAGE_ITEMS_MAX,
    permissions::{PermissionRequest, PermissionStatus},
};

use crate::{
    db::{Db, StoreError},
    record::{Kind::*, Reader, Record, Value, json, text},
};

impl Record for PermissionRequest {
    const TABLE: &'static str = "permissions";
    const KEY: usize = 1;
    const COLUMNS: &'static [(&'static str, crate::record::Kind)] = &[
        ("permission_id", Text),
        ("run_id", Text),
        ("session_id", Text),
        ("command_id", Text),
        ("title", Text),
        ("tool_call_id", Text),
        ("options", Text),
        ("digest", Text),
        ("deadline", Int),
        ("status", Text),
        ("option_id", Text),
        ("resolved_by", Text),
        ("resolved_at", Int),
        ("created_at", Int),
    ];

    fn encode(&self) -> Vec<Value> {
        vec![
            text(self.permission_id),
            text(self.run_id),
            text(self.session),
            text(self.command_id),
            self.title.as_str().into(),
            self.tool_call_id.clone().into(),
            json(&self.options),
            self.digest.as_str().into(),
            self.deadline.into(),
            self.status.as_str().into(),
            self.option_id.clone().into(),
            self.resolved_by.clone().into(),
            self.resolved_at.into(),
            self.created_at.into(),
        ]
    }

    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            permission_id: row.id()?,
            run_id: row.id()?,
            session: row.id()?,
            command_id: row.id()?,
            title: row.text()?,
            tool_call_id: row.opt_text()?,
            options: row.json()?,
            digest: row.text()?,
            deadline: row.time()?,
            status: row.named(PermissionStatus::parse)?,
            option_id: row.opt_text()?,
            resolved_by: row.opt_text()?,
            resolved_at: row.opt_time()?,
            created_at: row.time()?,
        })
    }
}

pub async fn get(db: &Db, permission_id: PermissionId) -> Result<Option<PermissionRequest>, StoreError> {
    Ok(db.select::<PermissionRequest>("WHERE t.permission_id = $1", vec![text(permission_id)]).await?.pop())
}

/// The run's requests, oldest first.
pub async fn list(db: &Db, run_id: RunId) -> Result<Vec<PermissionRequest>, StoreError> {
    let limit = i64::from(PAGE_ITEMS_MAX).into();
    db.select("WHERE t.run_id = $1 ORDER BY t.created_at, t.permission_id LIMIT $2", vec![text(run_id), limit]).await
}

/// Open requests whose deadline has passed by `now`: work for the sweeper.
pub async fn list_overdue(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<(SessionId, RunId)>, StoreError> {
    let sql =
        "SELECT DISTINCT session_id, run_id FROM permissions WHERE status = 'pending' AND deadline <= $1 LIMIT $2";
    db.read(sql, vec![now.into(), i64::from(limit).into()], |row| Ok((row.id()?, row.id()?))).await
}
