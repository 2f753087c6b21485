//! What is wrong with the store when it does not read or write, and how its latest writes went.

use std::{
    io::ErrorKind,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ostler_protocol::Timestamp;
use rusqlite::ErrorCode;
use tokio::time::Instant;

use crate::{
    db::{Db, Engine, Statement, StoreError},
    lane::Desks,
};

/// Enough that a probe needs pages of its own, not only room that is left in the last one.
const PROBE_BYTES: usize = 32 * 1024;
/// The same for Postgres, which would compress a repeated character to nothing: different digests of 32 characters each.
const PROBE_PADDING: &str = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1024) n)";

/// Why the store as a whole does not do its work. A statement that it refused is no fault of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    DiskFull,
    DiskFailed,
    ReadOnly,
    OutOfMemory,
    NoFreeConnection,
    Starting,
    Unreachable,
    Denied,
    /// It did not respond in time.
    Silent,
}

impl StoreFault {
    pub const ALL: [Self; 9] = [
        Self::DiskFull,
        Self::DiskFailed,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::NoFreeConnection,
        Self::Starting,
        Self::Unreachable,
        Self::Denied,
        Self::Silent,
    ];

    /// The name on every wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DiskFull => "disk-full",
            Self::DiskFailed => "disk-failed",
            Self::ReadOnly => "read-only",
            Self::OutOfMemory => "out-of-memory",
            Self::NoFreeConnection => "no-free-connection",
            Self::Starting => "starting",
            Self::Unreachable => "unreachable",
            Self::Denied => "denied",
            Self::Silent => "silent",
        }
    }

    /// What happened, and what to do. It names no host, user or path.
    pub fn message(self) -> &'static str {
        match self {
            Self::DiskFull => "the store cannot write: its disk is full; hint: free space, no restart is needed",
            Self::DiskFailed => "the store cannot write: its disk reports errors; hint: look at the server's log",
            Self::ReadOnly => "the store cannot write: it is read-only; hint: look for a failed disk or a standby",
            Self::OutOfMemory => "the store is out of memory; hint: try again shortly",
            Self::NoFreeConnection => "the database has no free connection; hint: try again shortly",
            Self::Starting => "the database is starting or stopping; hint: try again shortly",
            Self::Unreachable => "the database cannot be reached; hint: look whether it runs",
            Self::Denied => "the database refuses this server; hint: check the user, password and database name",
            Self::Silent => "the store did not answer in time; hint: try again shortly",
        }
    }

    pub fn of(error: &StoreError) -> Option<Self> {
        match error {
            StoreError::Fault(fault) => Some(*fault),
            StoreError::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => of_sqlite(*error),
            StoreError::Postgres(error) => of_postgres(error),
            StoreError::Io(error) => of_io(error).or(Some(Self::DiskFailed)),
            _ => None,
        }
    }
}

fn of_sqlite(error: rusqlite::ffi::Error) -> Option<StoreFault> {
    // The index of the journal could not grow. That is memory for SQLite, and a file on the same disk for us.
    if error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE {
        return Some(StoreFault::DiskFull);
    }
    match error.code {
        ErrorCode::DiskFull => Some(StoreFault::DiskFull),
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => Some(StoreFault::DiskFailed),
        ErrorCode::ReadOnly => Some(StoreFault::ReadOnly),
        ErrorCode::OutOfMemory => Some(StoreFault::OutOfMemory),
        ErrorCode::DatabaseBusy => Some(StoreFault::Silent),
        _ => None,
    }
}

fn of_postgres(error: &sqlx::Error) -> Option<StoreFault> {
    match error {
        sqlx::Error::Database(error) => of_sqlstate(&error.code()?),
        sqlx::Error::Io(error) => of_io(error).or(Some(StoreFault::Unreachable)),
        sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => Some(StoreFault::Unreachable),
        _ => None,
    }
}

fn of_sqlstate(code: &str) -> Option<StoreFault> {
    match code {
        "53100" => Some(StoreFault::DiskFull),
        "53200" => Some(StoreFault::OutOfMemory),
        "53300" => Some(StoreFault::NoFreeConnection),
        "58030" => Some(StoreFault::DiskFailed),
        "25006" => Some(StoreFault::ReadOnly),
        "3D000" => Some(StoreFault::Denied),
        _ if code.starts_with("28") => Some(StoreFault::Denied),
        _ if code.starts_with("57P") => Some(StoreFault::Starting),
        _ if code.starts_with("08") => Some(StoreFault::Unreachable),
        _ => None,
    }
}

