//! One connection to a server, maintained by a task of its own: it is made, made again when it is lost, and closed after
//! a time without use. Users hold leases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use ostler_protocol::mcp::{
    config::McpServer,
    states::{ConnectionState, reconnect_pause_ms},
    tools::{McpTool, SCHEMA_BYTES_MAX},
};
use parking_lot::Mutex;
use rmcp::{
    Peer, RoleClient,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult},
};
use serde_json::{Map, Value};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::{
    attempts::attempts_after,
    backoff::Backoffs,
    connect::{self, Link},
    http_client::is_reply_too_large,
    problem::McpProblem,
    relists::ListPauses,
    slots::Slot,
    tool_listing,
};
use crate::app::App;

/// Most restarts that wait for the task of a connection.
const RESTARTS_MAX: usize = 8;

/// Most tools of a list that are logged because they cannot be called.
const SKIPPED_LOGGED_MAX: usize = 8;

/// Receives the outcome of a restart.
type RestartReply = oneshot::Sender<Result<(), McpProblem>>;

/// When idle connections are closed, and lost ones are made again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub drain: Duration,
    pub idle: Duration,
    pub reconnect_ms: u64,
}

/// What a connection is for. Connections of the same name differ in their configuration, or in the session that they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryKey {
    pub name: String,
    /// Of the configuration.
    pub fingerprint: String,
    /// The session that it is for. Empty if it is shared.
    pub scope: String,
}

/// What is known of a connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectionView {
    pub state: ConnectionState,
    /// The tools that were listed last. They stay when the connection is closed.
    pub tools: Arc<Vec<McpTool>>,
    pub problem: Option<McpProblem>,
    peer: Option<Peer<RoleClient>>,
    /// Since when it is being connected.
    connecting_since: Option<Instant>,
}

/// Why a connection is not maintained as it is.
enum Ending {
    Idle,
    Stopped,
    Lost {
        /// How long the connection had lasted. Zero if it could not be made again.
        lasted: Duration,
    },
    Restart(RestartReply),
}

pub(crate) struct Entry {
    pub key: EntryKey,
    pub server: McpServer,
    /// A caller chose its address.
    pub is_restricted: bool,
    timing: Timing,
    backoffs: Arc<Backoffs>,
    view: watch::Sender<ConnectionView>,
    restarts: mpsc::Sender<RestartReply>,
    /// Whether it was stopped, and closes.
    is_stopping: watch::Sender<bool>,
    leases: AtomicUsize,
    calls: AtomicUsize,
    last_use: Mutex<LastUse>,
    /// Notified if the connection may be idle before its task checks it.
    used: Notify,
}

/// When a lease or a call last began or ended.
struct LastUse {
    at: Instant,
    /// When the task of the connection checks next whether it is idle. `None` if it waits until it is notified.
    next_check: Option<Instant>,
}

/// The right to use a connection. It is not closed for want of use before its last lease is gone, unless it is idle for long.
pub struct Lease(Arc<Entry>);

