//! Statements on the store of a running server.

use ostler_server::Config;
use ostler_store::StoreConfig;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

/// Executes one statement; returns the first column of its rows.
pub(crate) async fn query(config: &Config, sql: &str) -> Vec<String> {
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
