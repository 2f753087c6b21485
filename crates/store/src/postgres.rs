//! Postgres: a pool for reads and plain writes, and write lanes that each hold a connection of their own.
//!
//! A flush locks the sessions it touches, in order, then loads: a row read under that lock cannot change until the
//! commit. All writes go out in one statement.

use std::{collections::HashMap, fmt::Write as _, sync::Arc, time::Duration};

use ostler_protocol::{
    Failure, Timestamp,
    commands::Command,
    ids::{RunId, SessionId},
    kernel::{self, Batch, Desk, Op, Request, RunDesk, Tracked},
    leases::Lease,
    permissions::PermissionRequest,
    runner_jobs::RunnerJob,
    runs::Run,
    sessions::Session,
};
use sqlx::{
    AssertSqlSafe, Connection, Executor, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::mpsc;

use crate::{
    commands::UNFINISHED,
    db::{Durability, PgQuery, StoreError},
    lane::{self, Answer, Changes, Desks, FLUSH_REQUESTS_MAX, Host, Job, LaneError},
    migrate,
    record::{Kind, Reader, Record, RowRef, Value, columns, upsert_rows},
};

const POOL_CONNECTIONS_MAX: u32 = 8;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Servers starting together take turns at the ledger. Any number will do; this one is ours.
const MIGRATION_LOCK: i64 = 0x05_71_E5;

pub async fn open(url: &str, now: Timestamp) -> Result<PgPool, StoreError> {
    let options: PgConnectOptions = url.parse()?;
    let options = options.application_name("ostler");
    let pool = PgPoolOptions::new()
        .max_connections(POOL_CONNECTIONS_MAX)
        .acquire_timeout(CONNECT_TIMEOUT)
        .connect_with(options)
        .await?;
    let mut connection = pool.acquire().await?;
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
    drop(connection);
    Ok(pool)
}

pub async fn durability(pool: &PgPool) -> Result<Durability, StoreError> {
    let mut weak_settings = vec![];
    for name in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(pool).await?;
        if !matches!(value.as_str(), "on" | "remote_apply" | "remote_write" | "local") {
            weak_settings.push(format!("{name}={value}"));
        }
    }
    Ok(Durability { weak_settings })
}

pub struct Lane {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
    /// Write statements by the set of tables they touch.
    statements: HashMap<u16, String>,
}

impl Lane {
    pub async fn connect(pool: &PgPool) -> Result<Self, StoreError> {
        let options = (*pool.connect_options()).clone().options([
            // Plans made while tables are empty would keep scanning; every lane statement wants its index.
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
        ]);
        let connection = Some(PgConnection::connect_with(&options).await?);
        Ok(Self { options, connection, statements: HashMap::new() })
    }

    pub async fn run(mut self, mut inbox: mpsc::Receiver<Job>, host: Arc<dyn Host>) {
        while let Some(first) = inbox.recv().await {
            let mut jobs = vec![first];
            while jobs.len() < FLUSH_REQUESTS_MAX
                && let Ok(job) = inbox.try_recv()
            {
                jobs.push(job);
            }
            self.flush(jobs, &*host).await;
        }
        if let Some(connection) = self.connection {
            let _ = connection.close().await;
        }
    }

