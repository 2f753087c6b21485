//! Notifications beyond the protocol: what a backend reports of its own session beside its work. They become events of the turn in
//! which they arrive.

use ostler_protocol::{
    RawJson,
    kernel::events::{EventType, PHASE_NOTIFIED},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::session::OpenSession;
use crate::turn_sink::TurnSink;

const PREFIX: &str = "qwen/notify/session/";
/// The notifications that are reported.
const REPORTED: [&str; 6] =
    ["model-update", "mode-update", "title-update", "prompt-suggestion", "terminal-sequence", "mcp-budget-event"];
/// Those that are also reported if they arrive between two turns: they tell how the session is now.
const LASTING: [&str; 3] = ["model-update", "mode-update", "title-update"];
/// Notifications of one turn that are reported. More are dropped: they are hints.
const REPORTED_MAX: u32 = 200;
const NOTIFICATION_BYTES_MAX: usize = 16 * 1024;
/// The update of a session that lists its commands.
pub(super) const COMMANDS_UPDATE: &str = "available_commands_update";
/// The list of a session's commands that is reported.
const COMMANDS_BYTES_MAX: usize = 64 * 1024;
/// An update that lists commands. It may contain the texts of skills, which are not reported.
const COMMANDS_UPDATE_BYTES_MAX: usize = 1024 * 1024;
/// Lists of one turn that are reported: they do not count against the text of the turn.
const COMMAND_LISTS_MAX: u32 = 8;

/// The commands of a session, as the backend lists them.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CommandsUpdate {
    session_id: String,
    update: ListedCommands,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedCommands {
    session_update: String,
    available_commands: Vec<Value>,
    #[serde(rename = "_meta")]
    meta: Value,
}

#[derive(Default)]
pub(super) struct Notifications {
    reported: u32,
    command_lists: u32,
}

impl Notifications {
    /// Reports a notification that arrived during a turn.
    pub(super) async fn report(&mut self, sink: &TurnSink, session: &mut OpenSession, method: &str, params: &RawJson) {
        let Some(name) = method.strip_prefix(PREFIX).filter(|name| REPORTED.contains(name)) else { return };
        if self.reported >= REPORTED_MAX || params.size() > NOTIFICATION_BYTES_MAX {
            return;
        }
        let Some(data) = changed(session, name, params) else { return };
        self.reported += 1;
        let event = json!({"phase": PHASE_NOTIFIED, "notification": name, "data": data});
        sink.emit(EventType::BackendStatus, &event).await;
    }

    /// Reports a notification that arrived between two turns.
    pub(super) async fn report_late(
        &mut self,
        sink: &TurnSink,
        session: &mut OpenSession,
        method: &str,
        params: &RawJson,
    ) {
        if method.strip_prefix(PREFIX).is_some_and(|name| LASTING.contains(&name)) {
            self.report(sink, session, method, params).await;
        } else if method == "session/update" {
            self.report_commands(sink, session, params).await;
        }
    }

    /// Reports the commands of the session if this update lists other ones than those that were reported before.
    pub(super) async fn report_commands(&mut self, sink: &TurnSink, session: &mut OpenSession, params: &RawJson) {
        if self.command_lists >= COMMAND_LISTS_MAX || params.size() > COMMANDS_UPDATE_BYTES_MAX {
            return;
        }
        let Some(data) = listed_commands(session, params) else { return };
        self.command_lists += 1;
        let event = json!({"phase": PHASE_NOTIFIED, "notification": "commands-update", "data": data});
        session.commands = data;
        sink.emit(EventType::BackendStatus, &event).await;
    }
}

/// The commands that an update of this session lists. `None` if it lists none, the same ones as before, or too many.
fn listed_commands(session: &OpenSession, params: &RawJson) -> Option<Value> {
    let CommandsUpdate { session_id, update } = params.view()?;
    if session_id != session.session_id || update.session_update != COMMANDS_UPDATE {
        return None;
    }
    let skills = update.meta["availableSkills"].as_array().into_iter().flatten();
    let skills: Vec<_> = skills.filter_map(Value::as_str).collect();
    let mut data = json!({"availableCommands": &update.available_commands, "availableSkills": skills});
    if data.to_string().len() > COMMANDS_BYTES_MAX {
        // Details that are for programs, not for people.
        let commands = data["availableCommands"].as_array_mut()?.iter_mut().filter_map(Value::as_object_mut);
        commands.for_each(|command| drop(command.remove("_meta")));
    }
    let is_empty = session.commands.is_null() && update.available_commands.is_empty();
    let fits = data.to_string().len() <= COMMANDS_BYTES_MAX;
    (fits && !is_empty && data != session.commands).then_some(data)
}

/// The data of a notification of this session. `None` if it changes nothing.
fn changed(session: &mut OpenSession, name: &str, params: &RawJson) -> Option<Map<String, Value>> {
    let mut data: Map<String, Value> = params.view()?;
    if data.remove("sessionId").as_ref().and_then(Value::as_str) != Some(&session.session_id) {
        return None;
    }
    data.remove("v");
    let text = |name: &str| data.get(name).and_then(Value::as_str).map(str::to_owned);
    match name {
        "mode-update" => {
            let current = text("currentModeId").filter(|mode| *mode != session.modes.current)?;
            data.insert("previousModeId".to_owned(), std::mem::replace(&mut session.modes.current, current).into());
        }
        "model-update" => {
            session.model = text("currentModelId").filter(|model| *model != session.model)?;
            // The backend has reported that of the previous model.
            session.context_window = None;
        }
        _ => {}
    }
    Some(data)
}
