//! The desks of a flush: the rows that it loads, what it has to write of them, and what is kept for the next one.

use std::collections::HashMap;

use ostler_protocol::{
    Timestamp,
    ids::{RunId, RunnerJobId, SessionId},
    kernel::{
        aliases::CommandAlias,
        commands::Command,
        events::Event,
        leases::Lease,
        operations::{Batch, Desk, RowChange, StartedJob, Tracked},
        permissions::PermissionRequest,
        runner_jobs::RunnerJob,
        runs::Run,
        sessions::Session,
        usage::UsageDay,
    },
};

use super::job::{Answer, Committed, Host};

/// Sessions whose rows a lane keeps between flushes.
const WARM_SESSIONS_MAX: usize = 1_024;

pub(crate) type Desks = HashMap<SessionId, Desk>;

/// The rows a flush has to write.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub sessions: Rows<'a, Session>,
    pub runs: Rows<'a, Run>,
    pub leases: Rows<'a, Lease>,
    pub commands: Rows<'a, Command>,
    pub permissions: Rows<'a, PermissionRequest>,
    pub jobs: Rows<'a, RunnerJob>,
    pub batches: Vec<&'a Batch>,
    pub usage: Vec<&'a UsageDay>,
    pub forget_batches: Vec<(RunId, i64)>,
    pub events: Vec<&'a Event>,
    pub aliases: Vec<&'a CommandAlias>,
    /// Sessions that were decided on and stay as they are.
    pub consulted: Vec<&'a Session>,
}

/// The jobs that a flush starts. Their places are given back unless the flush is committed.
pub(crate) struct Starts<'a> {
    host: &'a dyn Host,
    now: Timestamp,
    reserved: Vec<RunnerJobId>,
    jobs: Vec<StartedJob>,
    /// The database may commit the flush although its response is lost.
    is_sent: bool,
}

impl<'a> Starts<'a> {
    fn none(host: &'a dyn Host, now: Timestamp) -> Self {
        Self { host, now, reserved: vec![], jobs: vec![], is_sent: false }
    }

    /// Starts the jobs that wait, where this process has places for their runners.
    pub(crate) fn decide(desks: &mut Desks, host: &'a dyn Host, now: Timestamp) -> Self {
        let mut starts = Self::none(host, now);
        for desk in desks.values_mut().filter(|desk| !desk.waiting_jobs.is_empty()) {
            let started = desk.start_jobs(now, |job, run| {
                let place = host.reserve(job, run)?;
                starts.reserved.push(job.runner_job_id);
                Some(place)
            });
            starts.jobs.extend(started);
        }
        starts
    }

    /// The statements that write the flush are about to be sent.
    pub(crate) fn mark_sent(&mut self) {
        self.is_sent = true;
    }

    /// The database has rejected the flush, so that nothing of it was written.
    pub(crate) fn mark_not_written(&mut self) {
        self.is_sent = false;
    }

    fn committed(mut self) -> Vec<StartedJob> {
        self.reserved.clear();
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for Starts<'_> {
    fn drop(&mut self) {
        if !self.reserved.is_empty() {
            self.host.give_back(&self.reserved, self.is_sent.then_some(self.now));
        }
    }
}

/// What a flush has decided, and written unless its commit fails.
pub(crate) struct Decided<'a> {
    pub replies: Vec<Answer>,
    pub desks: Desks,
    pub starts: Starts<'a>,
}

impl<'a> Decided<'a> {
    /// Nothing was written.
    pub(crate) fn rejected(replies: Vec<Answer>, (host, now): (&'a dyn Host, Timestamp)) -> Self {
        Self { replies, desks: Desks::new(), starts: Starts::none(host, now) }
    }
}

/// One table's part of them.
pub(crate) struct Rows<'a, T> {
    pub new: Vec<&'a T>,
    pub changed: Vec<&'a T>,
}

impl<T> Default for Rows<'_, T> {
    fn default() -> Self {
        Self { new: vec![], changed: vec![] }
    }
}

impl<'a, T> Rows<'a, T> {
    fn add(&mut self, row: &'a Tracked<T>) {
        self.new.extend(row.if_to_write(RowChange::New));
        self.changed.extend(row.if_to_write(RowChange::Changed));
    }
}

impl<'a> Changes<'a> {
    pub(crate) fn of(desks: &'a Desks) -> Self {
        let mut changes = Self::default();
        for desk in desks.values() {
            changes.sessions.add(&desk.session);
            changes.consulted.extend((!desk.session.is_to_write()).then_some(&*desk.session));
            changes.events.extend(&desk.events);
            changes.aliases.extend(desk.aliases.values().filter_map(|row| row.if_to_write(RowChange::New)));
            for rows in desk.runs.values() {
                changes.runs.add(&rows.run);
                rows.lease.iter().for_each(|row| changes.leases.add(row));
                rows.commands.values().for_each(|row| changes.commands.add(row));
                rows.permissions.values().for_each(|row| changes.permissions.add(row));
                rows.jobs.values().for_each(|row| changes.jobs.add(row));
                changes.batches.extend(rows.batches.iter().filter_map(|row| row.if_to_write(RowChange::New)));
                changes.usage.extend(rows.usage.values());
                changes.forget_batches.extend(rows.forget_batches_before.map(|epoch| (rows.run.run_id, epoch)));
            }
        }
        // Keys are taken in one order everywhere, so that two processes never wait for each other in a circle.
        changes.sessions.changed.sort_unstable_by_key(|session| session.session);
        changes.sessions.new.sort_unstable_by_key(|session| (&session.tenant_id, &session.external_id));
        changes.runs.new.sort_unstable_by_key(|run| (&run.tenant_id, &run.idempotency_key));
        changes
    }
}

/// Desks of earlier flushes, so that a session in steady use is not read again and again. On SQLite no other
/// process can have changed their rows; on Postgres the session's revision shows it.
#[derive(Default)]
pub(crate) struct Warm(Desks);

impl Warm {
    pub(crate) fn take(&mut self, session: SessionId) -> Option<Desk> {
        self.0.remove(&session)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// What there is to publish now that the desks are durable; the rest is kept for the next flush.
    pub(crate) fn keep(
        &mut self,
        mut desks: Desks,
        starts: Starts<'_>,
        requests: usize,
        began_at: Timestamp,
    ) -> Committed {
        let jobs_waiting = desks.values().any(|desk| !desk.waiting_jobs.is_empty());
        let started = starts.committed();
        let commands = desks.values().flat_map(|desk| desk.runs.values()).flat_map(|rows| rows.commands.values());
        let new = commands.filter_map(|row| row.if_to_write(RowChange::New));
        let deadlines = new.filter_map(|command| command.deadline_at).collect();
        let events = desks.values_mut().flat_map(|desk| std::mem::take(&mut desk.events)).collect();
        if self.0.len() > WARM_SESSIONS_MAX {
            self.0.clear();
        }
        self.0.extend(desks.into_iter().filter_map(|(id, mut desk)| desk.keep_warm().then_some((id, desk))));
        Committed { events, deadlines, jobs_waiting, started, requests, began_at }
    }
}
