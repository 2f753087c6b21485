//! Loading a flush's rows onto desks. The sessions come first: what is read after a session either belongs to its
//! revision, or the session has another one by the time the flush is saved.

use ostler_protocol::{
    ids::{RunId, SessionId},
    kernel::aliases::CommandAlias,
    kernel::{
        commands::Command,
        leases::Lease,
        operations::{Batch, Desk, Request, RunDesk, Tracked},
        permissions::PermissionRequest,
        runner_jobs::RunnerJob,
        runs::Run,
        sessions::Session,
    },
};
use sqlx::PgConnection;

use super::connections::PgQuery;
use crate::{
    error::StoreError,
    kernel::conditions::unfinished,
    lane::desks::{Desks, Warm},
    record::{Reader, Record, RowRef, columns, select, sql},
};

/// How a flush makes sure that what it decided on still holds when it writes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Hold {
    Revisions,
    Locks,
}

pub(super) async fn load(
    tx: &mut PgConnection,
    warm: &mut Warm,
    requests: &[Request],
    hold: Hold,
) -> Result<Desks, StoreError> {
    let mut desks = Desks::new();
    let mut unread: Vec<SessionId> = vec![];
    for request in requests {
        let kept = warm.take(request.session).filter(|_| hold == Hold::Revisions);
        match (request.new_session(), kept) {
            (Some(session), _) => drop(desks.insert(request.session, Desk::new(Tracked::new(session.clone())))),
            (None, Some(desk)) => drop(desks.insert(request.session, desk)),
            (None, None) if !desks.contains_key(&request.session) => unread.push(request.session),
            (None, None) => {}
        }
    }
    if !unread.is_empty() {
        load_sessions(tx, &mut desks, unread, hold).await?;
    }
    let mut runs: Vec<RunId> = vec![];
    for (request, run_id) in of_runs(requests) {
        let known = desks.get(&request.session).map(|desk| desk.runs.contains_key(&run_id));
        runs.extend((known == Some(false)).then_some(run_id));
    }
    if !runs.is_empty() {
        runs.sort_unstable();
        runs.dedup();
        load_runs(tx, &mut desks, &runs).await?;
    }
    load_named(tx, &mut desks, requests).await?;
    load_aliases(tx, &mut desks, requests).await?;
    Ok(desks)
}

/// The requests about runs that are there.
fn of_runs(requests: &[Request]) -> impl Iterator<Item = (&Request, RunId)> {
    requests.iter().filter_map(|request| Some((request, request.run_id?)))
}

async fn load_sessions(
    tx: &mut PgConnection,
    desks: &mut Desks,
    mut ids: Vec<SessionId>,
    hold: Hold,
) -> Result<(), StoreError> {
    ids.sort_unstable();
    ids.dedup();
    let sql = match hold {
        Hold::Revisions => select!(Session, "WHERE t.session_id = ANY($1)"),
        Hold::Locks => select!(Session, "WHERE t.session_id = ANY($1) ORDER BY t.session_id FOR UPDATE"),
    };
    for session in select_any::<Session>(tx, sql, strings(&ids)).await? {
        desks.entry(session.session).or_insert_with(|| Desk::new(Tracked::loaded(session)));
    }
    Ok(())
}

fn strings<T: ToString>(ids: &[T]) -> Vec<String> {
    ids.iter().map(T::to_string).collect()
}

