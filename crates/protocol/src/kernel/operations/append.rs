//! Appending a runner's events: fenced, de-duplicated, checked whole before anything is written.

use super::{
    Reply,
    admission::check_open,
    budget,
    desk::{Batch, Desk, RunDesk, Tracked},
    ending::{End, end_command, end_run},
    job::end_resident,
    lease::{fence, release},
    permission::{self, ReportedPermission},
};
use crate::{
    Failure, FailureKind, RawJson, Rule, Timestamp,
    ids::{AttemptId, CommandId, PermissionId, RunId, RunnerJobId},
    kernel::{
        chain,
        commands::{Command, CommandState},
        events::{Appended, EventType, NewEvent, unknown_command},
        facts::{Facts, ToolFacts},
        fold::KnownCalls,
        permissions::{ParsedPermission, VotingRules},
        runs::{Terminal, TerminalStatus},
    },
    tools::calls::{CallState, TOOLKIT},
};

#[derive(Clone, Debug)]
pub struct AppendOp {
    pub runner_id: String,
    pub lease_epoch: i64,
    pub attempt_id: Option<AttemptId>,
    pub batch_no: Option<i64>,
    /// Give the lease back if nothing is left to do.
    pub release_if_idle: bool,
    /// The job that ends with the lease, and its summary.
    pub ends_job: Option<(RunnerJobId, RawJson)>,
    /// How permission requests among the events are decided.
    pub voting: VotingRules,
    /// The calls of the events' command that the server knows, if it starts another one without having searched the log for it.
    pub known_calls: Option<KnownCalls>,
    pub events: Vec<NewEvent>,
}

pub(super) fn append(desk: &mut Desk, run_id: RunId, op: AppendOp, now: Timestamp) -> Result<Reply, Failure> {
    let rows = desk.run(run_id)?;
    let named = op.batch_no.map(|no| (no, chain::batch_digest(op.events.iter().map(NewEvent::named))));
    if let Some((no, digest)) = named
        && let Some(batch) = find_batch(rows, op.lease_epoch, no)
    {
        let same_owner =
            rows.lease.as_deref().is_some_and(|l| l.runner_id == op.runner_id && l.epoch == op.lease_epoch);
        if same_owner && batch.digest != digest {
            let message = "this batch number was used for other events";
            return Err(Failure::rule(Rule::BatchPayload, message)
                .detail("firstSeq", batch.first_seq)
                .detail("lastSeq", batch.last_seq));
        }
        if same_owner {
            let Batch { first_seq, last_seq, released, .. } = *batch;
            return Ok(Reply::Appended(Appended { first_seq, last_seq, released, job_ended: false }));
        }
    }
    if let Some(seq) = stated_before(rows, &op.events) {
        let released = op.release_if_idle && has_left(rows);
        return Ok(Reply::Appended(Appended { first_seq: seq, last_seq: seq, released, job_ended: false }));
    }
    check_open(&rows.run)?;
    fence(rows, &op.runner_id, op.lease_epoch, op.attempt_id, now)?;
    check(rows, &op.events, op.known_calls.as_ref())?;
    let first_seq = rows.run.last_seq + 1;
    let overspent = budget::overspent(rows, &op.events);
    let mut round = None;
    for event in op.events {
        // A server that got no answer from its store records the end of a call again. A runner's batch has a number for that.
        if op.batch_no.is_some() || !is_ended_again(desk.run(run_id)?, &event) {
            round = take(desk, run_id, event, round, op.voting, now);
        }
    }
    budget::limit_overspent(desk, run_id, &overspent, now);
    let last_seq = desk.run(run_id)?.run.last_seq;
    let rows = desk.run(run_id)?;
    let leaves = op.release_if_idle || rows.lease.as_deref().is_some_and(|lease| lease.dismissed);
    let mut job_ended = false;
    if op.release_if_idle && !has_left(rows) && rows.unfinished().next().is_none() {
        release(desk, run_id, now);
        job_ended = op.ends_job.is_some_and(|(job_id, summary)| end_resident(desk, run_id, job_id, summary, now));
    }
    desk.settle(run_id, now);
    let released = leaves && has_left(desk.run(run_id)?);
    if let Some((batch_no, digest)) = named {
        let batch = Batch { run_id, lease_epoch: op.lease_epoch, batch_no, first_seq, last_seq, released, digest };
        let rows = desk.run_mut(run_id);
        rows.batches.push(Tracked::new(batch));
        if let Some((of, high)) = &mut rows.batch_high
            && *of == op.lease_epoch
        {
            *high = batch_no.max(*high);
        }
    }
    Ok(Reply::Appended(Appended { first_seq, last_seq, released, job_ended }))
}

