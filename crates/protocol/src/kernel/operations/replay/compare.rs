//! Compares the rows of a session with what its events determine, and names each column that differs.

use std::collections::BTreeMap;

use super::{Replay, ReplayedEnd, ReplayedLease, ReplayedRun, Wish};
use crate::{
    Timestamp,
    ids::{CommandId, RunId},
    kernel::{
        commands::{Command, CommandState},
        leases::Lease,
        operations::lease::after,
        runs::{Run, RunStatus, Terminal, TerminalStatus},
        sessions::{ExecutionState, Session},
        usage::UsageDay,
    },
};

/// Differences that are named; a row that was replaced whole would name every column of every other.
const FOUND_MAX: usize = 20;

/// The rows of one session.
pub struct Rows<'a> {
    pub session: &'a Session,
    pub runs: &'a [Run],
    pub commands: &'a [Command],
    pub leases: &'a [Lease],
    pub usage: &'a [UsageDay],
}

#[derive(Default)]
pub(super) struct FoundRows(Vec<String>);

impl FoundRows {
    pub(super) fn check(&mut self, holds: bool, row: &str, column: &str) {
        if !holds && self.0.len() < FOUND_MAX {
            self.0.push(format!("{row}: {column} differs from the events"));
        }
    }
}

impl Replay {
    /// The columns that do not fit the events, each with its row. Empty if all do. Where payloads were erased, only the
    /// columns that need none of them are compared.
    pub fn differences(&self, rows: &Rows<'_>) -> Vec<String> {
        let mut found = FoundRows::default();
        found.check(rows.session.erased_at == self.erased_at, "session", "erased_at");
        let is_finished = rows.session.erased_at.is_some() && rows.session.external_id.is_none();
        if is_finished {
            self.check_finished_erasure(rows, &mut found);
        }
        let is_erasing = rows.session.erased_at.is_some() && self.lacks_payloads();
        if is_finished || is_erasing || self.lacks_own_payloads {
            self.check_erased(rows, &mut found);
            return found.0;
        }
        let leases: BTreeMap<RunId, &Lease> = rows.leases.iter().map(|lease| (lease.run_id, lease)).collect();
        self.missing(rows, &mut found);
        for run in rows.runs {
            let row = format!("run {}", run.run_id);
            let Some(replayed) = self.runs.get(&run.run_id) else {
                found.check(false, &row, "its presence");
                continue;
            };
            if !self.has_payloads_of(run.run_id) {
                self.check_run_without_payloads(&row, run, replayed, rows.session, &mut found);
                continue;
            }
            self.check_run(&row, run, replayed, rows, &mut found);
            let lease = leases.get(&run.run_id).copied();
            check_lease(&format!("lease of {}", run.run_id), lease, replayed, &mut found);
        }
        for lease in rows.leases {
            found.check(self.runs.contains_key(&lease.run_id), &format!("lease of {}", lease.run_id), "its presence");
        }
        for command in rows.commands {
            self.check_place(command, rows.session, &mut found);
            if self.has_payloads_of(command.run_id) {
                self.check_command(command, &mut found);
            }
        }
        self.check_usage(rows, &mut found);
        self.check_session(rows, &mut found);
        found.0
    }

    /// Compares what no payload determines. An erasure deletes rows after payloads, so a row may be there or not.
    fn check_erased(&self, rows: &Rows<'_>, found: &mut FoundRows) {
        let (session, row) = (rows.session, "session");
        found.check(session.version == self.version, row, "version");
        found.check(session.ended_at == self.ended_at, row, "ended_at");
        let state = if self.version > 0 { ExecutionState::Terminal } else { ExecutionState::Idle };
        found.check(self.erased_at.is_none() || session.execution_state == state, row, "execution_state");
        for run in rows.runs {
            let row = format!("run {}", run.run_id);
            let Some(replayed) = self.runs.get(&run.run_id) else {
                found.check(false, &row, "its presence");
                continue;
            };
            check_numbers(&row, run, replayed, session, found);
        }
        for command in rows.commands {
            self.check_place(command, session, found);
        }
    }

