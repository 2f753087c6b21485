//! SQLite: one writer thread that is the write lane, a few reader threads, and a lock that keeps other processes out.

use std::{
    collections::hash_map::Entry,
    fs::File,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::Duration,
};

use ostler_protocol::{
    Failure, Timestamp,
    commands::Command,
    ids::RunId,
    kernel::{self, Batch, Desk, Op, Request, RunDesk, Tracked},
    leases::Lease,
    permissions::PermissionRequest,
    runner_jobs::RunnerJob,
    runs::Run,
    sessions::Session,
};
use rusqlite::{Connection, OpenFlags, types::ToSqlOutput, types::ValueRef};
use tokio::sync::{mpsc, oneshot};

use crate::{
    commands::UNFINISHED,
    db::{Durability, Sql, StoreError, Synchronous},
    lane::{self, Answer, Changes, Desks, FLUSH_REQUESTS_MAX, Host, Job, LaneError, QUEUE_REQUESTS_MAX},
    migrate,
    record::{Reader, Record, RowRef, Value, columns, text, upsert_row},
};

const READERS: usize = 2;
const READS_WAITING_MAX: usize = 4_096;
const STATEMENTS_CACHED: usize = 128;

type Read = Box<dyn FnOnce(&Connection) + Send>;
/// Runs inside the flush's transaction; what it returns answers the caller once the commit's outcome is known.
type Write = Box<dyn FnOnce(&Connection) -> Box<dyn FnOnce(bool) + Send> + Send>;

enum Work {
    Op(Job),
    Plain(Write),
}

pub struct Sqlite {
    works: Mutex<Option<mpsc::Sender<Work>>>,
    reads: Mutex<Option<mpsc::Sender<Read>>>,
    host: Arc<OnceLock<Arc<dyn Host>>>,
    pub durability: Durability,
    /// Held for as long as the store is open.
    _lock: File,
}

impl Sqlite {
    pub fn open(file: &Path, synchronous: Synchronous, now: Timestamp) -> Result<Self, StoreError> {
        let lock = lock(file)?;
        let mut writer = Connection::open(file)?;
        let durability = prepare_writer(&writer, synchronous)?;
        migrate(&mut writer, now)?;
        let host = Arc::new(OnceLock::new());
        let (works, inbox) = mpsc::channel(QUEUE_REQUESTS_MAX);
        let lane_host = host.clone();
        thread::Builder::new()
            .name("sqlite-lane".into())
            .spawn(move || Lane { connection: writer, host: lane_host }.run(inbox))?;
        let (reads, inbox) = mpsc::channel(READS_WAITING_MAX);
        let inbox = Arc::new(Mutex::new(inbox));
        for number in 0..READERS {
            let (connection, inbox) = (open_reader(file)?, inbox.clone());
            thread::Builder::new()
                .name(format!("sqlite-read-{number}"))
                .spawn(move || serve_reads(&connection, &inbox))?;
        }
        Ok(Self { works: Mutex::new(Some(works)), reads: Mutex::new(Some(reads)), host, durability, _lock: lock })
    }

    pub fn host(&self, host: Arc<dyn Host>) {
        // A second set of lanes over one open store would be a mistake of ours; the first one stays.
        let _ = self.host.set(host);
    }

    pub fn close(&self) {
        self.works.lock().expect("never poisoned").take();
        self.reads.lock().expect("never poisoned").take();
    }

    pub fn submit(&self, job: Job) -> Result<(), LaneError> {
        let works = self.works.lock().expect("never poisoned").clone().ok_or(LaneError::Store(StoreError::Stopped))?;
        works.try_send(Work::Op(job)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => lane::overloaded(),
            mpsc::error::TrySendError::Closed(_) => LaneError::Store(StoreError::Stopped),
        })
    }

    pub async fn read<T: Send + 'static>(
        &self,
        sql: Sql,
        args: Vec<Value>,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let reads = self.reads.lock().expect("never poisoned").clone().ok_or(StoreError::Stopped)?;
        let read: Read = Box::new(move |connection| drop(answer.send(query(connection, &sql, &args, decode))));
        reads.send(read).await.map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }

    pub async fn write<T: Send + 'static>(
        &self,
        sql: Sql,
        args: Vec<Value>,
        decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let works = self.works.lock().expect("never poisoned").clone().ok_or(StoreError::Stopped)?;
        let write: Write = Box::new(move |connection| {
            let outcome = query(connection, &sql, &args, decode);
            Box::new(move |committed| drop(answer.send(if committed { outcome } else { Err(StoreError::Stopped) })))
        });
        works.send(Work::Plain(write)).await.map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }
}

