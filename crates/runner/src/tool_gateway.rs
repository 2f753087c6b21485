//! The server's tools as an MCP server on loopback, for backends that are programs of their own. Only who knows the token of the run can
//! call it, and only while a turn of the run is worked on: calls are passed on to that turn.
//!
//! It speaks the part of streamable HTTP that it needs: one request, one reply. The reply to a call is a stream, so that a client does not
//! give up a call that takes long or waits for a person. A client that listens is notified when the list of tools changes.

mod changes;
mod serve;
mod state;
#[cfg(test)]
mod tests;

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{Duration, timeout},
};

use self::state::{CurrentTurn, GatewayState, PATH, digest};
pub(crate) use self::state::{GATEWAY, TurnToolkit};
use crate::tools::{NamedSecret, OfferedMcpServer, OfferedTransport};

/// Requests that are open at once. Each of them may wait for a person.
const REQUESTS_MAX: usize = 64;
/// Streams of notifications that are open at once. A client has one.
const STREAMS_MAX: usize = 8;
/// How often the list is compared with the one that clients know, while a turn is worked on.
const CHANGES_POLL_MS: u64 = 10_000;
/// How long a backend may take to list the tools after its session was opened.
const LIST_MS_MAX: u64 = 5_000;
/// How long Codex waits for the list, and for the end of a call. The server has the shorter deadlines.
const CODEX_START_SECONDS: u64 = 60;
const CODEX_CALL_SECONDS: u64 = 7_200;

/// A running gateway. Its port is closed when this is dropped.
pub(crate) struct ToolGateway {
    url: String,
    token: SecretString,
    state: Arc<GatewayState>,
    serving: JoinHandle<()>,
}

/// The gateway passes calls on to a turn until this is dropped.
pub(crate) struct AttachedTurn {
    state: Arc<GatewayState>,
    _end: watch::Sender<()>,
}

/// Waits for a backend to list the tools.
pub(crate) struct ToolListing(watch::Receiver<u64>);

impl Drop for AttachedTurn {
    fn drop(&mut self) {
        self.state.set_turn(None);
    }
}

impl Drop for ToolGateway {
    fn drop(&mut self) {
        self.serving.abort();
        // Connections have tasks of their own, and a client may listen for as long as it lives.
        self.state.closed.send_replace(true);
    }
}

impl ToolGateway {
    pub(crate) async fn start(token: &SecretString) -> std::io::Result<Self> {
        Self::start_polling(token, Duration::from_millis(CHANGES_POLL_MS)).await
    }

    async fn start_polling(token: &SecretString, poll: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}{PATH}", listener.local_addr()?);
        let state = Arc::new(GatewayState {
            token_digest: digest(token.expose_secret()),
            turn: Mutex::new(None),
            open_requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            open_streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            listings: watch::Sender::new(0),
            listed: Mutex::new(None),
            turns: watch::Sender::new(0),
            closed: watch::Sender::new(false),
            poll,
        });
        let serving = tokio::spawn(serve::serve(listener, state.clone()));
        Ok(Self { url, token: token.clone(), state, serving })
    }

    /// Passes calls on to this turn until the returned value is dropped.
    pub(crate) fn attach(&self, tools: Arc<dyn TurnToolkit>) -> AttachedTurn {
        let (sender, end) = watch::channel(());
        self.state.set_turn(Some(CurrentTurn { tools, end }));
        self.state.turns.send_modify(|count| *count += 1);
        AttachedTurn { state: self.state.clone(), _end: sender }
    }

    /// Waits for the next list from now on.
    pub(crate) fn listing(&self) -> ToolListing {
        ToolListing(self.state.listings.subscribe())
    }

    fn authorization(&self) -> String {
        format!("Bearer {}", self.token.expose_secret())
    }

    /// How a backend connects to it.
    pub(crate) fn offer(&self) -> OfferedMcpServer {
        let headers = vec![NamedSecret { name: "Authorization".into(), value: self.authorization().into() }];
        OfferedMcpServer { name: GATEWAY.into(), transport: OfferedTransport::Http { url: self.url.clone(), headers } }
    }

    /// The same, as the configuration of Codex describes it. Codex does not ask for approval of these tools: the toolkit does.
    pub(crate) fn codex_config(&self) -> Value {
        json!({"url": self.url, "http_headers": {"Authorization": self.authorization()},
            "startup_timeout_sec": CODEX_START_SECONDS, "tool_timeout_sec": CODEX_CALL_SECONDS,
            "default_tools_approval_mode": "approve"})
    }
}

impl ToolListing {
    /// Returns when the backend has listed the tools, or after a while if it does not.
    pub(crate) async fn wait(mut self) {
        // An error means that the gateway is gone.
        let _ = timeout(Duration::from_millis(LIST_MS_MAX), self.0.changed()).await;
    }
}
