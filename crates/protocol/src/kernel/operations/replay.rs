//! The values that the rows of a session must have, derived again from its events alone. Events are linked into a chain
//! and rows are not, so this is how a changed row is found. Columns that no event determines (heartbeats, deadlines)
//! are checked against each other where a rule binds them, and left alone otherwise.

mod compare;
mod derived_rows;
mod usage;
mod votes;

pub use compare::Rows;
pub use derived_rows::DerivedRows;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::{
    RawJson, Timestamp,
    ids::{AttemptId, CommandId, RunId},
    kernel::{
        chain,
        commands::CommandType,
        events::{Event, EventType},
        facts::{Facts, TerminalFacts},
        fold::CommandFold,
        labels::Labels,
        permissions::resolved_by,
        runs::TerminalStatus,
        session_storage::StorageKind,
    },
    limits::BLOCKER_CHARS_MAX,
    text::clip,
};

use super::session::erasure;

/// The rows of one session, as its events determine them.
#[derive(Debug, Default)]
pub struct Replay {
    runs: BTreeMap<RunId, ReplayedRun>,
    commands: BTreeMap<CommandId, ReplayedCommand>,
    title: Option<String>,
    labels: Labels,
    participants: Vec<String>,
    closed_at: Option<Timestamp>,
    thread_id: Option<String>,
    storage_kind: StorageKind,
    version: i64,
    ended_at: Option<Timestamp>,
    last_run: Option<RunId>,
    last_command: Option<CommandId>,
    derived: derived_rows::DerivedState,
    /// When the session was erased, taken from the event that records it. Its digest is enough to know it.
    erased_at: Option<Timestamp>,
    /// Runs of which a payload is missing, so whatever their payloads determine is unknown.
    without_payloads: BTreeSet<RunId>,
    /// A payload of the session's own facts is missing.
    lacks_own_payloads: bool,
    /// A payload is still there.
    has_payloads: bool,
}

/// A wish that something ends: when, and why.
type Wish = (Timestamp, Option<String>);

#[derive(Debug, Default)]
struct ReplayedRun {
    last_seq: i64,
    commands: i64,
    end: Option<ReplayedEnd>,
    cancel: Option<Wish>,
    lease: Option<ReplayedLease>,
    record_digest: Option<String>,
    /// There is an event of its end, whatever its payload.
    has_ended: bool,
    created_by: Option<String>,
    labels: Labels,
}

#[derive(Debug)]
struct ReplayedCommand {
    run_id: RunId,
    seq: i64,
    fold: CommandFold,
    end: Option<ReplayedEnd>,
    /// There is an event of its end, whatever its payload.
    has_ended: bool,
    cancel: Option<Wish>,
    command_type: Option<CommandType>,
}

#[derive(Debug, PartialEq)]
struct ReplayedEnd {
    facts: TerminalFacts,
    /// As the server's own ends name it; a runner's may contain anything.
    source: Option<String>,
    seq: i64,
    at: Timestamp,
}

#[derive(Debug)]
struct ReplayedLease {
    runner_id: String,
    epoch: i64,
    attempt_id: AttemptId,
    acquired_at: Timestamp,
    released: bool,
    /// When it ran out, if it did.
    expired: Option<Option<Timestamp>>,
    waiters: Vec<String>,
}

/// The fields of the server's own facts, whatever their type.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventFields {
    action: Option<String>,
    reason: Option<String>,
    record_digest: Option<String>,
    command_type: Option<CommandType>,
    state: Option<String>,
    runner_id: Option<String>,
    lease_epoch: Option<i64>,
    attempt_id: Option<AttemptId>,
    lease_expires_at: Option<Timestamp>,
    change: Option<String>,
    title: Option<String>,
    storage_kind: Option<StorageKind>,
    source: Option<String>,
}

