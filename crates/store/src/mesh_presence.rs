//! Which agents are connected to which server, where there are several. A server says from time to time that it is there; of
//! one that says nothing any more, nobody is believed to be connected.

use jiff::SignedDuration;
use ostler_protocol::{Timestamp, mesh::Aid};

use crate::{
    db::{Db, StoreError},
    record::text,
};

/// A server that has said nothing for this long is gone.
const SILENT: SignedDuration = SignedDuration::from_secs(30);

fn since(now: Timestamp) -> Timestamp {
    now.checked_sub(SILENT).unwrap_or(Timestamp::MIN)
}

/// The server is there.
pub async fn update_server(db: &Db, server: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO mesh_servers (server, seen_at) VALUES ($1, $2)
        ON CONFLICT (server) DO UPDATE SET seen_at = excluded.seen_at";
    db.execute(sql, vec![server.into(), now.into()]).await
}

pub async fn insert(db: &Db, aid: &Aid, server: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO mesh_presence (aid, server) VALUES ($1, $2) ON CONFLICT (aid, server) DO NOTHING";
    db.execute(sql, vec![text(aid), server.into()]).await
}

pub async fn delete(db: &Db, aid: &Aid, server: &str) -> Result<(), StoreError> {
    db.execute("DELETE FROM mesh_presence WHERE aid = $1 AND server = $2", vec![text(aid), server.into()]).await
}

/// Whom a server says are connected to it.
pub async fn list(db: &Db, server: &str) -> Result<Vec<Aid>, StoreError> {
    db.read("SELECT aid FROM mesh_presence WHERE server = $1", vec![server.into()], |row| row.id()).await
}

/// Whether the agent is connected to another server that is there.
pub async fn is_elsewhere(db: &Db, aid: &Aid, server: &str, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM mesh_presence p JOIN mesh_servers s ON s.server = p.server
        WHERE p.aid = $1 AND p.server <> $2 AND s.seen_at > $3 LIMIT 1";
    Ok(db.read_one(sql, vec![text(aid), server.into(), since(now).into()], |_| Ok(())).await?.is_some())
}

/// Forgets servers that are gone, and whom they had.
pub async fn delete_gone(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    let sql = "DELETE FROM mesh_presence WHERE server NOT IN (SELECT server FROM mesh_servers WHERE seen_at > $1)";
    db.execute(sql, vec![since(now).into()]).await?;
    db.execute("DELETE FROM mesh_servers WHERE seen_at <= $1", vec![since(now).into()]).await
}
