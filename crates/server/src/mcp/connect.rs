//! Connects to an MCP server and lists its tools. Only bounded parts of what the server sends are kept, and its own texts are
//! never part of a message to callers: they could repeat its secrets.

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use ostler_client::{outgoing, restricted_web_client, web_client};
use ostler_protocol::mcp::{
    config::{McpServer, McpTransport},
    tools::{ListedTool, McpTool, TOOLS_MAX, read_tools},
};
use rmcp::{
    ClientHandler, Peer, RoleClient,
    model::{PaginatedRequestParams, Tool},
    service::{
        ClientInitializeError, NotificationContext, RunningService, RunningServiceCancellationToken, serve_client,
    },
    transport::{
        async_rw::AsyncRwTransport,
        streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig},
    },
};
use secrecy::ExposeSecret;
use serde_json::{Map, Value};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use super::{
    bounded_lines::BoundedLines,
    http_client::{BoundedHttpClient, is_reply_too_large, is_too_large},
    problem::McpProblem,
    process::McpProcess,
    values,
};
use crate::app::App;

/// Most bytes of one message of a server. A longer one is dropped, and the request that it replies to fails.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most pages of a list of tools.
const PAGES_MAX: usize = 64;
/// How long a connection may take to close.
const CLOSE: Duration = Duration::from_secs(1);

/// A connection to a server that has listed its tools.
pub(super) struct Link {
    pub peer: Peer<RoleClient>,
    pub tools: Vec<McpTool>,
    /// Notified when the server reports that its tools have changed.
    pub changed: Arc<Notify>,
    running: Option<(RunningServiceCancellationToken, JoinHandle<()>)>,
    process: Option<McpProcess>,
}

/// Receives notifications of a server. Its requests (sampling, elicitation) are refused.
struct Receiver {
    changed: Arc<Notify>,
}

impl ClientHandler for Receiver {
    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }
}

/// Connects within the server's deadline. `is_restricted`: a caller chose its address. Fails with [`McpProblem::Stopped`] when
/// `stopped` resolves. A process that was started has ended when this returns an error.
pub(super) async fn connect(
    app: &App,
    name: &str,
    server: &McpServer,
    is_restricted: bool,
    stopped: impl Future<Output = ()>,
) -> Result<Link, McpProblem> {
    let limit = Duration::from_millis(server.timeout_ms);
    let given_up = async {
        match timeout(limit, stopped).await {
            Ok(()) => McpProblem::Stopped,
            Err(_) => McpProblem::TimedOut,
        }
    };
    match server.transport() {
        McpTransport::Stdio => connect_process(app, name, server, given_up).await,
        McpTransport::Http => tokio::select! {
            linked = connect_http(app, name, server, is_restricted) => linked,
            problem = given_up => Err(problem),
        },
    }
}

/// `given_up`: resolves when the process has taken too long or is not wanted any more. It is closed then.
async fn connect_process(
    app: &App,
    name: &str,
    server: &McpServer,
    given_up: impl Future<Output = McpProblem>,
) -> Result<Link, McpProblem> {
    tokio::pin!(given_up);
    let started = tokio::select! {
        started = McpProcess::start(app, server) => started,
        problem = &mut given_up => Err(problem),
    };
    let (process, stdout, stdin) = started?;
    let lines = BoundedLines::new(stdout, MESSAGE_BYTES_MAX);
    // With the end of the line.
    let transport = AsyncRwTransport::new_client(lines, stdin).with_max_line_length(MESSAGE_BYTES_MAX + 1);
    let changed = Arc::new(Notify::new());
    let linking = async {
        let service = serve_client(Receiver { changed: changed.clone() }, transport).await;
        finish(name, service.map_err(|_| McpProblem::Protocol)?, changed.clone()).await
    };
    // Without `linking`, the standard input of the process is closed, so that it can end by itself.
    let linked = tokio::select! {
        linked = linking => linked,
        problem = given_up => Err(problem),
    };
    match linked {
        Ok(link) => Ok(Link { process: Some(process), ..link }),
        Err(problem) => {
            if problem != McpProblem::Stopped {
                let log = process.log_tail(app);
                tracing::warn!(server = name, %problem, log, "an MCP server could not be connected");
            }
            process.close().await;
            Err(problem)
        }
    }
}

