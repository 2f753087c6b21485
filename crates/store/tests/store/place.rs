//! Where a test's store lives: a directory of its own, or a database of its own that is dropped afterwards. Postgres is
//! never skipped: a test that cannot have it fails and says how to get it.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use ostler_store::{StoreConfig, Synchronous};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

const URL_VARIABLE: &str = "OSTLER_TEST_POSTGRES_URL";

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Engine {
    Sqlite,
    Postgres,
}

/// One store's home. Clones share it; the last one takes it away.
#[derive(Clone)]
pub struct Place {
    home: Arc<Home>,
}

enum Home {
    Sqlite(tempfile::TempDir),
    Postgres { admin_url: String, name: String },
}

impl Place {
    pub fn new(engine: Engine) -> Self {
        let home = match engine {
            Engine::Sqlite => Home::Sqlite(tempfile::tempdir().unwrap()),
            Engine::Postgres => {
                let admin_url = std::env::var(URL_VARIABLE).unwrap_or_else(|_| {
                    panic!("{URL_VARIABLE} is not set: run the tests with `cargo xtask test`, which brings a Postgres")
                });
                static NUMBER: AtomicU32 = AtomicU32::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let name = format!("ostler_store_{}_{number}", std::process::id());
                administer(&admin_url, &format!("CREATE DATABASE {name}"));
                administer(&admin_url, &format!("ALTER DATABASE {name} SET synchronous_commit = off"));
                Home::Postgres { admin_url, name }
            }
        };
        Self { home: Arc::new(home) }
    }

    pub fn engine(&self) -> Engine {
        match *self.home {
            Home::Sqlite(_) => Engine::Sqlite,
            Home::Postgres { .. } => Engine::Postgres,
        }
    }

    /// How to open it. Neither engine waits for the disk here: what a power cut takes is another test's subject.
    pub fn config(&self) -> StoreConfig {
        match &*self.home {
            Home::Sqlite(_) => StoreConfig::Sqlite { file: self.file(), synchronous: Synchronous::Off },
            Home::Postgres { .. } => StoreConfig::Postgres { url: self.url() },
        }
    }

    /// Every connection to the store's database is ended from outside, as a restart or a failover would.
    pub fn end_connections(&self) {
        let Home::Postgres { admin_url, name } = &*self.home else { panic!("SQLite has no connections to end") };
        let all = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname =";
        administer(admin_url, &format!("{all} '{name}'"));
    }

    pub fn file(&self) -> std::path::PathBuf {
        match &*self.home {
            Home::Sqlite(dir) => dir.path().join("ostler.db"),
            Home::Postgres { .. } => panic!("Postgres has no file"),
        }
    }

    pub fn url(&self) -> String {
        match &*self.home {
            Home::Sqlite(_) => panic!("SQLite has no address"),
            Home::Postgres { admin_url, name } => match admin_url.rsplit_once('/') {
                Some((server, _)) => format!("{server}/{name}"),
                None => panic!("{URL_VARIABLE} has no database in it"),
            },
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Self::Postgres { admin_url, name } = self {
            administer(admin_url, &format!("DROP DATABASE {name} WITH (FORCE)"));
        }
    }
}

/// One statement to the server, from a thread of its own: the caller may be inside a runtime.
fn administer(url: &str, sql: &str) {
    let (url, sql) = (url.to_owned(), sql.to_owned());
    let work = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let mut connection = PgConnection::connect(&url).await.expect("the test Postgres answers");
            connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.expect("databases can be made and dropped");
        });
    });
    // While another test's panic unwinds, a second one would abort the whole binary.
    if work.join().is_err() && !std::thread::panicking() {
        panic!("the test Postgres at {URL_VARIABLE} cannot be used");
    }
}

/// Makes two tests of each named function: `name::sqlite` and `name::postgres`.
macro_rules! on_both_engines {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            use crate::place::{Engine, Place};

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn sqlite() {
                super::$name(Place::new(Engine::Sqlite)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn postgres() {
                super::$name(Place::new(Engine::Postgres)).await;
            }
        }
    )*};
}
pub(crate) use on_both_engines;
