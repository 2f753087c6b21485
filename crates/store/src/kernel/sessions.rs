//! Sessions.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::SessionId,
    kernel::{
        labels::Labels,
        runs::RunState,
        session_storage::{SessionStorage, StorageKind},
        sessions::{ExecutionState, ParentSession, Session},
    },
};

use crate::{
    db::Db,
    error::StoreError,
    kernel::{
        labels,
        readers::{READ_VERSION, Settled},
        runs::{is_in_states, state_sql},
    },
    record::{Reader, Record, Value, columns, record, text},
    retention::{Removable, RetentionScope, held_session, removable_columns},
};

/// Sessions of one name, in as many tenants, that are read at most.
const SAME_NAME_MAX: i64 = 100;

record! {
    Session, session in "sessions";
    key {
        session_id: id from session.session;
    }
    fixed {
        tenant_id: text;
        external_id: opt_text;
        idempotency_key: opt_text;
        request_hash: opt_text;
        owner: opt_text;
        parent_id: opt_id from session.parent.map(|parent| parent.session);
        parent_seq: opt_int from session.parent.map(|parent| parent.seq);
        conversation_id: opt_text;
        metadata: shared_json;
        background: flag;
        created_at: time;
    }
    state {
        backend_profile: text;
        title: opt_text;
        labels: opt_json from (!session.labels.is_empty()).then_some(&session.labels);
        participants: opt_json from (!session.participants.is_empty()).then_some(&session.participants);
        closed_at: opt_time;
        erased_at: opt_time;
        thread_id: opt_text;
        storage_kind: named(StorageKind) from session.storage.storage_kind;
        // Most sessions have none, and no query reads it.
        storage: opt_json from (session.storage.storage_kind != StorageKind::None).then_some(&session.storage);
        expires_at: opt_time from session.storage.expires_at;
        last_seq: int;
        chain_head: hash;
        version: int;
        ended_at: opt_time;
        execution_state: named(ExecutionState);
        active_run_id: opt_id;
        active_command_id: opt_id;
        active_unfinished: int;
        active_lease_until: opt_time;
        last_run_id: opt_id;
        last_command_id: opt_id;
        revision: int;
        updated_at: time;
    }
    unless_changed " AND t.revision = u.revision - 1";
    build Session {
        session: session_id,
        tenant_id,
        external_id,
        idempotency_key,
        request_hash,
        owner,
        parent: parent(parent_id, parent_seq)?,
        conversation_id,
        metadata,
        background,
        created_at,
        backend_profile,
        title,
        labels: Option::unwrap_or_default(labels),
        participants: Option::unwrap_or_default(participants),
        closed_at,
        erased_at,
        thread_id,
        storage: SessionStorage { storage_kind, expires_at, ..Option::unwrap_or_default(storage) },
        last_seq,
        chain_head,
        version,
        ended_at,
        execution_state,
        active_run_id,
        active_command_id,
        active_unfinished,
        active_lease_until,
        last_run_id,
        last_command_id,
        revision,
        updated_at,
    };
}

/// The session that another one continues: both columns, or neither.
fn parent(session: Option<SessionId>, seq: Option<i64>) -> Result<Option<ParentSession>, StoreError> {
    match (session, seq) {
        (Some(session), Some(seq)) => Ok(Some(ParentSession { session, seq })),
        (None, None) => Ok(None),
        _ => Err(StoreError::corrupt("a session has half a parent")),
    }
}

pub async fn get(db: &Db, session: SessionId) -> Result<Option<Session>, StoreError> {
    Ok(db.select::<Session>("WHERE t.session_id = $1 AND t.erased_at IS NULL", vec![text(session)]).await?.pop())
}

/// Whether the store has or had a session of this id: true also after the session was erased.
pub async fn is_known(db: &Db, session: SessionId) -> Result<bool, StoreError> {
    let sql = "SELECT session_id FROM sessions WHERE session_id = $1";
    Ok(db.read_one(sql, vec![text(session)], |row| row.text()).await?.is_some())
}

/// The session a tenant's caller knows under this id, whether the caller chose it or we did.
pub async fn find_by_name(db: &Db, tenant_id: &str, name: &str) -> Result<Option<Session>, StoreError> {
    let chosen = "WHERE t.tenant_id = $1 AND t.external_id = $2 AND t.erased_at IS NULL";
    let chosen = db.select::<Session>(chosen, vec![tenant_id.into(), name.into()]);
    if let Some(session) = chosen.await?.pop() {
        return Ok(Some(session));
    }
    let Ok(id) = name.parse::<SessionId>() else { return Ok(None) };
    let ours = "WHERE t.session_id = $1 AND t.tenant_id = $2 AND t.external_id IS NULL AND t.erased_at IS NULL";
    Ok(db.select::<Session>(ours, vec![text(id), tenant_id.into()]).await?.pop())
}