    /// Compares what no payload determines of a run whose payloads retention has removed. Only a run that has ended, or whose
    /// turns have ended, loses its payloads. The latter may take further turns.
    fn check_run_without_payloads(
        &self,
        row: &str,
        run: &Run,
        replayed: &ReplayedRun,
        session: &Session,
        found: &mut FoundRows,
    ) {
        check_numbers(row, run, replayed, session, found);
        let commands = || self.commands.values().filter(|command| command.run_id == run.run_id);
        let has_ended = replayed.has_ended;
        let has_idled = commands().any(|command| command.has_ended);
        found.check(has_ended || has_idled, row, "the removal of its payloads before its end");
        let is_terminal = (run.status.is_terminal(), run.terminal.is_some());
        found.check(is_terminal == (has_ended, has_ended), row, "status");
        let unfinished = if has_ended { 0 } else { commands().filter(|command| !command.has_ended).count() as i64 };
        found.check(run.unfinished_commands == unfinished, row, "unfinished_commands");
    }

    /// Compares where the command is in the log.
    fn check_place(&self, command: &Command, session: &Session, found: &mut FoundRows) {
        let row = format!("command {}", command.command_id);
        let Some(replayed) = self.commands.get(&command.command_id) else {
            return found.check(false, &row, "its presence");
        };
        found.check(command.session == session.session, &row, "session_id");
        found.check(command.run_id == replayed.run_id, &row, "run_id");
        found.check(command.seq == replayed.seq, &row, "seq");
    }

    /// Nothing is left of a session whose erasure is finished, except its row and the digests of its events.
    fn check_finished_erasure(&self, rows: &Rows<'_>, found: &mut FoundRows) {
        let (session, row) = (rows.session, "session");
        found.check(!self.has_payloads, row, "a payload left after its erasure");
        found.check(session.title.is_none(), row, "title");
        found.check(session.conversation_id.is_none(), row, "conversation_id");
        found.check(session.metadata.is_none(), row, "metadata");
        found.check(session.labels.is_empty(), row, "labels");
        found.check(session.participants.is_empty(), row, "participants");
        let is_anonymous = rows.usage.iter().all(|usage| usage.user_id.is_none());
        found.check(is_anonymous, row, "a user left in its usage after its erasure");
        found.check(session.thread_id.is_none(), row, "thread_id");
        found.check(session.active_run_id.is_none(), row, "active_run_id");
        found.check(session.active_command_id.is_none(), row, "active_command_id");
        found.check(session.last_run_id.is_none(), row, "last_run_id");
        found.check(session.last_command_id.is_none(), row, "last_command_id");
        let rows_left = rows.runs.len() + rows.commands.len() + rows.leases.len();
        found.check(rows_left == 0, row, "a row of a run left after its erasure");
    }

    /// What the events mention and the rows lack.
    fn missing(&self, rows: &Rows<'_>, found: &mut FoundRows) {
        for run_id in self.runs.keys().filter(|id| !rows.runs.iter().any(|run| run.run_id == **id)) {
            found.check(false, &format!("run {run_id}"), "its absence");
        }
        let there: std::collections::HashSet<CommandId> = rows.commands.iter().map(|c| c.command_id).collect();
        for command_id in self.commands.keys().filter(|id| !there.contains(id)) {
            found.check(false, &format!("command {command_id}"), "its absence");
        }
    }

