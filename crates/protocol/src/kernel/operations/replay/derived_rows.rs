//! What the events of a session determine beside its runs, commands and leases: permission requests, what its commands were
//! created with, and which jobs there must be.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{Replay, votes};
use crate::{
    RawJson, Timestamp,
    ids::{AttemptId, CommandId, PermissionId, RunId, RunnerJobId},
    kernel::{
        commands::{Command, CommandType},
        events::{Event, EventType, PHASE_ROLLED_BACK, PHASE_RUNNER_ENDED},
        permissions::{AskPermission, Ballot, EditedArguments, PermissionRequest, PermissionStatus},
        runner_jobs::RunnerJob,
        runs::Run,
        sessions::Session,
    },
};

/// Differences that are named.
const FOUND_MAX: usize = 20;

/// The rows of one session that are compared here. `reply_seqs` is a column of commands that is read on its own.
pub struct DerivedRows<'a> {
    pub session: &'a Session,
    pub runs: &'a [Run],
    pub commands: &'a [Command],
    pub permissions: &'a [PermissionRequest],
    pub jobs: &'a [RunnerJob],
    pub reply_seqs: &'a [(CommandId, Option<i64>)],
}

#[derive(Debug, Default)]
pub(super) struct DerivedState {
    session_digest: Option<String>,
    permissions: BTreeMap<(RunId, PermissionId), PermissionRequest>,
    commands: BTreeMap<CommandId, DerivedCommand>,
    /// The commands of a run that have not ended, in the order of their creation.
    unfinished: BTreeMap<RunId, Vec<CommandId>>,
    attempts: BTreeMap<RunId, BTreeSet<AttemptId>>,
    jobs: BTreeSet<RunnerJobId>,
}

#[derive(Debug, Default)]
struct DerivedCommand {
    record_digest: Option<String>,
    rolled_back_at: Option<Timestamp>,
    is_cancelled: bool,
    /// The run's commands that had not ended when it was created: a steer or an interrupt is aimed at one of them.
    unfinished_before: Vec<CommandId>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuditFields {
    action: Option<String>,
    phase: Option<String>,
    by: Option<String>,
    record_digest: Option<String>,
    session_digest: Option<String>,
    attempt_id: Option<AttemptId>,
    runner_job_id: Option<RunnerJobId>,
    permission_id: Option<PermissionId>,
    status: Option<String>,
    option_id: Option<String>,
    resolved_by: Option<String>,
    reason: Option<String>,
    edited: Option<EditedArguments>,
}

impl DerivedState {
    pub(super) fn apply(&mut self, event: &Event) {
        let Some(text) = event.payload.as_deref() else { return };
        let Ok(raw) = RawJson::parse(text.to_owned()) else { return };
        let reads = |event_type| event.event_type == event_type;
        let needs_fields = event.run.is_none()
            || reads(EventType::Audit)
            || reads(EventType::UserMessage)
            || reads(EventType::Lease)
            || reads(EventType::BackendStatus)
            || reads(EventType::PermissionResolved);
        let fields = needs_fields.then(|| raw.view::<AuditFields>()).flatten().unwrap_or_default();
        let Some((run_id, seq)) = event.run else {
            self.session_digest = self.session_digest.take().or(fields.session_digest);
            return;
        };
        if let Some(command_id) = event.command_id {
            self.apply_to_command(run_id, command_id, event, &fields);
        }
        match event.event_type {
            EventType::Audit if seq == 1 => {
                self.session_digest = self.session_digest.take().or(fields.session_digest);
            }
            EventType::Lease => self.attempts.entry(run_id).or_default().extend(fields.attempt_id),
            EventType::BackendStatus if fields.phase.as_deref() == Some(PHASE_RUNNER_ENDED) => {
                self.jobs.extend(fields.runner_job_id);
            }
            EventType::PermissionRequest => self.ask(run_id, event, &raw),
            EventType::PermissionResolved => {
                votes::apply(&mut self.permissions, run_id, event, &raw);
                self.resolve(run_id, event, fields);
            }
            EventType::Audit => votes::apply(&mut self.permissions, run_id, event, &raw),
            _ => {}
        }
    }

