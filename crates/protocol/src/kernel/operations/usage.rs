//! What is counted of a command, and for whom.

use crate::{
    Timestamp,
    kernel::{
        commands::{Command, CommandType},
        fold::CommandFold,
        runs::Run,
        sessions::Session,
        usage::{RunUsage, UsageDay},
    },
};

/// What a command's fold has counted.
pub(super) fn of_fold(fold: &CommandFold) -> RunUsage {
    RunUsage::of_calls(fold.tokens, fold.cost_usd)
}

/// The turn that a command was, if it has ended at `end` and a runner had taken it up.
pub(super) fn of_turn(command: &Command, end: Timestamp) -> Option<RunUsage> {
    let acked_at = command.acked_at.filter(|_| command.command_type == CommandType::Turn)?;
    Some(RunUsage::of_turn(acked_at, end))
}

/// A day on which the run has used nothing yet.
pub(super) fn empty_day(session: &Session, run: &Run, day: i64) -> UsageDay {
    UsageDay {
        run_id: run.run_id,
        day,
        tenant_id: run.tenant_id.clone(),
        backend_profile: run.backend_profile.clone(),
        agent_id: run.agent_id,
        user_id: session.owner.clone().or_else(|| run.created_by.clone()),
        runs: 0,
        used: RunUsage::default(),
    }
}