/// One process by contract: SQLite's own locks would let a second server in and then fail at random.
fn lock(file: &Path) -> Result<File, StoreError> {
    let path = file.with_extension("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path)?;
    lock.try_lock().map_err(|_| {
        StoreError::Locked(format!(
            "another process has {} open; SQLite serves one process, use Postgres for several",
            file.display()
        ))
    })?;
    Ok(lock)
}

fn prepare_writer(connection: &Connection, synchronous: Synchronous) -> Result<Durability, StoreError> {
    let level = match synchronous {
        Synchronous::Off => "OFF",
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.execute_batch(&format!(
        "PRAGMA page_size = 4096; PRAGMA journal_mode = WAL; PRAGMA synchronous = {level}; PRAGMA cache_size = -32768;
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

fn open_reader(file: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -8192; PRAGMA mmap_size = 0;")?;
    Ok(connection)
}

fn serve_reads(connection: &Connection, inbox: &Mutex<mpsc::Receiver<Read>>) {
    loop {
        let read = inbox.lock().expect("never poisoned").blocking_recv();
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
        Ok((row.text()?, row.text()?))
    })?;
    for migration in migrate::outstanding(migrate::SQLITE, &applied)? {
        tx.execute_batch(migration.sql)?;
        let row = (migration.id, migration.checksum(), now.as_microsecond());
        tx.execute("INSERT INTO schema_migrations (id, checksum, applied_at) VALUES (?1, ?2, ?3)", row)?;
    }
    Ok(tx.commit()?)
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Self::Int(Some(number)) => ValueRef::Integer(*number),
            Self::Bytes(Some(bytes)) => ValueRef::Blob(bytes),
            Self::Text(None) | Self::Int(None) | Self::Bytes(None) => ValueRef::Null,
        }))
    }
}

fn query<T>(
    connection: &Connection,
    sql: &str,
    args: &[Value],
    decode: fn(&mut Reader<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(rusqlite::params_from_iter(args))?;
    let mut found = vec![];
    while let Some(row) = rows.next()? {
        found.push(decode(&mut Reader::new(RowRef::Sqlite(row)))?);
    }
    Ok(found)
}

/// The writer thread.
struct Lane {
    connection: Connection,
    host: Arc<OnceLock<Arc<dyn Host>>>,
}

impl Lane {
    fn run(mut self, mut inbox: mpsc::Receiver<Work>) {
        while let Some(first) = inbox.blocking_recv() {
            let (mut jobs, mut writes) = (vec![], vec![]);
            let mut next = Some(first);
            while let Some(work) = next {
                match work {
                    Work::Op(job) => jobs.push(job),
                    Work::Plain(write) => writes.push(write),
                }
                next = if jobs.len() + writes.len() < FLUSH_REQUESTS_MAX { inbox.try_recv().ok() } else { None };
            }
            self.flush(jobs, writes);
        }
    }

    fn flush(&mut self, jobs: Vec<Job>, writes: Vec<Write>) {
        let Some(host) = self.host.get().cloned() else {
            // Before the lanes have started there are only plain writes.
            return drop(self.flush_once(&[], writes, Timestamp::UNIX_EPOCH));
        };
        let now = host.now();
        let clash = lane::may_clash(&jobs);
        let (requests, answers): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.request, job.answer)).unzip();
        match self.flush_once(&requests, writes, now) {
            Ok((replies, desks)) => {
                host.committed(lane::committed(desks, requests.len()));
                answers.into_iter().zip(replies).for_each(|(answer, reply)| drop(answer.send(reply)));
            }
            Err(error) if clash && error.is_unique_violation() => {
                for (request, answer) in requests.into_iter().zip(answers) {
                    self.flush(vec![Job { request, answer }], vec![]);
                }
            }
            Err(error) => {
                tracing::error!(%error, requests = requests.len(), "a flush failed; nothing of it was written");
                let taken = error.is_unique_violation();
                for answer in answers {
                    let error = if taken { LaneError::Taken } else { LaneError::Store(StoreError::Stopped) };
                    let _ = answer.send(Err(error));
                }
            }
        }
    }

    fn flush_once(
        &mut self,
        requests: &[Request],
        writes: Vec<Write>,
        now: Timestamp,
    ) -> Result<(Vec<Answer>, Desks), StoreError> {
        let tx = self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        // Plain writes first: rows loaded for the requests below must already show what they did.
        let written: Vec<_> = writes.into_iter().map(|write| write(&tx)).collect();
        let mut desks = Desks::new();
        let outcome = (|| {
            let mut replies = Vec::with_capacity(requests.len());
            for request in requests {
                replies.push(match load(&tx, &mut desks, request)? {
                    Some(desk) => kernel::apply(desk, request.clone(), now).map_err(LaneError::Refused),
                    None => Err(LaneError::Refused(Failure::not_found("session"))),
                });
            }
            save(&tx, &Changes::of(&desks))?;
            Ok(replies)
        })();
        let outcome = match outcome {
            Ok(replies) => tx.commit().map(|()| replies).map_err(StoreError::from),
            Err(error) => tx.rollback().map_err(StoreError::from).and(Err(error)),
        };
        let committed = outcome.is_ok();
        written.into_iter().for_each(|answer| answer(committed));
        Ok((outcome?, desks))
    }
}

