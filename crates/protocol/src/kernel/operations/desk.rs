//! The desk: the rows of one session that a flush works on, with what changed marked.

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Deref, DerefMut},
};

use super::usage::{empty_day, of_fold};
use crate::{
    Failure, Timestamp,
    ids::{CommandId, PermissionId, RunId, RunnerJobId},
    kernel::{
        aliases::CommandAlias,
        chain::{self, Hash},
        commands::Command,
        events::{Event, NewEvent},
        facts::Facts,
        leases::Lease,
        permissions::{PermissionRequest, PermissionStatus},
        runner_jobs::{JobPhase, Launcher, RunnerJob},
        runs::Run,
        sessions::Session,
        usage::{RunUsage, UsageDay, day_of},
    },
};

/// A run whose unfinished commands have more bytes than this is loaded again by the next flush.
const WARM_RUN_BYTES_MAX: usize = 16 * 1024;

/// A row that knows whether and how it must be written back.
#[derive(Clone, Debug)]
pub struct Tracked<T> {
    value: T,
    change: Option<RowChange>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowChange {
    New,
    Changed,
}

impl<T> Tracked<T> {
    pub fn loaded(value: T) -> Self {
        Self { value, change: None }
    }

    pub fn new(value: T) -> Self {
        Self { value, change: Some(RowChange::New) }
    }

    /// It has been written as it is.
    pub fn settled(&mut self) {
        self.change = None;
    }

    pub fn is_to_write(&self) -> bool {
        self.change.is_some()
    }

    /// The row, if it is to be written in this way.
    pub fn if_to_write(&self, how: RowChange) -> Option<&T> {
        (self.change == Some(how)).then_some(&self.value)
    }
}

impl<T> Deref for Tracked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Tracked<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.change.get_or_insert(RowChange::Changed);
        &mut self.value
    }
}

/// An append that was answered: the same `(epoch, number)` gets the same answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub run_id: RunId,
    pub lease_epoch: i64,
    pub batch_no: i64,
    pub first_seq: i64,
    pub last_seq: i64,
    pub released: bool,
    /// Of what was appended: another batch under the same number is refused.
    pub digest: Hash,
}

#[derive(Clone, Debug)]
pub struct Desk {
    pub session: Tracked<Session>,
    pub runs: HashMap<RunId, RunDesk>,
    /// Appended by this flush, in order.
    pub events: Vec<Event>,
    /// Aliases that operations name.
    pub aliases: BTreeMap<String, Tracked<CommandAlias>>,
    /// Jobs that this flush has made wait for a launcher.
    pub waiting_jobs: Vec<(RunId, RunnerJobId)>,
}

#[derive(Clone, Debug)]
pub struct RunDesk {
    pub run: Tracked<Run>,
    pub lease: Option<Tracked<Lease>>,
    /// Every unfinished command, and those an operation names.
    pub commands: BTreeMap<CommandId, Tracked<Command>>,
    /// Every open permission request, and those an operation names.
    pub permissions: BTreeMap<PermissionId, Tracked<PermissionRequest>>,
    /// The standing job, and those an operation names.
    pub jobs: BTreeMap<RunnerJobId, Tracked<RunnerJob>>,
    pub batches: Vec<Tracked<Batch>>,
    /// What this flush adds to the usage of each day.
    pub usage: BTreeMap<i64, UsageDay>,
    /// The highest batch of the lease's epoch, where the desk has seen the epoch begin. A higher one is new for certain.
    pub batch_high: Option<(i64, i64)>,
    /// Batches of earlier epochs can be dropped: those epochs are fenced out.
    pub forget_batches_before: Option<i64>,
}

/// Whether the job may stay on a warm desk. Only write lanes change a running resident job, and each change raises the session's
/// revision. Heartbeats are written outside the lanes, so operations that compare them load the row again.
fn is_resident(job: &RunnerJob) -> bool {
    job.phase == JobPhase::Running && job.launcher == Launcher::Resident
}

impl RunDesk {
    pub fn new(run: Tracked<Run>) -> Self {
        Self {
            run,
            lease: None,
            commands: BTreeMap::new(),
            permissions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            batches: vec![],
            usage: BTreeMap::new(),
            batch_high: None,
            forget_batches_before: None,
        }
    }

    fn keep_warm(&mut self) -> bool {
        self.run.settled();
        self.lease.iter_mut().for_each(Tracked::settled);
        self.commands.retain(|_, command| command.is_unfinished());
        self.commands.values_mut().for_each(Tracked::settled);
        self.permissions.retain(|_, request| request.status == PermissionStatus::Pending);
        self.permissions.values_mut().for_each(Tracked::settled);
        self.jobs.retain(|_, job| is_resident(job));
        self.jobs.values_mut().for_each(Tracked::settled);
        self.batches.clear();
        self.usage.clear();
        self.forget_batches_before = None;
        let bytes: usize = self.commands.values().map(|command| command.payload.as_str().len()).sum();
        !self.run.status.is_terminal() && bytes <= WARM_RUN_BYTES_MAX
    }

    /// Adds a job that was read. One that was changed since is newer than its row.
    pub fn add_job(&mut self, job: RunnerJob) {
        let known = self.jobs.get(&job.runner_job_id);
        if known.is_none_or(|known| !known.is_to_write()) {
            self.jobs.insert(job.runner_job_id, Tracked::loaded(job));
        }
    }

