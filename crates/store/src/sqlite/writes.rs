//! Writes beside the kernel's requests: they run first in a flush's transaction, and are answered after its commit.

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::query::query;
use crate::{
    error::{StoreError, StoreFault},
    health::WriteHealth,
    record::{Reader, Statement},
};

/// A write beside the kernel's requests.
pub(crate) trait Write: Send {
    /// Does it inside the flush's transaction.
    fn run(self: Box<Self>, tx: &Connection) -> Written;
    /// Answers without doing it, because the transaction has failed.
    fn fail(self: Box<Self>, error: StoreError);
}

/// What was done, but is not durable yet.
pub(crate) struct Written {
    pub fault: Option<StoreFault>,
    /// Answers the caller, once the commit's outcome is known.
    pub answer: Box<dyn FnOnce(Result<(), StoreError>) + Send>,
}

/// A write that only answers.
pub(crate) struct Plain<T, F> {
    pub work: F,
    pub answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send + 'static, F: FnOnce(&Connection) -> Result<T, StoreError> + Send> Write for Plain<T, F> {
    fn run(self: Box<Self>, tx: &Connection) -> Written {
        let Self { work, answer } = *self;
        let outcome = work(tx);
        let fault = outcome.as_ref().err().and_then(StoreFault::of);
        let answer = |committed: Result<(), StoreError>| {
            drop(answer.send(outcome.and_then(|found| committed.map(|()| found))));
        };
        Written { fault, answer: Box::new(answer) }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        drop(self.answer.send(Err(error)));
    }
}

/// Whether SQLite has given up the whole transaction by itself, as it does when the disk is full or fails. Statements after
/// that would each be a transaction of their own.
pub(crate) fn is_lost(connection: &Connection) -> bool {
    connection.is_autocommit()
}

/// Does them one after the other. Once one has cost the transaction, nothing more is done and all of them fail.
pub(crate) fn run_writes(
    tx: &Connection,
    health: &WriteHealth,
    writes: Vec<Box<dyn Write>>,
) -> Result<Vec<Written>, StoreError> {
    let mut written: Vec<Written> = Vec::with_capacity(writes.len());
    let mut writes = writes.into_iter();
    for write in writes.by_ref() {
        let one = write.run(tx);
        let fault = one.fault;
        written.push(one);
        fault.into_iter().for_each(|fault| health.failed(fault));
        if is_lost(tx) {
            let error = StoreError::Fault(fault.unwrap_or(StoreFault::DiskFailed));
            answer_all(written, Some(&error));
            writes.for_each(|write| write.fail(error.shared()));
            return Err(error);
        }
    }
    Ok(written)
}

pub(crate) fn answer_all(written: Vec<Written>, error: Option<&StoreError>) {
    for one in written {
        (one.answer)(error.map_or(Ok(()), |error| Err(error.shared())));
    }
}

/// Statements that are written together or not at all. False if one that had to touch a row touched none.
pub(super) fn together(connection: &Connection, statements: &[Statement]) -> Result<bool, StoreError> {
    // No statement has that index, so there are no rows to return.
    let written = together_returning(connection, statements, statements.len(), |_| Ok(()))?;
    Ok(written.is_some())
}

/// Others share the transaction, so what is given up goes back to where these statements began.
pub(super) fn together_returning<T>(
    connection: &Connection,
    statements: &[Statement],
    answering: usize,
    decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
) -> Result<Option<Vec<T>>, StoreError> {
    connection.prepare_cached("SAVEPOINT together")?.execute([])?;
    let written = each(connection, statements, answering, decode);
    if is_lost(connection) {
        return written;
    }
    if !matches!(written, Ok(Some(_))) {
        connection.prepare_cached("ROLLBACK TO together")?.execute([])?;
    }
    connection.prepare_cached("RELEASE together")?.execute([])?;
    written
}

/// Statements one after the other. `None` if one that had to touch a row touched none.
pub(super) fn each<T>(
    connection: &Connection,
    statements: &[Statement],
    answering: usize,
    decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
) -> Result<Option<Vec<T>>, StoreError> {
    let mut answer = vec![];
    for (index, Statement { sql, args, must_touch }) in statements.iter().enumerate() {
        let touched = if index == answering {
            answer = query(connection, sql, args, decode)?;
            answer.len()
        } else {
            query(connection, sql, args, |_| Ok(()))?.len()
        };
        if *must_touch && touched == 0 {
            return Ok(None);
        }
    }
    Ok(Some(answer))
}
