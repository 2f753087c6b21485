//! Clients that are attached to sessions of the daemon.

use ostler_protocol::{Timestamp, daemon::clients::DaemonClient, ids::SessionId};

use crate::{
    db::Db,
    error::StoreError,
    lane::AttachedRows,
    record::{self, Statement, record, text},
};

/// Clients that are deleted at once.
const DELETED_MAX: i64 = 1_000;

record! {
    DaemonClient, client in "daemon_clients";
    key {
        client_id: text;
    }
    fixed {
        session = "session_id": id;
        principal: text;
        registered_at: time;
    }
    state {
        last_seen_at: time;
        left_at: opt_time;
    }
}

pub async fn get(db: &Db, client_id: &str) -> Result<Option<DaemonClient>, StoreError> {
    Ok(db.select::<DaemonClient>("WHERE t.client_id = $1", vec![client_id.into()]).await?.pop())
}

/// The row of a new client, to be written together with the request by which it joins the session.
pub fn rows_of_new(client: &DaemonClient) -> AttachedRows {
    AttachedRows(vec![record::insert(client, vec![], "")])
}

/// To be written together with the request by which a client that had left joins again. Nothing is written if it has not left.
pub fn rows_of_return(client_id: &str, at: Timestamp) -> AttachedRows {
    let sql = "UPDATE daemon_clients SET last_seen_at = $1, left_at = NULL WHERE client_id = $2 AND left_at IS NOT NULL
        RETURNING 1";
    AttachedRows(vec![Statement::guard(sql, vec![at.into(), client_id.into()])])
}

/// To be written together with the request by which a client leaves. Nothing is written if it was seen after `since`.
pub fn rows_of_leave(client_id: &str, since: Timestamp, at: Timestamp) -> AttachedRows {
    let sql = "UPDATE daemon_clients SET left_at = $1 WHERE client_id = $2 AND left_at IS NULL AND last_seen_at <= $3
        RETURNING 1";
    AttachedRows(vec![Statement::guard(sql, vec![at.into(), client_id.into(), since.into()])])
}

/// For a request that is only valid if the client has left.
pub fn rows_if_left(client_id: &str) -> AttachedRows {
    let sql = "UPDATE daemon_clients SET left_at = left_at WHERE client_id = $1 AND left_at IS NOT NULL RETURNING 1";
    AttachedRows(vec![Statement::guard(sql, vec![client_id.into()])])
}

/// How many clients of a session are registered, attached or not.
pub async fn count(db: &Db, session: SessionId) -> Result<i64, StoreError> {
    let sql = "SELECT COUNT(*) FROM daemon_clients WHERE session_id = $1";
    Ok(db.read_one(sql, vec![text(session)], |row| row.int()).await?.unwrap_or_default())
}

/// Unregisters the clients of a session beyond `clients_max`, and returns their ids. Those that have left come first, then those
/// that were not seen for longest.
pub async fn delete_beyond(db: &Db, session: SessionId, clients_max: u32) -> Result<Vec<String>, StoreError> {
    let sql =
        "DELETE FROM daemon_clients WHERE client_id IN (SELECT client_id FROM daemon_clients WHERE session_id = $1
        ORDER BY CASE WHEN left_at IS NULL THEN 0 ELSE 1 END, last_seen_at DESC, client_id DESC LIMIT $2 OFFSET $3) RETURNING client_id";
    let args = vec![text(session), DELETED_MAX.into(), i64::from(clients_max).into()];
    db.write(sql, args, |row| row.text()).await
}

/// The client was seen. False if it has left, or is not registered.
pub async fn update_seen(db: &Db, client_id: &str, at: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE daemon_clients SET last_seen_at = $1 WHERE client_id = $2 AND left_at IS NULL RETURNING 1";
    Ok(!db.write(sql, vec![at.into(), client_id.into()], |_| Ok(())).await?.is_empty())
}

/// The ids of the clients of a session that have not left.
pub async fn list_attached(db: &Db, session: SessionId) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT client_id FROM daemon_clients WHERE session_id = $1 AND left_at IS NULL";
    db.read(sql, vec![text(session)], |row| row.text()).await
}

/// Unregisters every client of a session that was registered by then, and returns their ids.
pub async fn delete_by_session(db: &Db, session: SessionId, until: Timestamp) -> Result<Vec<String>, StoreError> {
    let sql = "DELETE FROM daemon_clients WHERE session_id = $1 AND registered_at <= $2 RETURNING client_id";
    db.write(sql, vec![text(session), until.into()], |row| row.text()).await
}

/// Attached clients that were not seen since then, the longest absent first.
pub async fn list_absent(db: &Db, since: Timestamp, limit: u32) -> Result<Vec<DaemonClient>, StoreError> {
    let absent = "WHERE t.left_at IS NULL AND t.last_seen_at <= $1 ORDER BY t.last_seen_at, t.client_id LIMIT $2";
    db.select::<DaemonClient>(absent, vec![since.into(), i64::from(limit).into()]).await
}
