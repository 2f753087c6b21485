//! The tools of the front end, for a backend that calls them through the gateway. No call of them is executed here: it is recorded,
//! the backend gets a result with that fact, and the turn ends with the call pending. The next turn brings the result.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use ostler_protocol::{
    RawJson,
    kernel::{
        context::Context,
        events::EventType,
        front_end::{FrontEndTool, UPDATE_STATE_TOOL, call_payload},
    },
    limits::TOOL_COMMAND_CHARS_MAX,
    tools::wire::{CallStatus, CalledTool, OfferedTool},
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, timeout_at};

use super::{open_calls::OpenCalls, shared::SinkShared};
use crate::{
    budgets::StopReason,
    front_end::{ARGUMENTS_BYTES_MAX, CALLS_MAX, FrontEndState, UPDATE_STATE_DESCRIPTION, too_long},
};

/// How long after its last call a turn with pending calls is stopped. Programs send the calls of one reply of their model one after
/// the other.
const QUIET_MS: u64 = 300;
/// After this long, a turn with pending calls is stopped as soon as no call is open, although the backend goes on to call tools. A
/// call that is open is waited for without a limit other than the turn's own.
const HAND_OVER_MS_MAX: u64 = 10_000;
const PENDING: &str = "The call was handed to the user's page, which runs this tool. Its result is not known yet: it comes with the next \
    message. End your turn now, without calling more tools.";

/// The tools of the front end in one turn.
pub(super) struct FrontEndTools {
    shared: Arc<SinkShared>,
    tools: Vec<FrontEndTool>,
    /// `None` if the front end shares no state.
    state: Mutex<Option<FrontEndState>>,
    /// Number of calls that were to be handed over. At most [`CALLS_MAX`] of them are pending.
    pending: AtomicUsize,
}

/// A call of a server's tool that has not ended: the turn is not stopped before.
pub(super) struct OpenCall<'a>(&'a SinkShared);

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.open_calls.send_modify(OpenCalls::end_gateway_call);
    }
}

impl FrontEndTools {
    pub(super) fn new(shared: Arc<SinkShared>, context: Context) -> Self {
        let state = Mutex::new(context.state.as_ref().map(FrontEndState::new));
        Self { shared, tools: context.tools, state, pending: AtomicUsize::new(0) }
    }

    fn has_state(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The server's tools with those of the front end. A tool that the server got after the run was accepted, under the name of one
    /// of the front end's, is left out.
    pub(super) fn add_to(&self, mut server: Vec<OfferedTool>) -> Vec<OfferedTool> {
        let mut own: Vec<_> =
            self.tools.iter().map(|tool| offered(&tool.name, &tool.description, &tool.parameters)).collect();
        if self.has_state() {
            own.push(offered(UPDATE_STATE_TOOL, UPDATE_STATE_DESCRIPTION, &FrontEndState::parameters()));
        }
        server.retain(|tool| !own.iter().any(|other| other.name == tool.name));
        server.append(&mut own);
        server
    }

    /// Whether the server does not execute calls of this tool.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some() || name == UPDATE_STATE_TOOL && self.has_state()
    }

    fn find(&self, name: &str) -> Option<&FrontEndTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Keeps the turn from being stopped by a pending call until the returned value is dropped.
    pub(super) fn begin_call(&self) -> OpenCall<'_> {
        self.shared.open_calls.send_modify(OpenCalls::begin_gateway_call);
        OpenCall(&self.shared)
    }

    /// Handles a call of one of these tools.
    pub(super) fn call(&self, call_id: String, name: &str, arguments: &str) -> CalledTool {
        let outcome = match self.find(name) {
            Some(tool) => match self.hand_over(&call_id, tool, arguments) {
                Ok(()) => Ok(PENDING.to_owned()),
                Err(problem) => self.report(&call_id, name, arguments, Err(problem)),
            },
            None => {
                let updated = self.update_state(arguments);
                self.report(&call_id, name, arguments, updated)
            }
        };
        let (status, content) = match outcome {
            Ok(content) => (CallStatus::Completed, content),
            Err(content) => (CallStatus::Failed, content),
        };
        CalledTool {
            call_id,
            status,
            content,
            truncated: false,
            edited_arguments: None,
            delegated_tokens: None,
            delegated_cost_usd: None,
            delegated_tool_calls: None,
        }
    }

    /// Records a call as pending, or returns why it cannot be handed over.
    fn hand_over(&self, call_id: &str, tool: &FrontEndTool, arguments: &str) -> Result<(), String> {
        if arguments.len() > ARGUMENTS_BYTES_MAX {
            return Err(too_long());
        }
        let arguments = tool.read_arguments(arguments)?;
        let earlier = self.pending.fetch_add(1, Ordering::Relaxed);
        if earlier >= CALLS_MAX {
            return Err(format!("the user's page takes at most {CALLS_MAX} calls at once; end your turn now"));
        }
        self.shared.push(EventType::ToolCall, RawJson::of(&call_payload(call_id, &tool.name, &arguments)));
        if earlier == 0 {
            self.stop_soon();
        }
        Ok(())
    }

    /// Records a call that has ended.
    fn report(
        &self,
        call_id: &str,
        name: &str,
        arguments: &str,
        outcome: Result<String, String>,
    ) -> Result<String, String> {
        let payload =
            |status: &str| json!({"toolCallId": call_id, "name": name, "method": "function", "status": status});
        let (mut started, mut ended) =
            (payload("started"), payload(if outcome.is_ok() { "completed" } else { "failed" }));
        started["arguments"] = self.shared.cutter.cut(arguments, TOOL_COMMAND_CHARS_MAX).into();
        let text = match &outcome {
            Ok(text) | Err(text) => text,
        };
        ended["resultSummary"] = self.shared.cutter.cut(text, TOOL_COMMAND_CHARS_MAX).into();
        self.shared.push(EventType::ToolCall, RawJson::of(&started));
        self.shared.push(EventType::ToolCall, RawJson::of(&ended));
        outcome
    }

    fn update_state(&self, arguments: &str) -> Result<String, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let updated = state.as_mut().ok_or("the user's page shares no state")?.update(arguments)?;
        // Under the lock, so that the events have the order of the changes.
        self.shared.push(EventType::State, RawJson::of(&updated.event));
        Ok(updated.result)
    }

    /// Stops the turn when no call is open and the backend makes no more of them.
    fn stop_soon(&self) {
        let (shared, mut open_calls) = (Arc::downgrade(&self.shared), self.shared.open_calls.subscribe());
        let until = Instant::now() + Duration::from_millis(HAND_OVER_MS_MAX);
        tokio::spawn(async move {
            // An error means that the turn has ended.
            while open_calls.wait_for(OpenCalls::is_empty).await.is_ok() {
                let quiet_at = (Instant::now() + Duration::from_millis(QUIET_MS)).min(until);
                match timeout_at(quiet_at, open_calls.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return,
                    Err(_) => {
                        if let Some(shared) = shared.upgrade() {
                            shared.stop(StopReason::HandedOver);
                        }
                        return;
                    }
                }
            }
        });
    }
}

fn offered(name: &str, description: &str, parameters: &Value) -> OfferedTool {
    OfferedTool {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: parameters.as_object().cloned().unwrap_or_default(),
        source: "front-end".to_owned(),
        scope: None,
        // Programs that ask a person before a call that changes something need not: the front end is that person's.
        changes: false,
        idempotent: false,
        uses_network: false,
        deadline_ms: HAND_OVER_MS_MAX,
        output_bytes_max: ARGUMENTS_BYTES_MAX as u64,
    }
}
