//! Reads a store as of one moment, beside the server that uses it. Neither waits for the other: SQLite's readers do not
//! block its writer, also in another process, and on Postgres it is a read-only transaction. Blocks its thread.

use std::{io, path::Path};

use futures_util::TryStreamExt;
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use sqlx::{AssertSqlSafe, PgConnection, Row, postgres::PgRow};
use tokio::runtime::Handle;

use super::{AppliedMigration, LEDGER_TABLE, copy_text, is_name};
use crate::{
    config::StoreConfig,
    error::StoreError,
    postgres::connections::{Connections, connect},
    sqlite,
};

/// Rows are handed over in parts of about this size.
const PART_BYTES: usize = 1 << 20;
const LEDGER: &str = "SELECT id, checksum, applied_at FROM schema_migrations ORDER BY id";

/// Receives the parts of a table: the columns in the first line, then the rows.
pub type RowSink<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<()>;

pub struct Snapshot {
    engine: Engine,
    migrations: Vec<AppliedMigration>,
}

enum Engine {
    Sqlite(Connection),
    Postgres(Box<PgConnection>, Handle),
}

impl Snapshot {
    /// Opens the store and fixes the moment. It changes nothing, and applies no migration.
    pub fn open(config: &StoreConfig, handle: &Handle) -> Result<Self, StoreError> {
        match config {
            StoreConfig::Sqlite { file, .. } => Self::open_sqlite(file),
            StoreConfig::Postgres { url } => handle.block_on(Self::open_postgres(url, handle.clone())),
        }
    }

    fn open_sqlite(file: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags)?;
        sqlite::prepare(&connection)?;
        // Moving the journal into the file is up to the server.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.execute_batch("BEGIN")?;
        let migrations = {
            let mut statement = connection.prepare(LEDGER)?;
            let rows = statement.query_map([], |row| {
                let (id, checksum) = (row.get("id")?, row.get("checksum")?);
                Ok(AppliedMigration { id, checksum, applied_at: row.get("applied_at")? })
            })?;
            rows.collect::<Result<_, _>>()?
        };
        Ok(Self { engine: Engine::Sqlite(connection), migrations })
    }

    async fn open_postgres(url: &str, handle: Handle) -> Result<Self, StoreError> {
        let mut connection = connect(&Connections::new(url)?.hosts).await?;
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut connection).await?;
        let rows = sqlx::query(LEDGER).fetch_all(&mut connection).await?;
        let migration = |row: &PgRow| -> Result<AppliedMigration, StoreError> {
            let (id, checksum) = (row.try_get("id")?, row.try_get("checksum")?);
            Ok(AppliedMigration { id, checksum, applied_at: row.try_get("applied_at")? })
        };
        let migrations = rows.iter().map(migration).collect::<Result<_, _>>()?;
        Ok(Self { migrations, engine: Engine::Postgres(Box::new(connection), handle) })
    }

    pub fn engine_name(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite(_) => "sqlite",
            Engine::Postgres(..) => "postgres",
        }
    }

    /// The migrations that the store has had.
    pub fn migrations(&self) -> &[AppliedMigration] {
        &self.migrations
    }

    /// The tables that exist.
    pub fn tables(&mut self) -> Result<Vec<String>, StoreError> {
        match &mut self.engine {
            Engine::Sqlite(connection) => {
                let sql =
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
                names(connection, sql)
            }
            Engine::Postgres(connection, handle) => {
                let sql =
                    "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename";
                Ok(handle.block_on(sqlx::query_scalar(sql).fetch_all(&mut **connection))?)
            }
        }
    }

    /// How many rows a table has, roughly: for an estimate of the work.
    pub fn estimate(&mut self, table: &str) -> Result<u64, StoreError> {
        check_name(table)?;
        let count: i64 = match &mut self.engine {
            Engine::Sqlite(connection) => {
                connection.query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| row.get(0))?
            }
            Engine::Postgres(connection, handle) => {
                let sql = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass($1)";
                let found = sqlx::query_scalar(sql).bind(table).fetch_optional(&mut **connection);
                handle.block_on(found)?.unwrap_or(0)
            }
        };
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Reads a table. Returns the number of its rows. A table without rows has no part.
    pub fn read_table(&mut self, table: &str, sink: RowSink<'_>) -> Result<u64, StoreError> {
        check_name(table)?;
        match &mut self.engine {
            Engine::Sqlite(connection) => read_sqlite(connection, table, sink),
            Engine::Postgres(connection, handle) => handle.clone().block_on(read_postgres(connection, table, sink)),
        }
    }
}

pub(super) fn check_name(table: &str) -> Result<(), StoreError> {
    if is_name(table) && table != LEDGER_TABLE {
        return Ok(());
    }
    Err(StoreError::corrupt(format!("{table:?} is no table of a copy")))
}

pub(super) fn names(connection: &Connection, sql: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare(sql)?;
    Ok(statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
}

/// Gathers rows until they are worth a part.
struct Parts<'a> {
    head: Vec<u8>,
    part: Vec<u8>,
    rows: u64,
    sink: RowSink<'a>,
}

impl<'a> Parts<'a> {
    fn new(columns: &[String], sink: RowSink<'a>) -> Self {
        let head = (columns.join("\t") + "\n").into_bytes();
        Self { part: head.clone(), head, rows: 0, sink }
    }

    fn end_row(&mut self) -> io::Result<()> {
        self.rows += 1;
        if self.part.len() < PART_BYTES { Ok(()) } else { self.hand_over() }
    }

    fn hand_over(&mut self) -> io::Result<()> {
        if self.part.len() > self.head.len() {
            (self.sink)(&self.part)?;
            self.part.truncate(self.head.len());
        }
        Ok(())
    }
}

fn read_sqlite(connection: &Connection, table: &str, sink: RowSink<'_>) -> Result<u64, StoreError> {
    let columns = names(connection, &format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid"))?;
    let mut statement = connection.prepare(&format!("SELECT {} FROM {table}", quoted(&columns)))?;
    let mut parts = Parts::new(&columns, sink);
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for index in 0..columns.len() {
            if index > 0 {
                parts.part.push(b'\t');
            }
            copy_text::push(&mut parts.part, row.get_ref(index)?)?;
        }
        parts.part.push(b'\n');
        parts.end_row()?;
    }
    parts.hand_over()?;
    Ok(parts.rows)
}

async fn read_postgres(connection: &mut PgConnection, table: &str, sink: RowSink<'_>) -> Result<u64, StoreError> {
    let sql = "SELECT attname::text FROM pg_attribute
        WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
    let columns: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql)).bind(table).fetch_all(&mut *connection).await?;
    // Without a query, so that no setting of the planner applies.
    let sql = format!("COPY {table} ({}) TO STDOUT", quoted(&columns));
    let mut parts = Parts::new(&columns, sink);
    let mut stream = connection.copy_out_raw(&sql).await?;
    // A message is a row, but the protocol does not promise it.
    while let Some(bytes) = stream.try_next().await? {
        parts.part.extend_from_slice(&bytes);
        parts.rows += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        if bytes.ends_with(b"\n") && parts.part.len() >= PART_BYTES {
            parts.hand_over()?;
        }
    }
    parts.hand_over()?;
    Ok(parts.rows)
}

pub(super) fn quoted<T: AsRef<str>>(columns: &[T]) -> String {
    columns.iter().map(|column| format!("\"{}\"", column.as_ref())).collect::<Vec<_>>().join(", ")
}