impl Entry {
    /// Makes a connection, and returns the first lease of it.
    pub(super) fn start(
        app: &App,
        key: EntryKey,
        server: McpServer,
        is_restricted: bool,
        timing: Timing,
        backoffs: Arc<Backoffs>,
        slot: Slot,
    ) -> (Arc<Self>, Lease) {
        let (restarts, received) = mpsc::channel(RESTARTS_MAX);
        let (state, connecting_since) = (ConnectionState::Connecting, Some(Instant::now()));
        let connecting = ConnectionView { state, connecting_since, ..ConnectionView::default() };
        let entry = Arc::new(Self {
            key,
            server,
            is_restricted,
            timing,
            backoffs,
            view: watch::Sender::new(connecting),
            restarts,
            is_stopping: watch::Sender::new(false),
            leases: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            last_use: Mutex::new(LastUse { at: Instant::now(), next_check: None }),
            used: Notify::new(),
        });
        let lease = entry.lease();
        tokio::spawn(maintain(app.clone(), entry.clone(), received, slot));
        (entry, lease)
    }

    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        self.leases.fetch_add(1, SeqCst);
        self.touch();
        Lease(self.clone())
    }

    pub(super) fn view(&self) -> ConnectionView {
        ConnectionView { state: self.state(), ..self.view.borrow().clone() }
    }

    /// What is known of the connection, if it is made.
    pub(super) fn connected(&self) -> Option<ConnectionView> {
        let view = self.view.borrow();
        (view.state == ConnectionState::Connected).then(|| view.clone())
    }

    /// A connection that closes counts as closed: it cannot be used again.
    pub(super) fn state(&self) -> ConnectionState {
        let state = self.view.borrow().state;
        if *self.is_stopping.borrow() && state.is_live() { ConnectionState::Disconnected } else { state }
    }

    /// Makes the connection again. Fails at once if it has ended.
    pub(super) async fn restart(&self) -> Result<(), McpProblem> {
        let (done, restarted) = oneshot::channel();
        self.restarts.try_send(done).map_err(|_| McpProblem::Stopped)?;
        restarted.await.unwrap_or(Err(McpProblem::Stopped))
    }

    pub(super) fn stop(&self) {
        self.is_stopping.send_replace(true);
    }

    /// Resolves when it was stopped.
    async fn stopped(&self) {
        let mut is_stopping = self.is_stopping.subscribe();
        // An error means that the sender is gone, which `self` owns.
        let _ = is_stopping.wait_for(|is_stopping| *is_stopping).await;
    }

    /// Notes a use. Leases and calls are counted before, so that the task of the connection is notified if it has to check sooner.
    fn touch(&self) {
        let mut last_use = self.last_use.lock();
        last_use.at = Instant::now();
        let next_check = last_use.next_check;
        if self.idle_after(&last_use).is_some_and(|at| next_check.is_none_or(|next| at < next)) {
            self.used.notify_one();
        }
    }

    /// When the connection has to be checked next, if nothing notifies its task. From now on, [`Entry::touch`] relies on it.
    fn plan_check(&self) -> Option<Instant> {
        let mut last_use = self.last_use.lock();
        last_use.next_check = self.idle_after(&last_use);
        last_use.next_check
    }

    fn set(&self, change: impl FnOnce(&mut ConnectionView)) {
        self.view.send_modify(change);
    }

    /// When the connection is closed if it is not used again. `None` while a call runs.
    fn idle_after(&self, last_use: &LastUse) -> Option<Instant> {
        let limit = match (self.calls.load(SeqCst), self.leases.load(SeqCst)) {
            (1.., _) => return None,
            (0, 0) => self.timing.drain,
            (0, _) => self.timing.idle,
        };
        Some(last_use.at + limit)
    }

    fn is_idle(&self) -> bool {
        self.idle_after(&self.last_use.lock()).is_some_and(|at| at <= Instant::now())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.leases.fetch_sub(1, SeqCst);
        self.0.touch();
    }
}

/// Counts a call while it runs.
struct RunningCall<'a>(&'a Entry);

impl<'a> RunningCall<'a> {
    fn begin(entry: &'a Entry) -> Self {
        entry.calls.fetch_add(1, SeqCst);
        entry.touch();
        Self(entry)
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, SeqCst);
        self.0.touch();
    }
}

impl Lease {
    /// Waits until the connection is made, or fails. Bounded by the server's deadline.
    pub async fn ready(&self) -> Result<ConnectionView, McpProblem> {
        // Most connections are made already, and need no timer.
        if let Some(view) = self.0.connected() {
            return Ok(view);
        }
        let mut view = self.0.view.subscribe();
        let limit = Duration::from_millis(self.0.server.timeout_ms);
        let settled = timeout(limit, view.wait_for(|view| view.state != ConnectionState::Connecting)).await;
        let view = match settled {
            Ok(Ok(view)) => view.clone(),
            Ok(Err(_)) => return Err(McpProblem::Stopped),
            Err(_) => return Err(McpProblem::TimedOut),
        };
        match view.state {
            ConnectionState::Connected => Ok(view),
            _ => Err(view.problem.unwrap_or(McpProblem::Stopped)),
        }
    }

    /// As [`Lease::ready`], but only until `limit` after the attempt to connect began, which another lease may have caused. `None` if
    /// the server is still being connected then; the attempt continues.
    pub async fn ready_within(&self, limit: Duration) -> Option<Result<ConnectionView, McpProblem>> {
        let began = self.0.view.borrow().connecting_since.unwrap_or_else(Instant::now);
        timeout_at(began + limit, self.ready()).await.ok()
    }

