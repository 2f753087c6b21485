//! The texts of the statements that the store runs on SQLite, for tests that look at their plans. Postgres needs no such thing: a
//! test can read the statements from the connection.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use rusqlite::{
    Connection,
    trace::{TraceEvent, TraceEventCodes},
};

use crate::{error::StoreError, migrate};

/// Logs by the file of the store that they are about.
static LOGS: LazyLock<Mutex<HashMap<PathBuf, StatementLog>>> = LazyLock::new(Mutex::default);

/// Every statement that was run, once.
#[derive(Clone, Default)]
pub struct StatementLog(Arc<Mutex<BTreeSet<String>>>);

impl StatementLog {
    /// Records the statements of the store in this file, from the next time that it is opened.
    pub fn record(file: &Path) -> Self {
        LOGS.lock().entry(file.to_owned()).or_default().clone()
    }

    pub fn statements(&self) -> BTreeSet<String> {
        self.0.lock().clone()
    }
}

/// Creates the tables that live in the memory of the writer, so that statements about them can be explained elsewhere.
pub fn create_volatile_tables(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.execute_batch(migrate::VOLATILE)?)
}

/// Has the connection record its statements, if the file has a log.
pub(crate) fn attach(mut connection: Connection, file: &Path) -> Result<Connection, StoreError> {
    let log = LOGS.lock().get(file).cloned();
    if let Some(log) = log {
        // A trigger is reported under the statement that fires it.
        let record = move |event: TraceEvent<'_>| {
            if let TraceEvent::Stmt(statement, _) = event {
                log.0.lock().insert(statement.sql().into_owned());
            }
        };
        connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(record))?;
    }
    Ok(connection)
}
