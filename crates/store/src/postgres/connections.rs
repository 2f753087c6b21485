//! Connections for reads and plain writes: a small stack of them, the last used on top. It is not sqlx's pool because that
//! asks every connection whether it still works when it comes back, which doubles the round trips of a short read.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection,
    postgres::{PgArguments, PgRow},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{
    address::Purpose,
    hosts::{CONNECT_TIMEOUT, Hosts, late},
};
use crate::{
    error::{StoreError, is_lost, is_refusal},
    health::WriteHealth,
    record::{Sql, Statement, Value},
};

pub(crate) use super::hosts::{connect, within};

pub(crate) type PgQuery<'q> = sqlx::query::Query<'q, sqlx::Postgres, PgArguments>;

const CONNECTIONS_MAX: usize = 8;
/// A caller that has waited this long for a connection gets an error.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A statement that is not answered within this counts as lost with its connection: a network that drops packets reports no error.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);
/// A connection that was used this recently is taken without asking whether it still works.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// A connection between two uses.
pub(crate) struct IdleConnection {
    connection: PgConnection,
    since: Instant,
}

impl IdleConnection {
    pub(crate) fn new(connection: PgConnection) -> Self {
        Self { connection, since: Instant::now() }
    }

    /// `None` if it was lost in the meantime.
    pub(crate) async fn take_up(mut self) -> Option<PgConnection> {
        let is_usable = self.since.elapsed() <= TRUSTED_FOR
            || within(CONNECT_TIMEOUT, "no answer", self.connection.ping()).await.is_ok();
        is_usable.then_some(self.connection)
    }

    pub(crate) async fn close(self) {
        let _ = self.connection.close().await;
    }
}

pub(crate) struct Connections {
    pub hosts: Hosts,
    pub health: Arc<WriteHealth>,
    idle: Mutex<Vec<IdleConnection>>,
    places: Semaphore,
}

impl Connections {
    /// Connections to the host that takes writes.
    pub(crate) fn new(url: &str) -> Result<Self, StoreError> {
        Self::for_purpose(url, Purpose::Write)
    }

    pub(crate) fn for_purpose(url: &str, purpose: Purpose) -> Result<Self, StoreError> {
        let hosts = Hosts::new(url, purpose)?;
        let (idle, places) = (Mutex::new(vec![]), Semaphore::new(CONNECTIONS_MAX));
        Ok(Self { hosts, health: Arc::default(), idle, places })
    }

    /// A statement that may be sent twice: when the connection turns out to be lost, it is sent again on a new one.
    pub(crate) fn read<'a>(&'a self, sql: Sql, args: &'a [Value]) -> BoxFuture<'a, Result<Vec<PgRow>, StoreError>> {
        Box::pin(self.read_again_if_lost(sql, args))
    }

    async fn read_again_if_lost(&self, sql: Sql, args: &[Value]) -> Result<Vec<PgRow>, StoreError> {
        let _place = self.place().await?;
        if let Some(mut connection) = self.take_up().await {
            match fetch(&mut connection, sql.clone(), args).await {
                // What one has lost the others have most likely lost too.
                Err(error) if is_lost(&error) => self.idle_connections().clear(),
                outcome => return self.keep(connection, outcome),
            }
        }
        let mut connection = connect(&self.hosts).await?;
        let outcome = fetch(&mut connection, sql, args).await;
        self.keep(connection, outcome)
    }

    /// A statement that is sent once: if the connection is lost, it is unknown whether it was executed.
    pub(crate) fn write<'a>(&'a self, sql: Sql, args: &'a [Value]) -> BoxFuture<'a, Result<Vec<PgRow>, StoreError>> {
        Box::pin(async move {
            let outcome = self.write_once(sql, args).await;
            self.health.record_failure(&outcome);
            outcome
        })
    }

    async fn write_once(&self, sql: Sql, args: &[Value]) -> Result<Vec<PgRow>, StoreError> {
        let _place = self.place().await?;
        let mut connection = match self.take_up().await {
            Some(connection) => connection,
            None => connect(&self.hosts).await?,
        };
        let outcome = fetch(&mut connection, sql, args).await;
        self.keep(connection, outcome)
    }