fn of_io(error: &std::io::Error) -> Option<StoreFault> {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some(StoreFault::DiskFull),
        ErrorKind::ReadOnlyFilesystem => Some(StoreFault::ReadOnly),
        ErrorKind::OutOfMemory => Some(StoreFault::OutOfMemory),
        ErrorKind::TimedOut => Some(StoreFault::Silent),
        _ => None,
    }
}

/// How the latest writes went, whichever way they took.
#[derive(Default)]
pub struct WriteHealth {
    latest: Mutex<Latest>,
    failures: [AtomicU64; StoreFault::ALL.len()],
}

#[derive(Clone, Copy, Default)]
struct Latest {
    written_at: Option<Instant>,
    fault: Option<StoreFault>,
    /// A write failed for lack of room and none has succeeded since, whatever else has failed in the meantime.
    lacks_room: bool,
}

impl WriteHealth {
    /// Something was written. A write that may have changed no row does not count: it succeeds on a full disk, too.
    pub(crate) fn wrote(&self) {
        *self.latest() = Latest { written_at: Some(Instant::now()), ..Latest::default() };
    }

    /// Remembers why a write failed. One that was refused says nothing about the store.
    pub(crate) fn record_failure<T>(&self, outcome: &Result<T, StoreError>) {
        outcome.as_ref().err().and_then(StoreFault::of).into_iter().for_each(|fault| self.failed(fault));
    }

    /// Remembers how a flush of the lane went.
    pub(crate) fn record_flush<T>(&self, outcome: &Result<(T, Desks), StoreError>) {
        match outcome {
            Ok((_, desks)) if desks.values().any(|desk| !desk.events.is_empty()) => self.wrote(),
            outcome => self.record_failure(outcome),
        }
    }

    pub(crate) fn failed(&self, fault: StoreFault) {
        let mut latest = self.latest();
        latest.fault = Some(fault);
        latest.lacks_room |= fault == StoreFault::DiskFull;
        drop(latest);
        self.failures[fault as usize].fetch_add(1, Relaxed);
    }

    /// Why the last write failed. `None` if it was written.
    pub fn fault(&self) -> Option<StoreFault> {
        self.latest().fault
    }

    fn lacks_room(&self) -> bool {
        self.latest().lacks_room
    }

    /// Whether nothing was written for this long, or the last write failed.
    pub fn is_in_doubt(&self, quiet: Duration) -> bool {
        let latest = *self.latest();
        latest.fault.is_some() || latest.written_at.is_none_or(|at| at.elapsed() > quiet)
    }

    /// Whether something was written in the last so many.
    pub fn wrote_within(&self, span: Duration) -> bool {
        self.latest().written_at.is_some_and(|at| at.elapsed() <= span)
    }

    /// How many writes have failed, by why.
    pub fn failures(&self) -> impl Iterator<Item = (StoreFault, u64)> {
        StoreFault::ALL.into_iter().zip(&self.failures).map(|(fault, count)| (fault, count.load(Relaxed)))
    }

    fn latest(&self) -> std::sync::MutexGuard<'_, Latest> {
        self.latest.lock().expect("never poisoned")
    }
}