    /// Calls a tool by the server's own name, over the connection that [`Lease::ready`] has returned. Returns the result as the server
    /// sent it. The caller has the deadline: the request is cancelled when the future is dropped.
    pub async fn call(
        &self,
        view: &ConnectionView,
        tool: &str,
        arguments: Map<String, Value>,
    ) -> Result<CallToolResult, McpProblem> {
        let peer = view.peer.as_ref().ok_or(McpProblem::Lost)?;
        let _running = RunningCall::begin(&self.0);
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match peer.call_tool_once(params).await {
            Ok(CallToolResponse::Complete(result)) => Ok(result),
            Ok(_) => Err(McpProblem::Protocol),
            Err(error) if is_reply_too_large(&error) => Err(McpProblem::TooLarge),
            Err(rmcp::ServiceError::McpError(error)) => Err(McpProblem::CallRefused(error.message.into_owned())),
            Err(_) => Err(McpProblem::Lost),
        }
    }
}

/// The task of one connection. It holds a slot of the budget until it ends.
async fn maintain(app: App, entry: Arc<Entry>, mut restarts: mpsc::Receiver<RestartReply>, slot: Slot) {
    let outcome = keep_connected(&app, &entry, &mut restarts).await;
    if outcome.is_err() {
        entry.backoffs.failed(&entry.key.name, &entry.key.fingerprint, app.now());
    }
    // The slot is free before the end can be seen.
    drop(slot);
    entry.set(|view| {
        view.peer = None;
        view.state = if outcome.is_err() { ConnectionState::Failed } else { ConnectionState::Disconnected };
        view.problem = outcome.err();
    });
}

/// Makes the connection, and makes it again when it is lost, until it is idle or stopped. Fails if it cannot be made.
async fn keep_connected(
    app: &App,
    entry: &Entry,
    restarts: &mut mpsc::Receiver<RestartReply>,
) -> Result<(), McpProblem> {
    let mut reply: Option<RestartReply> = None;
    // How often a lost connection was made again. `None` before the first one.
    let mut attempt: Option<u32> = None;
    loop {
        entry.set(|view| {
            (view.state, view.peer) = (ConnectionState::Connecting, None);
            view.connecting_since = view.connecting_since.or_else(|| Some(Instant::now()));
        });
        let stopped = until_stopped(app, entry, restarts);
        let connected = connect::connect(app, &entry.key.name, &entry.server, entry.is_restricted, stopped).await;
        let ending = match connected {
            Ok(link) => {
                if attempt.is_none() || reply.is_some() {
                    // Only these count as a use. A program that ends again and again would otherwise never be idle.
                    entry.touch();
                    attempt = Some(0);
                }
                let ending = serve(app, entry, link, restarts, reply.take()).await;
                entry.set(|view| view.peer = None);
                ending
            }
            Err(McpProblem::Stopped) => return Ok(()),
            Err(problem) if reply.is_some() || attempt.is_none() => {
                reply.take().map(|reply| reply.send(Err(problem.clone())));
                return Err(problem);
            }
            Err(_) => Ending::Lost { lasted: Duration::ZERO },
        };
        match ending {
            Ending::Idle | Ending::Stopped => {
                entry.backoffs.lasted(&entry.key.name, &entry.key.fingerprint);
                return Ok(());
            }
            Ending::Restart(restarted) => reply = Some(restarted),
            Ending::Lost { lasted } => {
                if lasted > entry.timing.drain {
                    entry.backoffs.lasted(&entry.key.name, &entry.key.fingerprint);
                }
                let tried = attempts_after(attempt.unwrap_or_default(), lasted, entry.timing.drain);
                attempt = Some(tried + 1);
                if !wait_to_reconnect(app, entry, restarts, tried).await? {
                    return Ok(());
                }
            }
        }
    }
}

/// Waits before a lost connection is made again. Returns whether to make it, which is not the case if it is idle or was
/// stopped. Fails after the last attempt.
async fn wait_to_reconnect(
    app: &App,
    entry: &Entry,
    restarts: &mut mpsc::Receiver<RestartReply>,
    tried: u32,
) -> Result<bool, McpProblem> {
    if entry.is_idle() {
        return Ok(false);
    }
    let pause = reconnect_pause_ms(entry.server.transport(), tried, entry.timing.reconnect_ms);
    let pause = pause.map(Duration::from_millis).ok_or(McpProblem::Lost)?;
    tracing::info!(server = entry.key.name, tried, "the connection to an MCP server was lost");
    entry.set(|view| (view.state, view.connecting_since) = (ConnectionState::Connecting, Some(Instant::now())));
    tokio::select! {
        () = sleep(pause) => Ok(!entry.is_idle()),
        () = until_stopped(app, entry, restarts) => Ok(false),
    }
}

