//! What backends that drive a child process share: starting it, calls that a turn depends on, and giving it up.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    kernel::events::{EventType, PHASE_TRANSPORT_DISCONNECTED},
    rpc::{NotAFrame, RpcError},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Duration;

use super::{
    process::{CallError, Process, Program},
    turn::{TurnAbort, TurnEnd},
};
use crate::{text_cutter::TextCutter, turn_sink::TurnSink};

/// Characters of a message of the child process that are passed on.
pub(super) const MESSAGE_CHARS_MAX: usize = 500;

/// The reply to a request of the child process.
pub(super) type RpcReply = Result<Value, RpcError>;

/// How we introduce ourselves in `initialize`.
pub(super) fn client_info() -> Value {
    json!({"name": "ostler", "title": "Ostler", "version": env!("CARGO_PKG_VERSION")})
}

/// Starts the program. `rule` is that of the failure if it does not start: [`Rule::ProfileProgram`] if a profile names it.
pub(super) fn start_process(program: &Program, cutter: TextCutter, rule: Rule) -> Result<Process, TurnEnd> {
    Process::start(program, cutter)
        .map_err(|error| program_unusable(rule, format!("the agent's program did not start: {error}")))
}

/// The end of a turn whose program cannot be started. It is logged as well: only the operator of this machine can install the program.
pub(super) fn program_unusable(rule: Rule, message: String) -> TurnEnd {
    tracing::warn!(problem = %message, "the program of an agent cannot be started");
    TurnEnd::of_failure(Failure::rule(rule, message))
}

/// Reports that the process ended between two turns, before the next turn starts another one.
pub(super) async fn report_process_lost(sink: &TurnSink, process: &Process) {
    let phase = json!({"phase": PHASE_TRANSPORT_DISCONNECTED, "processId": process.id(),
        "message": "the agent's process ended between two turns; another one is started"});
    sink.emit(EventType::BackendStatus, &phase).await;
}

/// Awaits `work`, unless the turn is stopped first.
pub(super) async fn unless_stopped<T>(
    stopped: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Result<T, TurnAbort> {
    tokio::select! {
        () = stopped => Err(TurnAbort::Stopped),
        done = work => Ok(done),
    }
}

/// Calls the child process and decodes its reply. `failed` decides how the turn ends if the call has no result.
pub(super) async fn call<T: DeserializeOwned>(
    process: &mut Process,
    method: &str,
    params: &Value,
    limit_ms: u64,
    failed: impl FnOnce(&TextCutter, &str, &CallError) -> TurnEnd,
) -> Result<T, TurnEnd> {
    let reply = process.call(method, params, Duration::from_millis(limit_ms)).await;
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => {
            let mut end = failed(process.cutter(), method, &error);
            if let (CallError::Gone, Some(message)) = (&error, &mut end.message) {
                message.push_str(&process.end_text().await);
            }
            return Err(end);
        }
    };
    reply.view().ok_or_else(|| unreadable_reply(method))
}

pub(super) fn unreadable_reply(method: &str) -> TurnEnd {
    TurnEnd::failed(FailureKind::BackendFailed, format!("the agent's reply to {method} cannot be read"))
}

/// How a turn ends when a call that it depends on has no result.
pub(super) fn call_failed(cutter: &TextCutter, method: &str, error: &CallError) -> TurnEnd {
    match error {
        CallError::Refused(refusal) => {
            let message = format!("the agent refused {method}: {}", cutter.cut(&refusal.message, MESSAGE_CHARS_MAX));
            TurnEnd::failed(FailureKind::BackendFailed, message)
        }
        CallError::TimedOut => {
            TurnEnd::failed(FailureKind::BackendTimeout, format!("the agent did not answer {method}"))
        }
        CallError::Gone => TurnEnd::failed(FailureKind::BackendFailed, format!("the agent ended during {method}")),
        CallError::Broken(fault) => TurnEnd::failed(FailureKind::BackendFailed, protocol_violation(fault)),
    }
}

/// What the author of the agent needs to know.
pub(super) fn protocol_violation(fault: &NotAFrame) -> String {
    format!("the agent does not keep to its protocol: its standard output holds {fault}")
}

/// Sends the reply to a request of the child process.
pub(super) async fn send_reply(
    process: &mut Process,
    id: ostler_protocol::rpc::RpcId,
    reply: RpcReply,
) -> Result<(), CallError> {
    match reply {
        Ok(result) => process.reply(id, Ok(&result)).await,
        Err(error) => process.reply::<Value>(id, Err(error)).await,
    }
}

/// Reports that a process is given up, with the end of its log.
pub(super) async fn report_process_end(sink: &TurnSink, process: &Process) {
    let phase = json!({"phase": "process-ended", "processId": process.id(), "logTail": process.log_tail()});
    sink.emit(EventType::BackendStatus, &phase).await;
}

/// Closes a process in which no session or thread could be opened, and returns why. Its end is not reported if the turn was
/// stopped.
pub(super) async fn close_unopened<T>(
    process: Process,
    sink: &TurnSink,
    why: Result<TurnEnd, TurnAbort>,
) -> Result<Result<T, TurnEnd>, TurnAbort> {
    if why.is_ok() {
        report_process_end(sink, &process).await;
    }
    process.close().await;
    why.map(Err)
}
