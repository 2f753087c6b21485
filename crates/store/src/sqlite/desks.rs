//! Loading a flush's rows onto desks, and saving what changed.

use std::collections::hash_map::Entry;

use ostler_protocol::{
    ids::{RunId, SessionId},
    kernel::aliases::CommandAlias,
    kernel::{
        commands::Command,
        events::Event,
        leases::Lease,
        operations::{Batch, Desk, Request, RunDesk, Tracked},
        permissions::PermissionRequest,
        runner_jobs::RunnerJob,
        runs::Run,
        sessions::Session,
        usage::UsageDay,
    },
};
use rusqlite::Connection;

use super::query::query;
use crate::{
    error::StoreError,
    kernel::conditions::unfinished,
    lane::desks::{Changes, Desks, Rows, Warm},
    record::{Record, Value, columns, insert_row, insert_some, select, sql, text, update_row},
};

/// Puts the rows the request needs on its session's desk, from the warm ones where they are. `None`: there is no such session.
pub(super) fn load<'a>(
    tx: &Connection,
    warm: &mut Warm,
    desks: &'a mut Desks,
    request: &Request,
) -> Result<Option<&'a mut Desk>, StoreError> {
    let desk = match desks.entry(request.session) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(vacant) => {
            let known = match (request.new_session(), warm.take(request.session)) {
                (Some(session), _) => Some(Desk::new(Tracked::new(session.clone()))),
                (None, Some(desk)) => Some(desk),
                (None, None) => load_session(tx, request.session)?,
            };
            match known {
                Some(desk) => vacant.insert(desk),
                None => return Ok(None),
            }
        }
    };
    if let Some(name) = request.needs().alias.filter(|name| !desk.aliases.contains_key(*name)) {
        let named = select!(CommandAlias, "WHERE t.session_id = ?1 AND t.alias = ?2");
        let found = query(tx, named, &[text(request.session), name.into()], CommandAlias::decode)?;
        desk.aliases.extend(found.into_iter().map(|alias| (alias.alias.clone(), Tracked::loaded(alias))));
    }
    let Some(run_id) = request.run_id else { return Ok(Some(desk)) };
    let rows = match desk.runs.entry(run_id) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(vacant) => match load_run(tx, run_id)? {
            Some(rows) if rows.run.session == request.session => vacant.insert(rows),
            _ => return Ok(Some(desk)),
        },
    };
    if let Some(job_id) = rows.run.standing_job_id
        && !rows.jobs.contains_key(&job_id)
    {
        load_jobs(tx, rows, select!(RunnerJob, "WHERE t.runner_job_id = ?1"), &[text(job_id)])?;
    }
    load_named(tx, rows, request)?;
    Ok(Some(desk))
}

fn load_session(tx: &Connection, id: SessionId) -> Result<Option<Desk>, StoreError> {
    let found = query(tx, select!(Session, "WHERE t.session_id = ?1"), &[text(id)], Session::decode)?.pop();
    Ok(found.map(|session| Desk::new(Tracked::loaded(session))))
}

fn load_run(tx: &Connection, run_id: RunId) -> Result<Option<RunDesk>, StoreError> {
    let key = [text(run_id)];
    let sql = sql!(format!(
        "SELECT {}, {} FROM runs r LEFT JOIN leases l ON l.run_id = r.run_id WHERE r.run_id = ?1",
        columns::<Run>("r"),
        columns::<Lease>("l")
    ));
    let found = query(tx, sql, &key, |row| Ok((Run::decode(row)?, row.joined::<Lease>()?)))?.pop();
    let Some((run, lease)) = found else { return Ok(None) };
    let mut rows = RunDesk::new(Tracked::loaded(run));
    rows.lease = lease.map(Tracked::loaded);
    for command in
        query(tx, select!(Command, &format!("WHERE t.run_id = ?1 AND {}", unfinished("t."))), &key, Command::decode)?
    {
        rows.commands.insert(command.command_id, Tracked::loaded(command));
    }
    if rows.run.open_permissions > 0 {
        let open = select!(PermissionRequest, "WHERE t.run_id = ?1 AND t.status = 'pending'");
        for request in query(tx, open, &key, PermissionRequest::decode)? {
            rows.permissions.insert(request.permission_id, Tracked::loaded(request));
        }
    }
    Ok(Some(rows))
}

