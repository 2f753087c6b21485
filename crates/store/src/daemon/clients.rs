//! Clients that are attached to sessions of the daemon.

use ostler_protocol::{Timestamp, daemon::clients::DaemonClient, ids::SessionId};

use crate::{
    db::Db,
    error::StoreError,
    lane::AttachedRows,
    record::{self, record, text},
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

/// Unregisters the clients of a session beyond the `clients_max` that were seen last, and returns their ids.
pub async fn delete_beyond(db: &Db, session: SessionId, clients_max: u32) -> Result<Vec<String>, StoreError> {
    let sql =
        "DELETE FROM daemon_clients WHERE client_id IN (SELECT client_id FROM daemon_clients WHERE session_id = $1
        ORDER BY last_seen_at DESC, client_id DESC LIMIT $2 OFFSET $3) RETURNING client_id";
    let args = vec![text(session), DELETED_MAX.into(), i64::from(clients_max).into()];
    db.write(sql, args, |row| row.text()).await
}

/// The client was seen, and is attached. False if it is not registered.
pub async fn update_seen(db: &Db, client_id: &str, at: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE daemon_clients SET last_seen_at = $1, left_at = NULL WHERE client_id = $2 RETURNING 1";
    Ok(!db.write(sql, vec![at.into(), client_id.into()], |_| Ok(())).await?.is_empty())
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

/// The client has left, unless it was seen since then. False if it was.
pub async fn update_left(db: &Db, client_id: &str, since: Timestamp, at: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE daemon_clients SET left_at = $1 WHERE client_id = $2 AND left_at IS NULL AND last_seen_at <= $3
        RETURNING 1";
    Ok(!db.write(sql, vec![at.into(), client_id.into(), since.into()], |_| Ok(())).await?.is_empty())
}
