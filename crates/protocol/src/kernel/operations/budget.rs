//! Budgets that a runner did not keep: the server ends what went on beyond them.

use super::{
    cancel::{cancelled, request_cancel},
    desk::{Desk, RunDesk},
    ending::{End, end_command},
    lease::after,
};
use crate::{
    FailureKind, Timestamp,
    ids::{CommandId, RunId},
    kernel::{
        budgets::{Allowance, DEADLINE_EXCEEDED, Spent, UsedUp, deadline_ms},
        commands::Command,
        events::NewEvent,
        facts::Facts,
        permissions::resolved_by,
        runs::{Run, TerminalStatus},
    },
    limits::BUDGET_GRACE_MS,
};

/// Commands that had used up a budget before this batch, and whose agent has continued since: it called another model
/// or another tool. An agent is allowed to be that late, since it does not stop in the moment it is ordered to.
pub(super) fn overspent(rows: &RunDesk, events: &[NewEvent]) -> Vec<CommandId> {
    let goes_on = |event: &&NewEvent| match &event.facts {
        Facts::Usage { .. } => true,
        Facts::Tool(tool) => tool.status.as_deref() == Some("started"),
        _ => false,
    };
    let of_events = events.iter().filter(goes_on).filter_map(|event| rows.commands.get(&event.command_id?));
    of_events.filter(|command| used_up(&rows.run, command).is_some()).map(|command| command.command_id).collect()
}

fn used_up(run: &Run, command: &Command) -> Option<UsedUp> {
    let budgets = Allowance::of(&run.execution_policy, &command.payload).ok()?.budgets;
    let spent = Spent::of(&command.fold);
    spent.usage_used_up(&budgets).or_else(|| spent.tools_used_up(&budgets, 0))
}

/// Leaves their runner a while to end them; then the server does.
pub(super) fn limit_overspent(desk: &mut Desk, run_id: RunId, overspent: &[CommandId], now: Timestamp) {
    let latest = after(now, BUDGET_GRACE_MS);
    for command_id in overspent {
        if let Some(command) = desk.run_mut(run_id).commands.get_mut(command_id) {
            command.deadline_at = Some(command.deadline_at.map_or(latest, |deadline| deadline.min(latest)));
        }
    }
}

/// When the server ends a command that begins now, unless its runner does so before. Work that is taken up again keeps the
/// time it was given first, and a deadline that the command was submitted with stays if it is earlier.
pub(super) fn deadline(run: &Run, command: &Command, now: Timestamp) -> Option<Timestamp> {
    let allowance = Allowance::of(&run.execution_policy, &command.payload).ok();
    let by_budget = allowance.map(|allowance| after(now, allowance.timeout_ms.saturating_add(BUDGET_GRACE_MS)));
    by_budget.into_iter().chain(command.deadline_at).min()
}

/// The deadline that a command was submitted with.
fn submitted_deadline(command: &Command) -> Option<Timestamp> {
    deadline_ms(&command.payload).map(|ms| after(command.created_at, ms))
}

/// Cancels commands that are past the deadline they were submitted with. Their runner has a while to stop; then they end.
fn cancel_late(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    let Ok(rows) = desk.run(run_id) else { return };
    let late = rows.unfinished().filter(|c| c.deadline_at.is_some_and(|deadline| deadline <= now));
    let late = late.filter_map(|c| Some((c.command_id, submitted_deadline(c)?)));
    let late: Vec<_> = late.filter(|(_, submitted)| *submitted <= now).collect();
    for (command_id, submitted) in late {
        let Some(command) = desk.run_mut(run_id).commands.get_mut(&command_id) else { continue };
        if command.deadline_at.is_some_and(|deadline| deadline > submitted) {
            end_command(desk, run_id, command_id, cancelled(), now);
        } else {
            command.deadline_at = Some(after(now, BUDGET_GRACE_MS));
            request_cancel(desk, run_id, command_id, resolved_by::DEADLINE, Some(DEADLINE_EXCEEDED), None, now);
        }
    }
}

/// Ends what has run past its time, or past the time its runner had to stop it.
pub(super) fn end_overdue(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    cancel_late(desk, run_id, now);
    let Ok(rows) = desk.run(run_id) else { return };
    let late = rows.unfinished().filter(|c| c.deadline_at.is_some_and(|deadline| deadline <= now));
    let timed_out =
        |c: &Command| Allowance::of(&rows.run.execution_policy, &c.payload).ok().map(|allowance| allowance.timed_out());
    let late: Vec<_> =
        late.filter_map(|c| Some((c.command_id, used_up(&rows.run, c).or_else(|| timed_out(c))?))).collect();
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
