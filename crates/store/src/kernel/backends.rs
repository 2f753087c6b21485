//! Backends: the profiles this server offers.

use ostler_protocol::kernel::backends::Backend;

use crate::{
    db::{Db, StoreError},
    record::json,
};

pub async fn list(db: &Db) -> Result<Vec<Backend>, StoreError> {
    db.read("SELECT backend FROM backends ORDER BY position", vec![], |row| row.json()).await
}

pub async fn insert(db: &Db, position: i64, backend: &Backend) -> Result<(), StoreError> {
    let sql = "INSERT INTO backends (profile, position, backend) VALUES ($1, $2, $3)
        ON CONFLICT (profile) DO UPDATE SET position = excluded.position, backend = excluded.backend";
    db.execute(sql, vec![backend.profile.as_str().into(), position.into(), json(backend)]).await
}
