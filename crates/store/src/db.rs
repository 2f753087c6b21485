//! The only two-armed file for reads and plain writes: it binds values natively and hands rows to decoders. The write
//! lanes have their own two arms in `sqlite.rs` and `postgres.rs`.

use std::sync::{Arc, atomic::AtomicU64};

use ostler_protocol::cursors::Cursor;
use sqlx::postgres::PgRow;

use crate::{
    config::{Durability, ReplicaConfig, StoreConfig},
    error::StoreError,
    health::WriteHealth,
    postgres::{self, connections::Connections, replica::Replica},
    record::{Reader, Record, RowRef, Sql, Statement, Value, select_sql},
    sqlite,
};

/// A handle on the store, cheap to clone.
#[derive(Clone)]
pub struct Db {
    pub(crate) engine: Engine,
    replica: Option<Arc<Replica>>,
    /// Decisions that were made again because rows had changed before the write.
    pub(crate) repeated: Arc<AtomicU64>,
    /// Whether reads of this handle may go to the replica.
    tolerates_lag: bool,
}

#[derive(Clone)]
pub(crate) enum Engine {
    Sqlite(Arc<sqlite::Sqlite>),
    Postgres(Arc<Connections>),
}

impl Db {
    /// Opens the store and brings its schema up to date. Fails fast on a ledger that does not fit.
    pub async fn open(config: &StoreConfig, now: ostler_protocol::Timestamp) -> Result<Self, StoreError> {
        match config {
            StoreConfig::Sqlite { file, synchronous } => {
                let (file, synchronous) = (file.clone(), *synchronous);
                let opened = tokio::task::spawn_blocking(move || sqlite::Sqlite::open(&file, synchronous, now)).await;
                let sqlite = opened.map_err(|_| StoreError::Stopped)??;
                Ok(Self::on(Engine::Sqlite(Arc::new(sqlite))))
            }
            StoreConfig::Postgres { url } => {
                let connections = postgres::open(url, now).await?;
                Ok(Self::on(Engine::Postgres(Arc::new(connections))))
            }
        }
    }

    fn on(engine: Engine) -> Self {
        Self { engine, replica: None, repeated: Arc::default(), tolerates_lag: false }
    }

    /// Adds a replica, which need not be up. Only handles of [`Db::tolerating_lag`] read from it.
    pub fn with_replica(self, config: &ReplicaConfig) -> Result<Self, StoreError> {
        Ok(Self { replica: Some(Arc::new(Replica::new(config)?)), ..self })
    }

    /// A handle whose reads may be stale by up to the bound of the replica, if there is one. Nothing may be decided on them.
    #[must_use]
    pub fn tolerating_lag(&self) -> Self {
        Self { tolerates_lag: true, ..self.clone() }
    }

