//! Sessions that clients of the daemon have opened.

use ostler_protocol::{
    Timestamp,
    daemon::{
        clients::DaemonClient,
        sessions::{DaemonSession, SessionScope},
    },
    ids::SessionId,
    kernel::sessions::Session,
};

use crate::{
    db::Db,
    error::StoreError,
    lane::AttachedRows,
    record::{Reader, Record, Statement, Value, columns, insert, insert_select, opt_text, record, sql, text},
    retention::held_session,
};

record! {
    DaemonSession, session in "daemon_sessions";
    key {
        session = "session_id": id;
    }
    fixed {
        tenant_id: text;
        owner: text;
        workspace: text;
    }
    state {
        scope: named(SessionScope);
        model_id: opt_text;
        language: opt_text;
        output_language: opt_text;
        approval_mode: opt_text;
        opened_at: time;
        closed_at: opt_time;
        followed_at: opt_time;
    }
}

pub async fn get(db: &Db, session: SessionId) -> Result<Option<DaemonSession>, StoreError> {
    Ok(db.select::<DaemonSession>("WHERE t.session_id = $1", vec![text(session)]).await?.pop())
}

/// The open sessions of a tenant in a workspace, in the order of their ids. A session that was closed for good or erased is not open.
pub async fn list_open(
    db: &Db,
    (tenant_id, workspace): (&str, &str),
    after: Option<SessionId>,
    limit: u32,
) -> Result<Vec<SessionId>, StoreError> {
    let sql = "SELECT d.session_id FROM daemon_sessions d JOIN sessions s ON s.session_id = d.session_id
        WHERE d.workspace = $1 AND d.closed_at IS NULL AND d.session_id > $2 AND s.tenant_id = $3 AND s.closed_at IS NULL
        AND s.erased_at IS NULL ORDER BY d.session_id LIMIT $4";
    let after = after.map(|session| session.to_string()).unwrap_or_default();
    let args = vec![workspace.into(), after.into(), tenant_id.into(), i64::from(limit).into()];
    db.read(sql, args, |row| row.id()).await
}

/// Counts over all open sessions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenCounts {
    pub sessions: i64,
    /// Permission requests of these sessions that wait for an answer.
    pub pending_permissions: i64,
}

/// Counts the open sessions of all workspaces and tenants, and their permission requests that wait.
pub async fn count_pending(db: &Db) -> Result<OpenCounts, StoreError> {
    let sql = "SELECT (SELECT count(*) FROM daemon_sessions d JOIN sessions s ON s.session_id = d.session_id
            WHERE d.closed_at IS NULL AND s.closed_at IS NULL AND s.erased_at IS NULL) AS sessions,
        (SELECT count(*) FROM permissions p JOIN daemon_sessions d ON d.session_id = p.session_id
            WHERE p.status = 'pending' AND d.closed_at IS NULL) AS pending_permissions";
    let decode = |row: &mut Reader<'_>| {
        let (sessions, pending_permissions) = (row.at("sessions")?.int()?, row.at("pending_permissions")?.int()?);
        Ok(OpenCounts { sessions, pending_permissions })
    };
    let rows = db.read(sql, vec![], decode).await?;
    Ok(rows.first().copied().unwrap_or(OpenCounts { sessions: 0, pending_permissions: 0 }))
}

/// Closes the session for the daemon's clients. False if it was not open.
pub async fn update_closed(db: &Db, session: SessionId, at: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE daemon_sessions SET closed_at = $1 WHERE session_id = $2 AND closed_at IS NULL RETURNING 1";
    Ok(!db.write(sql, vec![at.into(), text(session)], |_| Ok(())).await?.is_empty())
}

/// A condition for a row `d` of a session `s`: clients can use it. Requests of one commit do not see each other's `s` yet.
const IS_OPEN: &str = "d.closed_at IS NULL AND s.closed_at IS NULL AND s.erased_at IS NULL";