async fn load_runs(tx: &mut PgConnection, desks: &mut Desks, runs: &[RunId]) -> Result<(), StoreError> {
    // One round trip for the three; a run with several unfinished commands comes several times.
    let sql = sql!(format!(
        "SELECT {}, {}, {} FROM runs r LEFT JOIN leases l ON l.run_id = r.run_id
         LEFT JOIN commands c ON c.run_id = r.run_id AND {} WHERE r.run_id = ANY($1)",
        columns::<Run>("r"),
        columns::<Lease>("l"),
        columns::<Command>("c"),
        unfinished("c.")
    ));
    let mut asking = vec![];
    for row in sqlx::query(sql).bind(strings(runs)).fetch_all(&mut *tx).await? {
        let mut reader = Reader::new(RowRef::Postgres(&row));
        let run = Run::decode(&mut reader)?;
        let (lease, command) = (reader.joined::<Lease>()?, reader.joined::<Command>()?);
        let Some(desk) = desks.get_mut(&run.session) else { continue };
        let rows = desk.runs.entry(run.run_id).or_insert_with(|| {
            asking.extend((run.open_permissions > 0).then_some(run.run_id));
            RunDesk { lease: lease.map(Tracked::loaded), ..RunDesk::new(Tracked::loaded(run)) }
        });
        rows.commands.extend(command.map(|command| (command.command_id, Tracked::loaded(command))));
    }
    if !asking.is_empty() {
        let open = select!(PermissionRequest, "WHERE t.run_id = ANY($1) AND t.status = 'pending'");
        for request in select_any::<PermissionRequest>(tx, open, strings(&asking)).await? {
            put_permission(desks, request);
        }
    }
    Ok(())
}

/// The rows operations name beside their runs and the unfinished commands.
async fn load_named(tx: &mut PgConnection, desks: &mut Desks, requests: &[Request]) -> Result<(), StoreError> {
    let (mut commands, mut jobs, mut permissions) = (vec![], vec![], vec![]);
    let mut pending_jobs = vec![];
    let (mut command_keys, mut job_keys) = ((vec![], vec![]), (vec![], vec![]));
    let mut latest = (vec![], vec![]);
    let mut batches = (vec![], vec![], vec![]);
    for (request, run_id) in of_runs(requests) {
        let known = desks.get(&request.session).and_then(|desk| desk.runs.get(&run_id));
        let missing = |id: &_| known.is_some_and(|rows| !rows.commands.contains_key(id));
        commands.extend(request.commands().iter().filter(|id| missing(id)).map(ToString::to_string));
        let needs = request.needs();
        let run = || run_id.to_string();
        let all_here = known.is_none_or(RunDesk::has_all_commands);
        if let Some(key) = needs.command_key.filter(|_| !all_here) {
            command_keys.0.push(run());
            command_keys.1.push(key.to_owned());
        }
        if needs.latest_command
            && let Some(rows) = known.filter(|_| !all_here)
        {
            latest.0.push(run());
            latest.1.push(rows.run.command_count);
        }
        if let Some(key) = needs.job_key {
            job_keys.0.push(run());
            job_keys.1.push(key.to_owned());
        }
        let standing = known.and_then(|rows| rows.run.standing_job_id);
        let job_missing = |id: &_| known.is_some_and(|rows| !rows.jobs.contains_key(id));
        let missing = needs.warm_job_id.into_iter().chain(standing).filter(job_missing);
        jobs.extend(needs.job_id.into_iter().chain(missing).map(|id| id.to_string()));
        pending_jobs.extend(needs.pending_jobs.then(run));
        permissions.extend(request.permissions().iter().map(ToString::to_string));
        let seen = |(epoch, no): &(i64, i64)| known.is_some_and(|rows| !rows.is_new_batch(*epoch, *no));
        if let Some((epoch, no)) = needs.batch.filter(seen) {
            batches.0.push(run());
            batches.1.push(epoch);
            batches.2.push(no);
        }
    }
    if !commands.is_empty() {
        let found = select_any::<Command>(tx, select!(Command, "WHERE t.command_id = ANY($1)"), commands).await?;
        found.into_iter().for_each(|command| put_command(desks, command));
    }
    if !command_keys.0.is_empty() {
        let keyed = select!(
            Command,
            "JOIN UNNEST($1::text[], $2::text[]) AS k (run_id, key) ON t.run_id = k.run_id AND t.idempotency_key = k.key"
        );
        let found = fetch::<Command>(tx, keyed, |query| query.bind(command_keys.0).bind(command_keys.1)).await?;
        found.into_iter().for_each(|command| put_command(desks, command));
    }
    if !latest.0.is_empty() {
        let keyed = select!(
            Command,
            "JOIN UNNEST($1::text[], $2::bigint[]) AS k (run_id, seq) ON t.run_id = k.run_id AND t.seq = k.seq"
        );
        let found = fetch::<Command>(tx, keyed, |query| query.bind(latest.0).bind(latest.1)).await?;
        found.into_iter().for_each(|command| put_command(desks, command));
    }
    // Before the other jobs: one that is claimed while this waits for its lock is read again below, as claimed.
    if !pending_jobs.is_empty() {
        let pending =
            select!(RunnerJob, "WHERE t.run_id = ANY($1) AND t.phase = 'pending' ORDER BY t.runner_job_id FOR UPDATE");
        let found = select_any::<RunnerJob>(tx, pending, pending_jobs).await?;
        found.into_iter().for_each(|job| put_job(desks, job));
    }
    if !jobs.is_empty() {
        let found = select_any::<RunnerJob>(tx, select!(RunnerJob, "WHERE t.runner_job_id = ANY($1)"), jobs).await?;
        found.into_iter().for_each(|job| put_job(desks, job));
    }
    if !job_keys.0.is_empty() {
        let keyed = select!(
            RunnerJob,
            "JOIN UNNEST($1::text[], $2::text[]) AS k (run_id, key) ON t.run_id = k.run_id AND t.idempotency_key = k.key"
        );
        let found = fetch::<RunnerJob>(tx, keyed, |query| query.bind(job_keys.0).bind(job_keys.1)).await?;
        found.into_iter().for_each(|job| put_job(desks, job));
    }
    if !permissions.is_empty() {
        let found = select_any::<PermissionRequest>(
            tx,
            select!(PermissionRequest, "WHERE t.permission_id = ANY($1)"),
            permissions,
        )
        .await?;
        found.into_iter().for_each(|request| put_permission(desks, request));
    }
    if !batches.0.is_empty() {
        let keyed = select!(
            Batch,
            "JOIN UNNEST($1::text[], $2::bigint[], $3::bigint[]) AS k (run_id, epoch, no)
            ON t.run_id = k.run_id AND t.lease_epoch = k.epoch AND t.batch_no = k.no"
        );
        let found = fetch::<Batch>(tx, keyed, |query| query.bind(batches.0).bind(batches.1).bind(batches.2)).await?;
        for batch in found {
            let rows = desks.values_mut().find_map(|desk| desk.runs.get_mut(&batch.run_id));
            if let Some(rows) = rows {
                rows.batches.push(Tracked::loaded(batch));
            }
        }
    }
    Ok(())
}

