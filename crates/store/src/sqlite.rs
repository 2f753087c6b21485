//! SQLite: one writer thread that is the write lane, a few reader threads, and a lock that keeps other processes out.

mod desks;
#[cfg(feature = "fault-injection")]
mod faults;
pub(crate) mod query;
pub(crate) mod writes;

use std::{
    fs::{File, Permissions},
    ops::Deref,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use ostler_protocol::{
    Failure, Timestamp,
    kernel::operations::{self, Desk, Request},
};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use tokio::sync::{mpsc, oneshot};

use self::{
    query::query,
    writes::{Plain, Write, answer_all, each, run_writes, together, together_returning},
};
use crate::{
    config::{Durability, Synchronous},
    error::StoreError,
    health::{FlushLog, WriteHealth},
    lane::{
        desks::{Changes, Decided, Desks, Starts, Warm},
        job::{
            self, Answer, AttachedRows, FLUSH_BYTES_MAX, FLUSH_REQUESTS_MAX, Host, Job, LaneError, NoHost,
            QUEUE_REQUESTS_MAX,
        },
    },
    migrate,
    record::{Reader, Sql, Statement, Value},
};

const READERS: usize = 2;
/// Pages kept in memory, of which an open store fills all sooner or later; behind them is the system's own cache.
const WRITER_CACHE_KIB: usize = 8 * 1024;
const READER_CACHE_KIB: usize = 4 * 1024;
const READS_WAITING_MAX: usize = 4_096;
const STATEMENTS_CACHED: usize = 128;

type Read = Box<dyn FnOnce(&Connection) + Send>;

#[expect(clippy::large_enum_variant, reason = "nearly all are operations, and a box would be an allocation for each")]
enum Work {
    Op(Job),
    Plain(Box<dyn Write>),
}

pub(crate) struct Sqlite {
    works: Mutex<Option<mpsc::Sender<Work>>>,
    reads: Mutex<Option<mpsc::Sender<Read>>>,
    host: Arc<OnceLock<Arc<dyn Host>>>,
    pub durability: Durability,
    pub health: Arc<WriteHealth>,
    writer: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Sqlite {
    pub(crate) fn open(file: &Path, synchronous: Synchronous, now: Timestamp) -> Result<Self, StoreError> {
        #[cfg(feature = "fault-injection")]
        faults::install();
        let lock = lock(file)?;
        make_private(file)?;
        let mut writer = Connection::open(file)?;
        let durability = prepare_writer(&writer, synchronous)?;
        migrate(&mut writer, now)?;
        writer.execute_batch(migrate::VOLATILE)?;
        #[cfg(feature = "statement-log")]
        let writer = crate::statement_log::attach(writer, file)?;
        let host = Arc::new(OnceLock::new());
        let (works, inbox) = mpsc::channel(QUEUE_REQUESTS_MAX);
        let health = Arc::<WriteHealth>::default();
        let lane = Lane {
            connection: writer,
            host: host.clone(),
            health: health.clone(),
            warm: Warm::default(),
            flush_log: FlushLog::default(),
            _lock: lock,
        };
        let writer = thread::Builder::new().name("sqlite-lane".into()).spawn(move || lane.run(inbox))?;
        let (reads, inbox) = mpsc::channel(READS_WAITING_MAX);
        let inbox = Arc::new(Mutex::new(inbox));
        for number in 0..READERS {
            let (connection, inbox) = (open_reader(file)?, inbox.clone());
            thread::Builder::new()
                .name(format!("sqlite-read-{number}"))
                .spawn(move || serve_reads(&connection, &inbox))?;
        }
        Ok(Self {
            works: Mutex::new(Some(works)),
            reads: Mutex::new(Some(reads)),
            host,
            durability,
            health,
            writer: Mutex::new(Some(writer)),
        })
    }

    pub(crate) fn host(&self, host: Arc<dyn Host>) {
        // A second set of lanes over one open store would be a mistake of ours; the first one stays.
        let _ = self.host.set(host);
    }

    /// Waits until what was accepted is written and the lock is free. Blocks.
    pub(crate) fn close(&self) {
        self.works.lock().take();
        self.reads.lock().take();
        let writer = self.writer.lock().take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the write lane panicked");
        }
    }

    pub(crate) fn submit(&self, job: Job) -> Result<(), LaneError> {
        let works = self.works.lock().clone().ok_or(LaneError::Store(StoreError::Stopped))?;
        job::offer(&works, Work::Op(job))
    }

    /// As [`Sqlite::submit`], for a write beside the kernel's requests.
    pub(crate) fn offer(&self, write: Box<dyn Write>) -> Result<(), LaneError> {
        let works = self.works.lock().clone().ok_or(LaneError::Store(StoreError::Stopped))?;
        job::offer(&works, Work::Plain(write))
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        sql: Sql,
        args: Vec<Value>,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let reads = self.reads.lock().clone().ok_or(StoreError::Stopped)?;
        let read: Read = Box::new(move |connection| drop(answer.send(query(connection, &sql, &args, decode))));
        reads.send(read).await.map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }

    pub(crate) async fn write<T: Send + 'static>(
        &self,
        sql: Sql,
        args: Vec<Value>,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.plain(move |connection| query(connection, &sql, &args, decode)).await
    }

    pub(crate) async fn write_together(&self, statements: Vec<Statement>) -> Result<bool, StoreError> {
        self.plain(move |connection| together(connection, &statements)).await
    }

    pub(crate) async fn write_together_returning<T: Send + 'static>(
        &self,
        statements: Vec<Statement>,
        answering: usize,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<Vec<T>>, StoreError> {
        self.plain(move |connection| together_returning(connection, &statements, answering, decode)).await
    }

    /// Work in the transaction of the next flush. It is answered when it is durable.
    pub(crate) async fn plain<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let works = self.works.lock().clone().ok_or(StoreError::Stopped)?;
        works.send(Work::Plain(Box::new(Plain { work, answer }))).await.map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }
}