/// Whether the lease has ended.
fn has_left(rows: &RunDesk) -> bool {
    rows.lease.as_deref().is_none_or(|lease| lease.ended)
}

fn find_batch(rows: &RunDesk, epoch: i64, no: i64) -> Option<&Batch> {
    rows.batches.iter().map(|b| &**b).find(|b| b.lease_epoch == epoch && b.batch_no == no)
}

/// A single end that was stated before: the number of the fact that holds. It has the same status, or it is `cancelled` because its
/// cancel was requested and the report names that as the cause.
fn stated_before(rows: &RunDesk, events: &[NewEvent]) -> Option<i64> {
    let [event] = events else { return None };
    let Facts::Terminal(facts) = &event.facts else { return None };
    let is_same =
        |t: &&Terminal| t.status == facts.status || t.status == TerminalStatus::Cancelled && facts.is_by_cancel();
    terminal_of(rows, event.command_id).filter(is_same).map(|t| t.seq)
}

fn terminal_of(rows: &RunDesk, command_id: Option<CommandId>) -> Option<&Terminal> {
    match command_id {
        Some(id) => rows.commands.get(&id)?.terminal.as_ref(),
        None => rows.run.terminal.as_ref(),
    }
}

/// Nothing is written unless every event can be.
fn check(rows: &RunDesk, events: &[NewEvent], known_calls: Option<&KnownCalls>) -> Result<(), Failure> {
    let mut ended: Vec<CommandId> = vec![];
    let mut run_ended = false;
    let mut requested: Vec<PermissionId> = vec![];
    check_sets(events)?;
    for event in events {
        if run_ended {
            return Err(Failure::invalid(Rule::AfterRunEnd, "no event may follow the run's terminal_status"));
        }
        if let Some(id) = event.command_id {
            let command = rows.commands.get(&id).ok_or_else(|| unknown_command(&id.to_string()))?;
            // A command that was aimed at one ended in this batch ends with it; only its own end may still follow.
            let ends_along = command.target_command_id.is_some_and(|target| ended.contains(&target));
            let is_end = matches!(event.facts, Facts::Terminal(_));
            if command.state.is_terminal() || ended.contains(&id) || ends_along && !is_end {
                return Err(command_ended(command.terminal.as_ref()));
            }
            if let Facts::Tool(call) = &event.facts {
                check_call(command, call, known_calls)?;
            }
        }
        match &event.facts {
            Facts::Terminal(_) => match event.command_id {
                Some(id) => ended.push(id),
                None => run_ended = true,
            },
            Facts::Permission(ask) => {
                if event.command_id.is_none() {
                    return Err(Failure::invalid(Rule::PermissionCommand, "a permission_request needs its commandId"));
                }
                if let Some(id) = ask.permission_id() {
                    check_ask(rows, id, &requested)?;
                    requested.push(id);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A call of this server's tools is started once, although two servers may have got its request. One whose execution was lost may
/// be executed again, if its tool is idempotent: the event states it. If the command has calls that the server does not know, this one
/// may be among them, and the server has to search the log.
fn check_call(command: &Command, call: &ToolFacts, known_calls: Option<&KnownCalls>) -> Result<(), Failure> {
    let is_start = call.tool_type.as_deref() == Some(TOOLKIT) && call.status.as_deref() == CallState::Started.status();
    let call_id = call.tool_call_id.as_deref().filter(|_| is_start && !call.is_executed_again);
    let tools = &command.fold.tools;
    let may_be_recorded = |call_id: &&str| {
        tools.has_toolkit_call(call_id) || known_calls.is_some_and(|known_calls| !tools.has_only(known_calls))
    };
    match call_id.filter(may_be_recorded) {
        Some(call_id) => Err(Failure::rule(Rule::ToolCallReused, format!("callId {call_id:?} was used before"))),
        None => Ok(()),
    }
}

/// Whether the event is another end of a call of this server's tools that has ended.
fn is_ended_again(rows: &RunDesk, event: &NewEvent) -> bool {
    let command = event.command_id.and_then(|command_id| rows.commands.get(&command_id));
    match (&event.facts, command) {
        (Facts::Tool(call), Some(command)) => command.fold.tools.is_ended_again(call),
        _ => false,
    }
}

/// A request that people are asked together with the next one is followed by a request of its command.
fn check_sets(events: &[NewEvent]) -> Result<(), Failure> {
    let mut following = events.iter().skip(1);
    for event in events {
        let next = following.next();
        let is_set = next.is_some_and(|next| {
            matches!(next.facts, Facts::Permission(ParsedPermission::Valid(_))) && next.command_id == event.command_id
        });
        if is_with_next(event) && !is_set {
            let message = "a permission_request that is withNext must be followed by one of the same command";
            return Err(Failure::invalid(Rule::PermissionSet, message));
        }
    }
    Ok(())
}

fn is_with_next(event: &NewEvent) -> bool {
    matches!(&event.facts, Facts::Permission(ParsedPermission::Valid(ask)) if ask.with_next)
}

/// A request's id is used once in its run, and only so many are open at a time.
fn check_ask(rows: &RunDesk, id: PermissionId, requested: &[PermissionId]) -> Result<(), Failure> {
    if rows.permissions.contains_key(&id) || requested.contains(&id) {
        return Err(Failure::invalid(Rule::PermissionIdUsed, "this permissionId was used before"));
    }
    let open_max = rows.run.execution_policy.open_permissions_max();
    if rows.run.open_permissions as usize + requested.len() >= open_max {
        let message = format!("run {} has {open_max} open permission requests", rows.run.run_id);
        return Err(Failure::rule(Rule::PermissionsOpen, message).with_kind(FailureKind::Overloaded));
    }
    Ok(())
}

fn command_ended(terminal: Option<&Terminal>) -> Failure {
    let status = terminal.map_or("ended", |t| t.status.as_str());
    let kind = match terminal.map(|t| t.status) {
        Some(TerminalStatus::Cancelled) => FailureKind::Cancelled,
        _ => FailureKind::StateConflict,
    };
    let failure = Failure::rule(Rule::CommandTerminal, format!("the command has ended: {status}")).with_kind(kind);
    failure.detail("status", status)
}

/// Writes one checked event and what follows from it. `round`: that of the permission request before it, if people are asked both
/// together. Returns that of this event for the next one.
fn take(
    desk: &mut Desk,
    run_id: RunId,
    event: NewEvent,
    round: Option<i64>,
    voting: VotingRules,
    now: Timestamp,
) -> Option<i64> {
    let is_with_next = is_with_next(&event);
    match (&event.facts, event.command_id) {
        (Facts::Terminal(facts), Some(command_id)) => {
            // A command that depended on one ended earlier in this batch may have been ended with it.
            if desk.run_mut(run_id).commands[&command_id].is_unfinished() {
                let end = End::runner(facts.clone(), event);
                end_command(desk, run_id, command_id, end, now);
            }
        }
        (Facts::Terminal(facts), None) => {
            let end = End::runner(facts.clone(), event);
            end_run(desk, run_id, end, now);
        }
        (Facts::Permission(ParsedPermission::Valid(ask)), Some(command_id)) => {
            let request = ReportedPermission { command_id, ask: (**ask).clone(), event };
            start(desk, run_id, command_id, now);
            let round = permission::ask(desk, run_id, request, round, voting, now);
            return is_with_next.then_some(round);
        }
        (Facts::Permission(ParsedPermission::Invalid(permission_id)), Some(command_id)) => {
            let permission_id = *permission_id;
            start(desk, run_id, command_id, now);
            desk.append(run_id, event, now);
            permission::deny_unread(desk, run_id, command_id, permission_id, now);
        }
        (Facts::Thread { thread_id }, _) => {
            if let Some(thread_id) = thread_id {
                desk.session.thread_id = Some(thread_id.clone());
            }
            desk.append(run_id, event, now);
        }
        (_, Some(command_id)) => {
            if event.event_type != EventType::Audit {
                start(desk, run_id, command_id, now);
            }
            desk.append(run_id, event, now);
        }
        (_, None) => {
            desk.append(run_id, event, now);
        }
    }
    None
}

/// The first event of a command shows that it runs.
fn start(desk: &mut Desk, run_id: RunId, command_id: CommandId, now: Timestamp) {
    let rows = desk.run_mut(run_id);
    let attempt_id = rows.run.attempt_id;
    let rows = &mut *rows;
    let command = rows.commands.get_mut(&command_id).expect("checked before");
    if matches!(command.state, CommandState::Pending | CommandState::Acked) {
        command.deadline_at = budget::deadline(&rows.run, command, now);
        command.state = CommandState::Running;
        command.acked_at.get_or_insert(now);
        command.attempt_id = attempt_id;
    }
}
