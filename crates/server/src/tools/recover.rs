//! Finds what became of a call that this process does not know: its server was restarted, or another server got the first request.
//! The log is the truth: a call that was started and has not ended is executed by another server, or by none.

use std::collections::HashSet;

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, Rule, Timestamp,
    ids::CommandId,
    kernel::{events::Event, facts::DelegatedUse},
    tools::{
        CallState,
        calls::{TOOLKIT, replayed_arguments},
        wire::{CallTool, EarlierCall},
    },
};
use ostler_store as store;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Duration, Instant};

use super::{outcome::CallOutcome, source::ToolContext};
use crate::{
    app::{App, RunRef},
    recheck::SessionWatch,
};

/// How much longer than its deadline a call of another server may take to be recorded.
const ELSEWHERE_GRACE: SignedDuration = SignedDuration::from_secs(10);
/// The longest that a call of another server is waited for, independent of the clock.
const ELSEWHERE_MAX: Duration = Duration::from_secs(1_900);
/// Characters of a call's arguments that a runner gets which continues the command.
const EARLIER_ARGUMENTS_CHARS_MAX: usize = 16 * 1024;
/// Most calls of a command that are read.
const CALLS_MAX: u32 = 200;

/// What the log has of a call.
pub(super) enum Recovered {
    Unknown,
    Ended(CallOutcome),
    /// It was started by a process that does not execute it any more.
    Lost,
}

/// A `tool_call` event of the toolkit.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CallFact {
    tool_call_id: String,
    name: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    status: String,
    arguments: Value,
    /// A person has replaced the arguments of the request by these.
    edited: bool,
    digest: Option<String>,
    deadline_ms: i64,
    result: Option<String>,
    result_truncated: bool,
    /// The lease of a call whose tool gave no answer.
    lease_epoch: Option<i64>,
    /// What runs that the call started have used.
    total_tokens: Value,
    cost_usd: Value,
    tool_calls: Value,
}

impl CallFact {
    fn read(event: &Event) -> Option<Self> {
        serde_json::from_str(event.payload.as_deref()?).ok()
    }

    fn state(&self) -> Option<CallState> {
        CallState::of_status(&self.status)
    }

    /// The arguments with which a person has replaced those of the request. Long ones were recorded as a text that is cut, which is
    /// their only member `truncated`.
    fn edited_arguments(&self) -> Option<Map<String, Value>> {
        let arguments = self.edited.then(|| replayed_arguments(&self.arguments, EARLIER_ARGUMENTS_CHARS_MAX))?;
        serde_json::from_str(&arguments).ok()
    }

    /// `edited`: of the event that the call was started with.
    fn outcome(self, edited: Option<Map<String, Value>>) -> Option<CallOutcome> {
        let state = self.state().filter(|state| state.has_ended())?;
        let text = self.result.unwrap_or_else(|| CallOutcome::unknown().text);
        let count = |counted: &Value| counted.as_i64().unwrap_or(0);
        let delegated = DelegatedUse {
            tokens: count(&self.total_tokens),
            cost_usd: self.cost_usd.as_f64().unwrap_or(0.0),
            tool_calls: count(&self.tool_calls),
        };
        Some(CallOutcome { state, text, is_truncated: self.result_truncated, edited, delegated })
    }
}

/// Finds a call in the log. The common case costs nothing: the fold of the command has all of its calls, and not this one. A request
/// that is `repeated`, or for which the caller requires it (`must_read`), always reads the log.
pub(super) async fn find(
    app: &App,
    run: &RunRef,
    context: &ToolContext,
    request: &CallTool,
    must_read: bool,
) -> Result<Recovered, Failure> {
    let tools = context.command.as_ref().map(|command| &command.fold.tools);
    let may_be_recorded =
        tools.is_some_and(|tools| tools.has_toolkit_call(&request.call_id) || tools.has_dropped_items());
    if !must_read && !request.repeated && !may_be_recorded {
        return Ok(Recovered::Unknown);
    }
    let is_open = tools.is_some_and(|tools| tools.open.contains(&request.call_id));
    let until = Instant::now() + ELSEWHERE_MAX;
    let mut watch = SessionWatch::new(app, run.session);
    loop {
        let mut facts = facts_of_call(app, run, request).await?;
        if facts.iter().any(|(_, fact)| !is_named(fact, &request.name)) {
            return Err(reused(&request.call_id));
        }
        let edited = facts.iter().find_map(|(_, fact)| fact.edited_arguments());
        let Some((created_at, last)) = facts.pop() else {
            // The read is bounded: a call that the fold has open was started, although its event is not among those that were read.
            return Ok(if is_open { Recovered::Lost } else { Recovered::Unknown });
        };
        let deadline = SignedDuration::from_millis(last.deadline_ms.max(0)) + ELSEWHERE_GRACE;
        if let Some(outcome) = last.outcome(edited) {
            return Ok(Recovered::Ended(outcome));
        }
        let is_over = app.now().duration_since(created_at) > deadline || Instant::now() >= until;
        if !app.has_others() || is_over {
            return Ok(Recovered::Lost);
        }
        watch.changed(until, |event| event.command_id == Some(request.command_id)).await;
    }
}

/// What the log has of a call, and when it was recorded.
async fn facts_of_call(app: &App, run: &RunRef, request: &CallTool) -> Result<Vec<(Timestamp, CallFact)>, Failure> {
    let events = store::kernel::events::list_tool_call(&app.db, run.session, &request.call_id).await?;
    let events = events.iter().filter(|event| event.command_id == Some(request.command_id));
    let facts = events.filter_map(|event| Some((event.created_at, CallFact::read(event)?)));
    Ok(facts.filter(|(_, fact)| fact.tool_call_id == request.call_id).collect())
}