    fn apply_to_command(&mut self, run_id: RunId, command_id: CommandId, event: &Event, fields: &AuditFields) {
        let unfinished = self.unfinished.entry(run_id).or_default();
        let command = self.commands.entry(command_id).or_insert_with(|| {
            let created = DerivedCommand {
                record_digest: fields.record_digest.clone(),
                unfinished_before: unfinished.clone(),
                ..DerivedCommand::default()
            };
            unfinished.push(command_id);
            created
        });
        match event.event_type {
            EventType::TerminalStatus => unfinished.retain(|id| *id != command_id),
            EventType::Audit => command.is_cancelled |= fields.action.as_deref() == Some("command.cancel"),
            // A runner may write a phase of this name, too; only the server's own names its caller.
            EventType::BackendStatus if fields.phase.as_deref() == Some(PHASE_ROLLED_BACK) && fields.by.is_some() => {
                command.rolled_back_at.get_or_insert(event.created_at);
            }
            _ => {}
        }
    }

    fn ask(&mut self, run_id: RunId, event: &Event, raw: &RawJson) {
        let (Some(command_id), Some(ask)) = (event.command_id, raw.view::<AskPermission>()) else { return };
        let request = PermissionRequest {
            deadline: ask.waits_until(event.created_at, None),
            permission_id: ask.permission_id,
            run_id,
            session: event.session,
            command_id,
            title: ask.title,
            command: ask.command,
            tool_call_id: ask.tool_call_id,
            options: ask.options,
            digest: ask.digest.to_ascii_lowercase(),
            server_digest: ask.server_digest,
            editable: ask.editable,
            edited: None,
            round: 0,
            status: PermissionStatus::Pending,
            option_id: None,
            resolved_by: None,
            resolved_at: None,
            resolved_seq: None,
            ballot: Ballot::default(),
            created_at: event.created_at,
        };
        self.permissions.insert((run_id, ask.permission_id), request);
    }

    fn resolve(&mut self, run_id: RunId, event: &Event, fields: AuditFields) {
        let (Some(command_id), Some(permission_id)) = (event.command_id, fields.permission_id) else { return };
        let resolved = PermissionRequest {
            permission_id,
            run_id,
            session: event.session,
            command_id,
            // A request that could not be read is stored with the reason alone.
            title: fields.reason.clone().unwrap_or_default(),
            command: None,
            tool_call_id: None,
            options: vec![],
            digest: String::new(),
            server_digest: None,
            editable: None,
            edited: fields.edited,
            deadline: event.created_at,
            round: 0,
            status: fields.status.as_deref().and_then(PermissionStatus::parse).unwrap_or(PermissionStatus::Denied),
            option_id: fields.option_id,
            resolved_by: fields.resolved_by,
            resolved_at: Some(event.created_at),
            resolved_seq: Some(event.session_seq),
            ballot: Ballot::default(),
            created_at: event.created_at,
        };
        let place = (run_id, permission_id);
        let resolved = match self.permissions.remove(&place).filter(|_| fields.reason.is_none()) {
            None => resolved,
            Some(request) => PermissionRequest {
                status: resolved.status,
                option_id: resolved.option_id,
                edited: resolved.edited,
                resolved_by: resolved.resolved_by,
                resolved_at: resolved.resolved_at,
                resolved_seq: resolved.resolved_seq,
                ..request
            },
        };
        self.permissions.insert(place, resolved);
    }
}

#[derive(Default)]
struct FoundDifferences(Vec<String>);

impl FoundDifferences {
    fn check(&mut self, holds: bool, row: &str, column: &str) {
        if !holds && self.0.len() < FOUND_MAX {
            self.0.push(format!("{row}: {column} differs from the events"));
        }
    }
}

impl Replay {
    /// As [`Replay::differences`], for the derived rows. Empty if the session was erased; rows of runs whose payloads were
    /// removed are left out.
    pub fn differences_of_derived_rows(&self, rows: &DerivedRows<'_>) -> Vec<String> {
        let (derived, mut found) = (&self.derived, FoundDifferences::default());
        if self.lacks_own_payloads || rows.session.erased_at.is_some() {
            return found.0;
        }
        if let Some(digest) = &derived.session_digest {
            let what = "what it was created with (tenant, name, owner, idempotency key, metadata, time)";
            found.check(*digest == rows.session.record_digest(), "session", what);
        }
        let of_tenant = |run: &Run| run.tenant_id == rows.session.tenant_id;
        found.check(rows.runs.iter().all(of_tenant), "session", "tenant_id");
        let commands: BTreeMap<CommandId, &Command> = rows.commands.iter().map(|c| (c.command_id, c)).collect();
        let reply_seqs: BTreeMap<CommandId, Option<i64>> = rows.reply_seqs.iter().copied().collect();
        for command in rows.commands.iter().filter(|command| self.has_payloads_of(command.run_id)) {
            let reply_seq = reply_seqs.get(&command.command_id).copied().flatten();
            self.check_command_beside(command, &commands, reply_seq, &mut found);
        }
        self.check_permissions(rows, &mut found);
        self.check_jobs(rows, &commands, &mut found);
        found.0
    }