    async fn flush(&mut self, jobs: Vec<Job>, host: &dyn Host) {
        let clash = lane::may_clash(&jobs);
        let (requests, answers): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.request, job.answer)).unzip();
        let error = match self.flush_once(&requests, host.now()).await {
            Ok((replies, desks)) => {
                host.committed(lane::committed(desks, requests.len()));
                answers.into_iter().zip(replies).for_each(|(answer, reply)| drop(answer.send(reply)));
                return;
            }
            Err(error) => error,
        };
        if clash && error.is_unique_violation() {
            for (request, answer) in requests.into_iter().zip(answers) {
                let outcome = self.flush_once(std::slice::from_ref(&request), host.now()).await;
                let reply = match outcome {
                    Ok((mut replies, desks)) => {
                        host.committed(lane::committed(desks, 1));
                        replies.pop().expect("one request, one reply")
                    }
                    Err(error) => Err(LaneError::from(error)),
                };
                let _ = answer.send(reply);
            }
            return;
        }
        tracing::error!(%error, requests = requests.len(), "a flush failed; nothing of it was answered");
        let taken = error.is_unique_violation();
        for answer in answers {
            let error = if taken { LaneError::Taken } else { LaneError::Store(StoreError::Stopped) };
            let _ = answer.send(Err(error));
        }
    }

    async fn flush_once(&mut self, requests: &[Request], now: Timestamp) -> Result<(Vec<Answer>, Desks), StoreError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => PgConnection::connect_with(&self.options).await?,
        };
        let outcome = self.transact(&mut connection, requests, now).await;
        // After any failure but a clash the connection is in doubt, and so it is not used again.
        match &outcome {
            Err(error) if !error.is_unique_violation() => {}
            _ => self.connection = Some(connection),
        }
        outcome
    }

    async fn transact(
        &mut self,
        connection: &mut PgConnection,
        requests: &[Request],
        now: Timestamp,
    ) -> Result<(Vec<Answer>, Desks), StoreError> {
        let mut tx = connection.begin().await?;
        let mut desks = load(&mut tx, requests).await?;
        let replies = requests
            .iter()
            .map(|request| match desks.get_mut(&request.session) {
                Some(desk) => kernel::apply(desk, request.clone(), now).map_err(LaneError::Refused),
                None => Err(LaneError::Refused(Failure::not_found("session"))),
            })
            .collect();
        let changes = Changes::of(&desks);
        if changes.is_empty() {
            tx.rollback().await?;
        } else {
            self.save(&mut tx, &changes).await?;
            tx.commit().await?;
        }
        Ok((replies, desks))
    }

    /// Everything in one statement: an insert or upsert per table that changed.
    async fn save(&mut self, tx: &mut PgConnection, changes: &Changes<'_>) -> Result<(), StoreError> {
        let tables = [
            !changes.events.is_empty(),
            !changes.sessions.is_empty(),
            !changes.runs.is_empty(),
            !changes.leases.is_empty(),
            !changes.commands.is_empty(),
            !changes.permissions.is_empty(),
            !changes.jobs.is_empty(),
            !changes.batches.is_empty(),
            !changes.forget_batches.is_empty(),
        ];
        let mask = tables.iter().rev().fold(0_u16, |mask, touched| mask << 1 | u16::from(*touched));
        let sql = self.statements.entry(mask).or_insert_with(|| write_statement(tables)).clone();
        let mut query = sqlx::query(AssertSqlSafe(sql));
        if tables[0] {
            query = bind_events(query, changes);
        }
        query = bind_records(query, &changes.sessions);
        query = bind_records(query, &changes.runs);
        query = bind_records(query, &changes.leases);
        query = bind_records(query, &changes.commands);
        query = bind_records(query, &changes.permissions);
        query = bind_records(query, &changes.jobs);
        query = bind_records(query, &changes.batches);
        if tables[8] {
            query = query.bind(changes.forget_batches.iter().map(|(run_id, _)| run_id.to_string()).collect::<Vec<_>>());
            query = query.bind(changes.forget_batches.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>());
        }
        query.execute(tx).await?;
        Ok(())
    }
}