/// Whether the log has the end of a call that this process has executed. Unlike [`find`], this waits for no other server.
pub(super) async fn is_ended(app: &App, run: &RunRef, request: &CallTool) -> Result<bool, Failure> {
    let facts = facts_of_call(app, run, request).await?;
    // A call of the agent's own tools may have the same id.
    let mut own = facts.iter().map(|(_, fact)| fact).filter(|fact| fact.kind.as_deref() == Some(TOOLKIT));
    let last = own.next_back().and_then(CallFact::state);
    Ok(last.is_some_and(CallState::has_ended))
}

/// The failure of a call whose id has another call in the log.
pub(super) fn reused(call_id: &str) -> Failure {
    Failure::rule(Rule::ToolCallReused, format!("callId {call_id:?} was used before"))
}

/// A runner that takes a command over records outcomes without names.
fn is_named(fact: &CallFact, name: &str) -> bool {
    fact.name == name || fact.name.is_empty()
}

/// Whether a call of the command with this digest has, or may have, an unknown outcome: the log is read within bounds, and a call that
/// was not read counts as one. A call whose tool gave no answer under the current lease does not count: the agent knows that its outcome
/// is unknown, and decides. If there are no others, nothing has to be read.
pub(super) async fn has_unknown(
    app: &App,
    run: &RunRef,
    context: &ToolContext,
    digest: &str,
    lease_epoch: i64,
) -> Result<bool, Failure> {
    let Some(command) = &context.command else { return Ok(false) };
    let tools = &command.fold.tools;
    if tools.is_unknown_only_under(lease_epoch) {
        return Ok(false);
    }
    let status = CallState::OutcomeUnknown.status().unwrap_or_default();
    let counted = tools.statuses.get(status).copied().unwrap_or(0);
    let RecordedCalls { facts, is_truncated } = facts_of_command(app, run, command.command_id).await?;
    let started: HashSet<&str> =
        facts.iter().filter(|fact| fact.state() == Some(CallState::Started)).map(id_of).collect();
    let unknown: Vec<&str> = facts.iter().filter(|fact| fact.status == status).map(id_of).collect();
    let is_incomplete =
        is_truncated || (unknown.len() as i64) < counted || unknown.iter().any(|call_id| !started.contains(call_id));
    let is_same = |call: &FoldedCall| {
        let is_unknown = call.state == Some(CallState::OutcomeUnknown) && call.lease_epoch != Some(lease_epoch);
        is_unknown && call.digest.as_deref() == Some(digest)
    };
    Ok(is_incomplete || fold_calls(facts).iter().any(is_same))
}

fn id_of(fact: &CallFact) -> &str {
    &fact.tool_call_id
}

/// The `tool_call` events of a command, also those of agents' own tools.
struct RecordedCalls {
    facts: Vec<CallFact>,
    is_truncated: bool,
}

async fn facts_of_command(app: &App, run: &RunRef, command_id: CommandId) -> Result<RecordedCalls, Failure> {
    let read = store::kernel::events::list_tool_calls(&app.db, run.session, command_id, 2 * CALLS_MAX).await?;
    let facts = read.events.iter().filter_map(CallFact::read).collect();
    Ok(RecordedCalls { facts, is_truncated: read.truncated })
}

/// A call of a command, folded from its events.
struct FoldedCall {
    id: String,
    name: String,
    arguments: Value,
    digest: Option<String>,
    state: Option<CallState>,
    /// Of a call whose tool gave no answer.
    lease_epoch: Option<i64>,
    result: String,
}

/// The calls of this server's tools.
fn fold_calls(facts: Vec<CallFact>) -> Vec<FoldedCall> {
    let mut calls: Vec<FoldedCall> = vec![];
    for fact in facts {
        let state = fact.state();
        match calls.iter_mut().find(|call| call.id == fact.tool_call_id) {
            Some(call) => {
                (call.state, call.lease_epoch) = (state, fact.lease_epoch);
                call.result = fact.result.unwrap_or_default();
            }
            // Backends record calls of their own tools. A runner that takes a command over records outcomes by their ids only.
            None if fact.kind.as_deref() != Some(TOOLKIT) => {}
            None => calls.push(FoldedCall {
                id: fact.tool_call_id,
                name: fact.name,
                arguments: fact.arguments,
                digest: fact.digest,
                state,
                lease_epoch: fact.lease_epoch,
                result: fact.result.unwrap_or_default(),
            }),
        }
    }
    calls
}

/// The calls that the command has made so far, for a runner that continues it.
pub(super) async fn earlier_calls(app: &App, run: &RunRef, command_id: CommandId) -> Result<Vec<EarlierCall>, Failure> {
    let calls = fold_calls(facts_of_command(app, run, command_id).await?.facts).into_iter();
    let earlier = calls.filter_map(|call| {
        let state = call.state?;
        let arguments = replayed_arguments(&call.arguments, EARLIER_ARGUMENTS_CHARS_MAX);
        // A tool that gave no answer has a result which states why. A runner that takes a command over records outcomes without one.
        let is_without = !state.has_ended() || state == CallState::OutcomeUnknown && call.result.is_empty();
        let result = if is_without { CallOutcome::unknown().text } else { call.result };
        let status = if state.has_ended() { state } else { CallState::OutcomeUnknown };
        Some(EarlierCall { call_id: call.id, name: call.name, arguments, status: status.into(), result })
    });
    Ok(earlier.collect())
}