    fn check_run(&self, row: &str, run: &Run, replayed: &ReplayedRun, rows: &Rows<'_>, found: &mut FoundRows) {
        found.check(run.session == rows.session.session, row, "session_id");
        found.check(run.last_seq == replayed.last_seq, row, "last_seq");
        found.check(run.command_count == replayed.commands, row, "command_count");
        let unfinished = self.unfinished(run.run_id).count() as i64;
        found.check(run.unfinished_commands == unfinished, row, "unfinished_commands");
        found.check(is_end(run.terminal.as_ref(), replayed.end.as_ref()), row, "terminal");
        let status = match &replayed.end {
            Some(end) => RunStatus::from(end.facts.status),
            None => {
                let works = |c: &&Command| c.run_id == run.run_id && c.state == CommandState::Running;
                match (replayed.is_held(), rows.commands.iter().any(|c| works(&c))) {
                    (true, true) => RunStatus::Running,
                    (true, false) => RunStatus::Claimed,
                    (false, _) => RunStatus::Pending,
                }
            }
        };
        found.check(run.status == status, row, "status");
        check_wish(row, run.cancel_requested_at, run.cancel_reason.as_deref(), replayed.cancel.as_ref(), found);
        found.check(run.labels == replayed.labels, row, "labels");
        let created_by = replayed.created_by.as_ref();
        found.check(created_by.is_none() || created_by == run.created_by.as_ref(), row, "created_by");
        let lease = replayed.lease.as_ref();
        found.check(run.lease_epoch == lease.map_or(0, |lease| lease.epoch), row, "lease_epoch");
        found.check(run.attempt_id == lease.map(|lease| lease.attempt_id), row, "attempt_id");
        if let Some(digest) = &replayed.record_digest {
            let what = "what it was created with (tenant, project, workspace, provider, profile, policy, trace sink, agent, time)";
            found.check(*digest == run.record_digest(), row, what);
        }
    }

    fn check_command(&self, command: &Command, found: &mut FoundRows) {
        let row = format!("command {}", command.command_id);
        let Some(replayed) = self.commands.get(&command.command_id) else { return };
        found.check(replayed.command_type.is_none_or(|kind| kind == command.command_type), &row, "type");
        found.check(is_end(command.terminal.as_ref(), replayed.end.as_ref()), &row, "terminal");
        let state_fits = match &replayed.end {
            Some(end) => command.state == CommandState::from(end.facts.status),
            None => {
                !command.state.is_terminal() && (command.state == CommandState::Pending) == command.acked_at.is_none()
            }
        };
        found.check(state_fits, &row, "state");
        found.check(command.fold.is_of_log(&replayed.fold), &row, "fold");
        let (at, reason) = (command.cancel_requested_at, command.cancel_reason.as_deref());
        let wish = replayed.cancel.as_ref();
        // The cancel of a run that no runner works on ends a turn and the steers behind it one after the other. A steer ends
        // with its turn then, before its own cancel is requested.
        let ended_along = replayed.end.as_ref().is_some_and(|end| {
            end.facts.status == TerminalStatus::Blocked && wish.is_some_and(|(wished_at, _)| *wished_at == end.at)
        });
        if !(ended_along && at.is_none() && reason.is_none()) {
            check_wish(&row, at, reason, wish, found);
        }
    }

    fn check_session(&self, rows: &Rows<'_>, found: &mut FoundRows) {
        let (session, row) = (rows.session, "session");
        found.check(session.title == self.title, row, "title");
        found.check(session.labels == self.labels, row, "labels");
        found.check(session.participants == self.participants, row, "participants");
        found.check(session.closed_at == self.closed_at, row, "closed_at");
        // Any run may have reported it.
        found.check(self.lacks_payloads() || session.thread_id == self.thread_id, row, "thread_id");
        found.check(session.version == self.version, row, "version");
        found.check(session.ended_at == self.ended_at, row, "ended_at");
        found.check(session.last_run_id == self.last_run, row, "last_run_id");
        found.check(session.last_command_id == self.last_command, row, "last_command_id");
        found.check(session.storage.storage_kind == self.storage_kind, row, "storage_kind");
        self.check_projection(rows, found);
    }

