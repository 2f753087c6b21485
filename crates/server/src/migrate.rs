//! Bringing the schema of a store up to date without a server, before a new version of it is rolled out.

use ostler_protocol::Failure;
use ostler_store::Db;

use crate::{
    clock::{Clock, SystemClock},
    config::Config,
    directories, restore_marker,
    server::not_opened,
};

/// A store whose schema is up to date.
#[derive(Clone, Debug, PartialEq)]
pub struct Migrated {
    pub engine: &'static str,
    /// The ids of all applied migrations, also those that earlier versions have applied.
    pub migrations: Vec<String>,
}

/// Applies the migrations that the store lacks, under its lock. Idempotent. On Postgres servers may keep running; SQLite
/// has one process at a time.
pub async fn migrate(config: &Config) -> Result<Migrated, Failure> {
    let data_dir = config.data_dir()?;
    directories::make(&data_dir)?;
    restore_marker::check(&data_dir)?;
    let store = config.store()?;
    let db = Db::open(&store, SystemClock.now()).await.map_err(|error| not_opened(error, &store))?;
    let engine = db.engine_name();
    let migrations = db.migrations().await;
    db.close().await;
    Ok(Migrated { engine, migrations: migrations? })
}