/// Puts the rows the request needs on its session's desk. `None`: there is no such session.
fn load<'a>(tx: &Connection, desks: &'a mut Desks, request: &Request) -> Result<Option<&'a mut Desk>, StoreError> {
    let desk = match desks.entry(request.session) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(vacant) => match new_session(request) {
            Some(session) => vacant.insert(Desk::new(Tracked::new(session.clone()))),
            None => match select::<Session>(tx, "WHERE t.session_id = ?1", &[text(request.session)])?.pop() {
                Some(session) => vacant.insert(Desk::new(Tracked::loaded(session))),
                None => return Ok(None),
            },
        },
    };
    if matches!(request.op, Op::CreateRun(_)) {
        return Ok(Some(desk));
    }
    if !desk.runs.contains_key(&request.run_id) {
        match load_run(tx, request.run_id)? {
            Some(rows) if rows.run.session == request.session => drop(desk.runs.insert(request.run_id, rows)),
            _ => return Ok(Some(desk)),
        }
    }
    let rows = desk.runs.get_mut(&request.run_id).expect("just put there");
    load_named(tx, rows, request)?;
    Ok(Some(desk))
}

fn new_session(request: &Request) -> Option<&Session> {
    match &request.op {
        Op::CreateRun(op) => op.session.as_ref(),
        _ => None,
    }
}

fn load_run(tx: &Connection, run_id: RunId) -> Result<Option<RunDesk>, StoreError> {
    let key = [text(run_id)];
    let sql = format!(
        "SELECT {}, {} FROM runs r LEFT JOIN leases l ON l.run_id = r.run_id WHERE r.run_id = ?1",
        columns::<Run>("r"),
        columns::<Lease>("l")
    );
    let found = query(tx, &sql, &key, |row| Ok((Run::decode(row)?, row.joined::<Lease>()?)))?.pop();
    let Some((run, lease)) = found else { return Ok(None) };
    let mut rows = RunDesk::new(Tracked::loaded(run));
    rows.lease = lease.map(Tracked::loaded);
    for command in select::<Command>(tx, &format!("WHERE t.run_id = ?1 AND t.{UNFINISHED}"), &key)? {
        rows.commands.insert(command.command_id, Tracked::loaded(command));
    }
    if rows.run.open_permissions > 0 {
        for request in select::<PermissionRequest>(tx, "WHERE t.run_id = ?1 AND t.status = 'pending'", &key)? {
            rows.permissions.insert(request.permission_id, Tracked::loaded(request));
        }
    }
    if let Some(job_id) = rows.run.standing_job_id {
        load_jobs(tx, &mut rows, "WHERE t.runner_job_id = ?1", &[text(job_id)])?;
    }
    Ok(Some(rows))
}