/// The rows an operation names beside the run and its unfinished commands.
fn load_named(tx: &Connection, rows: &mut RunDesk, request: &Request) -> Result<(), StoreError> {
    let run = text(rows.run.run_id);
    for id in request.commands() {
        if !rows.commands.contains_key(&id) {
            load_commands(
                tx,
                rows,
                select!(Command, "WHERE t.command_id = ?1 AND t.run_id = ?2"),
                &[text(id), run.clone()],
            )?;
        }
    }
    for id in request.permissions() {
        let named = select!(PermissionRequest, "WHERE t.run_id = ?1 AND t.permission_id = ?2");
        for found in query(tx, named, &[run.clone(), text(id)], PermissionRequest::decode)? {
            rows.permissions.entry(found.permission_id).or_insert(Tracked::loaded(found));
        }
    }
    let needs = request.needs();
    let all_here = rows.has_all_commands();
    if let Some(key) = needs.command_key.filter(|_| !all_here) {
        load_commands(
            tx,
            rows,
            select!(Command, "WHERE t.run_id = ?1 AND t.idempotency_key = ?2"),
            &[run.clone(), key.into()],
        )?;
    }
    if needs.latest_command && !all_here {
        let latest = rows.run.command_count.into();
        load_commands(tx, rows, select!(Command, "WHERE t.run_id = ?1 AND t.seq = ?2"), &[run.clone(), latest])?;
    }
    if let Some(key) = needs.job_key {
        load_jobs(
            tx,
            rows,
            select!(RunnerJob, "WHERE t.run_id = ?1 AND t.idempotency_key = ?2"),
            &[run.clone(), key.into()],
        )?;
    }
    let absent = needs.warm_job_id.filter(|id| !rows.jobs.contains_key(id));
    if let Some(id) = needs.job_id.or(absent) {
        load_jobs(tx, rows, select!(RunnerJob, "WHERE t.runner_job_id = ?1"), &[text(id)])?;
    }
    if needs.pending_jobs {
        let pending = select!(RunnerJob, "WHERE t.run_id = ?1 AND t.phase = 'pending'");
        load_jobs(tx, rows, pending, std::slice::from_ref(&run))?;
    }
    if let Some((epoch, no)) = needs.batch.filter(|(epoch, no)| !rows.is_new_batch(*epoch, *no)) {
        let key = [run, epoch.into(), no.into()];
        let named = select!(Batch, "WHERE t.run_id = ?1 AND t.lease_epoch = ?2 AND t.batch_no = ?3");
        rows.batches.extend(query(tx, named, &key, Batch::decode)?.into_iter().map(Tracked::loaded));
    }
    Ok(())
}

/// Rows already on the desk may have changed there, so they win over what is stored.
fn load_commands(tx: &Connection, rows: &mut RunDesk, sql: &str, args: &[Value]) -> Result<(), StoreError> {
    for command in query(tx, sql, args, Command::decode)? {
        rows.commands.entry(command.command_id).or_insert(Tracked::loaded(command));
    }
    Ok(())
}

fn load_jobs(tx: &Connection, rows: &mut RunDesk, sql: &str, args: &[Value]) -> Result<(), StoreError> {
    query(tx, sql, args, RunnerJob::decode)?.into_iter().for_each(|job| rows.add_job(job));
    Ok(())
}

pub(super) fn save(tx: &Connection, changes: &Changes<'_>) -> Result<(), StoreError> {
    insert_events(tx, &changes.events)?;
    write(tx, sql!(insert_row::<Session>()), sql!(update_row::<Session>()), &changes.sessions)?;
    write(tx, sql!(insert_row::<Run>()), sql!(update_row::<Run>()), &changes.runs)?;
    write(tx, sql!(insert_row::<Lease>()), sql!(update_row::<Lease>()), &changes.leases)?;
    write(tx, sql!(insert_row::<Command>()), sql!(update_row::<Command>()), &changes.commands)?;
    write(tx, sql!(insert_row::<PermissionRequest>()), sql!(update_row::<PermissionRequest>()), &changes.permissions)?;
    write(tx, sql!(insert_row::<RunnerJob>()), sql!(update_row::<RunnerJob>()), &changes.jobs)?;
    insert(tx, sql!(insert_row::<Batch>()), &changes.batches)?;
    insert(tx, sql!(insert_row::<UsageDay>()), &changes.usage)?;
    insert(tx, sql!(insert_row::<CommandAlias>()), &changes.aliases)?;
    for (run_id, epoch) in &changes.forget_batches {
        let mut forget = tx.prepare_cached("DELETE FROM append_batches WHERE run_id = ?1 AND lease_epoch < ?2")?;
        forget.execute((run_id.to_string(), epoch))?;
    }
    Ok(())
}

fn write<R: Record>(tx: &Connection, insert_sql: &str, update_sql: &str, rows: &Rows<'_, R>) -> Result<(), StoreError> {
    insert(tx, insert_sql, &rows.new)?;
    if rows.changed.is_empty() {
        return Ok(());
    }
    let mut statement = tx.prepare_cached(update_sql)?;
    for record in &rows.changed {
        statement.execute(rusqlite::params_from_iter(record.key().into_iter().chain(record.state())))?;
    }
    Ok(())
}

/// Events that are inserted by one statement, which opens the table and its indexes once.
const EVENTS_TOGETHER: usize = 16;

fn insert_events(tx: &Connection, events: &[&Event]) -> Result<(), StoreError> {
    let (groups, rest) = events.as_chunks::<EVENTS_TOGETHER>();
    if !groups.is_empty() {
        let mut statement = tx.prepare_cached(sql!(insert_some::<Event>(EVENTS_TOGETHER)))?;
        for group in groups {
            let values = group.iter().flat_map(|event| event.fixed().into_iter().chain(event.state()));
            statement.execute(rusqlite::params_from_iter(values))?;
        }
    }
    insert(tx, sql!(insert_row::<Event>()), rest)
}

fn insert<R: Record>(tx: &Connection, sql: &str, records: &[&R]) -> Result<(), StoreError> {
    if records.is_empty() {
        return Ok(());
    }
    let mut statement = tx.prepare_cached(sql)?;
    for record in records {
        statement.execute(rusqlite::params_from_iter(record.fixed().into_iter().chain(record.state())))?;
    }
    Ok(())
}
