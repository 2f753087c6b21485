//! Backends: the profiles this server offers.

use ostler_protocol::kernel::backends::Backend;

use crate::{
    db::Db,
    error::StoreError,
    record::{self, record, replace_stored},
};

pub(crate) struct StoredBackend {
    profile: String,
    position: i64,
    backend: Backend,
}

record! {
    StoredBackend, stored in "backends";
    key {
        profile: text;
    }
    fixed {}
    state {
        position: int;
        backend: json;
    }
}

pub async fn list(db: &Db) -> Result<Vec<Backend>, StoreError> {
    let found: Vec<StoredBackend> = db.select("ORDER BY position", vec![]).await?;
    Ok(found.into_iter().map(|stored| stored.backend).collect())
}

pub async fn insert(db: &Db, position: i64, backend: &Backend) -> Result<(), StoreError> {
    let stored = StoredBackend { profile: backend.profile.clone(), position, backend: backend.clone() };
    db.execute_statement(record::insert(&stored, vec![], &replace_stored::<StoredBackend>())).await
}
