//! Where a test's store is: a directory or a database of its own, removed with the last clone.

use std::{path::PathBuf, sync::Arc};

use ostler_store::{StoreConfig, Synchronous};
use ostler_testkit::{database::Database, scratch};
use tempfile::TempDir;

pub use ostler_testkit::engine::{Engine, both_engines};

#[derive(Clone)]
pub struct Place {
    home: Arc<Home>,
}

enum Home {
    Sqlite(TempDir),
    Postgres(Database),
}

impl From<Engine> for Place {
    fn from(engine: Engine) -> Self {
        Self::new(engine)
    }
}

impl Place {
    pub fn new(engine: Engine) -> Self {
        match engine {
            Engine::Sqlite => Self::empty(engine),
            Engine::Postgres => Self { home: Arc::new(Home::Postgres(Database::migrated())) },
        }
    }

    /// A store without tables. The first `Db::open` migrates it.
    pub fn empty(engine: Engine) -> Self {
        let home = match engine {
            Engine::Sqlite => Home::Sqlite(scratch::in_memory()),
            Engine::Postgres => Home::Postgres(Database::empty()),
        };
        Self { home: Arc::new(home) }
    }

    pub fn engine(&self) -> Engine {
        match *self.home {
            Home::Sqlite(_) => Engine::Sqlite,
            Home::Postgres(_) => Engine::Postgres,
        }
    }

    /// How to open it. SQLite does not wait for the disk here: durability is the subject of other tests.
    pub fn config(&self) -> StoreConfig {
        match &*self.home {
            Home::Sqlite(_) => StoreConfig::Sqlite { file: self.file(), synchronous: Synchronous::Off },
            Home::Postgres(database) => StoreConfig::Postgres { url: database.url().to_owned() },
        }
    }

    /// Ends every connection to the store's database from outside, as a restart or a failover would.
    pub fn end_connections(&self) {
        self.database().end_connections();
    }

    pub fn file(&self) -> PathBuf {
        match &*self.home {
            Home::Sqlite(directory) => directory.path().join("ostler.db"),
            Home::Postgres(_) => panic!("Postgres has no file"),
        }
    }

    pub fn url(&self) -> String {
        self.database().url().to_owned()
    }

    fn database(&self) -> &Database {
        match &*self.home {
            Home::Sqlite(_) => panic!("SQLite is not a database server"),
            Home::Postgres(database) => database,
        }
    }
}
