//! Calls of the front end's tools that have no result yet, as the log of their thread has them.

use std::collections::{HashMap, HashSet};

use ostler_protocol::{
    Failure,
    ids::{CommandId, SessionId},
    kernel::{
        commands::CommandState,
        events::{Event, EventType},
        front_end::FRONT_END_METHOD,
        sessions::Session,
    },
    limits::CONVERSATION_EVENTS_MAX,
    run_input::{agui::replies::ToolReply, history::user_content},
};
use ostler_server::app::App;
use ostler_store as store;
use serde::Deserialize;
use serde_json::Value;

use super::pending_calls::{self, FrontEndCall, arguments_text};

/// Messages and tool calls among which calls that results name are searched, first and then again.
const EVENTS_MAX: usize = 256;
const LATE_EVENTS_MAX: usize = 2_000;

/// The calls of a thread that have no result.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OpenCalls {
    /// Those with which the last turn completed.
    pub pending: Vec<FrontEndCall>,
    /// Those of earlier turns for which there are replies: a message came instead of their results.
    pub passed_over: Vec<FrontEndCall>,
}

impl OpenCalls {
    pub(super) fn has(&self, tool_call_id: &str) -> bool {
        self.pending.iter().chain(&self.passed_over).any(|call| call.tool_call_id == tool_call_id)
    }
}

/// The calls that have no result. `replies`: the results that are at hand.
pub(super) async fn find(app: &App, thread: &Session, replies: &[ToolReply]) -> Result<OpenCalls, Failure> {
    let pending = pending_calls::find(app, thread).await?;
    let is_late = |call_id: &&str| pending.iter().all(|call| call.tool_call_id != *call_id);
    let late: HashSet<&str> = replies.iter().map(|reply| reply.tool_call_id.as_str()).filter(is_late).collect();
    let passed_over = if late.is_empty() { vec![] } else { find_passed_over(app, thread.session, &late).await? };
    Ok(OpenCalls { pending, passed_over })
}

/// Those of these calls that turns have left open when they completed.
async fn find_passed_over(
    app: &App,
    session: SessionId,
    call_ids: &HashSet<&str>,
) -> Result<Vec<FrontEndCall>, Failure> {
    let mut calls = read_calls(app, session, EVENTS_MAX).await?;
    if calls.is_truncated && !call_ids.iter().all(|call_id| calls.known.contains(*call_id)) {
        calls = read_calls(app, session, LATE_EVENTS_MAX).await?;
    }
    let mut passed_over = vec![];
    let mut completed: HashMap<CommandId, bool> = HashMap::new();
    for (command_id, call) in calls.open {
        if !call_ids.contains(call.tool_call_id.as_str()) {
            continue;
        }
        let is_completed = match completed.get(&command_id).copied() {
            Some(is_completed) => is_completed,
            None => {
                let state = store::kernel::commands::get_state(&app.db, command_id).await?;
                *completed.entry(command_id).or_insert(state == Some(CommandState::Completed))
            }
        };
        if is_completed {
            passed_over.push(call);
        }
    }
    Ok(passed_over)
}

async fn read_calls(app: &App, session: SessionId, limit: usize) -> Result<LoggedCalls, Failure> {
    let types = [EventType::UserMessage, EventType::ToolCall];
    let newest = store::kernel::events::list_newest(&app.db, session, &types, CONVERSATION_EVENTS_MAX, limit).await?;
    let mut calls = LoggedCalls { is_truncated: newest.truncated, ..LoggedCalls::default() };
    newest.events.iter().for_each(|event| calls.take(event));
    Ok(calls)
}

/// Calls, folded from the messages and calls of a thread.
#[derive(Default)]
struct LoggedCalls {
    /// Calls of front ends' tools without a result, with the turns that made them.
    open: Vec<(CommandId, FrontEndCall)>,
    /// The ids of all calls that the events name.
    known: HashSet<String>,
    /// There are earlier events.
    is_truncated: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CallView {
    tool_call_id: String,
    name: String,
    arguments: Value,
    method: String,
    status: String,
}

impl LoggedCalls {
    fn take(&mut self, event: &Event) {
        let (Some(command_id), Some(payload)) = (event.command_id, event.payload.as_deref()) else { return };
        match event.event_type {
            EventType::UserMessage => self.take_message(payload),
            EventType::ToolCall => self.take_call(command_id, payload),
            _ => {}
        }
    }

    fn take_message(&mut self, payload: &str) {
        let Some(message) = user_content(payload) else { return };
        for result in message.results {
            self.open.retain(|(_, call)| call.tool_call_id != result.tool_call_id);
            self.known.insert(result.tool_call_id);
        }
    }

    fn take_call(&mut self, command_id: CommandId, payload: &str) {
        let Ok(view) = serde_json::from_str::<CallView>(payload) else { return };
        let CallView { tool_call_id, name, arguments, method, status } = view;
        self.known.insert(tool_call_id.clone());
        self.open.retain(|(of, call)| *of != command_id || call.tool_call_id != tool_call_id);
        if method == FRONT_END_METHOD && status == "started" {
            let arguments = arguments_text(&arguments);
            self.open.push((command_id, FrontEndCall { tool_call_id, name, arguments }));
        }
    }
}
