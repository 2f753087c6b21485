//! Retention: legal holds, the gate that orders them with removals, and the disk space that removals free. What a noun removes
//! is in the noun's own file; each removal begins with [`unless_held`] or with a condition of its own after [`gate`].

pub mod space;

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::{HoldId, SessionId},
    retention::Hold,
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    record::{self, Reader, Record, Statement, Value, record, text},
};

record! {
    Hold, hold in "retention_holds";
    key {
        hold_id: id;
    }
    fixed {
        tenant_id: opt_text;
        session = "session_id": opt_id;
        session_id = "session_name": opt_text;
        identity: opt_text;
        reason: text;
        placed_by: text;
        placed_at: time;
    }
    state {
        released_by: opt_text;
        released_at: opt_time;
    }
}

/// Something that is older than its limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Removable {
    /// Its key, after which the list continues.
    pub key: String,
    pub items: i64,
    pub bytes: i64,
    pub is_held: bool,
}

impl Removable {
    pub(crate) fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            key: row.at("removable")?.text()?,
            items: row.at("items")?.int()?,
            bytes: row.at("bytes")?.int()?,
            is_held: row.at("held")?.int()? != 0,
        })
    }
}

/// What is removed: of which tenant, and what ended before.
#[derive(Clone, Debug)]
pub struct RetentionScope {
    /// `None`: what belongs to no tenant.
    pub tenant_id: Option<String>,
    pub before: Timestamp,
}

/// What a step has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RemovedItems {
    pub items: i64,
    pub bytes: i64,
    /// The same step again removes more.
    pub has_more: bool,
}

impl RemovedItems {
    /// One item for each of these sizes.
    pub(crate) fn of(sizes: &[i64]) -> Self {
        Self { items: sizes.len() as i64, bytes: sizes.iter().sum(), has_more: false }
    }
}

/// `removable, items, bytes, held`, each as the reader of [`Removable`] expects it.
pub(crate) fn removable_columns(key: &str, items: &str, bytes: &str, held: &str) -> String {
    format!(
        "{key} AS removable, CAST({items} AS BIGINT) AS items, CAST({bytes} AS BIGINT) AS bytes,
         CASE WHEN {held} THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS held"
    )
}

/// A guard: from here to the end of the transaction no hold is placed. The next statement sees every hold that was placed
/// before: on Postgres it must be a statement of its own, because this one may have waited.
pub(crate) fn gate(db: &Db) -> Statement {
    Statement::guard(format!("SELECT 1 FROM retention_gate WHERE id = 1 {}", db.share_lock()), vec![])
}

/// Guards: the session is under no hold until the transaction has ended.
pub(crate) fn unless_held(db: &Db, session: SessionId) -> [Statement; 2] {
    let held = held_session("s.session_id", "s.tenant_id");
    let sql = format!("SELECT 1 FROM sessions s WHERE s.session_id = $1 AND NOT {held}");
    [gate(db), Statement::guard(sql, vec![text(session)])]
}

/// Guards: the tenant is under no hold until the transaction has ended.
pub(crate) fn unless_tenant_held(db: &Db, tenant_id: &str) -> [Statement; 2] {
    let sql = format!("SELECT 1 WHERE NOT {}", held_tenant("$1"));
    [gate(db), Statement::guard(sql, vec![tenant_id.into()])]
}

/// A condition: a hold covers the tenant in a column.
pub(crate) fn held_tenant(tenant: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM retention_holds h WHERE h.released_at IS NULL AND h.session_id IS NULL
         AND h.tenant_id = {tenant})"
    )
}

/// A condition: a hold covers the session, by itself or with its tenant, or covers a session that continues its conversation.
pub(crate) fn held_session(session: &str, tenant: &str) -> String {
    format!(
        "(EXISTS (SELECT 1 FROM retention_holds h WHERE h.released_at IS NULL AND h.session_id IS NULL AND h.tenant_id = {tenant})
         OR {session} IN (WITH RECURSIVE held(id) AS (
             SELECT h.session_id FROM retention_holds h WHERE h.released_at IS NULL AND h.session_id IS NOT NULL
             UNION SELECT p.parent_id FROM sessions p JOIN held ON p.session_id = held.id WHERE p.parent_id IS NOT NULL)
             SELECT id FROM held))"
    )
}