/// How many sessions of an owner are open in a workspace.
pub async fn count_open(db: &Db, tenant_id: &str, owner: &str, workspace: &str) -> Result<i64, StoreError> {
    let sql = sql!(format!(
        "SELECT COUNT(*) FROM daemon_sessions d LEFT JOIN sessions s ON s.session_id = d.session_id
         WHERE d.tenant_id = $1 AND d.owner = $2 AND d.workspace = $3 AND {IS_OPEN}"
    ));
    let args = vec![tenant_id.into(), owner.into(), workspace.into()];
    Ok(db.read_one(sql, args, |row| row.int()).await?.unwrap_or_default())
}

/// The rows of a new session and of the client that it is opened for, to be written together with the session of the kernel.
/// They cannot be written if the owner has `sessions_max` open ones in the workspace, or has an open one that clients share and
/// this were another. On Postgres, concurrent requests may exceed the limit by each other.
pub fn rows_of_new(new: &DaemonSession, client: &DaemonClient, sessions_max: u32) -> AttachedRows {
    let sql = sql!({
        let columns = [
            ("session_id", "$1"),
            ("tenant_id", "$2"),
            ("owner", "$3"),
            ("workspace", "$4"),
            ("scope", "$5"),
            ("opened_at", "$6"),
            ("model_id", "$7"),
            ("language", "$8"),
            ("output_language", "$9"),
            ("approval_mode", "$10"),
        ];
        let rest = format!(
            "WHERE (SELECT COUNT(*) FROM daemon_sessions d LEFT JOIN sessions s ON s.session_id = d.session_id
             WHERE d.tenant_id = $2 AND d.owner = $3 AND d.workspace = $4 AND {IS_OPEN}) < $11 ON CONFLICT DO NOTHING RETURNING 1"
        );
        insert_select::<DaemonSession>(&columns, &rest)
    });
    let args = vec![
        text(new.session),
        new.tenant_id.as_str().into(),
        new.owner.as_str().into(),
        new.workspace.as_str().into(),
        new.scope.as_str().into(),
        new.opened_at.into(),
        opt_text(new.model_id.as_deref()),
        opt_text(new.language.as_deref()),
        opt_text(new.output_language.as_deref()),
        opt_text(new.approval_mode.as_deref()),
        i64::from(sessions_max).into(),
    ];
    AttachedRows(vec![Statement::guard(sql, args), insert(client, vec![], "")])
}

/// The open session that the clients of an owner share in a workspace.
pub async fn find_single(
    db: &Db,
    tenant_id: &str,
    owner: &str,
    workspace: &str,
) -> Result<Option<DaemonSession>, StoreError> {
    let shared = "WHERE t.tenant_id = $1 AND t.owner = $2 AND t.workspace = $3 AND t.scope = 'single'
        AND t.closed_at IS NULL";
    let args = vec![tenant_id.into(), owner.into(), workspace.into()];
    Ok(db.select::<DaemonSession>(shared, args).await?.pop())
}

/// Opens a closed session again. Its scope becomes `thread` if the owner has another open session that clients share. False if it was not
/// closed.
pub async fn update_opened(db: &Db, session: &DaemonSession, at: Timestamp) -> Result<bool, StoreError> {
    let reopen = |scope: &'static str| {
        let sql = format!(
            "UPDATE daemon_sessions SET closed_at = NULL, opened_at = $1, scope = {scope}
             WHERE session_id = $2 AND closed_at IS NOT NULL RETURNING 1"
        );
        db.write(sql, vec![at.into(), text(session.session)], |_| Ok(()))
    };
    match reopen("scope").await {
        Err(error) if error.is_unique_violation() => Ok(!reopen("'thread'").await?.is_empty()),
        reopened => Ok(!reopened?.is_empty()),
    }
}

