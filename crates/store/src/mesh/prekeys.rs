//! Prekeys: the newest of each device of an identity. Reading one does not consume it.

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        prekeys::{PREKEY_DEVICES_MAX, Prekey},
    },
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, record, replace_stored, text},
};

pub(crate) struct StoredPrekey {
    aid: Aid,
    device_id: String,
    prekey: Prekey,
    put_at: Timestamp,
}

record! {
    StoredPrekey, stored in "mesh_prekeys";
    key {
        aid: id;
        device_id: text;
    }
    fixed {}
    state {
        prekey: json;
        put_at: time;
    }
}

/// Replaces a device's prekey. If there are too many devices, the least recently updated ones are deleted.
pub async fn update(db: &Db, aid: &Aid, device_id: &str, prekey: &Prekey, now: Timestamp) -> Result<(), StoreError> {
    let (device_id, prekey) = (device_id.to_owned(), prekey.clone());
    let stored = StoredPrekey { aid: aid.clone(), device_id, prekey, put_at: now };
    db.execute_statement(record::insert(&stored, vec![], &replace_stored::<StoredPrekey>())).await?;
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
    let rest = "WHERE aid = $1 ORDER BY put_at DESC, device_id LIMIT $2";
    let found: Vec<StoredPrekey> = db.select(rest, vec![text(aid), (PREKEY_DEVICES_MAX as i64).into()]).await?;
    Ok(found.into_iter().map(|stored| stored.prekey).collect())
}