fn write_statement(tables: [bool; 9]) -> String {
    let mut parts: Vec<String> = vec![];
    let mut next = 1;
    if tables[0] {
        parts.push(
            "INSERT INTO events (session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, created_at)
             SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                 $8::bytea[], $9::bytea[], $10::bigint[])"
                .into(),
        );
        next += 10;
    }
    let mut add = |touched: bool, upsert: fn(usize) -> String, columns: usize| {
        if touched {
            parts.push(upsert(next));
            next += columns;
        }
    };
    add(tables[1], upsert_rows::<Session>, Session::COLUMNS.len());
    add(tables[2], upsert_rows::<Run>, Run::COLUMNS.len());
    add(tables[3], upsert_rows::<Lease>, Lease::COLUMNS.len());
    add(tables[4], upsert_rows::<Command>, Command::COLUMNS.len());
    add(tables[5], upsert_rows::<PermissionRequest>, PermissionRequest::COLUMNS.len());
    add(tables[6], upsert_rows::<RunnerJob>, RunnerJob::COLUMNS.len());
    add(tables[7], upsert_rows::<Batch>, Batch::COLUMNS.len());
    if tables[8] {
        parts.push(format!(
            "DELETE FROM append_batches b USING UNNEST(${next}::text[], ${}::bigint[]) AS k (run_id, epoch)
             WHERE b.run_id = k.run_id AND b.lease_epoch < k.epoch",
            next + 1
        ));
    }
    let mut sql = String::from("WITH ");
    for (index, part) in parts.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(sql, "{comma}w{index} AS ({part})").expect("writing to a string");
    }
    sql + " SELECT 1"
}

fn bind_events<'q>(query: PgQuery<'q>, changes: &Changes<'q>) -> PgQuery<'q> {
    let events = &changes.events;
    query
        .bind(events.iter().map(|e| e.session.to_string()).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.session_seq).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.run.map(|(run_id, _)| run_id.to_string())).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.run.map(|(_, seq)| seq)).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.command_id.map(|id| id.to_string())).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.event_type.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.payload.as_deref()).collect::<Vec<_>>())
        .bind(events.iter().map(|e| &e.digest[..]).collect::<Vec<_>>())
        .bind(events.iter().map(|e| &e.hash[..]).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.created_at.as_microsecond()).collect::<Vec<_>>())
}

/// One array per column.
fn bind_records<'q, R: Record>(mut query: PgQuery<'q>, records: &[&R]) -> PgQuery<'q> {
    if records.is_empty() {
        return query;
    }
    let mut rows: Vec<_> = records.iter().map(|record| record.encode().into_iter()).collect();
    for (_, kind) in R::COLUMNS {
        let column = rows.iter_mut().map(|row| row.next().expect("as many values as columns"));
        query =
            match kind {
                Kind::Text => {
                    query.bind(column.map(|v| if let Value::Text(text) = v { text } else { None }).collect::<Vec<_>>())
                }
                Kind::Int => query
                    .bind(column.map(|v| if let Value::Int(number) = v { number } else { None }).collect::<Vec<_>>()),
                Kind::Bytes => query
                    .bind(column.map(|v| if let Value::Bytes(bytes) = v { bytes } else { None }).collect::<Vec<_>>()),
            };
    }
    query
}

async fn load(tx: &mut PgConnection, requests: &[Request]) -> Result<Desks, StoreError> {
    let mut desks = Desks::new();
    let mut sessions: Vec<SessionId> = vec![];
    let mut runs: Vec<RunId> = vec![];
    for request in requests {
        match &request.op {
            Op::CreateRun(op) => match &op.session {
                Some(session) => drop(desks.insert(request.session, Desk::new(Tracked::new(session.clone())))),
                None => sessions.push(request.session),
            },
            _ => {
                sessions.push(request.session);
                runs.push(request.run_id);
            }
        }
    }
    sessions.sort_unstable();
    sessions.dedup();
    runs.sort_unstable();
    runs.dedup();
    let lock = "WHERE t.session_id = ANY($1) ORDER BY t.session_id FOR UPDATE";
    for session in select_any::<Session>(tx, lock, strings(&sessions)).await? {
        desks.entry(session.session).or_insert_with(|| Desk::new(Tracked::loaded(session)));
    }
    if !runs.is_empty() {
        load_runs(tx, &mut desks, &runs).await?;
        load_named(tx, &mut desks, requests).await?;
    }
    Ok(desks)
}

