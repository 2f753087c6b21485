//! Prekeys: the newest of each device of an identity. Reading one does not consume it.

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        prekeys::{PREKEY_DEVICES_MAX, Prekey},
    },
};

use crate::{
    db::{Db, StoreError},
    record::{json, text},
};

/// Replaces a device's prekey. If there are too many devices, the least recently updated ones are deleted.
pub async fn update(db: &Db, aid: &Aid, device_id: &str, prekey: &Prekey, now: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO mesh_prekeys (aid, device_id, prekey, put_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (aid, device_id) DO UPDATE SET prekey = excluded.prekey, put_at = excluded.put_at";
    db.execute(sql, vec![text(aid), device_id.into(), json(prekey), now.into()]).await?;
    let sql = "DELETE FROM mesh_prekeys WHERE aid = $1 AND device_id IN
        (SELECT device_id FROM mesh_prekeys WHERE aid = $1 ORDER BY put_at DESC, device_id LIMIT $2 OFFSET $3)";
    let most = PREKEY_DEVICES_MAX as i64;
    db.execute(sql, vec![text(aid), most.into(), most.into()]).await
}

/// Deletes every prekey of an identity.
pub async fn delete_of(db: &Db, aid: &Aid) -> Result<(), StoreError> {
    db.execute("DELETE FROM mesh_prekeys WHERE aid = $1", vec![text(aid)]).await
}

/// The newest first.
pub async fn list(db: &Db, aid: &Aid) -> Result<Vec<Prekey>, StoreError> {
    let sql = "SELECT prekey FROM mesh_prekeys WHERE aid = $1 ORDER BY put_at DESC, device_id LIMIT $2";
    db.read(sql, vec![text(aid), (PREKEY_DEVICES_MAX as i64).into()], |row| row.json()).await
}