async fn connect_http(app: &App, name: &str, server: &McpServer, is_restricted: bool) -> Result<Link, McpProblem> {
    let url = server.url.clone().unwrap_or_default();
    let client = match is_restricted {
        true => {
            let rules = app.config.outgoing.rules().map_err(|_| McpProblem::AddressRefused)?;
            restricted_web_client(&url, &rules).map_err(|_| McpProblem::AddressRefused)?
        }
        false => web_client(&url).map_err(|_| McpProblem::Unusable("its url cannot be used"))?,
    };
    let mut headers = HashMap::new();
    for (name, value) in values::resolve(app, &server.headers).await? {
        let bad = || McpProblem::ValueMissing(name.clone());
        let mut header = HeaderValue::from_str(value.expose_secret()).map_err(|_| bad())?;
        header.set_sensitive(true);
        headers.insert(name.parse::<HeaderName>().map_err(|_| bad())?, header);
    }
    let config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(headers)
        .max_sse_event_size(MESSAGE_BYTES_MAX);
    let transport = StreamableHttpClientTransport::with_client(
        BoundedHttpClient { client, message_bytes_max: MESSAGE_BYTES_MAX },
        config,
    );
    let changed = Arc::new(Notify::new());
    let service = serve_client(Receiver { changed: changed.clone() }, transport).await.map_err(|error| match () {
        () if error.is_authorization_required() => McpProblem::LoginRequired,
        () if outgoing::is_refused(cause(&error)) => McpProblem::AddressRefused,
        () if is_too_large(cause(&error)) => McpProblem::TooLarge,
        () => McpProblem::Protocol,
    });
    finish(name, service?, changed).await
}

/// Why the connection failed. The failure of the library does not report it as its source.
fn cause(error: &ClientInitializeError) -> &(dyn Error + 'static) {
    match error {
        ClientInitializeError::TransportError { error, .. } => error,
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => cause(fallback),
        other => other,
    }
}

async fn finish(
    name: &str,
    service: RunningService<RoleClient, Receiver>,
    changed: Arc<Notify>,
) -> Result<Link, McpProblem> {
    let peer = service.peer().clone();
    let tools = list_tools(name, &peer).await?;
    let cancel = service.cancellation_token();
    let running = tokio::spawn(async move {
        let _ = service.waiting().await;
    });
    Ok(Link { peer, tools, changed, running: Some((cancel, running)), process: None })
}

/// The server's tools, page by page. A server without tools has none.
pub(super) async fn list_tools(name: &str, peer: &Peer<RoleClient>) -> Result<Vec<McpTool>, McpProblem> {
    if peer.peer_info().is_some_and(|info| info.capabilities.tools.is_none()) {
        return Ok(vec![]);
    }
    let (mut listed, mut cursor) = (vec![], None);
    for _ in 0..PAGES_MAX {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = peer.list_tools(Some(params)).await.map_err(|error| match is_reply_too_large(&error) {
            true => McpProblem::TooLarge,
            false => McpProblem::Protocol,
        })?;
        listed.extend(page.tools.into_iter().map(read_tool));
        cursor = page.next_cursor;
        if cursor.is_none() || listed.len() > TOOLS_MAX {
            break;
        }
    }
    let distinct: HashSet<&str> = listed.iter().map(|tool: &ListedTool| tool.name.as_str()).collect();
    if distinct.len() < listed.len() {
        let repeated = listed.len() - distinct.len();
        tracing::warn!(server = name, repeated, "an MCP server lists tools twice; the first of each name is offered");
    }
    let (tools, is_cut) = read_tools(name, listed);
    if is_cut {
        tracing::warn!(server = name, "an MCP server lists more than {TOOLS_MAX} tools; the rest is left out");
    }
    Ok(tools)
}

fn read_tool(tool: Tool) -> ListedTool {
    let object = |value: Value| value.as_object().cloned();
    ListedTool {
        name: tool.name.into_owned(),
        description: tool.description.map(|text| text.into_owned()),
        schema: Map::clone(&tool.input_schema),
        annotations: tool.annotations.and_then(|hints| object(ostler_protocol::json::value_of(&hints))),
    }
}

impl Link {
    /// Resolves when the connection has ended.
    pub(super) async fn ended(&mut self) {
        if let Some((_, running)) = &mut self.running {
            let _ = running.await;
            self.running = None;
        }
    }

    /// Closes the connection, and ends the process.
    pub(super) async fn close(mut self) {
        if let Some((cancel, running)) = self.running.take() {
            cancel.cancel();
            let abort = running.abort_handle();
            if timeout(CLOSE, running).await.is_err() {
                abort.abort();
            }
        }
        if let Some(process) = self.process.take() {
            process.close().await;
        }
    }
}
