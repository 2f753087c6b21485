//! Budgets that a runner did not keep: the server ends what went on beyond them.

use super::{
    desk::{Desk, RunDesk},
    ending::{End, end_command},
};
use crate::{
    FailureKind, Timestamp,
    budgets::{Allowance, Spent, UsedUp},
    commands::Command,
    events::NewEvent,
    facts::Facts,
    ids::{CommandId, RunId},
    kernel::claim::after,
    limits::TIMEOUT_GRACE_MS,
    runs::{Run, TerminalStatus},
};

/// Commands that had used up a budget before this batch, and whose agent has gone on since: it called another model or
/// another tool. A runner that stops its agent in time never comes here.
pub fn overspent(rows: &RunDesk, events: &[NewEvent]) -> Vec<(CommandId, UsedUp)> {
    let mut found: Vec<(CommandId, UsedUp)> = vec![];
    for event in events {
        let Some(command) = event.command_id.and_then(|id| rows.commands.get(&id)) else { continue };
        let used_up = match &event.facts {
            Facts::Usage { .. } => used_up(&rows.run, command),
            Facts::Tool(tool) if tool.status.as_deref() == Some("started") => used_up(&rows.run, command),
            _ => None,
        };
        if let Some(used_up) = used_up.filter(|_| found.iter().all(|(id, _)| *id != command.command_id)) {
            found.push((command.command_id, used_up));
        }
    }
    found
}

fn used_up(run: &Run, command: &Command) -> Option<UsedUp> {
    let budgets = Allowance::of(&run.execution_policy, &command.payload).ok()?.budgets;
    let spent = Spent::of(&command.fold);
    spent.usage_used_up(&budgets).or_else(|| spent.tools_used_up(&budgets, 0))
}

pub fn end_overspent(desk: &mut Desk, run_id: RunId, overspent: Vec<(CommandId, UsedUp)>, now: Timestamp) {
    for (command_id, used_up) in overspent {
        end(desk, run_id, command_id, &used_up, now);
    }
}

/// When the server ends a command that begins now, unless its runner does so before. Work that is taken up again keeps the
/// time it was given first.
pub fn deadline(run: &Run, command: &Command, now: Timestamp) -> Option<Timestamp> {
    let allowance = Allowance::of(&run.execution_policy, &command.payload).ok()?;
    Some(after(now, allowance.timeout_ms.saturating_add(TIMEOUT_GRACE_MS)))
}

/// Ends what has run past its time.
pub fn end_overdue(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    let Ok(rows) = desk.run(run_id) else { return };
    let late = rows.unfinished().filter(|c| c.deadline_at.is_some_and(|deadline| deadline <= now));
    let late: Vec<_> = late
        .filter_map(|c| Some((c.command_id, Allowance::of(&rows.run.execution_policy, &c.payload).ok()?.timed_out())))
        .collect();
    for (command_id, used_up) in late {
        end(desk, run_id, command_id, &used_up, now);
    }
}

fn end(desk: &mut Desk, run_id: RunId, command_id: CommandId, used_up: &UsedUp, now: Timestamp) {
    if desk.run_mut(run_id).commands[&command_id].is_unfinished() {
        let message = format!("{used_up}, and its runner did not stop");
        let end = End::manager(TerminalStatus::Blocked, FailureKind::BudgetExceeded, &message);
        end_command(desk, run_id, command_id, end, now);
    }
}
