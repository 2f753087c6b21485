//! A Postgres database for one test, dropped with its guard. Postgres is never skipped: without one a test fails and
//! explains how to get it.

#[cfg(feature = "engines")]
mod template;

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

/// Names the address of a superuser of the Postgres that tests use.
pub const URL_VARIABLE: &str = "OSTLER_TEST_POSTGRES_URL";

/// A database of its own. Dropping the guard drops it, also when the test fails.
pub struct Database {
    url: String,
    name: String,
    admin_url: String,
}

impl Database {
    /// A database without tables, for tests of the first start.
    pub fn empty() -> Self {
        Self::empty_at(&admin_url())
    }

    /// [`Database::empty`] on the server with this address of a superuser.
    pub fn empty_at(admin_url: &str) -> Self {
        let database = Self::reserve(admin_url.to_owned());
        database.administer(&format!("CREATE DATABASE {}", database.name));
        database
    }

    /// A name that no other database has. Nothing is created.
    fn reserve(admin_url: String) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("ostler_test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Self { url: sibling_url(&admin_url, &name), name, admin_url }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends every connection to the database, as a restart or a failover would.
    pub fn end_connections(&self) {
        let sql = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname =";
        self.administer(&format!("{sql} '{}'", self.name));
    }

    fn administer(&self, sql: &str) {
        block_on(async {
            let mut connection = connect(&self.admin_url).await;
            execute(&mut connection, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let _ = connection.close().await;
        });
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        block_on(async {
            let mut connection = connect(&self.admin_url).await;
            let ended = execute(&mut connection, &end_connections_of(&self.name)).await;
            ended.unwrap_or_else(|error| panic!("cannot end the connections of {}: {error}", self.name));
            let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
            execute(&mut connection, &drop).await.unwrap_or_else(|error| panic!("{drop}: {error}"));
            let _ = connection.close().await;
        });
    }
}

/// Ends all connections and waits for up to a second until they are gone. `DROP DATABASE` does this too, but pauses for
/// 100 ms when one is left.
fn end_connections_of(name: &str) -> String {
    format!(
        "DO $$ BEGIN FOR attempt IN 1..500 LOOP \
         PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'; \
         EXIT WHEN NOT FOUND; \
         PERFORM pg_sleep(0.002), pg_stat_clear_snapshot(); \
         END LOOP; END $$"
    )
}

/// Another database of the same server.
fn sibling_url(admin_url: &str, name: &str) -> String {
    let (address, parameters) = admin_url.split_once('?').unwrap_or((admin_url, ""));
    let (server, _) = address.rsplit_once('/').unwrap_or_else(|| panic!("{URL_VARIABLE} names no database"));
    if parameters.is_empty() { format!("{server}/{name}") } else { format!("{server}/{name}?{parameters}") }
}

fn admin_url() -> String {
    std::env::var(URL_VARIABLE).unwrap_or_else(|_| {
        panic!("{URL_VARIABLE} is not set\nhint: `cargo xtask test` and `cargo xtask postgres -- CMD` start a Postgres")
    })
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url)
        .await
        .unwrap_or_else(|error| panic!("the Postgres of {URL_VARIABLE} is out of reach: {error}"))
}

async fn execute(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.map(drop)
}

/// In a thread of its own, because the caller may be inside a runtime.
fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> Option<T> {
    let result = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime can be started").block_on(future)
            })
            .join()
    });
    match result {
        Ok(value) => Some(value),
        // A second panic while the test's own unwinds would abort the whole process.
        Err(_) if std::thread::panicking() => None,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