/// A fault that lasts is logged at its first failed flush, and then once in this time.
const FAULT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Logs the failures of a lane's flushes. A full disk fails each of them, and must not fill the log's disk as well.
#[derive(Default)]
pub(crate) struct FlushLog {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl FlushLog {
    /// Logs why a flush of so many requests failed, unless that is a fault of the whole store and one was logged just before.
    pub fn failed(&mut self, error: &StoreError, requests: usize) {
        let is_fault = StoreFault::of(error).is_some();
        if is_fault && self.logged_at.is_some_and(|at| at.elapsed() < FAULT_LOG_INTERVAL) {
            self.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        tracing::error!(%error, requests, unlogged, "a flush failed; its requests were refused");
        if is_fault {
            self.logged_at = Some(Instant::now());
        }
    }

    /// Notes that a flush succeeded.
    pub fn succeeded(&mut self) {
        if self.unlogged > 0 {
            let unlogged = std::mem::take(&mut self.unlogged);
            tracing::info!(unlogged, "flushes succeed again");
        }
    }
}

/// Writes a row that no client reads, to find out whether the store takes writes.
pub async fn probe(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    let health = db.write_health();
    match (&db.engine, health.lacks_room()) {
        (Engine::Sqlite(_), _) => {
            let sql = "UPDATE store_probe SET padding = $1, probed_at = $2 WHERE id = 1";
            db.execute(sql, vec![".".repeat(PROBE_BYTES).into(), now.into()]).await?;
        }
        (Engine::Postgres(_), true) => probe_for_room(db, now).await?,
        (Engine::Postgres(_), false) => {
            let sql = format!("UPDATE store_probe SET padding = {PROBE_PADDING}, probed_at = $1 WHERE id = 1");
            db.execute(sql, vec![now.into()]).await?;
        }
    }
    health.wrote();
    Ok(())
}

/// An update can reuse room inside the table's files, so it succeeds on a full disk. After `TRUNCATE` the table has new, empty
/// files, which must grow. The lock that this takes would wait for a running `pg_dump`, so it is not the usual probe.
async fn probe_for_room(db: &Db, now: Timestamp) -> Result<(), StoreError> {
    let insert = format!("INSERT INTO store_probe (id, padding, probed_at) VALUES (1, {PROBE_PADDING}, $1)");
    let statements = vec![Statement::new("TRUNCATE store_probe", vec![]), Statement::new(insert, vec![now.into()])];
    db.write_together(statements).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_stands_in_its_place_and_names_no_internals() {
        for (index, fault) in StoreFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, index);
            assert!(!fault.message().contains("sqlite") && !fault.message().contains("://"));
        }
    }

    #[test]
    fn a_lack_of_room_lasts_until_something_is_written() {
        let health = WriteHealth::default();
        health.failed(StoreFault::DiskFull);
        // A full disk can stop Postgres itself; that it has started again is no sign of room.
        health.failed(StoreFault::Starting);
        assert!(health.lacks_room() && health.fault() == Some(StoreFault::Starting));
        health.wrote();
        assert!(!health.lacks_room() && health.fault().is_none());
    }

    #[test]
    fn a_fault_that_lasts_is_logged_once_in_a_while() {
        let mut log = FlushLog::default();
        let full = StoreError::Fault(StoreFault::DiskFull);
        for _ in 0..1_000 {
            log.failed(&full, 1);
        }
        assert_eq!(log.unlogged, 999);
        log.logged_at = Instant::now().checked_sub(FAULT_LOG_INTERVAL);
        log.failed(&full, 1);
        assert_eq!(log.unlogged, 0, "it was logged with their number");
        log.failed(&full, 1);
        log.failed(&StoreError::corrupt("one row"), 1);
        assert_eq!(log.unlogged, 0, "what is no fault of the store is always logged");
        log.failed(&full, 1);
        log.succeeded();
        assert_eq!(log.unlogged, 0);
    }

    #[test]
    fn errors_of_both_engines_are_told_apart() {
        let sqlite = |code: i32| {
            let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            StoreFault::of(&StoreError::Sqlite(error))
        };
        assert_eq!(sqlite(rusqlite::ffi::SQLITE_FULL), Some(StoreFault::DiskFull));
        assert_eq!(sqlite(rusqlite::ffi::SQLITE_IOERR_FSYNC), Some(StoreFault::DiskFailed));
        assert_eq!(sqlite(rusqlite::ffi::SQLITE_READONLY), Some(StoreFault::ReadOnly));
        assert_eq!(sqlite(rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE), None);
        for (code, fault) in [
            ("53100", Some(StoreFault::DiskFull)),
            ("53200", Some(StoreFault::OutOfMemory)),
            ("57P03", Some(StoreFault::Starting)),
            ("28P01", Some(StoreFault::Denied)),
            ("23505", None),
        ] {
            assert_eq!(of_sqlstate(code), fault, "{code}");
        }
        let io = |kind: ErrorKind| StoreFault::of(&StoreError::Postgres(sqlx::Error::Io(kind.into())));
        assert_eq!(io(ErrorKind::ConnectionRefused), Some(StoreFault::Unreachable));
        assert_eq!(io(ErrorKind::TimedOut), Some(StoreFault::Silent));
    }
}