/// Rewrites the file without its free pages, and so that later ones can be returned in steps. Fails while a server has it open.
pub(crate) fn compact(file: &Path) -> Result<(), StoreError> {
    let _lock = lock(file)?;
    let connection = Connection::open(file)?;
    connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")?;
    Ok(())
}

/// One process by contract: SQLite's own locks would let a second server in and then fail at random.
pub(crate) fn lock(file: &Path) -> Result<File, StoreError> {
    let path = file.with_extension("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(|error| {
        let what = "the lock that keeps a second process out of the store";
        std::io::Error::new(error.kind(), format!("cannot write {}, {what}: {error}", path.display()))
    })?;
    lock.try_lock().map_err(|_| {
        StoreError::Locked(format!(
            "another process has {} open; SQLite serves one process, use Postgres for several",
            file.display()
        ))
    })?;
    Ok(lock)
}

/// Only the owner may read the store, even in a directory that others may read. Its journal has the same mode.
pub(crate) fn make_private(file: &Path) -> Result<(), StoreError> {
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(file)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(mode & !0o077))?;
    }
    Ok(())
}

fn prepare_writer(connection: &Connection, synchronous: Synchronous) -> Result<Durability, StoreError> {
    let level = match synchronous {
        Synchronous::Off => "OFF",
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    prepare(connection)?;
    // `auto_vacuum` is set before the first page is written: an existing file keeps its own mode until it is compacted.
    connection.execute_batch(&format!(
        "PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = {level};
         PRAGMA cache_size = -{WRITER_CACHE_KIB};
         PRAGMA wal_autocheckpoint = 4000; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY;"
    ))?;
    let journal: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    let level: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    let mut weak_settings = vec![];
    if journal != "wal" {
        weak_settings.push(format!("journal_mode={journal}"));
    }
    if level < 2 {
        weak_settings.push(format!("synchronous={level}"));
    }
    Ok(Durability { weak_settings })
}

/// What every connection has in common.
pub(crate) fn prepare(connection: &Connection) -> Result<(), StoreError> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    connection.busy_timeout(Duration::from_secs(10))?;
    // Plans must not depend on bound values: those that do are made again on every execution.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn open_reader(file: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(file, flags)?;
    prepare(&connection)?;
    connection.execute_batch(&format!(
        "PRAGMA query_only = ON; PRAGMA cache_size = -{READER_CACHE_KIB}; PRAGMA mmap_size = 0;"
    ))?;
    #[cfg(feature = "statement-log")]
    let connection = crate::statement_log::attach(connection, file)?;
    Ok(connection)
}