fn strings<T: ToString>(ids: &[T]) -> Vec<String> {
    ids.iter().map(T::to_string).collect()
}

async fn load_runs(tx: &mut PgConnection, desks: &mut Desks, runs: &[RunId]) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT {}, {} FROM runs r LEFT JOIN leases l ON l.run_id = r.run_id WHERE r.run_id = ANY($1)",
        columns::<Run>("r"),
        columns::<Lease>("l")
    );
    let (mut asking, mut standing) = (vec![], vec![]);
    for row in sqlx::query(AssertSqlSafe(sql)).bind(strings(runs)).fetch_all(&mut *tx).await? {
        let mut reader = Reader::new(RowRef::Postgres(&row));
        let run = Run::decode(&mut reader)?;
        if run.open_permissions > 0 {
            asking.push(run.run_id);
        }
        standing.extend(run.standing_job_id);
        let mut rows = RunDesk::new(Tracked::loaded(run));
        rows.lease = reader.joined::<Lease>()?.map(Tracked::loaded);
        if let Some(desk) = desks.get_mut(&rows.run.session) {
            desk.runs.insert(rows.run.run_id, rows);
        }
    }
    for command in
        select_any::<Command>(tx, &format!("WHERE t.run_id = ANY($1) AND t.{UNFINISHED}"), strings(runs)).await?
    {
        put_command(desks, command);
    }
    if !asking.is_empty() {
        let open = "WHERE t.run_id = ANY($1) AND t.status = 'pending'";
        for request in select_any::<PermissionRequest>(tx, open, strings(&asking)).await? {
            put_permission(desks, request);
        }
    }
    if !standing.is_empty() {
        for job in select_any::<RunnerJob>(tx, "WHERE t.runner_job_id = ANY($1)", strings(&standing)).await? {
            put_job(desks, job);
        }
    }
    Ok(())
}

