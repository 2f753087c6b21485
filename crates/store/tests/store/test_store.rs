//! Where a test's store is: a directory or a database of its own, removed with the last clone.

use std::{path::PathBuf, sync::Arc};

use ostler_store::{StoreConfig, Synchronous};
use ostler_testkit::{database::Database, scratch};
use tempfile::TempDir;

pub(crate) use ostler_testkit::engine::{Engine, both_engines};

#[derive(Clone)]
pub(crate) struct TestStore {
    location: Arc<Location>,
}

enum Location {
    Sqlite(TempDir),
    Postgres(Database),
}

impl From<Engine> for TestStore {
    fn from(engine: Engine) -> Self {
        Self::new(engine)
    }
}

impl TestStore {
    pub(crate) fn new(engine: Engine) -> Self {
        match engine {
            Engine::Sqlite => Self::empty(engine),
            Engine::Postgres => Self { location: Arc::new(Location::Postgres(Database::migrated())) },
        }
    }

    /// A store without tables. The first `Db::open` migrates it.
    pub(crate) fn empty(engine: Engine) -> Self {
        let location = match engine {
            Engine::Sqlite => Location::Sqlite(scratch::in_memory()),
            Engine::Postgres => Location::Postgres(Database::empty()),
        };
        Self { location: Arc::new(location) }
    }

    pub(crate) fn engine(&self) -> Engine {
        match *self.location {
            Location::Sqlite(_) => Engine::Sqlite,
            Location::Postgres(_) => Engine::Postgres,
        }
    }

    /// How to open it. SQLite does not wait for the disk here: durability is the subject of other tests.
    pub(crate) fn config(&self) -> StoreConfig {
        match &*self.location {
            Location::Sqlite(_) => StoreConfig::Sqlite { file: self.file(), synchronous: Synchronous::Off },
            Location::Postgres(database) => StoreConfig::Postgres { url: database.url().to_owned() },
        }
    }

    /// Ends every connection to the store's database from outside, as a restart or a failover would.
    pub(crate) fn end_connections(&self) {
        self.database().end_connections();
    }

    pub(crate) fn file(&self) -> PathBuf {
        match &*self.location {
            Location::Sqlite(directory) => directory.path().join("ostler.db"),
            Location::Postgres(_) => panic!("Postgres has no file"),
        }
    }

    pub(crate) fn url(&self) -> String {
        self.database().url().to_owned()
    }

    fn database(&self) -> &Database {
        match &*self.location {
            Location::Sqlite(_) => panic!("SQLite is not a database server"),
            Location::Postgres(database) => database,
        }
    }
}