/// The rows an operation names beside the run and its unfinished commands.
fn load_named(tx: &Connection, rows: &mut RunDesk, request: &Request) -> Result<(), StoreError> {
    let run = text(request.run_id);
    for id in request.commands() {
        if !rows.commands.contains_key(&id) {
            load_commands(tx, rows, "WHERE t.command_id = ?1 AND t.run_id = ?2", &[text(id), run.clone()])?;
        }
    }
    let needs = request.needs();
    if let Some(key) = needs.command_key {
        load_commands(tx, rows, "WHERE t.run_id = ?1 AND t.idempotency_key = ?2", &[run.clone(), key.into()])?;
    }
    if needs.latest_command {
        let latest = rows.run.command_count.into();
        load_commands(tx, rows, "WHERE t.run_id = ?1 AND t.seq = ?2", &[run.clone(), latest])?;
    }
    if let Some(key) = needs.job_key {
        load_jobs(tx, rows, "WHERE t.run_id = ?1 AND t.idempotency_key = ?2", &[run.clone(), key.into()])?;
    }
    if let Some(id) = needs.job_id {
        load_jobs(tx, rows, "WHERE t.runner_job_id = ?1", &[text(id)])?;
    }
    if let Some(id) = needs.permission_id {
        for found in
            select::<PermissionRequest>(tx, "WHERE t.permission_id = ?1 AND t.run_id = ?2", &[text(id), run.clone()])?
        {
            rows.permissions.entry(found.permission_id).or_insert(Tracked::loaded(found));
        }
    }
    if let Some((epoch, no)) = needs.batch {
        let key = [run, epoch.into(), no.into()];
        let rest = "WHERE t.run_id = ?1 AND t.lease_epoch = ?2 AND t.batch_no = ?3";
        rows.batches.extend(select::<Batch>(tx, rest, &key)?.into_iter().map(Tracked::loaded));
    }
    Ok(())
}

/// Rows already on the desk may have changed there, so they win over what is stored.
fn load_commands(tx: &Connection, rows: &mut RunDesk, rest: &str, args: &[Value]) -> Result<(), StoreError> {
    for command in select::<Command>(tx, rest, args)? {
        rows.commands.entry(command.command_id).or_insert(Tracked::loaded(command));
    }
    Ok(())
}

fn load_jobs(tx: &Connection, rows: &mut RunDesk, rest: &str, args: &[Value]) -> Result<(), StoreError> {
    for job in select::<RunnerJob>(tx, rest, args)? {
        rows.jobs.entry(job.runner_job_id).or_insert(Tracked::loaded(job));
    }
    Ok(())
}

fn select<R: Record>(tx: &Connection, rest: &str, args: &[Value]) -> Result<Vec<R>, StoreError> {
    let sql = format!("SELECT {} FROM {} AS t {rest}", columns::<R>("t"), R::TABLE);
    query(tx, &sql, args, R::decode)
}

fn save(tx: &Connection, changes: &Changes<'_>) -> Result<(), StoreError> {
    save_events(tx, changes)?;
    upsert(tx, &changes.sessions)?;
    upsert(tx, &changes.runs)?;
    upsert(tx, &changes.leases)?;
    upsert(tx, &changes.commands)?;
    upsert(tx, &changes.permissions)?;
    upsert(tx, &changes.jobs)?;
    upsert(tx, &changes.batches)?;
    for (run_id, epoch) in &changes.forget_batches {
        let mut forget = tx.prepare_cached("DELETE FROM append_batches WHERE run_id = ?1 AND lease_epoch < ?2")?;
        forget.execute((run_id.to_string(), epoch))?;
    }
    Ok(())
}

fn save_events(tx: &Connection, changes: &Changes<'_>) -> Result<(), StoreError> {
    let mut insert = tx.prepare_cached(
        "INSERT INTO events (session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    for event in &changes.events {
        insert.execute(rusqlite::params![
            event.session.to_string(),
            event.session_seq,
            event.run.map(|(run_id, _)| run_id.to_string()),
            event.run.map(|(_, seq)| seq),
            event.command_id.map(|id| id.to_string()),
            event.event_type.as_str(),
            event.payload.as_deref(),
            &event.digest[..],
            &event.hash[..],
            event.created_at.as_microsecond(),
        ])?;
    }
    Ok(())
}

fn upsert<R: Record>(tx: &Connection, records: &[&R]) -> Result<(), StoreError> {
    if records.is_empty() {
        return Ok(());
    }
    let mut statement = tx.prepare_cached(&upsert_row::<R>())?;
    for record in records {
        statement.execute(rusqlite::params_from_iter(record.encode()))?;
    }
    Ok(())
}
