//! Compares what runs have used with what their events and commands determine.

use super::{
    Replay,
    compare::{FoundRows, Rows},
};
use crate::{
    ids::RunId,
    kernel::{
        operations::usage::{empty_day, of_fold, of_turn},
        runs::Run,
        usage::{RunUsage, UsageDay, day_of},
    },
};

impl Replay {
    /// The time at which a turn was taken up is no event, so a run's turns are compared with its commands.
    pub(super) fn check_usage(&self, rows: &Rows<'_>, found: &mut FoundRows) {
        for run in rows.runs {
            let row = format!("run {}", run.run_id);
            let (counted, commands) = self.counted(run.run_id, rows);
            let used = run.usage;
            found.check(used.tokens == counted.tokens, &row, "tokens");
            // The migration that introduced the column rounded each command's cost in SQL.
            let is_near = (used.cost_nano_usd - counted.cost_nano_usd).abs() <= commands;
            found.check(is_near, &row, "cost_nano_usd");
            found.check(used.turns == counted.turns, &row, "turns");
            found.check(used.active_ms == counted.active_ms, &row, "active_ms");
            let days: Vec<_> = rows.usage.iter().filter(|usage| usage.run_id == run.run_id).collect();
            check_days(rows, run, &days, found);
        }
    }

    /// What the events and commands of a run amount to, and how many commands there are. Where retention has removed payloads,
    /// the stored counts of its commands replace those of its events.
    fn counted(&self, run_id: RunId, rows: &Rows<'_>) -> (RunUsage, i64) {
        let (mut counted, mut commands) = (RunUsage::default(), 0);
        for (_, command) in self.commands.iter().filter(|(_, command)| command.run_id == run_id) {
            if self.has_payloads_of(run_id) {
                counted.add(of_fold(&command.fold));
            }
            commands += 1;
        }
        for command in rows.commands.iter().filter(|command| command.run_id == run_id) {
            if !self.has_payloads_of(run_id) {
                counted.add(of_fold(&command.fold));
            }
            let end = command.terminal.as_ref().map(|terminal| terminal.at);
            counted.add(end.and_then(|end| of_turn(command, end)).unwrap_or_default());
        }
        (counted, commands)
    }
}

fn check_days(rows: &Rows<'_>, run: &Run, days: &[&UsageDay], found: &mut FoundRows) {
    let row = format!("usage of {}", run.run_id);
    let (mut sum, mut runs) = (RunUsage::default(), 0);
    for day in days {
        sum.add(day.used);
        runs += day.runs;
        let of_run = UsageDay { runs: day.runs, used: day.used, ..empty_day(rows.session, run, day.day) };
        found.check(**day == of_run, &row, "whose it is");
        found.check(day.day >= day_of(run.created_at), &row, "day");
    }
    found.check(sum == run.usage, &row, "its sum");
    found.check(runs == 1, &row, "runs");
}
