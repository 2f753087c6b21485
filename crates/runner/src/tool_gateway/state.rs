//! What the gateway knows: its token, the turn that it serves, and the list of tools that its clients have.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure,
    sha256::sha256,
    tools::wire::{CalledTool, OfferedTool, RunTools},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::Duration,
};

/// The name under which backends know the server.
pub(crate) const GATEWAY: &str = "ostler";
/// Where the server is, behind its address.
pub(super) const PATH: &str = "/mcp";
/// How often something is sent on a stream that is silent. Clients give up a connection that is silent for minutes.
pub(super) const KEEP_ALIVE_MS: u64 = 15_000;

/// The tools of one turn.
pub(crate) trait TurnToolkit: Send + Sync + 'static {
    /// The tools only: programs that call them know their own calls, and the list is read again and again.
    fn list(&self) -> BoxFuture<'_, Result<RunTools, Failure>>;

    /// Calls a tool once, and waits for its end.
    fn call<'a>(&'a self, name: &'a str, arguments: &'a str) -> BoxFuture<'a, Result<CalledTool, Failure>>;
}

pub(super) struct GatewayState {
    /// Of the token. Digests are compared, so that the time of a comparison tells nothing about the token.
    pub(super) token_digest: [u8; 32],
    pub(super) turn: Mutex<Option<CurrentTurn>>,
    pub(super) open_requests: Arc<Semaphore>,
    pub(super) open_streams: Arc<Semaphore>,
    /// How often the tools were listed.
    pub(super) listings: watch::Sender<u64>,
    /// Of the list that a client has received last.
    pub(super) listed: Mutex<Option<[u8; 32]>>,
    /// How many turns have begun.
    pub(super) turns: watch::Sender<u64>,
    /// Whether the gateway was dropped.
    pub(super) closed: watch::Sender<bool>,
    /// How often the list is read while a client listens for changes.
    pub(super) poll: Duration,
}

/// The turn that calls are passed on to.
#[derive(Clone)]
pub(super) struct CurrentTurn {
    pub(super) tools: Arc<dyn TurnToolkit>,
    /// Closed when the turn ends.
    pub(super) end: watch::Receiver<()>,
}

impl GatewayState {
    pub(super) fn set_turn(&self, turn: Option<CurrentTurn>) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
    }

    pub(super) fn current_turn(&self) -> Option<CurrentTurn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_listed(&self, digest: [u8; 32]) {
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest);
        self.listings.send_modify(|count| *count += 1);
    }

    pub(super) fn listed_digest(&self) -> Option<[u8; 32]> {
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id of a client's session. Clients of the official Rust SDK listen only if there is one; the gateway keeps nothing under it.
    pub(super) fn session_id(&self) -> String {
        let digest = sha256([&b"session"[..], &self.token_digest].concat());
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

pub(super) fn described(tool: &OfferedTool) -> Value {
    let mut schema = tool.parameters.clone();
    // The protocol requires it, and some clients reject the whole list without it.
    schema.insert("type".to_owned(), "object".into());
    json!({"name": tool.name, "description": tool.description, "inputSchema": schema,
        "annotations": {"readOnlyHint": !tool.changes, "destructiveHint": tool.changes,
            "idempotentHint": tool.idempotent, "openWorldHint": tool.uses_network}})
}

pub(super) fn digest(token: &str) -> [u8; 32] {
    sha256(token)
}