fn serve_reads(connection: &Connection, inbox: &Mutex<mpsc::Receiver<Read>>) {
    loop {
        let read = inbox.lock().blocking_recv();
        match read {
            Some(read) => read(connection),
            None => return,
        }
    }
}

fn migrate(connection: &mut Connection, now: Timestamp) -> Result<(), StoreError> {
    let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    tx.execute_batch(migrate::LEDGER)?;
    let applied = query(&tx, "SELECT id, checksum FROM schema_migrations ORDER BY id", &[], |row| {
        Ok((row.at("id")?.text()?, row.at("checksum")?.text()?))
    })?;
    let outstanding = migrate::outstanding(migrate::SQLITE, &applied)?;
    if applied.is_empty() {
        tx.execute_batch(migrate::SQLITE_SCHEMA)?;
    }
    for migration in outstanding {
        if !applied.is_empty() {
            tx.execute_batch(migration.sql)?;
        }
        let row = (migration.id, migration.checksum(), now.as_microsecond());
        tx.execute("INSERT INTO schema_migrations (id, checksum, applied_at) VALUES (?1, ?2, ?3)", row)?;
    }
    Ok(tx.commit()?)
}

/// The transaction of a flush. It is rolled back when it is dropped, unless it was committed. Its statements are prepared once;
/// those of `rusqlite::Transaction` are parsed for each flush.
struct FlushTransaction<'a>(&'a Connection);

impl<'a> FlushTransaction<'a> {
    fn begin(connection: &'a Connection) -> rusqlite::Result<Self> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(Self(connection))
    }

    fn commit(self) -> rusqlite::Result<()> {
        self.0.prepare_cached("COMMIT")?.execute([]).map(drop)
    }
}

impl Drop for FlushTransaction<'_> {
    fn drop(&mut self) {
        // Autocommit is on again after a commit, and if SQLite has rolled back by itself.
        if !self.0.is_autocommit() {
            let _ = self.0.execute_batch("ROLLBACK");
        }
    }
}

impl Deref for FlushTransaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0
    }
}

/// The writer thread.
struct Lane {
    connection: Connection,
    host: Arc<OnceLock<Arc<dyn Host>>>,
    health: Arc<WriteHealth>,
    /// This thread is the only writer of these rows.
    warm: Warm,
    flush_log: FlushLog,
    /// Held for as long as anything can be written.
    _lock: File,
}

impl Lane {
    fn run(mut self, mut inbox: mpsc::Receiver<Work>) {
        while let Some(first) = inbox.blocking_recv() {
            let (mut jobs, mut writes, mut bytes) = (vec![], vec![], 0);
            let mut next = Some(first);
            while let Some(work) = next {
                match work {
                    Work::Op(job) => {
                        bytes += job.bytes();
                        jobs.push(job);
                    }
                    Work::Plain(write) => writes.push(write),
                }
                let full = jobs.len() + writes.len() >= FLUSH_REQUESTS_MAX || bytes >= FLUSH_BYTES_MAX;
                next = if full { None } else { inbox.try_recv().ok() };
            }
            // A bug in one flush must not end the lane: the transaction is rolled back, its callers get an error, and
            // the next flush starts again.
            if catch_unwind(AssertUnwindSafe(|| self.flush(jobs, writes))).is_err() {
                self.warm.clear();
                tracing::error!("a flush panicked; nothing of it was written");
            }
        }
    }

    fn flush(&mut self, jobs: Vec<Job>, writes: Vec<Box<dyn Write>>) {
        let Some(host) = self.host.get().cloned() else {
            // Before the lanes have started there are only plain writes.
            return drop(self.flush_once(&[], &[], writes, (&NoHost, NoHost.now())));
        };
        let now = host.now();
        let (requests, rest): (Vec<_>, Vec<_>) =
            jobs.into_iter().map(|job| (job.request, (job.rows, job.answer))).unzip();
        let (rows, answers): (Vec<_>, Vec<_>) = rest.into_iter().unzip();
        let outcome = self.flush_once(&requests, &rows, writes, (&*host, now));
        self.health.record_flush(&outcome);
        match outcome {
            Ok(Decided { replies, desks, starts }) => {
                self.flush_log.succeeded();
                host.committed(self.warm.keep(desks, starts, requests.len(), now));
                answers.into_iter().zip(replies).for_each(|(answer, reply)| drop(answer.send(reply)));
            }
            Err(error) if job::must_decide_separately(&requests, &error) => {
                for ((request, rows), answer) in requests.into_iter().zip(rows).zip(answers) {
                    self.flush(vec![Job { request, rows, answer }], vec![]);
                }
            }
            Err(error) => {
                self.flush_log.failed(&error, requests.len());
                let taken = error.is_unique_violation();
                for answer in answers {
                    let error = if taken { LaneError::Taken } else { LaneError::Store(error.shared()) };
                    let _ = answer.send(Err(error));
                }
            }
        }
    }

