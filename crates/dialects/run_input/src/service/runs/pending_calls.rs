//! The calls of front ends' tools with which the last turn of a thread completed, however many events the turn has. Nothing is read
//! unless the fold of the turn's command counts calls that have not ended. Then the turn's calls are read from their end until as many
//! were found: a turn that waits for its front end ends with these calls.

use std::collections::HashSet;

use ostler_protocol::{
    Failure,
    json::text_of,
    kernel::{commands::CommandState, events::Event, facts::Facts, front_end::FRONT_END_METHOD, sessions::Session},
    tools::CallState,
};
use ostler_server::app::App;
use ostler_store as store;
use serde::Deserialize;
use serde_json::Value;

/// Events of calls that are read at once: 8 MiB if each has the largest payload.
const CHUNK: usize = 32;
/// Events that are read at most. A call that an earlier attempt of the turn left open never ends, so a search for it reads all others.
const EVENTS_MAX: usize = 4_096;

/// A call of a front end's tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FrontEndCall {
    pub tool_call_id: String,
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// The pending calls of a thread, in their order.
pub(super) async fn find(app: &App, thread: &Session) -> Result<Vec<FrontEndCall>, Failure> {
    let Some(run_id) = thread.last_run_id else { return Ok(vec![]) };
    let turn = store::kernel::commands::get_last_turn(&app.db, run_id).await?;
    let Some(turn) = turn.filter(|turn| turn.state == CommandState::Completed) else { return Ok(vec![]) };
    let mut found = UnendedCalls::new(turn.fold.tools.unended_max());
    if found.is_complete() {
        return Ok(vec![]);
    }
    // Only a run of this dialect has shown its calls to a front end.
    let begins = store::kernel::aliases::first_seq(&app.db, turn.command_id).await?;
    let Some(after) = begins else { return Ok(vec![]) };
    let (mut before, mut limit, mut count) = (i64::MAX, found.count_max.min(CHUNK), 0);
    loop {
        let (session, command_id) = (turn.session, turn.command_id);
        let read = store::kernel::events::list_tool_calls_between(&app.db, session, command_id, (after, before), limit);
        let events = read.await?;
        events.iter().for_each(|event| found.take(event));
        count += events.len();
        let continues = events.len() == limit && !found.is_complete() && count < EVENTS_MAX;
        match events.last() {
            Some(last) if continues => (before, limit) = (last.session_seq, CHUNK),
            _ => return Ok(found.in_order()),
        }
    }
}

/// Calls that have not ended, found from the end of their turn.
struct UnendedCalls {
    /// There are no more than this.
    count_max: usize,
    count: usize,
    /// Calls of which the last event was found, by the ids that the fold has.
    seen: HashSet<String>,
    /// Those whose tools the front end runs, the last one first.
    of_front_end: Vec<FrontEndCall>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallView {
    tool_call_id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: Value,
}

impl UnendedCalls {
    fn new(count_max: i64) -> Self {
        let count_max = usize::try_from(count_max).unwrap_or(0);
        Self { count_max, count: 0, seen: HashSet::new(), of_front_end: vec![] }
    }

    fn is_complete(&self) -> bool {
        self.count >= self.count_max
    }

    /// Takes an event that is older than those before it.
    fn take(&mut self, event: &Event) {
        let (Facts::Tool(call), Some(payload)) = (event.facts(), event.payload.as_deref()) else { return };
        let is_last = self.seen.insert(call.tool_call_id.unwrap_or_default());
        if !is_last || call.status.as_deref() != CallState::Started.status() {
            return;
        }
        self.count += 1;
        if call.method.as_deref() == Some(FRONT_END_METHOD)
            && let Ok(CallView { tool_call_id, name, arguments }) = serde_json::from_str(payload)
        {
            let arguments = arguments_text(&arguments);
            self.of_front_end.push(FrontEndCall { tool_call_id, name, arguments });
        }
    }

    fn in_order(mut self) -> Vec<FrontEndCall> {
        self.of_front_end.reverse();
        self.of_front_end
    }
}

/// The arguments of a call as JSON text. A runner of another platform may report an object.
pub(super) fn arguments_text(arguments: &Value) -> String {
    match arguments {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => text_of(other),
    }
}
