//! The tools of the front end, for a backend that calls them through the gateway. No call of them is executed here: it is recorded,
//! the backend gets a result that says so, and the turn ends with the call pending. The next turn brings the result.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use ostler_protocol::{
    RawJson,
    kernel::{
        context::Context,
        events::EventType,
        front_end::{FrontEndTool, UPDATE_STATE_TOOL, call_payload},
    },
    limits::TOOL_COMMAND_CHARS_MAX,
    run_input::agui::translate::TranslatorState,
    tools::wire::{CallStatus, CalledTool, OfferedTool},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Duration, Instant, timeout_at},
};

use super::shared::SinkShared;
use crate::{budgets::StopReason, text::clip};

/// How long after the last call of a turn with pending calls the turn is stopped. Programs send the calls of one reply of their
/// model one after the other.
const QUIET_MS: u64 = 300;
/// How long after its first pending call a turn is stopped, although the backend goes on to call tools.
const HAND_OVER_MS_MAX: u64 = 10_000;
/// Bytes of the arguments of one call. It is recorded whole, because the front end needs them.
const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
const PENDING: &str = "The call was handed to the user's page, which runs this tool. Its result is not known yet: it comes with the next \
    message. End your turn now, without calling more tools.";
const UPDATE_STATE: &str = "Changes the state that you share with the user's page.";

/// The tools of the front end in one turn.
pub(super) struct FrontEndTools {
    shared: Arc<SinkShared>,
    tools: Vec<FrontEndTool>,
    /// `None` if the front end shares no state.
    state: Mutex<Option<TranslatorState>>,
    /// Number of the turn's calls that have not ended. It is also sent when a pending call is recorded.
    open_calls: watch::Sender<u32>,
    has_pending: AtomicBool,
}

/// A call of another tool that has not ended: the turn is not stopped before.
pub(super) struct OpenCall<'a>(&'a watch::Sender<u32>);

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

impl FrontEndTools {
    pub(super) fn new(shared: Arc<SinkShared>, context: Context) -> Self {
        let state = context.state.map(|state| {
            let mut document = TranslatorState::default();
            document.take(&json!({"snapshot": state}));
            document
        });
        let (open_calls, has_pending) = (watch::Sender::new(0), AtomicBool::new(false));
        Self { shared, tools: context.tools, state: Mutex::new(state), open_calls, has_pending }
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
            let patch = json!({"type": "array", "items": {"type": "object"}, "description": "JSON Patch (RFC 6902)"});
            let parameters = json!({"type": "object", "required": ["patch"], "properties": {"patch": patch}});
            own.push(offered(UPDATE_STATE_TOOL, UPDATE_STATE, &parameters));
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
        self.open_calls.send_modify(|open| *open += 1);
        OpenCall(&self.open_calls)
    }

    /// Handles a call of one of these tools.
    pub(super) fn call(&self, call_id: String, name: &str, arguments: &str) -> CalledTool {
        let outcome = match self.find(name) {
            _ if arguments.len() > ARGUMENTS_BYTES_MAX => {
                self.report(&call_id, name, arguments, Err("the arguments are too long".to_owned()))
            }
            Some(tool) => match tool.read_arguments(arguments) {
                Ok(arguments) => {
                    self.shared.push(EventType::ToolCall, RawJson::of(&call_payload(&call_id, name, &arguments)));
                    self.stop_soon();
                    Ok(PENDING.to_owned())
                }
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
        CalledTool { call_id, status, content, truncated: false }
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
        started["arguments"] = clip(arguments, TOOL_COMMAND_CHARS_MAX).into();
        let text = match &outcome {
            Ok(text) | Err(text) => text,
        };
        ended["resultSummary"] = clip(text, TOOL_COMMAND_CHARS_MAX).into();
        self.shared.push(EventType::ToolCall, RawJson::of(&started));
        self.shared.push(EventType::ToolCall, RawJson::of(&ended));
        outcome
    }

    fn update_state(&self, arguments: &str) -> Result<String, String> {
        let arguments: Value = serde_json::from_str(arguments).map_err(|error| format!("not JSON: {error}"))?;
        let patch = &arguments["patch"];
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let document = state.as_mut().ok_or("the user's page shares no state")?;
        if !document.patch(patch) {
            return Err("the patch does not apply to the state".to_owned());
        }
        self.shared.push(EventType::State, RawJson::of(&json!({"patch": patch})));
        Ok(document.value().map_or_else(|| "done".to_owned(), |state| format!("The state is now: {state}")))
    }

    /// Stops the turn when no call is open and the backend makes no more of them.
    fn stop_soon(&self) {
        if self.has_pending.swap(true, Ordering::Relaxed) {
            self.open_calls.send_modify(|_| ());
            return;
        }
        let (shared, mut open_calls) = (self.shared.clone(), self.open_calls.subscribe());
        let until = Instant::now() + Duration::from_millis(HAND_OVER_MS_MAX);
        tokio::spawn(async move {
            // An error means that the turn has ended.
            while open_calls.wait_for(|open| *open == 0).await.is_ok() {
                let quiet_at = (Instant::now() + Duration::from_millis(QUIET_MS)).min(until);
                match timeout_at(quiet_at, open_calls.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return,
                    Err(_) => return shared.stop(StopReason::HandedOver),
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