    fn flush_once<'a>(
        &mut self,
        requests: &[Request],
        rows: &[AttachedRows],
        writes: Vec<Box<dyn Write>>,
        at: (&'a dyn Host, Timestamp),
    ) -> Result<Decided<'a>, StoreError> {
        let tx = match FlushTransaction::begin(&self.connection) {
            Ok(tx) => tx,
            Err(error) => {
                let error = StoreError::from(error);
                writes.into_iter().for_each(|write| write.fail(error.shared()));
                return Err(error);
            }
        };
        // Plain writes first: rows loaded for the requests below must already show what they did.
        let written = run_writes(&tx, &self.health, writes)?;
        let outcome = match Self::decide(&tx, &mut self.warm, (requests, rows), at, !written.is_empty()) {
            Ok(decided) => tx.commit().map(|()| decided).map_err(StoreError::from),
            // What one caller sent takes nothing else with it: the plain writes stay.
            Err(error) if !written.is_empty() && job::refused(&error) => {
                let kept = tx.execute_batch("ROLLBACK TO requests").and_then(|()| tx.commit());
                let kept = kept.map_err(StoreError::from);
                answer_all(written, kept.as_ref().err());
                return Err(error);
            }
            // Dropping it rolls it back, unless SQLite has done so already.
            Err(error) => Err(error),
        };
        answer_all(written, outcome.as_ref().err());
        outcome
    }

    /// Decides the requests and saves what changed, in the open transaction; `apart` from what is in it already.
    fn decide<'a>(
        tx: &Connection,
        warm: &mut Warm,
        (requests, rows): (&[Request], &[AttachedRows]),
        (host, now): (&'a dyn Host, Timestamp),
        apart: bool,
    ) -> Result<Decided<'a>, StoreError> {
        if apart {
            tx.prepare_cached("SAVEPOINT requests")?.execute([])?;
        }
        let mut desks = Desks::new();
        let mut replies = Vec::with_capacity(requests.len());
        for (request, rows) in requests.iter().zip(rows) {
            replies.push(match rows.is_empty() {
                true => apply(tx, warm, &mut desks, request, now)?,
                false => apply_with_rows(tx, warm, &mut desks, (request, rows), now)?,
            });
        }
        let starts = Starts::decide(&mut desks, host, now);
        desks.values_mut().for_each(Desk::seal);
        desks::save(tx, &Changes::of(&desks))?;
        Ok(Decided { replies, desks, starts })
    }
}

fn apply(
    tx: &Connection,
    warm: &mut Warm,
    desks: &mut Desks,
    request: &Request,
    now: Timestamp,
) -> Result<Answer, StoreError> {
    Ok(match desks::load(tx, warm, desks, request)? {
        Some(desk) => operations::apply(desk, request.clone(), now).map_err(LaneError::Refused),
        None => Err(LaneError::Refused(Failure::not_found("session"))),
    })
}

/// As [`apply`], with rows of a dialect. If they cannot be written, or the request is refused, neither leaves anything behind.
fn apply_with_rows(
    tx: &Connection,
    warm: &mut Warm,
    desks: &mut Desks,
    (request, rows): (&Request, &AttachedRows),
    now: Timestamp,
) -> Result<Answer, StoreError> {
    tx.prepare_cached("SAVEPOINT attached")?.execute([])?;
    // No statement has that index, so there are no rows to return.
    let answer = match each(tx, &rows.0, rows.0.len(), |_| Ok(()))? {
        Some(_) => apply(tx, warm, desks, request, now)?,
        None => Err(LaneError::Taken),
    };
    if answer.is_err() {
        tx.prepare_cached("ROLLBACK TO attached")?.execute([])?;
        request.new_session().and_then(|session| desks.remove(&session.session));
    }
    tx.prepare_cached("RELEASE attached")?.execute([])?;
    Ok(answer)
}

#[cfg(test)]
mod tests;
