//! Fills an empty store with the rows of a copy: creates the schema that the copy has, loads its rows, and commits all of
//! it at the end. Migrations that the copy has not had are applied when the store is opened. Blocks its thread.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags};
use sqlx::{PgConnection, Row as _};
use tokio::runtime::Handle;

use super::{
    AppliedMigration,
    copy_text::{self, ColumnType},
    snapshot::{check_name, names, quoted},
};
use crate::{
    config::StoreConfig,
    error::StoreError,
    migrate::{self, Migration},
    postgres::connections::{Connections, connect},
    sqlite,
};

pub struct Loader {
    engine: Engine,
}

enum Engine {
    Sqlite(Box<SqliteLoader>),
    Postgres(Box<PgConnection>, Handle),
}

struct SqliteLoader {
    connection: Connection,
    file: PathBuf,
    types: HashMap<String, HashMap<String, ColumnType>>,
    /// Keeps servers out.
    _lock: File,
}

impl Loader {
    /// Whether the store has no table. The file of SQLite need not exist.
    pub fn is_empty(config: &StoreConfig, handle: &Handle) -> Result<bool, StoreError> {
        match config {
            StoreConfig::Sqlite { file, .. } => Ok(!file.exists()),
            StoreConfig::Postgres { url } => handle.block_on(async {
                let mut connection = connect(&Connections::new(url)?.hosts).await?;
                is_empty_postgres(&mut connection).await
            }),
        }
    }

    /// Creates the tables of a copy with these migrations. `engine` is the engine that the copy is from.
    pub fn create(
        config: &StoreConfig,
        engine: &str,
        migrations: &[AppliedMigration],
        handle: &Handle,
    ) -> Result<Self, StoreError> {
        let engine = match config {
            StoreConfig::Sqlite { file, .. } => {
                let steps = steps(migrate::SQLITE, migrations, engine == "sqlite")?;
                Engine::Sqlite(Box::new(SqliteLoader::create(file, steps, migrations)?))
            }
            StoreConfig::Postgres { url } => {
                let steps = steps(migrate::POSTGRES, migrations, engine == "postgres")?;
                let created = handle.block_on(create_postgres(url, steps, migrations))?;
                Engine::Postgres(Box::new(created), handle.clone())
            }
        };
        Ok(Self { engine })
    }

    /// Loads a part of a table. Returns the number of its rows.
    pub fn load(&mut self, table: &str, part: &[u8]) -> Result<u64, StoreError> {
        check_name(table)?;
        let (columns, rows) = copy_text::split(part)?;
        match &mut self.engine {
            Engine::Sqlite(loader) => loader.load(table, &columns, rows),
            Engine::Postgres(connection, handle) => handle.block_on(async {
                let sql = format!("COPY {table} ({}) FROM STDIN", quoted(&columns));
                let mut copy = connection.copy_in_raw(&sql).await?;
                copy.send(rows.as_bytes()).await?;
                Ok(copy.finish().await?)
            }),
        }
    }

    /// Makes everything that was loaded durable. Without it nothing was loaded.
    pub fn finish(self) -> Result<(), StoreError> {
        match self.engine {
            Engine::Sqlite(loader) => loader.finish(),
            Engine::Postgres(mut connection, handle) => handle.block_on(async {
                sqlx::raw_sql("COMMIT").execute(&mut *connection).await?;
                Ok(())
            }),
        }
    }
}

/// The migrations of this build that the copy has had. Another engine has the same steps with other texts.
fn steps<'a>(
    known: &'a [Migration],
    applied: &[AppliedMigration],
    is_same_engine: bool,
) -> Result<&'a [Migration], StoreError> {
    let checksum = |index: usize, row: &AppliedMigration| match known.get(index) {
        Some(step) if !is_same_engine => step.checksum(),
        _ => row.checksum.clone(),
    };
    let ledger: Vec<_> =
        applied.iter().enumerate().map(|(index, row)| (row.id.clone(), checksum(index, row))).collect();
    migrate::outstanding(known, &ledger)?;
    Ok(&known[..applied.len()])
}

const RECORD: &str = "INSERT INTO schema_migrations (id, checksum, applied_at) VALUES ($1, $2, $3)";

