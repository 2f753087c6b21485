//! How commands and runs end: by one explicit fact each, with everything that depends on it in the same transaction.

use serde_json::{Map, Value, json};

use super::{desk::Desk, permission, usage::of_turn};
use crate::{
    FailureKind, Rule, Timestamp,
    failures::RULE,
    ids::{CommandId, RunId},
    kernel::{
        commands::CommandState,
        events::{EventType, NewEvent},
        facts::TerminalFacts,
        fold::ToolFold,
        permissions::resolved_by,
        runs::{RunStatus, Terminal, TerminalStatus},
    },
    limits::BLOCKER_CHARS_MAX,
    text::clip,
    tools::calls::{CallState, TOOLKIT},
};

/// The result of a call that was open when its command ended.
const LEFT_CALL: &str = "the outcome of this call is not known: the turn ended before the tool had responded, and the call may have had an effect";

/// An end about to be stated.
pub(super) struct End {
    facts: TerminalFacts,
    source: &'static str,
    /// The event as a runner stated it; made here for the server's own ends.
    event: Option<NewEvent>,
}

impl End {
    /// Stated by the server itself.
    pub(super) fn manager(status: TerminalStatus, kind: FailureKind, message: &str) -> Self {
        Self::of(status, Some(kind), Some(message.to_owned()), "manager")
    }

    /// The same end with the rule that was broken, if there is one.
    pub(super) fn with_rule(mut self, rule: Option<Rule>) -> Self {
        self.facts = self.facts.with_rule(rule);
        self
    }

    /// A command that ends because its run ended.
    fn with_run(run: &TerminalFacts) -> Self {
        match run.status {
            TerminalStatus::Completed => {
                Self::of(TerminalStatus::Cancelled, Some(FailureKind::Cancelled), Some("the run ended".into()), "run")
            }
            status => Self::of(status, run.failure_kind, run.message.clone(), "run").with_rule(run.rule),
        }
    }

    /// Stated by a runner, in an event of its own.
    pub(super) fn runner(facts: TerminalFacts, event: NewEvent) -> Self {
        Self { facts, source: "runner", event: Some(event) }
    }

    fn of(status: TerminalStatus, kind: Option<FailureKind>, message: Option<String>, source: &'static str) -> Self {
        let failure_kind = kind.filter(|_| status != TerminalStatus::Completed);
        let facts = TerminalFacts { status, failure_kind, rule: None, message };
        Self { facts, source, event: None }
    }

    /// Names the end `cancelled` if its cancel was requested and the report names that as the cause. A turn whose permission request
    /// is cancelled reports `blocked` or `failed` of the kind `cancelled`: it cannot tell a requested cancel from a request
    /// that expired. Every other end stays as reported: a turn may complete, or fail for another reason, before the cancel
    /// reaches it.
    fn attribute_to_cancel(&mut self, is_cancel_requested: bool) {
        if is_cancel_requested && self.facts.status != TerminalStatus::Cancelled && self.facts.is_by_cancel() {
            self.facts.status = TerminalStatus::Cancelled;
            self.facts.message = Some(resolved_by::CANCEL.to_owned());
            self.facts.rule = None;
            // The log must have the end that holds, not the one that was reported.
            self.event = None;
        }
    }

    /// A cancelled end records the reason of the cancel.
    fn explain(&mut self, reason: Option<String>) {
        if let Some(reason) = reason.filter(|_| self.facts.status == TerminalStatus::Cancelled) {
            self.facts.message = Some(clip(&format!("{}: {reason}", resolved_by::CANCEL), BLOCKER_CHARS_MAX));
        }
    }

    fn event(&mut self, command_id: Option<CommandId>) -> NewEvent {
        self.event.take().unwrap_or_else(|| {
            let mut payload = Map::new();
            payload.insert("status".into(), self.facts.status.as_str().into());
            payload.insert("failureKind".into(), self.facts.failure_kind.map_or(Value::Null, |k| k.as_str().into()));
            payload.insert("message".into(), self.facts.message.clone().map_or(Value::Null, Value::from));
            if let Some(rule) = self.facts.rule {
                payload.insert(RULE.into(), rule.as_str().into());
            }
            payload.insert("source".into(), self.source.into());
            NewEvent::written(EventType::TerminalStatus, command_id, &payload)
        })
    }

    fn terminal(self, seq: i64, at: Timestamp) -> Terminal {
        let TerminalFacts { status, failure_kind, rule, message } = self.facts;
        Terminal { status, failure_kind, rule, message, source: self.source.into(), seq, at }
    }
}