/// The rows operations name beside their runs and the unfinished commands.
async fn load_named(tx: &mut PgConnection, desks: &mut Desks, requests: &[Request]) -> Result<(), StoreError> {
    let (mut commands, mut jobs, mut permissions) = (vec![], vec![], vec![]);
    let (mut command_keys, mut job_keys) = ((vec![], vec![]), (vec![], vec![]));
    let mut latest = (vec![], vec![]);
    let mut batches = (vec![], vec![], vec![]);
    for request in requests.iter().filter(|request| !matches!(request.op, Op::CreateRun(_))) {
        let known = desks.get(&request.session).and_then(|desk| desk.runs.get(&request.run_id));
        let missing = |id: &_| known.is_some_and(|rows| !rows.commands.contains_key(id));
        commands.extend(request.commands().iter().filter(|id| missing(id)).map(ToString::to_string));
        let needs = request.needs();
        let run = || request.run_id.to_string();
        if let Some(key) = needs.command_key {
            command_keys.0.push(run());
            command_keys.1.push(key.to_owned());
        }
        if needs.latest_command
            && let Some(rows) = known
        {
            latest.0.push(run());
            latest.1.push(rows.run.command_count);
        }
        if let Some(key) = needs.job_key {
            job_keys.0.push(run());
            job_keys.1.push(key.to_owned());
        }
        jobs.extend(needs.job_id.map(|id| id.to_string()));
        permissions.extend(needs.permission_id.map(|id| id.to_string()));
        if let Some((epoch, no)) = needs.batch {
            batches.0.push(run());
            batches.1.push(epoch);
            batches.2.push(no);
        }
    }
    if !commands.is_empty() {
        let found = select_any::<Command>(tx, "WHERE t.command_id = ANY($1)", commands).await?;
        found.into_iter().for_each(|command| put_command(desks, command));
    }
    if !command_keys.0.is_empty() {
        let rest = "JOIN UNNEST($1::text[], $2::text[]) AS k (run_id, key) ON t.run_id = k.run_id AND t.idempotency_key = k.key";
        let found = fetch::<Command>(tx, rest, |query| query.bind(command_keys.0).bind(command_keys.1)).await?;
        found.into_iter().for_each(|command| put_command(desks, command));
    }
    if !latest.0.is_empty() {
        let rest = "JOIN UNNEST($1::text[], $2::bigint[]) AS k (run_id, seq) ON t.run_id = k.run_id AND t.seq = k.seq";
        let found = fetch::<Command>(tx, rest, |query| query.bind(latest.0).bind(latest.1)).await?;
        found.into_iter().for_each(|command| put_command(desks, command));
    }
    if !jobs.is_empty() {
        let found = select_any::<RunnerJob>(tx, "WHERE t.runner_job_id = ANY($1)", jobs).await?;
        found.into_iter().for_each(|job| put_job(desks, job));
    }
    if !job_keys.0.is_empty() {
        let rest = "JOIN UNNEST($1::text[], $2::text[]) AS k (run_id, key) ON t.run_id = k.run_id AND t.idempotency_key = k.key";
        let found = fetch::<RunnerJob>(tx, rest, |query| query.bind(job_keys.0).bind(job_keys.1)).await?;
        found.into_iter().for_each(|job| put_job(desks, job));
    }
    if !permissions.is_empty() {
        let found = select_any::<PermissionRequest>(tx, "WHERE t.permission_id = ANY($1)", permissions).await?;
        found.into_iter().for_each(|request| put_permission(desks, request));
    }
    if !batches.0.is_empty() {
        let rest = "JOIN UNNEST($1::text[], $2::bigint[], $3::bigint[]) AS k (run_id, epoch, no)
            ON t.run_id = k.run_id AND t.lease_epoch = k.epoch AND t.batch_no = k.no";
        let found = fetch::<Batch>(tx, rest, |query| query.bind(batches.0).bind(batches.1).bind(batches.2)).await?;
        for batch in found {
            let rows = desks.values_mut().find_map(|desk| desk.runs.get_mut(&batch.run_id));
            if let Some(rows) = rows {
                rows.batches.push(Tracked::loaded(batch));
            }
        }
    }
    Ok(())
}

fn put_command(desks: &mut Desks, command: Command) {
    if let Some(rows) = desks.get_mut(&command.session).and_then(|desk| desk.runs.get_mut(&command.run_id)) {
        rows.commands.entry(command.command_id).or_insert(Tracked::loaded(command));
    }
}

fn put_permission(desks: &mut Desks, request: PermissionRequest) {
    if let Some(rows) = desks.get_mut(&request.session).and_then(|desk| desk.runs.get_mut(&request.run_id)) {
        rows.permissions.entry(request.permission_id).or_insert(Tracked::loaded(request));
    }
}

fn put_job(desks: &mut Desks, job: RunnerJob) {
    if let Some(rows) = desks.get_mut(&job.session).and_then(|desk| desk.runs.get_mut(&job.run_id)) {
        rows.jobs.entry(job.runner_job_id).or_insert(Tracked::loaded(job));
    }
}

async fn select_any<R: Record>(tx: &mut PgConnection, rest: &str, ids: Vec<String>) -> Result<Vec<R>, StoreError> {
    fetch(tx, rest, |query| query.bind(ids)).await
}

async fn fetch<R: Record>(
    tx: &mut PgConnection,
    rest: &str,
    bind: impl for<'q> FnOnce(PgQuery<'q>) -> PgQuery<'q>,
) -> Result<Vec<R>, StoreError> {
    let sql = format!("SELECT {} FROM {} AS t {rest}", columns::<R>("t"), R::TABLE);
    let rows = bind(sqlx::query(AssertSqlSafe(sql))).fetch_all(tx).await?;
    rows.iter().map(|row| R::decode(&mut Reader::new(RowRef::Postgres(row)))).collect()
}