impl SqliteLoader {
    fn create(file: &Path, steps: &[Migration], applied: &[AppliedMigration]) -> Result<Self, StoreError> {
        let lock = sqlite::lock(file)?;
        sqlite::make_private(file)?;
        let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        sqlite::prepare(&connection)?;
        // A load that was cut off is not continued, so nothing needs a journal or a sync before the end.
        connection.execute_batch(
            "PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = OFF;
             PRAGMA synchronous = OFF; PRAGMA cache_size = -65536; BEGIN IMMEDIATE",
        )?;
        connection.execute_batch(migrate::LEDGER)?;
        for (step, row) in steps.iter().zip(applied) {
            connection.execute_batch(step.sql)?;
            connection.execute(RECORD, (step.id, step.checksum(), row.applied_at))?;
        }
        Ok(Self { connection, file: file.to_owned(), types: HashMap::new(), _lock: lock })
    }

    fn load(&mut self, table: &str, columns: &[&str], rows: &str) -> Result<u64, StoreError> {
        if !self.types.contains_key(table) {
            self.types.insert(table.to_owned(), types(&self.connection, table)?);
        }
        let known = &self.types[table];
        let unknown = |column: &str| StoreError::corrupt(format!("{table} has no column {column}"));
        let types: Vec<_> = columns
            .iter()
            .map(|column| known.get(*column).copied().ok_or_else(|| unknown(column)))
            .collect::<Result<_, _>>()?;
        let places = (1..=columns.len()).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ");
        let sql = format!("INSERT INTO {table} ({}) VALUES ({places})", quoted(columns));
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut loaded = 0;
        for line in rows.split_terminator('\n') {
            statement.execute(rusqlite::params_from_iter(copy_text::read_row(line, &types)?))?;
            loaded += 1;
        }
        Ok(loaded)
    }

    fn finish(self) -> Result<(), StoreError> {
        self.connection.execute_batch("COMMIT")?;
        self.connection.close().map_err(|(_, error)| error)?;
        File::open(&self.file)?.sync_all()?;
        Ok(())
    }
}

fn types(connection: &Connection, table: &str) -> Result<HashMap<String, ColumnType>, StoreError> {
    let listed = names(connection, &format!("SELECT name || ' ' || type FROM pragma_table_info('{table}')"))?;
    let column = |listed: String| {
        let (name, declared) = listed.split_once(' ').unwrap_or_default();
        let column = match declared {
            "TEXT" => ColumnType::Text,
            "INTEGER" | "BIGINT" => ColumnType::Integer,
            "BLOB" | "BYTEA" => ColumnType::Blob,
            other => return Err(StoreError::corrupt(format!("{table}.{name} is of the unknown type {other:?}"))),
        };
        Ok((name.to_owned(), column))
    };
    listed.into_iter().map(column).collect()
}

async fn is_empty_postgres(connection: &mut PgConnection) -> Result<bool, StoreError> {
    let sql = "SELECT COUNT(*) FROM pg_tables WHERE schemaname = current_schema()";
    let count: i64 = sqlx::query(sql).fetch_one(connection).await?.try_get(0)?;
    Ok(count == 0)
}

async fn create_postgres(
    url: &str,
    steps: &[Migration],
    applied: &[AppliedMigration],
) -> Result<PgConnection, StoreError> {
    let mut connection = connect(&Connections::new(url)?.hosts).await?;
    sqlx::raw_sql("BEGIN").execute(&mut connection).await?;
    if !is_empty_postgres(&mut connection).await? {
        return Err(StoreError::Locked("the database is not empty".into()));
    }
    sqlx::raw_sql(migrate::LEDGER).execute(&mut connection).await?;
    for (step, row) in steps.iter().zip(applied) {
        sqlx::raw_sql(step.sql).execute(&mut connection).await?;
        sqlx::query(RECORD).bind(step.id).bind(step.checksum()).bind(row.applied_at).execute(&mut connection).await?;
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_file_can_return_disk_space() {
        const INCREMENTAL: i64 = 2;
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("store.db");
        SqliteLoader::create(&file, &[], &[]).unwrap().finish().unwrap();
        let connection = Connection::open(&file).unwrap();
        let mode: i64 = connection.query_row("PRAGMA auto_vacuum", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, INCREMENTAL);
    }
}