    pub fn engine_name(&self) -> &'static str {
        match &self.engine {
            Engine::Sqlite(_) => "sqlite",
            Engine::Postgres(_) => "postgres",
        }
    }

    /// How the latest writes went.
    pub fn write_health(&self) -> &WriteHealth {
        match &self.engine {
            Engine::Sqlite(sqlite) => &sqlite.health,
            Engine::Postgres(connections) => &connections.health,
        }
    }

    pub fn multi_replica(&self) -> bool {
        matches!(self.engine, Engine::Postgres(_))
    }

    /// Makes text sort by bytes, as it does in SQLite whatever the locale.
    pub(crate) fn byte_order(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite(_) => "",
            Engine::Postgres(_) => " COLLATE \"C\"",
        }
    }

    /// The end of a statement that lists rows newest first, from after the cursor. It follows a condition, and appends its
    /// own arguments.
    pub(crate) fn newest_first(&self, id: &str, args: &mut Vec<Value>, after: Option<&Cursor>, limit: u32) -> String {
        let order = self.byte_order();
        let mut condition = String::new();
        if let Some(cursor) = after {
            args.extend([Value::from(cursor.created_at_us), cursor.id.as_str().into()]);
            condition = format!(" AND (created_at, {id}{order}) < (${}, ${})", args.len() - 1, args.len());
        }
        args.push(i64::from(limit).into());
        format!("{condition} ORDER BY created_at DESC, {id}{order} DESC LIMIT ${}", args.len())
    }

    /// The texts of a JSON list, as a table of `one`.
    pub(crate) fn list(&self, parameter: &str) -> String {
        match self.engine {
            Engine::Sqlite(_) => format!("(SELECT value AS one FROM json_each({parameter})) AS listed"),
            Engine::Postgres(_) => format!("jsonb_array_elements_text({parameter}::jsonb) AS listed (one)"),
        }
    }

    /// A member of a column with a JSON object, as text.
    pub(crate) fn json_text(&self, column: &str, member: &str) -> String {
        match self.engine {
            Engine::Sqlite(_) => format!("json_extract({column}, '$.{member}')"),
            Engine::Postgres(_) => format!("({column}::jsonb ->> '{member}')"),
        }
    }

    pub async fn durability(&self) -> Result<Durability, StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => Ok(sqlite.durability.clone()),
            Engine::Postgres(connections) => postgres::durability(connections).await,
        }
    }

    /// The ids of the applied migrations.
    pub async fn migrations(&self) -> Result<Vec<String>, StoreError> {
        self.read("SELECT id FROM schema_migrations ORDER BY id", vec![], |row| row.text()).await
    }

    /// Reads rows. Parameters are `$1, $2, …`, first used in that order.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        sql: impl Into<Sql>,
        args: Vec<Value>,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.read(sql.into(), args, decode).await,
            Engine::Postgres(connections) => {
                let sql: Sql = sql.into();
                if self.tolerates_lag
                    && let Some(replica) = &self.replica
                    && let Some(rows) = replica.read(connections, sql.clone(), &args).await
                {
                    return decoded(&rows, decode);
                }
                decoded(&connections.read(sql, &args).await?, decode)
            }
        }
    }

    pub(crate) async fn read_one<T: Send + 'static>(
        &self,
        sql: impl Into<Sql>,
        args: Vec<Value>,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        Ok(self.read(sql, args, decode).await?.pop())
    }

    /// `SELECT <all columns of R> FROM <its table> AS t <rest>`.
    pub(crate) async fn select<R: Record + Send + 'static>(
        &self,
        rest: &str,
        args: Vec<Value>,
    ) -> Result<Vec<R>, StoreError> {
        self.read(select_sql::<R>(rest), args, R::decode).await
    }

    /// How the engine would go about a statement that reads, a line each.
    pub(crate) async fn explain(&self, sql: &str, args: Vec<Value>) -> Result<Vec<String>, StoreError> {
        match &self.engine {
            Engine::Sqlite(_) => {
                let sql = format!("EXPLAIN QUERY PLAN {sql}");
                self.read(sql, args, |row| {
                    row.skip(3);
                    row.text()
                })
                .await
            }
            Engine::Postgres(_) => self.read(format!("EXPLAIN {sql}"), args, |row| row.text()).await,
        }
    }

    /// Holds a row that is read as it is until the transaction has ended. SQLite's writes follow each other in any case.
    pub(crate) fn share_lock(&self) -> &'static str {
        match &self.engine {
            Engine::Sqlite(_) => "",
            Engine::Postgres(_) => "FOR SHARE",
        }
    }

    /// One statement that writes, durable when answered; on SQLite it joins the lane's next commit.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        sql: impl Into<Sql>,
        args: Vec<Value>,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.write(sql.into(), args, decode).await,
            Engine::Postgres(connections) => decoded(&connections.write(sql.into(), &args).await?, decode),
        }
    }

    /// Statements that are written together or not at all, durable when answered. False: one that had to touch a row
    /// touched none, and nothing was written.
    pub(crate) async fn write_together(&self, statements: Vec<Statement>) -> Result<bool, StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.write_together(statements).await,
            Engine::Postgres(connections) => connections.write_together(statements).await,
        }
    }

    /// As [`Db::write_together`]. Returns the rows of the statement with this index; `None` if nothing was written.
    pub(crate) async fn write_together_returning<T: Send + 'static>(
        &self,
        statements: Vec<Statement>,
        answering: usize,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<Vec<T>>, StoreError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.write_together_returning(statements, answering, decode).await,
            Engine::Postgres(connections) => {
                let rows = connections.write_together_returning(statements, answering).await?;
                rows.map(|rows| decoded(&rows, decode)).transpose()
            }
        }
    }

    pub(crate) async fn execute(&self, sql: impl Into<Sql>, args: Vec<Value>) -> Result<(), StoreError> {
        self.write(sql, args, |_| Ok(())).await.map(drop)
    }

    pub(crate) async fn execute_statement(&self, statement: Statement) -> Result<(), StoreError> {
        self.execute(statement.sql, statement.args).await
    }

    /// Stops the engine's threads and connections.
    pub async fn close(&self) {
        match &self.engine {
            Engine::Sqlite(sqlite) => {
                let sqlite = sqlite.clone();
                let _ = tokio::task::spawn_blocking(move || sqlite.close()).await;
            }
            Engine::Postgres(connections) => {
                connections.close().await;
                if let Some(replica) = &self.replica {
                    replica.close().await;
                }
            }
        }
    }
}

fn decoded<T>(rows: &[PgRow], decode: fn(&mut Reader<'_>) -> Result<T, StoreError>) -> Result<Vec<T>, StoreError> {
    rows.iter().map(|row| decode(&mut Reader::new(RowRef::Postgres(row)))).collect()
}
