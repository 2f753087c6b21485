//! Errors of the store, and what is wrong with it when it does not read or write.

use std::io::ErrorKind;

use rusqlite::ErrorCode;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("sqlite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("migration: {0}")]
    Migration(String),
    #[error("{0}")]
    Locked(String),
    #[error("stored data does not read back: {0}")]
    Corrupt(String),
    #[error("the store has stopped")]
    Stopped,
    #[error("io: {0}")]
    Io(#[from] std::io::Error),
    /// A flush failed for this reason; the error itself was logged once for all requests in it.
    #[error("{}", .0.message())]
    Fault(StoreFault),
}

impl StoreError {
    pub fn corrupt(what: impl std::fmt::Display) -> Self {
        Self::Corrupt(what.to_string())
    }

    /// The error for each request of a flush that failed with this one.
    pub(crate) fn shared(&self) -> Self {
        if self.is_corrupt() {
            return Self::corrupt(self);
        }
        StoreFault::of(self).map_or(Self::Stopped, Self::Fault)
    }

    /// The database's machine is reachable, and nothing listens at the address.
    pub fn is_refused(&self) -> bool {
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        match self {
            Self::Postgres(sqlx::Error::Io(error)) | Self::Io(error) => refused(error),
            _ => false,
        }
    }

    /// The stored data cannot be decoded; a retry does not help.
    pub fn is_corrupt(&self) -> bool {
        match self {
            Self::Corrupt(_) | Self::Postgres(sqlx::Error::ColumnDecode { .. }) => true,
            Self::Sqlite(rusqlite::Error::SqliteFailure(e, _)) => e.code == rusqlite::ErrorCode::DatabaseCorrupt,
            _ => false,
        }
    }

    /// A unique index rejected the write: another one was first.
    pub fn is_unique_violation(&self) -> bool {
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(e, _)) => {
                matches!(
                    e.extended_code,
                    rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE | rusqlite::ffi::SQLITE_CONSTRAINT_PRIMARYKEY
                )
            }
            Self::Postgres(sqlx::Error::Database(e)) => e.is_unique_violation(),
            _ => false,
        }
    }
}

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

/// The database rejected the statement; the connection is still usable.
pub(crate) fn is_refusal(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(_)) && !is_lost(error)
}

/// The connection is gone, or goes with this answer: shut down, terminated, or the server was starting. One that has become
/// read-only leads to a host that was demoted, behind a pooler.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| code.starts_with("57P") || code.starts_with("08") || code == "25006")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_its_place_and_names_no_internals() {
        for (index, fault) in StoreFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, index);
            assert!(!fault.message().contains("sqlite") && !fault.message().contains("://"));
        }
    }

    #[test]
    fn errors_of_both_engines_are_distinguished() {
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