/// Ends an unfinished command, its open questions, and the steers that never reached it.
pub(super) fn end_command(desk: &mut Desk, run_id: RunId, command_id: CommandId, mut end: End, now: Timestamp) -> i64 {
    permission::cancel_open(desk, run_id, Some(command_id), resolved_by::COMMAND_END, now);
    let command = &desk.run_mut(run_id).commands[&command_id];
    let (is_cancel_requested, reason) = (command.cancel_requested_at.is_some(), command.cancel_reason.clone());
    end.attribute_to_cancel(is_cancel_requested);
    end.explain(reason);
    leave_calls(desk, run_id, command_id, &end, now);
    let event = end.event(Some(command_id));
    let seq = desk.append(run_id, event, now);
    let command = desk.run_mut(run_id).commands.get_mut(&command_id).expect("checked by the operation");
    command.state = CommandState::from(end.facts.status);
    command.terminal = Some(end.terminal(seq, now));
    if let Some(turn) = of_turn(command, now) {
        desk.count_usage(run_id, turn, now);
    }
    desk.session.has_ended_one(now);
    let waiting: Vec<_> = desk
        .run_mut(run_id)
        .unfinished()
        .filter(|c| c.target_command_id == Some(command_id))
        .map(|c| c.command_id)
        .collect();
    for steer in waiting {
        let end =
            End::manager(TerminalStatus::Blocked, FailureKind::StateConflict, "the turn it was meant for has ended");
        end_command(desk, run_id, steer, end, now);
    }
    seq
}

/// Records that the outcome of the tool calls still open is unknown: their runner can no longer report it. A runner that ends the
/// command itself has reported the calls of its agent's own tools, and may leave calls open that the front end answers. The calls
/// of this server's tools end here in any case, because nothing can be recorded for a command that has ended.
fn leave_calls(desk: &mut Desk, run_id: RunId, command_id: CommandId, end: &End, now: Timestamp) {
    let tools = &desk.run_mut(run_id).commands[&command_id].fold.tools;
    let left: Vec<_> = tools.open.iter().filter(|call_id| is_left(tools, call_id, end)).collect();
    let facts: Vec<_> = left.into_iter().map(|call_id| left_call(tools, call_id)).collect();
    for fact in facts {
        desk.append(run_id, NewEvent::written(EventType::ToolCall, Some(command_id), &fact), now);
    }
}

/// Whether an open call ends with its command.
fn is_left(tools: &ToolFold, call_id: &str, end: &End) -> bool {
    let is_own = match tools.item(call_id) {
        Some(item) => item.tool_type.as_deref() == Some(TOOLKIT),
        // The fold has the newest calls only. Calls that a front end answers are left open by turns that complete.
        None => end.facts.status != TerminalStatus::Completed,
    };
    end.event.is_none() || is_own
}

fn left_call(tools: &ToolFold, call_id: &str) -> Value {
    let mut fact = json!({"toolCallId": call_id, "status": CallState::OutcomeUnknown.status()});
    let own = tools.item(call_id).filter(|item| item.tool_type.as_deref() == Some(TOOLKIT));
    if let Some(item) = own {
        // Later turns get the result.
        fact["name"] = item.tool_name.as_deref().into();
        fact["method"] = item.method.as_deref().into();
        fact["type"] = TOOLKIT.into();
        fact["resultSummary"] = LEFT_CALL.into();
        fact["result"] = LEFT_CALL.into();
        fact["resultTruncated"] = false.into();
    }
    fact
}

/// Ends a run with everything unfinished in it, and its lease.
pub(super) fn end_run(desk: &mut Desk, run_id: RunId, mut end: End, now: Timestamp) -> i64 {
    end.attribute_to_cancel(desk.run_mut(run_id).run.cancel_requested_at.is_some());
    for command_id in desk.run_mut(run_id).unfinished_ids() {
        if desk.run_mut(run_id).commands[&command_id].is_unfinished() {
            end_command(desk, run_id, command_id, End::with_run(&end.facts), now);
        }
    }
    end.explain(desk.run_mut(run_id).run.cancel_reason.clone());
    let event = end.event(None);
    let seq = desk.append(run_id, event, now);
    let rows = desk.run_mut(run_id);
    rows.run.status = RunStatus::from(end.facts.status);
    rows.run.terminal = Some(end.terminal(seq, now));
    if let Some(lease) = rows.lease.as_mut().filter(|lease| !lease.ended) {
        lease.ended = true;
    }
    desk.session.has_ended_one(now);
    seq
}

/// A run with a requested cancel ends as soon as nothing in it is unfinished.
pub(super) fn close_cancelled_run(desk: &mut Desk, run_id: RunId, now: Timestamp) {
    let rows = desk.run_mut(run_id);
    let due =
        rows.run.cancel_requested_at.is_some() && !rows.run.status.is_terminal() && rows.unfinished().next().is_none();
    if due {
        let end = End::manager(TerminalStatus::Cancelled, FailureKind::Cancelled, resolved_by::CANCEL);
        end_run(desk, run_id, end, now);
    }
}
