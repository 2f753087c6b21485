//! Disk space that removals have freed. SQLite returns it in small steps if the file was made for that; Postgres makes it
//! available to later writes. [`compact`] returns all of it, and blocks writers while it works.

use std::path::Path;

use sqlx::Connection as _;

use crate::{
    config::StoreConfig,
    db::{Db, Engine},
    error::StoreError,
    postgres::{self, connections},
    sqlite,
};

/// Most pages of SQLite that one step returns: less than a millisecond of work each hundred.
pub const STEP_PAGES_MAX: u32 = 256;

/// Returns some free space to the file system: on SQLite at most `pages` pages. True: there is more to do. `tables` are those that
/// rows were removed from.
pub async fn release(db: &Db, tables: &[&str], pages: u32) -> Result<bool, StoreError> {
    match &db.engine {
        Engine::Sqlite(sqlite) => {
            let has_more = sqlite.plain(move |connection| sqlite::query::release_pages(connection, pages)).await?;
            if !has_more {
                // The file shrinks when the log is written back to it.
                db.read("PRAGMA wal_checkpoint(PASSIVE)", vec![], |_| Ok(())).await?;
            }
            Ok(has_more)
        }
        Engine::Postgres(connections) => {
            let mut connection = connections::connect(&connections.hosts).await?;
            for table in tables {
                // Skipped if another vacuum is at work on it.
                postgres::vacuum(&mut connection, &format!("VACUUM (SKIP_LOCKED) {table}")).await?;
            }
            connection.close().await?;
            Ok(false)
        }
    }
}

/// Bytes on disk before and after [`compact`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compacted {
    pub before_bytes: u64,
    pub after_bytes: u64,
}

/// Rewrites the store without its free space. On SQLite no server may be running, and the disk needs room for a second copy.
/// On Postgres each of the tables is locked while it is rewritten.
pub async fn compact(config: &StoreConfig, tables: &[&str]) -> Result<Compacted, StoreError> {
    match config {
        StoreConfig::Sqlite { file, .. } => {
            let file = file.clone();
            let compacted = tokio::task::spawn_blocking(move || compact_file(&file)).await;
            compacted.map_err(|_| StoreError::Stopped)?
        }
        StoreConfig::Postgres { url } => {
            let hosts = connections::Connections::new(url)?.hosts;
            let mut connection = connections::connect(&hosts).await?;
            let before_bytes = postgres::size_of(&mut connection, tables).await?;
            for table in tables {
                postgres::vacuum(&mut connection, &format!("VACUUM (FULL, ANALYZE) {table}")).await?;
            }
            let after_bytes = postgres::size_of(&mut connection, tables).await?;
            connection.close().await?;
            Ok(Compacted { before_bytes, after_bytes })
        }
    }
}

fn compact_file(file: &Path) -> Result<Compacted, StoreError> {
    let before_bytes = size(file)?;
    sqlite::compact(file)?;
    Ok(Compacted { before_bytes, after_bytes: size(file)? })
}

/// The file with the log that belongs to it.
fn size(file: &Path) -> Result<u64, StoreError> {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    Ok(std::fs::metadata(file)?.len() + std::fs::metadata(log).map_or(0, |log| log.len()))
}