    /// Statements that commit together. If the connection is lost during the commit, its outcome is unknown.
    pub(crate) async fn write_together(&self, statements: Vec<Statement>) -> Result<bool, StoreError> {
        // No statement has that index, so there are no rows to return.
        let answering = statements.len();
        Ok(self.write_together_returning(statements, answering).await?.is_some())
    }

    /// As [`Connections::write_together`]. Returns the rows of the statement with this index; `None` if nothing was written.
    pub(crate) fn write_together_returning(
        &self,
        statements: Vec<Statement>,
        answering: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<PgRow>>, StoreError>> {
        Box::pin(async move {
            let outcome = self.write_all(statements, answering).await;
            self.health.record_failure(&outcome);
            outcome
        })
    }

    async fn write_all(&self, statements: Vec<Statement>, answering: usize) -> Result<Option<Vec<PgRow>>, StoreError> {
        let _place = self.place().await?;
        let mut connection = match self.take_up().await {
            Some(connection) => connection,
            None => connect(&self.hosts).await?,
        };
        let mut outcome = together(&mut connection, &statements, answering).await;
        if !matches!(outcome, Ok(Some(_))) && outcome.as_ref().err().is_none_or(is_refusal) {
            outcome = fetch(&mut connection, "ROLLBACK".into(), &[]).await.and(outcome);
        }
        self.keep(connection, outcome)
    }

    pub(crate) async fn close(&self) {
        self.places.close();
        let idle = std::mem::take(&mut *self.idle_connections());
        for connection in idle {
            connection.close().await;
        }
    }

    async fn place(&self) -> Result<tokio::sync::SemaphorePermit<'_>, StoreError> {
        let place = timeout(WAIT_MAX, self.places.acquire()).await.map_err(|_| late("no free connection", WAIT_MAX))?;
        place.map_err(|_| StoreError::Stopped)
    }

    async fn take_up(&self) -> Option<PgConnection> {
        let connection = self.idle_connections().pop()?;
        connection.take_up().await
    }

    /// Keeps the connection unless the outcome puts it in doubt. One whose caller goes away in the middle is not kept.
    fn keep<T>(&self, connection: PgConnection, outcome: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        if outcome.as_ref().err().is_none_or(is_refusal) {
            self.idle_connections().push(IdleConnection::new(connection));
        }
        Ok(outcome?)
    }

    /// Drops the connections that are not in use. New ones may lead to another host.
    pub(crate) fn drop_idle(&self) {
        self.idle_connections().clear();
    }

    fn idle_connections(&self) -> MutexGuard<'_, Vec<IdleConnection>> {
        self.idle.lock()
    }
}

async fn together(
    connection: &mut PgConnection,
    statements: &[Statement],
    answering: usize,
) -> Result<Option<Vec<PgRow>>, sqlx::Error> {
    fetch(connection, "BEGIN".into(), &[]).await?;
    let mut answer = vec![];
    for (index, statement) in statements.iter().enumerate() {
        let touched = fetch(connection, statement.sql.clone(), &statement.args).await?;
        if statement.must_touch && touched.is_empty() {
            return Ok(None);
        }
        if index == answering {
            answer = touched;
        }
    }
    fetch(connection, "COMMIT".into(), &[]).await.map(|_| Some(answer))
}

pub(super) async fn fetch(connection: &mut PgConnection, sql: Sql, args: &[Value]) -> Result<Vec<PgRow>, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(sql.into_owned()));
    within(ANSWER_MAX, "no answer", args.iter().fold(query, bind).fetch_all(connection)).await
}

fn bind<'q>(query: PgQuery<'q>, value: &'q Value) -> PgQuery<'q> {
    match value {
        Value::Text(text) => query.bind(text.as_deref()),
        Value::Int(number) => query.bind(*number),
        Value::Bytes(bytes) => query.bind(bytes.as_ref().map(|bytes| &bytes[..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_database_that_never_answers_counts_as_lost() {
        let silent = std::future::pending::<Result<(), sqlx::Error>>();
        let error = within(ANSWER_MAX, "no answer", silent).await.expect_err("nothing answers");
        assert!(is_lost(&error) && !is_refusal(&error), "{error}");
    }
}
