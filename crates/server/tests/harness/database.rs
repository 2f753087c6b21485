//! A Postgres database of one's own, dropped with the test, whether it passed or not.

use ostler_protocol::json::hex;
use ostler_server::{Config, clock::fill};
use ostler_store::StoreConfig;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

const URL_VARIABLE: &str = "OSTLER_TEST_POSTGRES_URL";

pub struct Database {
    pub url: String,
    name: String,
}

impl Database {
    pub async fn create() -> Self {
        let mut body = [0; 8];
        fill(&mut body);
        let name = format!("ostler_test_{}", hex(&body));
        administer(&format!("CREATE DATABASE {name}")).await;
        Self { url: url_of(&name), name }
    }
}

impl Drop for Database {
    /// In a thread of its own, because a drop cannot wait for anything.
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(administer(&sql));
        });
        let dropped = dropping.join();
        assert!(dropped.is_ok() || std::thread::panicking(), "dropping the test's database failed");
    }
}

/// One statement on the store of a running server; its first column, where it has one.
pub async fn query(config: &Config, sql: &str) -> Vec<String> {
    match config.store().unwrap() {
        StoreConfig::Sqlite { file, .. } => {
            let connection = rusqlite::Connection::open(file).unwrap();
            let mut statement = connection.prepare(sql).unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        }
        StoreConfig::Postgres { url } => {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }
}

async fn administer(sql: &str) {
    let mut connection = PgConnection::connect(&administrative_url()).await.unwrap();
    connection.execute(AssertSqlSafe(sql)).await.unwrap();
    connection.close().await.unwrap();
}

fn administrative_url() -> String {
    std::env::var(URL_VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{URL_VARIABLE} is not set, and every test runs on Postgres too; use `cargo xtask test`, which starts one"
        )
    })
}

/// The same server, another database.
fn url_of(name: &str) -> String {
    let url = administrative_url();
    let (address, parameters) = url.split_once('?').map_or((url.as_str(), None), |(a, p)| (a, Some(p)));
    let (server, _) = address.rsplit_once('/').unwrap();
    match parameters {
        Some(parameters) => format!("{server}/{name}?{parameters}"),
        None => format!("{server}/{name}"),
    }
}
