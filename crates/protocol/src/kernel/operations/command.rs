//! Creating commands: idempotency, and the target of a steer or an interrupt.

use super::{
    admission::{self, check_accepting, session_busy},
    desk::{Desk, RunDesk, Tracked},
    ending::{self, End},
};
use crate::{
    Failure, FailureKind, Rule, Timestamp,
    created::Created,
    ids::{CommandId, RunId},
    kernel::{
        commands::{Command, CommandState, CommandType},
        events::NewEvent,
        runs::TerminalStatus,
        session_storage::MissingStorage,
        whole_payloads::stored_bytes,
    },
    limits::{COMMANDS_UNFINISHED_BYTES_MAX, COMMANDS_UNFINISHED_MAX},
};

#[derive(Clone, Debug)]
pub struct CreateCommandOp {
    /// Complete except for its number and its target.
    pub command: Command,
    /// The request as an event: a `user_message`, or an audit event where there is no text.
    pub message: NewEvent,
    /// Facts of the command that the request states, after the message.
    pub facts: Vec<NewEvent>,
    /// What the server does not find of the session's storage. See [`SessionStorage::check_found`].
    ///
    /// [`SessionStorage::check_found`]: crate::kernel::session_storage::SessionStorage::check_found
    pub storage_missing: MissingStorage,
    /// The caller whose turns this command may not steer in the caller's own runs, because they have rights that the command's
    /// submitter lacks. `None` if it may steer all turns of the run.
    pub unsteerable: Option<String>,
}

pub(super) fn create(
    desk: &mut Desk,
    run_id: RunId,
    op: CreateCommandOp,
    now: Timestamp,
) -> Result<Created<Command>, Failure> {
    let rows = desk.run(run_id)?;
    if let Some(known) = find_by_key(rows, op.command.idempotency_key.as_deref()) {
        return match_existing(known, &op.command).map(Created::existing);
    }
    check_room(desk, run_id, &op.command, now)?;
    // A steer or an interrupt concerns a turn that already runs; only a new turn needs what the agent stored.
    if op.command.command_type == CommandType::Turn {
        desk.session.storage.check_found(op.storage_missing)?;
    }
    let target = target(rows, op.command.command_type);
    if op.command.command_type == CommandType::Steer {
        check_steer(rows, target, op.unsteerable.as_deref())?;
    }
    let aimed = op.command.command_type != CommandType::Turn;
    let command_id = op.command.command_id;
    let rows = desk.run_mut(run_id);
    rows.run.command_count += 1;
    let seq = rows.run.command_count;
    rows.commands.insert(command_id, Tracked::new(Command { seq, target_command_id: target, ..op.command }));
    desk.session.last_command_id = Some(command_id);
    desk.append(run_id, op.message, now);
    for fact in op.facts {
        desk.append(run_id, fact, now);
    }
    if aimed && target.is_none() {
        let end = End::manager(TerminalStatus::Blocked, FailureKind::StateConflict, "no turn is active");
        ending::end_command(desk, run_id, command_id, end, now);
    }
    desk.settle(run_id, now);
    let command = (*desk.run(run_id)?.commands[&command_id]).clone();
    Ok(Created::new(command))
}

/// Whether the run takes one more command.
pub(super) fn check_room(desk: &Desk, run_id: RunId, command: &Command, now: Timestamp) -> Result<(), Failure> {
    let rows = desk.run(run_id)?;
    check_accepting(&rows.run)?;
    admission::check_takes_work(&desk.session)?;
    if let Some(active) = desk.session.busy_with_other(Some(run_id), now) {
        return Err(session_busy(active));
    }
    if rows.unfinished().count() >= COMMANDS_UNFINISHED_MAX {
        let message = format!("the run has {COMMANDS_UNFINISHED_MAX} unfinished commands");
        return Err(Failure::rule(Rule::CommandsUnfinished, message));
    }
    let bytes = |command: &Command| stored_bytes(&command.payload);
    if rows.unfinished().map(bytes).sum::<usize>() + bytes(command) > COMMANDS_UNFINISHED_BYTES_MAX {
        let message = format!("the run's unfinished commands would be over {COMMANDS_UNFINISHED_BYTES_MAX} bytes");
        return Err(Failure::rule(Rule::CommandsUnfinishedBytes, message));
    }
    Ok(())
}

/// The turn at work, else the next one to start.
fn target(rows: &RunDesk, command_type: CommandType) -> Option<CommandId> {
    if command_type == CommandType::Turn {
        return None;
    }
    let turns = rows.unfinished().filter(|c| c.command_type == CommandType::Turn);
    turns.min_by_key(|c| (c.state == CommandState::Pending, c.seq)).map(|c| c.command_id)
}

/// Fails if the turn that a steer aims at, and its run, belong to the caller whose turns it may not steer.
fn check_steer(rows: &RunDesk, target: Option<CommandId>, unsteerable: Option<&str>) -> Result<(), Failure> {
    let Some(turn) = target.and_then(|target| rows.commands.get(&target)) else { return Ok(()) };
    let is_closed = unsteerable.is_some()
        && turn.submitted_by.as_deref() == unsteerable
        && rows.run.created_by.as_deref() == unsteerable;
    if is_closed {
        let message = "the turn has tools that only its submitter may use, so that no other caller may steer it";
        return Err(Failure::rule(Rule::Owner, message));
    }
    Ok(())
}

fn find_by_key<'a>(rows: &'a RunDesk, key: Option<&str>) -> Option<&'a Command> {
    let key = key?;
    rows.commands.values().map(|c| &**c).find(|c| c.idempotency_key.as_deref() == Some(key))
}

fn match_existing(existing: &Command, new: &Command) -> Result<Command, Failure> {
    if existing.payload_hash == new.payload_hash && existing.command_type == new.command_type {
        return Ok(existing.clone());
    }
    let message = "this idempotency key was used for another command";
    Err(Failure::rule(Rule::PayloadHash, message)
        .detail("commandId", existing.command_id.to_string())
        .detail("payloadHash", existing.payload_hash.clone()))
}