    fn check_command_beside(
        &self,
        command: &Command,
        commands: &BTreeMap<CommandId, &Command>,
        reply_seq: Option<i64>,
        found: &mut FoundDifferences,
    ) {
        let row = format!("command {}", command.command_id);
        let Some(replayed) = self.derived.commands.get(&command.command_id) else { return };
        if let Some(digest) = &replayed.record_digest {
            let what = "what it was created with (type, payload, payload_hash, idempotency key, submitter, time)";
            found.check(*digest == command.record_digest(), &row, what);
        }
        let rolled_back_at = replayed.rolled_back_at.filter(|_| replayed.is_cancelled);
        found.check(command.rolled_back_at == rolled_back_at, &row, "rolled_back_at");
        let is_turn = |id: &CommandId| commands.get(id).is_some_and(|c| c.command_type == CommandType::Turn);
        let target_fits = match command.target_command_id {
            None => command.command_type == CommandType::Turn || !replayed.unfinished_before.iter().any(is_turn),
            Some(target) => {
                let is_open = replayed.unfinished_before.contains(&target) && is_turn(&target);
                command.command_type != CommandType::Turn && is_open
            }
        };
        found.check(target_fits, &row, "target_command_id");
        let attempts = self.derived.attempts.get(&command.run_id);
        let is_attempt = |id| attempts.is_some_and(|attempts| attempts.contains(&id));
        found.check(command.attempt_id.is_none_or(is_attempt), &row, "attempt_id");
        let picked = self.commands.get(&command.command_id).and_then(|command| command.fold.pick());
        found.check(reply_seq == picked.map(|pick| pick.session_seq), &row, "reply_session_seq");
    }

    fn check_permissions(&self, rows: &DerivedRows<'_>, found: &mut FoundDifferences) {
        let stored: BTreeMap<_, _> = rows.permissions.iter().map(|p| ((p.run_id, p.permission_id), p)).collect();
        for (place, replayed) in self.derived.permissions.iter().filter(|(place, _)| self.has_payloads_of(place.0)) {
            let row = format!("permission {} of {}", place.1, place.0);
            match stored.get(place) {
                None => found.check(false, &row, "its absence"),
                Some(permission) => check_permission(&row, permission, replayed, found),
            }
        }
        let is_unknown = |place: &&(RunId, PermissionId)| {
            self.has_payloads_of(place.0) && !self.derived.permissions.contains_key(place)
        };
        for (run_id, permission_id) in stored.keys().filter(is_unknown) {
            found.check(false, &format!("permission {permission_id} of {run_id}"), "its presence");
        }
        for run in rows.runs.iter().filter(|run| self.has_payloads_of(run.run_id)) {
            let is_open = |p: &&PermissionRequest| p.run_id == run.run_id && p.status == PermissionStatus::Pending;
            let open = self.derived.permissions.values().filter(is_open).count() as i64;
            found.check(run.open_permissions == open, &format!("run {}", run.run_id), "open_permissions");
        }
    }