/// The model that the session was given.
pub async fn update_model(db: &Db, session: SessionId, model_id: &str) -> Result<(), StoreError> {
    let sql = "UPDATE daemon_sessions SET model_id = $1 WHERE session_id = $2 RETURNING 1";
    db.write(sql, vec![model_id.into(), text(session)], |_| Ok(())).await.map(drop)
}

/// What a list of sessions is narrowed to.
#[derive(Clone, Debug)]
pub struct DaemonSessionFilter {
    pub workspace: String,
    /// The tenants the caller may see. `None`: all.
    pub tenants: Option<Vec<String>>,
    /// Of users' sessions, only this owner's. `None`: every owner's.
    pub owner: Option<String>,
}

/// A session of a list.
pub struct DaemonSessionRow {
    pub daemon: DaemonSession,
    pub session: Session,
    pub client_count: i64,
}

fn decode_row(row: &mut Reader<'_>) -> Result<DaemonSessionRow, StoreError> {
    Ok(DaemonSessionRow {
        daemon: DaemonSession::decode(row)?,
        session: Session::decode(row)?,
        client_count: row.at("client_count")?.int()?,
    })
}

/// Sessions of a workspace, open or closed, newest first. Sessions that were closed for good or erased are left out.
pub async fn list(
    db: &Db,
    filter: &DaemonSessionFilter,
    before: Option<&str>,
    limit: u32,
) -> Result<Vec<DaemonSessionRow>, StoreError> {
    let mut args: Vec<Value> = vec![filter.workspace.as_str().into()];
    let mut wanted = String::new();
    let mut mark = |value: Value| {
        args.push(value);
        format!("${}", args.len())
    };
    if let Some(before) = before {
        wanted += &format!(" AND d.session_id < {}", mark(before.into()));
    }
    if let Some(tenants) = &filter.tenants {
        let marks: Vec<_> = tenants.iter().map(|tenant| mark(tenant.as_str().into())).collect();
        let marks = if marks.is_empty() { "NULL".into() } else { marks.join(", ") };
        wanted += &format!(" AND d.tenant_id IN ({marks})");
    }
    if let Some(owner) = &filter.owner {
        wanted += &format!(" AND (d.owner = '' OR d.owner = {})", mark(owner.as_str().into()));
    }
    let limit = mark(i64::from(limit).into());
    let (daemon, session) = (columns::<DaemonSession>("d"), columns::<Session>("s"));
    let sql = format!(
        "SELECT {daemon}, {session},
             (SELECT COUNT(*) FROM daemon_clients c WHERE c.session_id = d.session_id) AS client_count
         FROM daemon_sessions d JOIN sessions s ON s.session_id = d.session_id
         WHERE d.workspace = $1 AND s.closed_at IS NULL AND s.erased_at IS NULL{wanted}
         ORDER BY d.session_id DESC LIMIT {limit}"
    );
    db.read(sql, args, decode_row).await
}

/// Names of an owner's sessions in a workspace that begin with this text, at most `limit` of them.
pub async fn list_titles(
    db: &Db,
    session: &DaemonSession,
    beginning: &str,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT s.title FROM daemon_sessions d JOIN sessions s ON s.session_id = d.session_id
        WHERE d.workspace = $1 AND d.tenant_id = $2 AND d.owner = $3 AND s.erased_at IS NULL
        AND SUBSTR(s.title, 1, LENGTH($4)) = $4 ORDER BY d.session_id DESC LIMIT $5";
    let args = vec![
        session.workspace.as_str().into(),
        session.tenant_id.as_str().into(),
        session.owner.as_str().into(),
        beginning.into(),
        i64::from(limit).into(),
    ];
    db.read(sql, args, |row| row.text()).await
}

pub async fn update_language(
    db: &Db,
    session: SessionId,
    language: &str,
    output_language: Option<&str>,
) -> Result<(), StoreError> {
    let sql = "UPDATE daemon_sessions SET language = $1, output_language = $2 WHERE session_id = $3 RETURNING 1";
    let args = vec![language.into(), opt_text(output_language), text(session)];
    db.write(sql, args, |_| Ok(())).await.map(drop)
}