    /// Which run is active, and with what.
    fn check_projection(&self, rows: &Rows<'_>, found: &mut FoundRows) {
        let (session, row) = (rows.session, "session");
        let mut busy = self.runs.iter().filter(|(id, _)| self.unfinished(**id).next().is_some());
        let active = session.active_run_id;
        match busy.next() {
            Some((run_id, _)) => found.check(active == Some(*run_id), row, "active_run_id"),
            // A lease that has run out and was not swept yet may or may not make its run the active one.
            None => found.check(
                active.is_none_or(|id| self.runs.get(&id).is_some_and(ReplayedRun::is_held)),
                row,
                "active_run_id",
            ),
        }
        let mut unfinished: Vec<_> = active.into_iter().flat_map(|run_id| self.unfinished(run_id)).collect();
        unfinished.sort_by_key(|(_, command)| command.seq);
        found.check(session.active_unfinished == unfinished.len() as i64, row, "active_unfinished");
        found.check(session.active_command_id == unfinished.first().map(|(id, _)| **id), row, "active_command_id");
        let lease = active.and_then(|run_id| rows.leases.iter().find(|lease| lease.run_id == run_id && !lease.ended));
        found.check(session.active_lease_until == lease.map(|lease| lease.expires_at), row, "active_lease_until");
        let state = match (session.active_unfinished > 0, self.version > 0) {
            (true, _) => ExecutionState::Running,
            (false, true) => ExecutionState::Terminal,
            (false, false) => ExecutionState::Idle,
        };
        found.check(session.execution_state == state, row, "execution_state");
    }
}

fn check_numbers(row: &str, run: &Run, replayed: &ReplayedRun, session: &Session, found: &mut FoundRows) {
    found.check(run.session == session.session, row, "session_id");
    found.check(run.last_seq == replayed.last_seq, row, "last_seq");
    found.check(run.command_count == replayed.commands, row, "command_count");
}

fn is_end(stored: Option<&Terminal>, replayed: Option<&ReplayedEnd>) -> bool {
    match (stored, replayed) {
        (None, None) => true,
        (Some(stored), Some(end)) => {
            let facts = &end.facts;
            let source_fits = stored.source == "runner" || end.source.as_deref() == Some(stored.source.as_str());
            // An older release did not know the rule that it received.
            let rule_fits = stored.rule.is_none() || stored.rule == facts.rule;
            (stored.status, stored.failure_kind, &stored.message) == (facts.status, facts.failure_kind, &facts.message)
                && (stored.seq, stored.at) == (end.seq, end.at)
                && source_fits
                && rule_fits
        }
        _ => false,
    }
}

fn check_wish(row: &str, at: Option<Timestamp>, reason: Option<&str>, wish: Option<&Wish>, found: &mut FoundRows) {
    found.check(at == wish.map(|(at, _)| *at), row, "cancel_requested_at");
    found.check(reason == wish.and_then(|(_, reason)| reason.as_deref()), row, "cancel_reason");
}

fn check_lease(row: &str, lease: Option<&Lease>, run: &ReplayedRun, found: &mut FoundRows) {
    let (lease, replayed) = match (lease, &run.lease) {
        (None, None) => return,
        (Some(lease), Some(replayed)) => (lease, replayed),
        (Some(_), None) => return found.check(false, row, "its presence"),
        (None, Some(_)) => return found.check(false, row, "its absence"),
    };
    let ReplayedLease { runner_id, epoch, attempt_id, acquired_at, released, expired, waiters } = replayed;
    found.check(lease.runner_id == *runner_id, row, "runner_id");
    found.check(lease.epoch == *epoch, row, "epoch");
    found.check(lease.attempt_id == *attempt_id, row, "attempt_id");
    found.check(lease.acquired_at == *acquired_at, row, "acquired_at");
    found.check(lease.waiters == *waiters, row, "waiters");
    found.check(lease.expired == expired.is_some(), row, "expired");
    let has_ended = *released || expired.is_some() || run.end.is_some();
    found.check(lease.ended == has_ended, row, "ended");
    match expired {
        Some(at) => found.check(at.is_none_or(|at| at == lease.expires_at), row, "expires_at"),
        // Each heartbeat renews it for its whole length; giving it back does not.
        None if !has_ended => {
            found.check(lease.expires_at == after(lease.heartbeat_at, lease.duration_ms), row, "expires_at");
        }
        None => {}
    }
}