    /// A job's phase is its launcher's to report, and most reports are no events; that a job was there can be known.
    fn check_jobs(
        &self,
        rows: &DerivedRows<'_>,
        commands: &BTreeMap<CommandId, &Command>,
        found: &mut FoundDifferences,
    ) {
        let standing = rows.runs.iter().filter_map(|run| run.standing_job_id);
        for id in self.derived.jobs.iter().copied().chain(standing).collect::<BTreeSet<_>>() {
            let is_stored = rows.jobs.iter().any(|job| job.runner_job_id == id);
            found.check(is_stored, &format!("runner job {id}"), "its absence");
        }
        for job in rows.jobs {
            let row = format!("runner job {}", job.runner_job_id);
            let is_of_run = commands.get(&job.command_id).is_some_and(|command| command.run_id == job.run_id);
            found.check(job.session == rows.session.session, &row, "session_id");
            found.check(is_of_run, &row, "command_id");
            let run = rows.runs.iter().find(|run| run.run_id == job.run_id);
            let is_known = run.is_some_and(|run| run.standing_job_id.is_some());
            found.check(!job.standing || is_known, &format!("run {}", job.run_id), "standing_job_id");
        }
    }
}

fn check_permission(row: &str, stored: &PermissionRequest, replayed: &PermissionRequest, found: &mut FoundDifferences) {
    // A NUL cannot be stored.
    let same = |stored: Option<&str>, replayed: Option<&str>| {
        stored.map(str::to_owned) == replayed.map(|text| text.replace('\0', "\u{fffd}"))
    };
    let same_time = |a: Option<Timestamp>, b: Option<Timestamp>| {
        a.map(Timestamp::as_microsecond) == b.map(Timestamp::as_microsecond)
    };
    found.check(stored.session == replayed.session, row, "session_id");
    found.check(stored.command_id == replayed.command_id, row, "command_id");
    found.check(same(Some(&stored.title), Some(&replayed.title)), row, "title");
    found.check(same(stored.command.as_deref(), replayed.command.as_deref()), row, "command");
    found.check(same(stored.tool_call_id.as_deref(), replayed.tool_call_id.as_deref()), row, "tool_call_id");
    found.check(stored.options == replayed.options, row, "options");
    found.check(stored.digest == replayed.digest, row, "digest");
    found.check(stored.server_digest == replayed.server_digest, row, "server_digest");
    // An event without the deadline that holds, of an earlier version or near the limit of its size, does not state the policy of
    // its run, which may end the request earlier.
    let deadlines = replayed.created_at.as_microsecond()..=replayed.deadline.as_microsecond();
    found.check(deadlines.contains(&stored.deadline.as_microsecond()), row, "deadline");
    found.check(stored.status == replayed.status, row, "status");
    found.check(same(stored.option_id.as_deref(), replayed.option_id.as_deref()), row, "option_id");
    found.check(same(stored.resolved_by.as_deref(), replayed.resolved_by.as_deref()), row, "resolved_by");
    found.check(same_time(stored.resolved_at, replayed.resolved_at), row, "resolved_at");
    found.check(stored.resolved_seq == replayed.resolved_seq, row, "resolved_seq");
    let (ballot, replayed_ballot) = (&stored.ballot, &replayed.ballot);
    found.check(ballot.strategy == replayed_ballot.strategy, row, "strategy");
    found.check(ballot.voters == replayed_ballot.voters, row, "voters");
    found.check(ballot.quorum == replayed_ballot.quorum, row, "quorum");
    found.check(ballot.votes == replayed_ballot.votes, row, "votes");
    found.check(ballot.refusals == replayed_ballot.refusals, row, "refusals");
    found.check(same_time(Some(stored.created_at), Some(replayed.created_at)), row, "created_at");
}