/// Threads of this name, of every owner: clients choose a thread's id, and it is found without its tenant.
pub async fn find_by_external_id(db: &Db, name: &str) -> Result<Vec<Session>, StoreError> {
    let named = "WHERE t.external_id = $1 AND t.erased_at IS NULL LIMIT $2";
    db.select::<Session>(named, vec![name.into(), SAME_NAME_MAX.into()]).await
}

/// The session that was made under this key.
pub async fn find_by_key(db: &Db, tenant_id: &str, key: &str) -> Result<Option<Session>, StoreError> {
    let made = "WHERE t.tenant_id = $1 AND t.idempotency_key = $2 AND t.erased_at IS NULL";
    Ok(db.select::<Session>(made, vec![tenant_id.into(), key.into()]).await?.pop())
}

/// Sessions of this name in these tenants (`None`: all), at most two: enough to detect that there are several.
pub async fn find_in_tenants(db: &Db, tenants: Option<&[String]>, name: &str) -> Result<Vec<Session>, StoreError> {
    let find = async |condition: &str| {
        let mut args: Vec<Value> = vec![name.into()];
        let within = within_tenants(tenants, &mut marker(&mut args));
        db.select::<Session>(&format!("WHERE {condition} AND t.erased_at IS NULL{within} LIMIT 2"), args).await
    };
    let mut found = find("t.external_id = $1").await?;
    // Ids that callers choose never look like ours.
    if found.is_empty() && name.parse::<SessionId>().is_ok() {
        found = find("t.session_id = $1 AND t.external_id IS NULL").await?;
    }
    Ok(found)
}

/// Adds a value to the arguments and returns its placeholder. Must be called in the order of the statement.
fn marker(args: &mut Vec<Value>) -> impl FnMut(Value) -> String {
    |value| {
        args.push(value);
        format!("${}", args.len())
    }
}

/// ` AND …`, or nothing for all tenants.
fn within_tenants(tenants: Option<&[String]>, mark: &mut impl FnMut(Value) -> String) -> String {
    let Some(tenants) = tenants else { return String::new() };
    let marks: Vec<_> = tenants.iter().map(|tenant| mark(tenant.as_str().into())).collect();
    format!(" AND t.tenant_id IN ({})", if marks.is_empty() { "NULL".into() } else { marks.join(", ") })
}

/// What a list is narrowed to.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// The tenants the caller may see. `None`: all.
    pub tenants: Option<Vec<String>>,
    /// Of threads, only this owner's. `None`: every owner's.
    pub threads_of: Option<String>,
    pub backend_profile: Option<String>,
    /// All of them.
    pub labels: Labels,
    pub reader_id: String,
    /// Only sessions that run, or that this reader has not read.
    pub open: Option<Settled>,
    /// Only those whose active or latest run is in one of these states; empty for all.
    pub states: Vec<RunState>,
    /// Only ids of ours: from the first text to before the second.
    pub ids: Option<(String, String)>,
}

/// A session of a list.
pub struct SessionRow {
    pub session: Session,
    /// The version that the reader has seen.
    pub read_version: i64,
    /// The state of the active or latest run; `waiting` before the first run. `None` if it was closed before that.
    pub state: Option<RunState>,
}

fn decode_row(row: &mut Reader<'_>) -> Result<SessionRow, StoreError> {
    let (session, read_version) = (Session::decode(row)?, row.at("read_version")?.int()?);
    let state = row.at("run_state")?.opt_text()?.as_deref().and_then(RunState::parse);
    Ok(SessionRow { session, read_version, state })
}