    fn is_to_write(&self) -> bool {
        self.run.is_to_write()
            || self.lease.as_ref().is_some_and(Tracked::is_to_write)
            || self.commands.values().any(Tracked::is_to_write)
            || self.permissions.values().any(Tracked::is_to_write)
            || self.jobs.values().any(Tracked::is_to_write)
            || self.batches.iter().any(Tracked::is_to_write)
            || !self.usage.is_empty()
            || self.forget_batches_before.is_some()
    }

    /// Whether the desk holds every command the run has ever had, so that none need be looked for.
    pub fn has_all_commands(&self) -> bool {
        self.commands.len() as i64 == self.run.command_count
    }

    /// Whether no batch of this number can have been appended before.
    pub fn is_new_batch(&self, epoch: i64, no: i64) -> bool {
        self.batch_high.is_some_and(|(of, high)| of == epoch && no > high)
    }

    pub fn unfinished(&self) -> impl Iterator<Item = &Command> {
        self.commands.values().map(|c| &**c).filter(|c| c.is_unfinished())
    }

    /// Unfinished commands by their number.
    pub fn unfinished_ids(&self) -> Vec<CommandId> {
        let mut list: Vec<_> = self.unfinished().map(|c| (c.seq, c.command_id)).collect();
        list.sort_unstable();
        list.into_iter().map(|(_, id)| id).collect()
    }

    pub fn live_lease(&self, now: Timestamp) -> Option<&Lease> {
        self.lease.as_deref().filter(|lease| lease.is_live(now))
    }
}

impl Desk {
    pub fn new(session: Tracked<Session>) -> Self {
        Self { session, runs: HashMap::new(), events: vec![], aliases: BTreeMap::new(), waiting_jobs: vec![] }
    }

    /// Closes the flush's work on the desk: what it decided here replaces the revision it decided on, and no other.
    pub fn seal(&mut self) {
        let to_write = self.session.is_to_write() || self.runs.values().any(RunDesk::is_to_write);
        if to_write && self.session.if_to_write(RowChange::New).is_none() {
            self.session.revision += 1;
        }
    }

    /// Keeps the rows that only this process writes and that every operation needs for the next flush. Rows that operations
    /// name are loaded again, and so are waiting jobs, because launchers take them directly. `false` if nothing is worth keeping.
    pub fn keep_warm(&mut self) -> bool {
        self.session.settled();
        self.events.clear();
        self.aliases.clear();
        self.waiting_jobs.clear();
        self.runs.retain(|_, rows| rows.keep_warm());
        !self.runs.is_empty() && self.session.erased_at.is_none()
    }

    pub fn run(&self, run_id: RunId) -> Result<&RunDesk, Failure> {
        self.runs.get(&run_id).ok_or_else(|| Failure::not_found("run"))
    }

    pub fn run_mut(&mut self, run_id: RunId) -> &mut RunDesk {
        self.runs.get_mut(&run_id).expect("checked by the operation before it changes anything")
    }

    /// Numbers the event, links it into the chain and advances the fold of its command. Returns the run's number.
    pub fn append(&mut self, run_id: RunId, new: NewEvent, now: Timestamp) -> i64 {
        let desk = self.runs.get_mut(&run_id).expect("checked by the operation before it changes anything");
        desk.run.last_seq += 1;
        desk.run.updated_at = now;
        let seq = desk.run.last_seq;
        let event = link(&mut self.session, Some((run_id, seq)), &new, now);
        let mut used = None;
        if let Some(command) = new.command_id.and_then(|id| desk.commands.get_mut(&id)) {
            let before = matches!(new.facts, Facts::Usage { .. }).then(|| of_fold(&command.fold));
            command.fold.apply(&event, &new.facts);
            command.updated_at = now;
            used = before.map(|before| of_fold(&command.fold).since(before));
        }
        self.events.push(event);
        if let Some(used) = used {
            self.count_usage(run_id, used, now);
        }
        seq
    }

    /// Advances the usage of the run, and of the run on this day. Only what is added is stored for a day, so that its row
    /// need not be loaded.
    pub(super) fn count_usage(&mut self, run_id: RunId, used: RunUsage, now: Timestamp) {
        let added = self.run_mut(run_id).run.usage.add(used);
        if added != RunUsage::default() {
            self.usage_today(run_id, now).used.add(added);
        }
    }

    /// Counts a run that is created now.
    pub(super) fn count_run(&mut self, run_id: RunId, now: Timestamp) {
        self.usage_today(run_id, now).runs += 1;
    }

    fn usage_today(&mut self, run_id: RunId, now: Timestamp) -> &mut UsageDay {
        let rows = self.runs.get_mut(&run_id).expect("checked by the operation before it changes anything");
        let RunDesk { run, usage, .. } = rows;
        let day = day_of(now);
        usage.entry(day).or_insert_with(|| empty_day(&self.session, run, day))
    }

    /// As [`Desk::append`], for a fact that belongs to no run.
    pub fn append_to_session(&mut self, new: NewEvent, now: Timestamp) {
        let event = link(&mut self.session, None, &new, now);
        self.events.push(event);
    }
}

/// Gives an event the session's next number and its place in the chain.
fn link(session: &mut Session, run: Option<(RunId, i64)>, new: &NewEvent, now: Timestamp) -> Event {
    session.last_seq += 1;
    session.updated_at = now;
    let mut event = Event {
        session: session.session,
        session_seq: session.last_seq,
        run,
        command_id: new.command_id,
        event_type: new.event_type,
        payload: Some(new.payload.clone()),
        digest: new.digest,
        hash: chain::GENESIS,
        created_at: now,
    };
    event.hash = chain::next(&session.chain_head, &event.link());
    session.chain_head = event.hash;
    event
}
