//! Postgres: a few connections for reads and plain writes, and a write lane that holds a connection of its own.
//!
//! A flush is optimistic: it decides on rows it has kept from earlier flushes, or reads without a lock, and writes
//! everything in one statement, which is the transaction. The statement fails if any session it was decided on has
//! another revision by then. What the database refused is decided again under the sessions' locks, taken in order. A flush
//! that changes jobs which launchers may claim at any time is decided under locks at once.

pub(crate) mod address;
pub(crate) mod connections;
pub(crate) mod hosts;
mod load;
pub(crate) mod replica;
mod save;

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use ostler_protocol::{
    Failure, Timestamp,
    kernel::operations::{self, Desk, Request},
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::sync::{mpsc, oneshot};

use self::{
    connections::{ANSWER_MAX, Connections, IdleConnection, connect, fetch},
    hosts::Hosts,
    load::Hold,
    save::Statements,
};
use crate::{
    config::Durability,
    error::{StoreError, StoreFault},
    health::{FlushLog, WriteHealth},
    lane::{
        desks::{Changes, Decided, Starts, Warm},
        job::{
            Answer, AttachedRows, FLUSH_REQUESTS_MAX, Host, Job, LaneError, gather, must_decide_separately, refused,
        },
    },
    migrate,
    record::Statement,
};

/// Servers starting together take turns at the ledger. Any number will do; this one is ours.
const MIGRATION_LOCK: i64 = 0x05_71_E5;

pub(crate) async fn open(url: &str, now: Timestamp) -> Result<Connections, StoreError> {
    let connections = Connections::new(url)?;
    let mut connection = connect(&connections.hosts).await?;
    let mut tx = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK).execute(&mut *tx).await?;
    tx.execute(sqlx::raw_sql(migrate::LEDGER)).await?;
    let applied: Vec<(String, String)> =
        sqlx::query_as("SELECT id, checksum FROM schema_migrations ORDER BY id").fetch_all(&mut *tx).await?;
    for migration in migrate::outstanding(migrate::POSTGRES, &applied)? {
        tx.execute(sqlx::raw_sql(migration.sql)).await?;
        sqlx::query("INSERT INTO schema_migrations (id, checksum, applied_at) VALUES ($1, $2, $3)")
            .bind(migration.id)
            .bind(migration.checksum())
            .bind(now.as_microsecond())
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    connection.close().await?;
    Ok(connections)
}

pub(crate) async fn durability(connections: &Connections) -> Result<Durability, StoreError> {
    let mut weak_settings = vec![];
    for name in ["fsync", "synchronous_commit", "full_page_writes"] {
        let rows = connections.read("SELECT current_setting($1)".into(), &[name.into()]).await?;
        let value: String = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        if !matches!(value.as_str(), "on" | "remote_apply" | "remote_write" | "local") {
            weak_settings.push(format!("{name}={value}"));
        }
    }
    Ok(Durability { weak_settings })
}

/// Runs a statement that cannot be part of a transaction, however long it takes.
pub(crate) async fn vacuum(connection: &mut PgConnection, sql: &str) -> Result<(), StoreError> {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await?;
    Ok(())
}

/// Bytes of these tables with their indexes and large values.
pub(crate) async fn size_of(connection: &mut PgConnection, tables: &[&str]) -> Result<u64, StoreError> {
    let mut bytes = 0;
    for table in tables {
        let size: i64 = sqlx::query_scalar("SELECT pg_total_relation_size($1::regclass)")
            .bind(*table)
            .fetch_one(&mut *connection)
            .await?;
        bytes += size.unsigned_abs();
    }
    Ok(bytes)
}

pub(crate) struct Lane {
    hosts: Hosts,
    health: Arc<WriteHealth>,
    connection: Option<IdleConnection>,
    statements: Statements,
    warm: Warm,
    flush_log: FlushLog,
}

impl Lane {
    pub(crate) async fn connect(connections: &Connections) -> Result<Self, StoreError> {
        let hosts = connections.hosts.clone();
        let connection = Some(IdleConnection::new(connect(&hosts).await?));
        let health = connections.health.clone();
        Ok(Self {
            hosts,
            health,
            connection,
            statements: Statements::default(),
            warm: Warm::default(),
            flush_log: FlushLog::default(),
        })
    }

    pub(crate) async fn run(mut self, mut inbox: mpsc::Receiver<Job>, host: Arc<dyn Host>) {
        while let Some(first) = inbox.recv().await {
            let jobs = gather(first, &mut inbox, FLUSH_REQUESTS_MAX, Job::bytes);
            // A fault of ours in one flush must not end the lane. Its connection went with it, and the next flush
            // makes a new one.
            if AssertUnwindSafe(self.flush(jobs, &*host)).catch_unwind().await.is_err() {
                self.warm.clear();
                tracing::error!("a flush panicked; nothing of it was answered");
            }
        }
        if let Some(connection) = self.connection {
            connection.close().await;
        }
    }

    /// Requests with rows of a dialect have a transaction each, which is given up if either part of it is refused.
    async fn flush(&mut self, jobs: Vec<Job>, host: &dyn Host) {
        let (plain, with_rows): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.rows.is_empty());
        if !plain.is_empty() {
            let jobs = plain.into_iter().map(|job| (job.request, job.answer));
            self.flush_together(jobs.unzip(), &AttachedRows::default(), host).await;
        }
        for Job { request, rows, answer } in with_rows {
            self.flush_together((vec![request], vec![answer]), &rows, host).await;
        }
    }

    #[expect(clippy::expect_used, reason = "one request, one reply")]
    async fn flush_together(
        &mut self,
        (requests, answers): (Vec<Request>, Vec<oneshot::Sender<Answer>>),
        rows: &AttachedRows,
        host: &dyn Host,
    ) {
        let now = host.now();
        let error = match self.flush_once(&requests, rows, (host, now)).await {
            Ok(Decided { replies, desks, starts }) => {
                self.flush_log.succeeded();
                host.committed(self.warm.keep(desks, starts, requests.len(), now));
                answers.into_iter().zip(replies).for_each(|(answer, reply)| drop(answer.send(reply)));
                return;
            }
            Err(error) => error,
        };
        if must_decide_separately(&requests, &error) {
            for (request, answer) in requests.into_iter().zip(answers) {
                let now = host.now();
                let outcome = self.flush_once(std::slice::from_ref(&request), rows, (host, now)).await;
                let reply = match outcome {
                    Ok(Decided { mut replies, desks, starts }) => {
                        host.committed(self.warm.keep(desks, starts, 1, now));
                        replies.pop().expect("one request, one reply")
                    }
                    Err(error) => Err(LaneError::from(error)),
                };
                let _ = answer.send(reply);
            }
            return;
        }
        self.flush_log.failed(&error, requests.len());
        let taken = error.is_unique_violation();
        for answer in answers {
            let error = if taken { LaneError::Taken } else { LaneError::Store(error.shared()) };
            let _ = answer.send(Err(error));
        }
    }

    async fn flush_once<'a>(
        &mut self,
        requests: &[Request],
        rows: &AttachedRows,
        at: (&'a dyn Host, Timestamp),
    ) -> Result<Decided<'a>, StoreError> {
        // Launchers claim pending jobs without changing the session's revision, so only locks protect these.
        let changes_pending_jobs = requests.iter().any(|request| request.needs().pending_jobs);
        let hold = if changes_pending_jobs { Hold::Locks } else { Hold::Revisions };
        let outcome = match self.attempt(requests, rows, at, hold).await {
            Err(error) if refused(&error) => self.attempt(requests, rows, at, Hold::Locks).await,
            outcome => outcome,
        };
        self.health.record_flush(&outcome);
        outcome
    }

    async fn attempt<'a>(
        &mut self,
        requests: &[Request],
        rows: &AttachedRows,
        at: (&'a dyn Host, Timestamp),
        hold: Hold,
    ) -> Result<Decided<'a>, StoreError> {
        let kept = match self.connection.take() {
            Some(kept) => kept.take_up().await,
            None => None,
        };
        let mut connection = match kept {
            Some(connection) => connection,
            None => connect(&self.hosts).await?,
        };
        let decided = async {
            match hold {
                Hold::Revisions if rows.is_empty() => self.decide(&mut connection, requests, at, hold).await,
                _ => self.decide_in_transaction(&mut connection, requests, rows, at, hold).await,
            }
        };
        let outcome = tokio::time::timeout(ANSWER_MAX, decided).await.unwrap_or_else(|_| {
            // What was taken out of it is lost with the attempt.
            self.warm.clear();
            Err(StoreError::Fault(StoreFault::Silent))
        });
        // After any failure but a refusal the connection is in doubt, and so it is not used again.
        if outcome.as_ref().err().is_none_or(refused) {
            self.connection = Some(IdleConnection::new(connection));
        }
        outcome
    }

    async fn decide_in_transaction<'a>(
        &mut self,
        connection: &mut PgConnection,
        requests: &[Request],
        rows: &AttachedRows,
        at: (&'a dyn Host, Timestamp),
        hold: Hold,
    ) -> Result<Decided<'a>, StoreError> {
        let mut tx = connection.begin().await?;
        for Statement { sql, args, must_touch } in &rows.0 {
            if fetch(&mut tx, sql.clone(), args).await?.is_empty() && *must_touch {
                tx.rollback().await?;
                let replies = requests.iter().map(|_| Err(LaneError::Taken)).collect();
                return Ok(Decided::rejected(replies, at));
            }
        }
        let mut decided = self.decide(&mut tx, requests, at, hold).await?;
        if !rows.is_empty() && decided.replies.iter().any(Result::is_err) {
            decided.starts.mark_not_written();
            tx.rollback().await?;
            return Ok(Decided::rejected(decided.replies, at));
        }
        tx.commit().await?;
        Ok(decided)
    }

    async fn decide<'a>(
        &mut self,
        connection: &mut PgConnection,
        requests: &[Request],
        (host, now): (&'a dyn Host, Timestamp),
        hold: Hold,
    ) -> Result<Decided<'a>, StoreError> {
        let mut desks = load::load(connection, &mut self.warm, requests, hold).await?;
        let replies = requests
            .iter()
            .map(|request| match desks.get_mut(&request.session) {
                Some(desk) => operations::apply(desk, request.clone(), now).map_err(LaneError::Refused),
                None => Err(LaneError::Refused(Failure::not_found("session"))),
            })
            .collect();
        let mut starts = Starts::decide(&mut desks, host, now);
        desks.values_mut().for_each(Desk::seal);
        starts.mark_sent();
        if let Err(error) = self.statements.save(connection, &Changes::of(&desks)).await {
            if refused(&error) {
                starts.mark_not_written();
            }
            return Err(error);
        }
        Ok(Decided { replies, desks, starts })
    }
}