/// Newest first.
pub async fn list(
    db: &Db,
    filter: &SessionFilter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<SessionRow>, StoreError> {
    let mut found = vec![];
    for (sql, args) in pages(db, filter, after, limit) {
        found.extend(db.read(sql, args, decode_row).await?);
    }
    // Each page has the newest of its kind, so the newest of them all are here. One may be of two kinds.
    found.sort_by_key(|row| std::cmp::Reverse((row.session.created_at, row.session.session)));
    found.dedup_by_key(|row| row.session.session);
    found.truncate(limit as usize);
    Ok(found)
}

/// The engine's plan for a list.
pub async fn explain_list(
    db: &Db,
    filter: &SessionFilter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    let mut plan = vec![];
    for (sql, args) in pages(db, filter, after, limit) {
        plan.extend(db.explain(&sql, args).await?);
    }
    Ok(plan)
}

/// What a list is put together from. Each kind has an index with the list's order, or few rows.
#[derive(Clone, Copy)]
enum Kind {
    All,
    Running,
    /// Not read, by a walk from the newest.
    Unread,
    /// Not read, by the reader's own marks.
    MarkedUnread,
    /// Not read, of those that ended something since then.
    UnreadSince(Timestamp),
}

fn pages(db: &Db, filter: &SessionFilter, after: Option<&Cursor>, limit: u32) -> Vec<(String, Vec<Value>)> {
    let kinds = match filter.open {
        None => vec![Kind::All],
        // A reader without marks finds the unread sessions among the newest.
        Some(Settled::No) => vec![Kind::Running, Kind::Unread],
        Some(Settled::Until(until)) => vec![Kind::Running, Kind::MarkedUnread, Kind::UnreadSince(until)],
    };
    kinds.into_iter().map(|kind| page(db, filter, kind, after, limit)).collect()
}

fn page(db: &Db, filter: &SessionFilter, kind: Kind, after: Option<&Cursor>, limit: u32) -> (String, Vec<Value>) {
    let mut args: Vec<Value> = vec![filter.reader_id.as_str().into()];
    let mut mark = marker(&mut args);
    // Where the order is taken from. A plus keeps an index of that order from being walked for a few rows.
    let (from, wanted, by) = match kind {
        Kind::All => ("sessions t", "TRUE".into(), "t."),
        Kind::Running => ("sessions t", "t.execution_state = 'running'".into(), "t."),
        Kind::Unread => ("sessions t", format!("t.version > 0 AND t.version > {READ_VERSION}"), "t."),
        Kind::MarkedUnread => (
            "session_read_cursors c JOIN sessions t ON t.session_id = c.session_id",
            "c.reader_id = $1 AND c.unread = 1 AND t.version > c.version".into(),
            "c.",
        ),
        Kind::UnreadSince(time) => {
            ("sessions t", format!("t.ended_at >= {} AND t.version > {READ_VERSION}", mark(time.into())), "+t.")
        }
    };
    let mut wanted: String = wanted;
    wanted += " AND t.erased_at IS NULL";
    wanted += &within_tenants(filter.tenants.as_deref(), &mut mark);
    if let Some(owner) = &filter.threads_of {
        wanted += &format!(" AND (t.owner IS NULL OR t.owner = {})", mark(owner.as_str().into()));
    }
    if let Some(profile) = &filter.backend_profile {
        wanted += &format!(" AND t.backend_profile = {}", mark(profile.as_str().into()));
    }
    for condition in labels::conditions(db, &labels::SESSIONS, &filter.labels, &mut mark) {
        wanted += &format!(" AND {condition}");
    }
    // A session waits for its first run, unless it was closed before.
    let state = format!(
        "COALESCE((SELECT {} FROM runs r WHERE r.run_id = COALESCE(t.active_run_id, t.last_run_id)),
            CASE WHEN t.closed_at IS NULL THEN '{}' END)",
        state_sql("r"),
        RunState::Waiting.as_str()
    );
    if !filter.states.is_empty() {
        let marks: Vec<_> = filter.states.iter().map(|state| mark(state.as_str().into())).collect();
        wanted += &format!(" AND {}", is_in_states(&state, &marks));
    }
    if let Some((first, end)) = &filter.ids {
        let (first, end) = (mark(first.as_str().into()), mark(end.as_str().into()));
        wanted += &format!(" AND t.session_id >= {first} AND t.session_id < {end} AND t.external_id IS NULL");
    }
    let order = db.byte_order();
    let id = by.trim_start_matches('+');
    if let Some(cursor) = after {
        let (time, last) = (mark(cursor.created_at_us.into()), mark(cursor.id.as_str().into()));
        wanted += &format!(" AND ({by}created_at, {id}session_id{order}) < ({time}, {last})");
    }
    let limit = mark(i64::from(limit).into());
    drop(mark);
    let columns = columns::<Session>("t");
    let sql = format!(
        "SELECT {columns}, {READ_VERSION} AS read_version, {state} AS run_state FROM {from}
         WHERE {wanted} ORDER BY {by}created_at DESC, {id}session_id{order} DESC LIMIT {limit}"
    );
    (sql, args)
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

/// Sessions whose storage had expired by then and is under no hold, the longest expired first.
pub async fn list_expired_storage(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<Session>, StoreError> {
    let expired = format!(
        "WHERE t.storage_kind IN ('local', 'pvc') AND t.erased_at IS NULL AND t.expires_at <= $1 AND NOT {}
         ORDER BY t.expires_at LIMIT $2",
        held_session("t.session_id", "t.tenant_id")
    );
    db.select::<Session>(&expired, vec![now.into(), i64::from(limit).into()]).await
}

/// Sessions with storage that were last changed before and are not at work, by id. An item is the storage of a session, as
/// large as its runner last reported.
pub async fn list_removable_storage(
    db: &Db,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    let bytes = format!("COALESCE(CAST({} AS BIGINT), 0)", db.json_text("s.storage", "storageSizeBytes"));
    let columns = removable_columns("s.session_id", "1", &bytes, &held_session("s.session_id", "s.tenant_id"));
    let sql = format!(
        "SELECT {columns} FROM sessions s WHERE s.storage_kind IN ('local', 'pvc') AND s.session_id > $1
         AND s.tenant_id = $2 AND s.erased_at IS NULL AND s.execution_state <> 'running' AND s.updated_at <= $3
         ORDER BY s.session_id LIMIT $4"
    );
    let tenant_id = scope.tenant_id.as_deref().unwrap_or_default();
    let args = vec![after.unwrap_or_default().into(), tenant_id.into(), scope.before.into(), i64::from(limit).into()];
    db.read(sql, args, Removable::decode).await
}