/// Aliases of sessions that existed before.
async fn load_aliases(tx: &mut PgConnection, desks: &mut Desks, requests: &[Request]) -> Result<(), StoreError> {
    let known = |request: &&Request| request.new_session().is_none();
    let named =
        requests.iter().filter(known).filter_map(|r| Some((r.session.to_string(), r.needs().alias?.to_owned())));
    let (sessions, names): (Vec<_>, Vec<_>) = named.unzip();
    if sessions.is_empty() {
        return Ok(());
    }
    let keyed = select!(
        CommandAlias,
        "JOIN UNNEST($1::text[], $2::text[]) AS k (session_id, alias)
        ON t.session_id = k.session_id AND t.alias = k.alias"
    );
    for alias in fetch::<CommandAlias>(tx, keyed, |query| query.bind(sessions).bind(names)).await? {
        if let Some(desk) = desks.get_mut(&alias.session) {
            desk.aliases.insert(alias.alias.clone(), Tracked::loaded(alias));
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
        rows.add_job(job);
    }
}

async fn select_any<R: Record>(
    tx: &mut PgConnection,
    sql: &'static str,
    ids: Vec<String>,
) -> Result<Vec<R>, StoreError> {
    fetch(tx, sql, |query| query.bind(ids)).await
}

async fn fetch<R: Record>(
    tx: &mut PgConnection,
    sql: &'static str,
    bind: impl for<'q> FnOnce(PgQuery<'q>) -> PgQuery<'q>,
) -> Result<Vec<R>, StoreError> {
    let rows = bind(sqlx::query(sql)).fetch_all(tx).await?;
    rows.iter().map(|row| R::decode(&mut Reader::new(RowRef::Postgres(row)))).collect()
}