/// A condition: a hold covers one of these identities.
pub(crate) fn held_identity(identities: &[&str]) -> String {
    let names = identities.join(", ");
    format!("EXISTS (SELECT 1 FROM retention_holds h WHERE h.released_at IS NULL AND h.identity IN ({names}))")
}

/// A condition: a hold covers one of the tenants in a column with a JSON list.
pub(crate) fn held_tenants(db: &Db, tenants: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM retention_holds h WHERE h.released_at IS NULL AND h.session_id IS NULL
         AND h.tenant_id IN (SELECT one FROM {}))",
        db.list(tenants)
    )
}

/// Places a hold. When this returns, no transaction that removes rows covered by it is under way. It does not stop the deletion
/// of files that began before: a file that is being deleted at that moment is not restored.
pub async fn insert_hold(db: &Db, hold: &Hold) -> Result<(), StoreError> {
    let change = "UPDATE retention_gate SET holds_placed = holds_placed + 1 WHERE id = 1 RETURNING 1";
    let statements = vec![Statement::guard(change, vec![]), record::insert(hold, vec![], "")];
    match db.write_together(statements).await? {
        true => Ok(()),
        false => Err(StoreError::corrupt("the row of retention_gate is missing")),
    }
}

pub async fn get_hold(db: &Db, hold_id: HoldId) -> Result<Option<Hold>, StoreError> {
    Ok(db.select("WHERE hold_id = $1", vec![text(hold_id)]).await?.pop())
}

/// The first release counts. `None`: there is no such hold.
pub async fn update_released(db: &Db, hold_id: HoldId, by: &str, now: Timestamp) -> Result<Option<Hold>, StoreError> {
    let sql = format!(
        "UPDATE retention_holds SET released_by = COALESCE(released_by, $1), released_at = COALESCE(released_at, $2)
         WHERE hold_id = $3 RETURNING {}",
        Hold::NAMES
    );
    Ok(db.write(sql, vec![by.into(), now.into(), text(hold_id)], Hold::decode).await?.pop())
}

/// Newest first, also those that were released.
pub async fn list_holds(db: &Db, after: Option<&Cursor>, limit: u32) -> Result<Vec<Hold>, StoreError> {
    let (mut args, mut filter): (Vec<Value>, _) = (vec![], String::new());
    let order = db.byte_order();
    if let Some(cursor) = after {
        args = vec![cursor.created_at_us.into(), cursor.id.as_str().into()];
        filter = format!("WHERE (placed_at, hold_id{order}) < ($1, $2)");
    }
    args.push(i64::from(limit).into());
    let last = args.len();
    db.select(&format!("{filter} ORDER BY placed_at DESC, hold_id{order} DESC LIMIT ${last}"), args).await
}

/// Whether a hold covers the tenant.
pub async fn is_tenant_held(db: &Db, tenant_id: &str) -> Result<bool, StoreError> {
    let sql = format!("SELECT 1 WHERE {}", held_tenant("$1"));
    Ok(db.read_one(sql, vec![tenant_id.into()], |_| Ok(())).await?.is_some())
}

/// Whether a hold covers the session.
pub async fn is_held(db: &Db, session: SessionId) -> Result<bool, StoreError> {
    let held = held_session("s.session_id", "s.tenant_id");
    let sql = format!("SELECT 1 FROM sessions s WHERE s.session_id = $1 AND {held}");
    Ok(db.read_one(sql, vec![text(session)], |_| Ok(())).await?.is_some())
}

/// The tenants that have sessions, each found by one lookup in an index.
pub async fn list_tenants(db: &Db) -> Result<Vec<String>, StoreError> {
    let mut found: Vec<String> = vec![];
    loop {
        let sql = "SELECT MIN(tenant_id) FROM sessions WHERE tenant_id > $1";
        let after = found.last().cloned().unwrap_or_default();
        match db.read_one(sql, vec![after.into()], |row| row.opt_text()).await?.flatten() {
            Some(tenant) => found.push(tenant),
            None => return Ok(found),
        }
    }
}

/// The first tenant of a user's JSON list.
pub(crate) fn first_tenant(db: &Db, tenants: &str) -> String {
    match db.engine {
        Engine::Sqlite(_) => format!("json_extract({tenants}, '$[0]')"),
        Engine::Postgres(_) => format!("({tenants}::jsonb ->> 0)"),
    }
}