pub async fn update_approval_mode(db: &Db, session: SessionId, mode: &str) -> Result<(), StoreError> {
    let sql = "UPDATE daemon_sessions SET approval_mode = $1 WHERE session_id = $2 RETURNING 1";
    db.write(sql, vec![mode.into(), text(session)], |_| Ok(())).await.map(drop)
}

/// A server has an event stream of the session open.
pub async fn update_followed(db: &Db, session: SessionId, at: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE daemon_sessions SET followed_at = $1 WHERE session_id = $2 RETURNING 1";
    db.write(sql, vec![at.into(), text(session)], |_| Ok(())).await.map(drop)
}

/// A condition for a row `d` of a session `s`: it is open, and it was not used since the time of this parameter. No prompt waits or
/// runs, nothing was recorded, no client was seen, and no event stream was open.
fn is_idle(before: &str) -> String {
    format!(
        "d.opened_at <= {before} AND s.updated_at <= {before} AND s.active_unfinished = 0 AND {IS_OPEN}
         AND (d.followed_at IS NULL OR d.followed_at <= {before}) AND NOT EXISTS
            (SELECT 1 FROM daemon_clients c WHERE c.session_id = d.session_id AND c.last_seen_at > {before})"
    )
}

/// Sessions that were not used since then, in the order of their ids.
pub async fn list_idle(db: &Db, before: Timestamp, limit: u32) -> Result<Vec<SessionId>, StoreError> {
    let sql = sql!(format!(
        "SELECT d.session_id FROM daemon_sessions d JOIN sessions s ON s.session_id = d.session_id
         WHERE {} ORDER BY d.session_id LIMIT $2",
        is_idle("$1")
    ));
    db.read(sql, vec![before.into(), i64::from(limit).into()], |row| row.id()).await
}

/// Closes a session that was not used since then. False if it was used, or is not open.
pub async fn update_closed_idle(
    db: &Db,
    session: SessionId,
    before: Timestamp,
    at: Timestamp,
) -> Result<bool, StoreError> {
    let sql = sql!(format!(
        "UPDATE daemon_sessions SET closed_at = $1 WHERE session_id IN (SELECT d.session_id FROM daemon_sessions d
            JOIN sessions s ON s.session_id = d.session_id WHERE {} AND d.session_id = $3) RETURNING 1",
        is_idle("$2")
    ));
    Ok(!db.write(sql, vec![at.into(), before.into(), text(session)], |_| Ok(())).await?.is_empty())
}

/// Sessions of users who were removed, without those under a hold.
pub async fn list_orphaned(db: &Db, limit: u32) -> Result<Vec<SessionId>, StoreError> {
    let sql = format!(
        "SELECT d.session_id FROM daemon_sessions d JOIN sessions s ON s.session_id = d.session_id
         WHERE s.erased_at IS NULL AND d.owner IN (SELECT user_id FROM users WHERE removed_at IS NOT NULL)
         AND NOT {} ORDER BY d.session_id LIMIT $1",
        held_session("s.session_id", "s.tenant_id")
    );
    db.read(sql, vec![i64::from(limit).into()], |row| row.id()).await
}

/// Sessions that were marked as erased and are not erased completely, without those under a hold.
pub async fn list_half_erased(db: &Db, limit: u32) -> Result<Vec<Session>, StoreError> {
    let marked = format!(
        "WHERE t.erased_at IS NOT NULL AND t.external_id IS NULL
         AND t.session_id IN (SELECT session_id FROM daemon_sessions) AND NOT {} ORDER BY t.erased_at LIMIT $1",
        held_session("t.session_id", "t.tenant_id")
    );
    db.select::<Session>(&marked, vec![i64::from(limit).into()]).await
}
