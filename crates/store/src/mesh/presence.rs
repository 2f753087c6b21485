//! Which identities are connected to which server, and as which device slot, if there are several servers. A server is alive
//! as long as it listens to the others: the connection that it listens on holds a lock by the server's number, which Postgres
//! releases with the connection. Rows of a server that is gone do not count. SQLite has one server.

use ostler_protocol::mesh::{
    Aid,
    connections::{DeliveryMode, DeviceSlot, Live, Mode},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Record, columns, record, text},
};

/// Whether the server of a row `p` is alive.
const IS_ALIVE: &str = "EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
    AND (l.classid::bigint << 32 | l.objid::bigint) = p.server)";

/// A connection by its server and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionKey {
    pub server: i64,
    pub number: i64,
}

pub(crate) struct Presence {
    connection_key: ConnectionKey,
    aid: Aid,
    place: DeviceSlot,
    mode: Mode,
}

record! {
    Presence, presence in "mesh_presence";
    key {
        server: int from presence.connection_key.server;
        number: int from presence.connection_key.number;
    }
    fixed {
        aid: id;
        device_id: text from presence.place.device_id;
        slot_id: text from presence.place.slot_id;
        mode: named(Mode);
    }
    state {}
    build Presence { connection_key: ConnectionKey { server, number }, aid, place: DeviceSlot { device_id, slot_id }, mode };
}

/// Inserted before conflicts are looked for, so that of two concurrent connections at least one finds the other.
pub async fn insert(db: &Db, connection_key: ConnectionKey, aid: &Aid, live: &Live) -> Result<(), StoreError> {
    let presence =
        Presence { connection_key, aid: aid.clone(), place: live.place.clone(), mode: live.delivery_mode.mode };
    db.execute_statement(record::insert(&presence, vec![], "ON CONFLICT (server, number) DO NOTHING")).await
}

pub async fn delete(db: &Db, connection_key: ConnectionKey) -> Result<(), StoreError> {
    let sql = "DELETE FROM mesh_presence WHERE server = $1 AND number = $2";
    db.execute(sql, vec![connection_key.server.into(), connection_key.number.into()]).await
}

/// The connections of an identity to other servers that are alive.
pub async fn list_elsewhere(db: &Db, aid: &Aid, server: i64) -> Result<Vec<Live>, StoreError> {
    let columns = columns::<Presence>("p");
    let sql = format!("SELECT {columns} FROM mesh_presence p WHERE p.aid = $1 AND p.server <> $2 AND {IS_ALIVE}");
    let found = db.read(sql, vec![text(aid), server.into()], Presence::decode).await?;
    let live =
        |Presence { place, mode, .. }| Live { place, delivery_mode: DeliveryMode { mode, ..DeliveryMode::default() } };
    Ok(found.into_iter().map(live).collect())
}

/// The numbers of a server's connections that have a row.
pub async fn list_numbers(db: &Db, server: i64) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT number FROM mesh_presence WHERE server = $1";
    db.read(sql, vec![server.into()], |row| row.int()).await
}

/// Deletes the rows of servers that are gone.
pub async fn delete_gone(db: &Db, server: i64) -> Result<(), StoreError> {
    let sql = format!("DELETE FROM mesh_presence p WHERE p.server <> $1 AND NOT {IS_ALIVE}");
    db.execute(sql, vec![server.into()]).await
}