/// The fields of the server's own facts that are about labels and callers. They are read only where the server itself has
/// written the event, so that a runner's fields of the same names never hide another one.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LabelFields {
    labels: Labels,
    /// The run that a session's fact is about.
    run_id: Option<RunId>,
    created_by: Option<String>,
    /// The client that joined the session, or left it.
    participant: Option<String>,
}

impl Replay {
    /// Takes the session's next event.
    pub fn apply(&mut self, event: &Event) {
        self.derived.apply(event);
        let raw = event.payload.as_deref().and_then(|text| RawJson::parse(text.to_owned()).ok());
        let fields = raw.as_ref().and_then(|raw| raw.view::<EventFields>()).unwrap_or_default();
        let is_own = event.run.is_none_or(|(_, seq)| seq == 1 && event.event_type == EventType::Audit);
        let labels = raw.filter(|_| is_own).and_then(|raw| raw.view::<LabelFields>()).unwrap_or_default();
        match event.payload {
            Some(_) => self.has_payloads = true,
            None => match event.run {
                Some((run_id, _)) => drop(self.without_payloads.insert(run_id)),
                None => self.lacks_own_payloads = true,
            },
        }
        if is_erasure(event) {
            self.erased_at = Some(event.created_at);
        }
        let facts = event.facts();
        if event.event_type == EventType::TerminalStatus {
            self.version += 1;
            self.ended_at = Some(event.created_at);
        }
        if let Facts::Thread { thread_id: Some(thread_id) } = &facts
            && event.run.is_some()
        {
            self.thread_id = Some(thread_id.clone());
        }
        match event.run {
            Some((run_id, seq)) => {
                self.apply_to_run(run_id, seq, event, &fields, &facts);
                if is_own && let Some(run) = self.runs.get_mut(&run_id) {
                    (run.labels, run.created_by) = (labels.labels, labels.created_by);
                }
            }
            None => self.apply_to_session(event, fields, labels),
        }
    }

    fn apply_to_session(&mut self, event: &Event, fields: EventFields, labels: LabelFields) {
        match fields.change.as_deref() {
            Some("created") => {
                self.title = fields.title;
                self.labels = labels.labels;
                self.storage_kind = fields.storage_kind.unwrap_or_default();
            }
            Some("renamed") => self.title = fields.title,
            Some("labelled") => self.labels = labels.labels,
            Some("run-labelled") => {
                if let Some(run) = labels.run_id.and_then(|run_id| self.runs.get_mut(&run_id)) {
                    run.labels = labels.labels;
                }
            }
            Some("joined") => self.participants.extend(labels.participant),
            Some("left") => self.participants.retain(|other| Some(other) != labels.participant.as_ref()),
            Some("closed") => self.closed_at = Some(event.created_at),
            Some("rewound") => self.thread_id = None,
            Some("storage-made") => self.storage_kind = fields.storage_kind.unwrap_or(StorageKind::Local),
            Some("storage-evicted") => self.storage_kind = StorageKind::Evicted,
            _ => {}
        }
    }