/// Resolves when the connection is not wanted any more. A restart while it is being made is refused.
async fn until_stopped(app: &App, entry: &Entry, restarts: &mut mpsc::Receiver<RestartReply>) {
    let refuse_restarts = async {
        while let Some(refused) = restarts.recv().await {
            let _ = refused.send(Err(McpProblem::Stopped));
        }
    };
    tokio::select! {
        () = refuse_restarts => {}
        () = entry.stopped() => {}
        () = app.stopped() => {}
    }
}

/// Publishes the connection, and serves it until it ends.
async fn serve(
    app: &App,
    entry: &Entry,
    mut link: Link,
    restarts: &mut mpsc::Receiver<RestartReply>,
    reply: Option<RestartReply>,
) -> Ending {
    publish(app, entry, &link.peer, &link.tools).await;
    reply.map(|reply| reply.send(Ok(())));
    let connected_at = Instant::now();
    let ending = {
        let listing = list_changed_tools(app, entry, link.peer.clone(), link.changed.clone());
        tokio::pin!(listing);
        loop {
            tokio::select! {
                () = link.ended() => break Ending::Lost { lasted: connected_at.elapsed() },
                () = entry.stopped() => break Ending::Stopped,
                () = app.stopped() => break Ending::Stopped,
                () = entry.used.notified() => {}
                () = sleep_until_idle(entry) => {
                    if entry.is_idle() {
                        break Ending::Idle;
                    }
                }
                restart = restarts.recv() => match restart {
                    Some(restarted) => break Ending::Restart(restarted),
                    None => break Ending::Stopped,
                },
                () = &mut listing => {}
            }
        }
    };
    if let Ending::Lost { .. } = ending {
        // Calls wait for the next connection from now on, and not only after this one has been closed.
        entry.set(|view| {
            (view.state, view.peer) = (ConnectionState::Connecting, None);
            view.connecting_since = Some(Instant::now());
        });
    }
    link.close().await;
    ending
}

/// Resolves when the connection has not been used for long enough. Never resolves while a call runs: its end is a use.
async fn sleep_until_idle(entry: &Entry) {
    match entry.plan_check() {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Lists the tools again when the server sends that they have changed, with a pause after each list. Never resolves.
async fn list_changed_tools(app: &App, entry: &Entry, peer: Peer<RoleClient>, changed: Arc<Notify>) {
    let limit = Duration::from_millis(entry.server.timeout_ms);
    let mut pauses = ListPauses::new();
    loop {
        changed.notified().await;
        pauses.reported();
        let begun = Instant::now();
        match timeout(limit, connect::list_tools(&entry.key.name, &peer)).await {
            Ok(Ok(tools)) => publish(app, entry, &peer, &tools).await,
            // The last list stays. If the connection is gone, `serve` notices it.
            _ => tracing::warn!(server = entry.key.name, "an MCP server did not list its changed tools"),
        }
        pauses.wait(begun.elapsed()).await;
    }
}

async fn publish(app: &App, entry: &Entry, peer: &Peer<RoleClient>, tools: &[McpTool]) {
    entry.backoffs.connected(&entry.key.name, &entry.key.fingerprint);
    let tools =
        app.compute(tools.len() * SCHEMA_BYTES_MAX, || tool_listing::checked(app, &entry.key.name, tools)).await;
    for tool in tools.iter().filter(|tool| tool.invalid_reason.is_some()).take(SKIPPED_LOGGED_MAX) {
        let reason = tool.invalid_reason.as_deref();
        tracing::warn!(server = entry.key.name, tool = tool.server_tool_name, reason, "a tool is not offered");
    }
    entry.set(|view| {
        *view = ConnectionView {
            state: ConnectionState::Connected,
            tools: Arc::new(tools),
            problem: None,
            peer: Some(peer.clone()),
            connecting_since: None,
        };
    });
}
