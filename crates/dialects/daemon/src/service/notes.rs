//! What happens beside a session's turns and is shown to the clients that follow it. A note is an event of the session, so that
//! every server of the store sends it, and clients that reconnect get it.

use ostler_protocol::{
    Failure,
    ids::SessionId,
    kernel::operations::{ChangeSessionOp, SessionChange},
};
use ostler_server::{app::App, auth::Principal};
use ostler_store as store;
use serde_json::{Value, json};

use crate::state::DaemonState;

/// How many sessions are read at once.
const PAGE: u32 = 100;

/// A frame for followers, by its type and data.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    /// The type of the frame, such as `memory_changed`.
    pub frame: &'static str,
    pub data: Value,
    /// The client that caused it.
    pub client: Option<String>,
}

/// Records a note in one session.
pub(crate) async fn record(app: &App, caller: &Principal, session: SessionId, note: &Note) -> Result<(), Failure> {
    record_by(app, &caller.name(), session, note).await
}

/// As [`record`], also for what the server does by itself.
pub(crate) async fn record_by(app: &App, by: &str, session: SessionId, note: &Note) -> Result<(), Failure> {
    submit(app, by, session, note, true).await
}

async fn submit(app: &App, by: &str, session: SessionId, note: &Note, is_use: bool) -> Result<(), Failure> {
    let data = json!({"data": note.data, "clientId": note.client});
    let change = SessionChange::Note { note: format!("daemon.{}", note.frame), data, is_use };
    let op = ChangeSessionOp { change, by: by.to_owned() };
    app.try_submit(session, None, op).await.map(drop)
}

/// Records a note in every open session of the workspace. It is no use of them.
pub(crate) async fn record_everywhere(app: &App, caller: &Principal, note: &Note) -> Result<(), Failure> {
    let workspace = DaemonState::of(app).workspace()?.to_string_lossy().into_owned();
    let place = (DaemonState::of(app).config.tenant.as_str(), workspace.as_str());
    let mut after = None;
    loop {
        let sessions = store::daemon::sessions::list_open(&app.db, place, after, PAGE).await?;
        for session in &sessions {
            submit(app, &caller.name(), *session, note, false).await?;
        }
        match sessions.last() {
            Some(last) if sessions.len() == PAGE as usize => after = Some(*last),
            _ => return Ok(()),
        }
    }
}
