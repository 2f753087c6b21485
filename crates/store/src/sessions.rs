//! Sessions.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::SessionId,
    sessions::{ExecutionState, Session},
};

use crate::{
    db::{Db, StoreError},
    record::{Kind::*, Reader, Record, Value, columns, insert_if_absent, names, opt_text, text},
};

impl Record for Session {
    const TABLE: &'static str = "sessions";
    const KEY: usize = 1;
    const FIXED: usize = 4;
    const UNLESS_CHANGED: &'static str = " AND t.revision = u.revision - 1";
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
        ("revision", Int),
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
            self.revision.into(),
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
            revision: row.int()?,
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

/// Makes a session unless its tenant has one of that name; answers with the one there is.
pub async fn insert(db: &Db, session: &Session) -> Result<Option<Session>, StoreError> {
    let sql = format!("{} RETURNING {}", insert_if_absent::<Session>("(tenant_id, external_id)"), names::<Session>());
    let args = session.fixed().into_iter().chain(session.state()).collect();
    Ok(db.write(sql, args, Session::decode).await?.pop())
}

/// Sessions of this name in these tenants (`None`: all), at most two: enough to tell one from several.
pub async fn find_in_tenants(db: &Db, tenants: Option<&[String]>, name: &str) -> Result<Vec<Session>, StoreError> {
    let mut args: Vec<Value> = vec![name.into(), name.into()];
    let mut rest = "WHERE (t.external_id = $1 OR (t.session_id = $2 AND t.external_id IS NULL))".to_owned();
    if let Some(tenants) = tenants {
        let marks: Vec<_> = tenants
            .iter()
            .map(|tenant| {
                args.push(tenant.as_str().into());
                format!("${}", args.len())
            })
            .collect();
        rest += &format!(" AND t.tenant_id IN ({})", if marks.is_empty() { "NULL".into() } else { marks.join(", ") });
    }
    db.select(&format!("{rest} LIMIT 2"), args).await
}

/// What a list is narrowed to.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The tenants the caller may see. `None`: all.
    pub tenants: Option<Vec<String>>,
    pub backend_profile: Option<String>,
    pub reader_id: String,
    /// Only sessions that run, or that this reader has not read.
    pub only_open: bool,
    /// Only ids of ours: from the first text to before the second.
    pub ids: Option<(String, String)>,
}

/// Newest first, each with the version the reader has seen.
pub async fn list(
    db: &Db,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<(Session, i64)>, StoreError> {
    let mut args: Vec<Value> = vec![filter.reader_id.as_str().into()];
    let mut mark = |value: Value| {
        args.push(value);
        format!("${}", args.len())
    };
    let mut conditions: Vec<String> = vec![];
    if let Some(tenants) = &filter.tenants {
        let marks: Vec<_> = tenants.iter().map(|tenant| mark(tenant.as_str().into())).collect();
        conditions
            .push(format!("t.tenant_id IN ({})", if marks.is_empty() { "NULL".into() } else { marks.join(", ") }));
    }
    if let Some(profile) = &filter.backend_profile {
        conditions.push(format!("t.backend_profile = {}", mark(profile.as_str().into())));
    }
    if filter.only_open {
        conditions.push("(t.execution_state = 'running' OR t.version > COALESCE(c.version, 0))".into());
    }
    if let Some((first, end)) = &filter.ids {
        let (first, end) = (mark(first.as_str().into()), mark(end.as_str().into()));
        conditions.push(format!("t.session_id >= {first} AND t.session_id < {end} AND t.external_id IS NULL"));
    }
    let order = db.byte_order();
    if let Some(cursor) = after {
        let (time, id) = (mark(cursor.created_at_us.into()), mark(cursor.id.as_str().into()));
        conditions.push(format!("(t.created_at, t.session_id{order}) < ({time}, {id})"));
    }
    let wanted = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
    let limit = mark(i64::from(limit).into());
    let sql = format!(
        "SELECT {}, COALESCE(c.version, 0) FROM sessions t
         LEFT JOIN session_read_cursors c ON c.session_id = t.session_id AND c.reader_id = $1
         {wanted} ORDER BY t.created_at DESC, t.session_id{order} DESC LIMIT {limit}",
        columns::<Session>("t")
    );
    db.read(sql, args, |row| Ok((Session::decode(row)?, row.int()?))).await
}

/// The version this reader has seen.
pub async fn get_read_version(db: &Db, session: SessionId, reader_id: &str) -> Result<i64, StoreError> {
    let sql = "SELECT version FROM session_read_cursors WHERE session_id = $1 AND reader_id = $2";
    let found = db.read_one(sql, vec![text(session), reader_id.into()], |row| row.int()).await?;
    Ok(found.unwrap_or(0))
}

/// A reader's mark never goes back.
pub async fn update_read_version(
    db: &Db,
    session: SessionId,
    reader_id: &str,
    version: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO session_read_cursors (session_id, reader_id, version, read_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (session_id, reader_id) DO UPDATE SET version = excluded.version, read_at = excluded.read_at
        WHERE session_read_cursors.version < excluded.version";
    db.execute(sql, vec![text(session), reader_id.into(), version.into(), now.into()]).await
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
