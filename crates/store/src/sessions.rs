//! Sessions.

use ostler_protocol::{
    ids::SessionId,
    sessions::{ExecutionState, Session},
};

use crate::{
    db::{Db, StoreError},
    record::{Kind::*, Reader, Record, Value, opt_text, text},
};

impl Record for Session {
    const TABLE: &'static str = "sessions";
    const KEY: usize = 1;
    const FIXED: usize = 4;
    const COLUMNS: &'static [(&'static str, crate::record::Kind)] = &[
        ("session_id", Text),
        ("tenant_id", Text),
        ("external_id", Text),
        ("created_at", Int),
        ("backend_profile", Text),
        ("thread_id", Text),
        ("last_seq", Int),
        ("chain_head", Bytes),
        ("version", Int),
        ("execution_state", Text),
        ("active_run_id", Text),
        ("active_command_id", Text),
        ("active_unfinished", Int),
        ("active_lease_until", Int),
        ("last_run_id", Text),
        ("last_command_id", Text),
        ("updated_at", Int),
    ];

    fn key(&self) -> Vec<Value> {
        vec![text(self.session)]
    }

    fn fixed(&self) -> Vec<Value> {
        vec![
            text(self.session),
            self.tenant_id.as_str().into(),
            self.external_id.clone().into(),
            self.created_at.into(),
        ]
    }

    fn state(&self) -> Vec<Value> {
        vec![
            self.backend_profile.as_str().into(),
            self.thread_id.clone().into(),
            self.last_seq.into(),
            (&self.chain_head).into(),
            self.version.into(),
            self.execution_state.as_str().into(),
            opt_text(self.active_run_id),
            opt_text(self.active_command_id),
            self.active_unfinished.into(),
            self.active_lease_until.into(),
            opt_text(self.last_run_id),
            opt_text(self.last_command_id),
            self.updated_at.into(),
        ]
    }

    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            session: row.id()?,
            tenant_id: row.text()?,
            external_id: row.opt_text()?,
            created_at: row.time()?,
            backend_profile: row.text()?,
            thread_id: row.opt_text()?,
            last_seq: row.int()?,
            chain_head: row.hash()?,
            version: row.int()?,
            execution_state: row.named(ExecutionState::parse)?,
            active_run_id: row.opt_id()?,
            active_command_id: row.opt_id()?,
            active_unfinished: row.int()?,
            active_lease_until: row.opt_time()?,
            last_run_id: row.opt_id()?,
            last_command_id: row.opt_id()?,
            updated_at: row.time()?,
        })
    }
}

pub async fn get(db: &Db, session: SessionId) -> Result<Option<Session>, StoreError> {
    Ok(db.select::<Session>("WHERE t.session_id = $1", vec![text(session)]).await?.pop())
}

/// The session a tenant's caller knows under this id, whether the caller chose it or we did.
pub async fn find_by_name(db: &Db, tenant_id: &str, name: &str) -> Result<Option<Session>, StoreError> {
    let chosen =
        db.select::<Session>("WHERE t.tenant_id = $1 AND t.external_id = $2", vec![tenant_id.into(), name.into()]);
    if let Some(session) = chosen.await?.pop() {
        return Ok(Some(session));
    }
    let Ok(id) = name.parse::<SessionId>() else { return Ok(None) };
    let ours = "WHERE t.session_id = $1 AND t.tenant_id = $2 AND t.external_id IS NULL";
    Ok(db.select::<Session>(ours, vec![text(id), tenant_id.into()]).await?.pop())
}

/// Sessions in the order they were made, for a walk over all of them.
pub async fn list_after(db: &Db, after: Option<SessionId>, limit: u32) -> Result<Vec<Session>, StoreError> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    db.select::<Session>(
        "WHERE t.session_id > $1 ORDER BY t.session_id LIMIT $2",
        vec![after.into(), i64::from(limit).into()],
    )
    .await
}