    fn apply_to_run(&mut self, run_id: RunId, seq: i64, event: &Event, fields: &EventFields, facts: &Facts) {
        if !self.runs.contains_key(&run_id) {
            self.last_run = Some(run_id);
        }
        let run = self.runs.entry(run_id).or_default();
        run.last_seq = seq;
        run.has_ended |= event.event_type == EventType::TerminalStatus && event.command_id.is_none();
        if seq == 1 && event.event_type == EventType::Audit {
            run.record_digest = fields.record_digest.clone();
        }
        if event.event_type == EventType::Lease {
            run.lease(event, fields);
        }
        let wish = || (event.created_at, fields.reason.clone());
        let wants = |action: &str| event.event_type == EventType::Audit && fields.action.as_deref() == Some(action);
        if let Some(command_id) = event.command_id {
            if !self.commands.contains_key(&command_id) {
                run.commands += 1;
                self.last_command = Some(command_id);
            }
            let created = ReplayedCommand {
                run_id,
                seq: run.commands,
                fold: CommandFold::default(),
                end: None,
                has_ended: false,
                cancel: None,
                command_type: fields.command_type,
            };
            let command = self.commands.entry(command_id).or_insert(created);
            command.fold.apply(event, facts);
            command.has_ended |= event.event_type == EventType::TerminalStatus;
            if wants("command.cancel") && command.end.is_none() {
                command.cancel.get_or_insert_with(wish);
            }
            if let Facts::Terminal(facts) = facts {
                command.end = Some(ReplayedEnd::of(event, fields, facts, &command.cancel));
            }
        } else if wants("run.cancel") {
            run.cancel.get_or_insert_with(wish);
            let open = self.commands.values_mut().filter(|command| command.run_id == run_id && command.end.is_none());
            open.for_each(|command| {
                command.cancel.get_or_insert_with(wish);
            });
        } else if let Facts::Terminal(facts) = facts {
            run.end = Some(ReplayedEnd::of(event, fields, facts, &run.cancel));
        }
    }

    /// The runs that the events mention.
    pub fn run_ids(&self) -> impl Iterator<Item = RunId> {
        self.runs.keys().copied()
    }

    /// Commands of a run that have no end. A run whose payloads were removed has ended, and so have its commands.
    fn unfinished(&self, run_id: RunId) -> impl Iterator<Item = (&CommandId, &ReplayedCommand)> {
        let is_known = self.has_payloads_of(run_id);
        self.commands.iter().filter(move |(_, command)| is_known && command.run_id == run_id && command.end.is_none())
    }

    /// Whether every payload of the run is there.
    fn has_payloads_of(&self, run_id: RunId) -> bool {
        !self.without_payloads.contains(&run_id)
    }

    /// A payload is missing anywhere.
    fn lacks_payloads(&self) -> bool {
        self.lacks_own_payloads || !self.without_payloads.is_empty()
    }
}

fn is_erasure(event: &Event) -> bool {
    event.event_type == EventType::Session
        && event.run.is_none()
        && event.digest == chain::payload_digest(RawJson::of(&erasure()).as_str())
}

impl ReplayedEnd {
    fn of(event: &Event, fields: &EventFields, facts: &TerminalFacts, cancel: &Option<Wish>) -> Self {
        let mut facts = facts.clone();
        // A cancelled end records the reason of the cancel, whatever its runner reported.
        if let Some((_, Some(reason))) = cancel
            && facts.status == TerminalStatus::Cancelled
        {
            facts.message = Some(clip(&format!("{}: {reason}", resolved_by::CANCEL), BLOCKER_CHARS_MAX));
        }
        Self { facts, source: fields.source.clone(), seq: event.seq(), at: event.created_at }
    }
}

impl ReplayedRun {
    fn lease(&mut self, event: &Event, fields: &EventFields) {
        match (fields.state.as_deref(), &mut self.lease) {
            (Some("claimed" | "recovered"), lease) => {
                let (Some(runner_id), Some(epoch), Some(attempt_id)) =
                    (fields.runner_id.clone(), fields.lease_epoch, fields.attempt_id)
                else {
                    return;
                };
                let acquired_at = event.created_at;
                *lease = Some(ReplayedLease {
                    runner_id,
                    epoch,
                    attempt_id,
                    acquired_at,
                    released: false,
                    expired: None,
                    waiters: vec![],
                });
            }
            (Some("released"), Some(lease)) => lease.released = true,
            (Some("expired"), Some(lease)) => lease.expired = Some(fields.lease_expires_at),
            (Some("claim-waiting"), Some(lease)) => lease.waiters.extend(fields.runner_id.clone()),
            _ => {}
        }
    }

    /// Whether a lease is in force, according to the events.
    fn is_held(&self) -> bool {
        self.end.is_none() && self.lease.as_ref().is_some_and(|lease| !lease.released && lease.expired.is_none())
    }
}
