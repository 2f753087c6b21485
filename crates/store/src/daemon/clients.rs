//! Clients that are attached to sessions of the daemon.

use ostler_protocol::{Timestamp, daemon::clients::DaemonClient, ids::SessionId};

use crate::{
    db::Db,
    error::StoreError,
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
    }
}

pub async fn get(db: &Db, client_id: &str) -> Result<Option<DaemonClient>, StoreError> {
    Ok(db.select::<DaemonClient>("WHERE t.client_id = $1", vec![client_id.into()]).await?.pop())
}

/// Registers a client.
pub async fn insert(db: &Db, client: &DaemonClient) -> Result<(), StoreError> {
    db.write_together(vec![record::insert(client, vec![], "")]).await.map(drop)
}

/// Unregisters the clients of a session beyond the `clients_max` that were seen last, and returns their ids.
pub async fn delete_beyond(db: &Db, session: SessionId, clients_max: u32) -> Result<Vec<String>, StoreError> {
    let sql =
        "DELETE FROM daemon_clients WHERE client_id IN (SELECT client_id FROM daemon_clients WHERE session_id = $1
        ORDER BY last_seen_at DESC, client_id DESC LIMIT $2 OFFSET $3) RETURNING client_id";
    let args = vec![text(session), DELETED_MAX.into(), i64::from(clients_max).into()];
    db.write(sql, args, |row| row.text()).await
}

/// The client was seen. False if it is not registered.
pub async fn update_seen(db: &Db, client_id: &str, at: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE daemon_clients SET last_seen_at = $1 WHERE client_id = $2 RETURNING 1";
    Ok(!db.write(sql, vec![at.into(), client_id.into()], |_| Ok(())).await?.is_empty())
}

/// Unregisters every client of a session that was registered by then, and returns their ids.
pub async fn delete_by_session(db: &Db, session: SessionId, until: Timestamp) -> Result<Vec<String>, StoreError> {
    let sql = "DELETE FROM daemon_clients WHERE session_id = $1 AND registered_at <= $2 RETURNING client_id";
    db.write(sql, vec![text(session), until.into()], |row| row.text()).await
}
