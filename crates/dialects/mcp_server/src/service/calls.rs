//! Calls that wait, and how a client ends their wait. The notification may reach another server than the call has, so the servers of
//! one store wake each other. A run is never cancelled by this.

use std::sync::Arc;

use ostler_protocol::{ids::McpSessionId, json::canonical_hash, rpc::RpcId};
use ostler_server::{app::App, auth::Principal, dialect::Topic};
use serde_json::json;
use tokio::sync::Notify;

use super::context::RequestContext;
use crate::state::{McpServerState, WaitingCall};

/// A client has cancelled a call.
pub(crate) const CANCELLED: Topic =
    Topic::new("mcp_server.cancelled", |app, key| McpServerState::of(app).cancel(key), |_| {});
/// A client has ended its session.
pub(crate) const ENDED: Topic = Topic::new("mcp_server.ended", |app, key| McpServerState::of(app).end(key), |_| {});

/// The session of one caller. The id alone is not enough: a caller must not end the calls of another one.
fn session_key(caller: &Principal, session: McpSessionId) -> String {
    canonical_hash(&json!([caller.name(), session]))
}

fn call_key(session: &str, id: &RpcId) -> String {
    canonical_hash(&json!([session, id]))
}

/// A call that waits for as long as this exists.
pub(crate) struct RegisteredCall {
    app: App,
    key: String,
    cancelled: Arc<Notify>,
}

impl RegisteredCall {
    /// `None` for a client without a session id: its request ids may be those of another client with the same token.
    pub(crate) fn new(context: &RequestContext, id: &RpcId) -> Option<Self> {
        let session = session_key(&context.caller, context.session?);
        let (key, cancelled) = (call_key(&session, id), Arc::new(Notify::new()));
        McpServerState::of(&context.app).insert(&key, WaitingCall { session, cancelled: cancelled.clone() });
        Some(Self { app: context.app.clone(), key, cancelled })
    }
}

impl Drop for RegisteredCall {
    fn drop(&mut self) {
        McpServerState::of(&self.app).remove(&self.key, &self.cancelled);
    }
}

/// Resolves when the client cancels the call or ends its session.
pub(crate) async fn cancelled(call: Option<&RegisteredCall>) {
    match call {
        Some(call) => call.cancelled.notified().await,
        None => std::future::pending().await,
    }
}

/// Ends the wait of a call of this client, on whatever server it waits.
pub(crate) fn cancel(context: &RequestContext, id: &RpcId) {
    let Some(session) = context.session else { return };
    let key = call_key(&session_key(&context.caller, session), id);
    McpServerState::of(&context.app).cancel(&key);
    CANCELLED.wake_others(&context.app, &key);
}

/// Ends a session and the waits of its calls. Idempotent.
pub(crate) fn end(app: &App, caller: &Principal, session: McpSessionId) {
    let key = session_key(caller, session);
    McpServerState::of(app).end(&key);
    ENDED.wake_others(app, &key);
}

pub(crate) fn is_ended(app: &App, caller: &Principal, session: McpSessionId) -> bool {
    McpServerState::of(app).is_ended(&session_key(caller, session))
}
