//! Notifications beyond the protocol: what a backend reports of its own session beside its work. They become events of the turn in
//! which they arrive.

use ostler_protocol::{
    RawJson,
    kernel::events::{EventType, PHASE_NOTIFIED},
};
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

#[derive(Default)]
pub(super) struct Notifications {
    reported: u32,
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
        }
    }
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
        "model-update" => session.model = text("currentModelId").filter(|model| *model != session.model)?,
        _ => {}
    }
    Some(data)
}
