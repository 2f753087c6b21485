//! Tools of MCP servers whose `expose` is `toolkit`. They have the operator's credentials, so that only runs in the workspace that the
//! server is bound to get all of them; if it is bound to none, the operator's own turns do. Other runs of users get those that
//! the operator offers to users, by their names.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use ostler_protocol::{
    Failure,
    mcp::{
        config::{McpExposure, McpTransport},
        names::{TOOL_PREFIX, own_name},
        tools::{McpTool, SCHEMA_BYTES_MAX},
    },
    text::clip,
    tools::{ToolDefinition, ToolOrigin},
};
use parking_lot::Mutex;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    call_redactor::CallRedactor,
    source::{Invocation, McpAccess, ToolContext, ToolError, ToolSource},
};
use crate::{
    app::App,
    dialect::Dialects,
    launcher::bound_references::BoundReferences,
    mcp::{CallableServers, ConnectionView, Lease, Mcp, McpProblem, RegisteredServer, ServerOrigin},
};

/// How long a list of tools waits for a server that was connected before, from the start of the attempt to connect it. For another
/// server a list waits `mcp.list_wait_ms`. One that takes longer is left out of the list. A call waits for its server for the same
/// time, from the start of the call.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// After how long the model should repeat a call whose server is still being connected.
const CONNECTING_RETRY: Duration = Duration::from_secs(5);
/// Characters of a server's reason for refusing a call that the model gets.
const REFUSAL_CHARS_MAX: usize = 1_000;
/// Most lists of one server's tools that are remembered. Sessions that have connections of their own get lists of their own.
const LISTS_MAX: usize = 256;

type Definitions = Arc<Vec<Arc<ToolDefinition>>>;

/// The tools that a connection of a server listed, and their definitions.
struct CachedTools {
    /// Of the server's configuration.
    fingerprint: String,
    trusts_hints: bool,
    listed: Arc<Vec<McpTool>>,
    definitions: Definitions,
}

/// The tools of MCP servers.
#[derive(Default)]
pub(super) struct McpSource {
    /// The definitions of a server's tools, by the server's name: one for each list that a connection has.
    cached: Mutex<HashMap<String, Vec<CachedTools>>>,
    bound_references: BoundReferences,
}

impl CachedTools {
    fn is_of(&self, known: &RegisteredServer) -> bool {
        self.fingerprint == known.fingerprint && self.trusts_hints == known.server.trust_hints
    }
}

/// Why a server's tools cannot be called now.
fn not_connected(server: &str, retry_in: Duration) -> String {
    let seconds = retry_in.as_millis().div_ceil(1_000).max(1);
    format!("the MCP server {server} is not connected; retry in {seconds} s")
}

impl McpSource {
    /// The servers whose tools a run may get, and which of them it gets. `None` if it gets none.
    async fn servers(&self, app: &App, context: &ToolContext) -> Result<Option<OfferedServers>, Failure> {
        let has_all = match &context.run {
            Some(run) if app.config.server.workspace.is_some() => self.bound_references.has(app, run),
            _ => context.mcp == McpAccess::All,
        };
        let has_granted = context.run.is_some() || context.mcp == McpAccess::Granted;
        let granted = match has_all {
            true => None,
            false if has_granted && context.owner.is_some() => Some(Dialects::of(app).mcp_tools(&app.config)),
            false => Some(vec![]),
        };
        if granted.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let callable = Mcp::of(app).callable(app).await?;
        Ok(Some(OfferedServers { callable, granted }))
    }

    /// The session that connections are for. Empty if they are shared.
    fn scope(app: &App, context: &ToolContext) -> String {
        let run = context.run.as_ref().filter(|_| app.config.mcp.no_pool);
        run.map(|run| run.session.to_string()).unwrap_or_default()
    }

    async fn lease(app: &App, context: &ToolContext, known: &RegisteredServer) -> Option<Lease> {
        Mcp::of(app).lease(app, known, &Self::scope(app, context)).await.ok()
    }

    /// The definitions of a server's tools, to call one of them. Does not use the connection if it is made: the call does.
    async fn of_called(&self, app: &App, context: &ToolContext, known: &RegisteredServer) -> Definitions {
        if let Some(tools) = Mcp::of(app).connected_tools(app, known, &Self::scope(app, context)) {
            return self.definitions(app, known, &tools).await;
        }
        if Mcp::of(app).pause_left(app, known).is_some() {
            return Definitions::default();
        }
        let Some(lease) = Self::lease(app, context, known).await else { return Definitions::default() };
        self.of_connection(app, known, timeout(CONNECT_WITHIN, lease.ready()).await.ok()).await
    }

    /// How long a list of tools waits for a server.
    fn list_wait(app: &App, known: &RegisteredServer) -> Duration {
        let list_wait = Duration::from_millis(app.config.mcp.list_wait_ms);
        if Mcp::of(app).is_reliable(known) { list_wait.max(CONNECT_WITHIN) } else { list_wait }
    }

    async fn of_server(
        &self,
        app: &App,
        context: &ToolContext,
        known: &RegisteredServer,
        limit: Duration,
    ) -> Definitions {
        if Mcp::of(app).pause_left(app, known).is_some() {
            return Definitions::default();
        }
        let Some(lease) = Self::lease(app, context, known).await else { return Definitions::default() };
        self.of_connection(app, known, lease.ready_within(limit).await).await
    }

    /// The definitions of the tools of a connection. `None`: it is still being made.
    async fn of_connection(
        &self,
        app: &App,
        known: &RegisteredServer,
        ready: Option<Result<ConnectionView, McpProblem>>,
    ) -> Definitions {
        match ready {
            Some(Ok(view)) => self.definitions(app, known, &view.tools).await,
            Some(Err(problem)) => {
                tracing::warn!(server = known.name, %problem, "the tools of an MCP server are not offered");
                Definitions::default()
            }
            None => {
                tracing::warn!(server = known.name, "the tools of an MCP server that still connects are not offered");
                Definitions::default()
            }
        }
    }

    /// The definitions of listed tools, which are made once for each list.
    async fn definitions(&self, app: &App, known: &RegisteredServer, listed: &Arc<Vec<McpTool>>) -> Definitions {
        match self.of_list(known, listed) {
            Some(definitions) => definitions,
            None => app.compute(listed.len() * SCHEMA_BYTES_MAX, || self.define(known, listed)).await,
        }
    }

    /// The definitions that were made of a list.
    fn of_list(&self, known: &RegisteredServer, listed: &Arc<Vec<McpTool>>) -> Option<Definitions> {
        let cached = self.cached.lock();
        let mut of_server = cached.get(&known.name)?.iter().filter(|tools| tools.is_of(known));
        Some(of_server.find(|tools| Arc::ptr_eq(&tools.listed, listed))?.definitions.clone())
    }

    fn define(&self, known: &RegisteredServer, listed: &Arc<Vec<McpTool>>) -> Definitions {
        if let Some(definitions) = self.of_list(known, listed) {
            return definitions;
        }
        let others: Vec<_> = {
            let cached = self.cached.lock();
            let lists = cached.get(&known.name).map(Vec::as_slice).unwrap_or_default();
            let of_server = lists.iter().filter(|tools| tools.is_of(known));
            of_server.map(|tools| (tools.listed.clone(), tools.definitions.clone())).collect()
        };
        // Another session's connection may have listed the same tools. Without the lock: lists are long, and schemas are copied.
        let same = others.into_iter().find(|(other, _)| other == listed).map(|(_, definitions)| definitions);
        let define_all =
            || -> Definitions { Arc::new(listed.iter().filter_map(|tool| definition(known, tool)).collect()) };
        let definitions = same.unwrap_or_else(define_all);
        self.remember(known, listed, &definitions);
        definitions
    }

    fn remember(&self, known: &RegisteredServer, listed: &Arc<Vec<McpTool>>, definitions: &Definitions) {
        let mut cached = self.cached.lock();
        let lists = cached.entry(known.name.clone()).or_default();
        // A list that only the cache has is of a connection that has ended, or has listed other tools since.
        lists.retain(|tools| {
            tools.is_of(known) && Arc::strong_count(&tools.listed) > 1 && !Arc::ptr_eq(&tools.listed, listed)
        });
        if lists.len() >= LISTS_MAX {
            lists.remove(0);
        }
        lists.push(CachedTools {
            fingerprint: known.fingerprint.clone(),
            trusts_hints: known.server.trust_hints,
            listed: listed.clone(),
            definitions: definitions.clone(),
        });
    }
}

/// The servers whose tools a run may get.
struct OfferedServers {
    callable: Arc<CallableServers>,
    /// The tools that it gets, by their names. `None`: all.
    granted: Option<Vec<String>>,
}

impl OfferedServers {
    /// The servers of which the run may get a tool. Those that are granted are servers of the configuration: a caller may have added
    /// another one under the same name.
    fn servers(&self) -> impl Iterator<Item = &RegisteredServer> {
        self.callable.servers.iter().filter(move |known| {
            let is_granted = |names: &Vec<String>| {
                let is_own = |name: &String| own_name(name, &known.name).is_some();
                known.origin == ServerOrigin::Configured && names.iter().any(is_own)
            };
            known.server.expose == McpExposure::Toolkit && self.granted.as_ref().is_none_or(is_granted)
        })
    }

    fn has(&self, name: &str) -> bool {
        let is_granted = self.granted.as_ref().is_none_or(|names| names.iter().any(|granted| granted == name));
        is_granted && !self.callable.disabled_tools.contains(name)
    }
}

/// The server that executes calls of a tool: the one that offered it. Another one may have its name now.
fn executing_server<'a>(
    callable: &'a CallableServers,
    tool: &ToolDefinition,
    name: &str,
) -> Option<&'a RegisteredServer> {
    let is_same = |known: &&RegisteredServer| {
        known.name == name
            && known.server.expose == McpExposure::Toolkit
            && tool.server_fingerprint.as_ref() == Some(&known.fingerprint)
    };
    callable.servers.iter().find(is_same)
}

/// `None` if the tool cannot be called.
fn definition(known: &RegisteredServer, tool: &McpTool) -> Option<Arc<ToolDefinition>> {
    if tool.invalid_reason.is_some() {
        return None;
    }
    let (schema, description) = (tool.schema.clone()?, tool.description.as_deref().unwrap_or_default());
    let defined = ToolDefinition::new(ToolOrigin::Mcp(known.name.clone()), &tool.name, description, schema);
    let mut defined = defined
        .inspect_err(|problem| {
            tracing::warn!(server = known.name, tool = tool.server_tool_name, %problem, "a tool is not offered");
        })
        .ok()?;
    let hint = |name: &str| tool.annotations.as_ref().and_then(|hints| hints.get(name)).and_then(Value::as_bool);
    let only_reads = hint("readOnlyHint") == Some(true);
    defined.changes = !only_reads;
    defined.is_idempotent = only_reads || hint("idempotentHint") == Some(true);
    defined.uses_network = known.server.transport() == McpTransport::Http || hint("openWorldHint") != Some(false);
    defined.is_trusted = known.server.trust_hints;
    defined.server_fingerprint = Some(known.fingerprint.clone());
    let scope = format!("mcp:{}", known.name.to_ascii_lowercase());
    Some(Arc::new(defined.scope(&scope).deadline_ms(known.server.timeout_ms)))
}

impl ToolSource for McpSource {
    fn list<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
    ) -> BoxFuture<'a, Result<Vec<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async move {
            let Some(offered) = self.servers(app, context).await? else { return Ok(vec![]) };
            let of_server = |known| self.of_server(app, context, known, Self::list_wait(app, known));
            let listed = join_all(offered.servers().map(of_server)).await;
            let tools = listed.iter().flat_map(|definitions| definitions.iter().cloned());
            Ok(tools.filter(|tool| offered.has(&tool.name)).collect())
        })
    }

    fn find<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async move {
            if !name.starts_with(TOOL_PREFIX) {
                return Ok(None);
            }
            let Some(offered) = self.servers(app, context).await?.filter(|offered| offered.has(name)) else {
                return Ok(None);
            };
            // Server names may contain the separator, so that the longest one is not always the right one.
            for known in offered.servers().filter(|known| own_name(name, &known.name).is_some()) {
                let definitions = self.of_called(app, context, known).await;
                if let Some(tool) = definitions.iter().find(|tool| tool.name == name) {
                    return Ok(Some(tool.clone()));
                }
            }
            Ok(None)
        })
    }

    fn unavailable<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, Failure>> {
        Box::pin(async move {
            if !name.starts_with(TOOL_PREFIX) {
                return Ok(None);
            }
            let Some(offered) = self.servers(app, context).await?.filter(|offered| offered.has(name)) else {
                return Ok(None);
            };
            let (mcp, scope) = (Mcp::of(app), Self::scope(app, context));
            let is_missing = |known: &&RegisteredServer| {
                own_name(name, &known.name).is_some() && mcp.connected_tools(app, known, &scope).is_none()
            };
            let missing = offered.servers().find(is_missing);
            Ok(missing.map(|known| {
                let retry_in = mcp.pause_left(app, known).unwrap_or(CONNECTING_RETRY);
                not_connected(&known.name, retry_in)
            }))
        })
    }

    fn call<'a>(&'a self, app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
        Box::pin(async move {
            let Invocation { tool, arguments, context, .. } = invocation;
            let ToolOrigin::Mcp(server) = &tool.origin else { return Err(ToolError::failed("there is no such tool")) };
            let gone = || ToolError::failed(format!("the MCP server {server} is not available"));
            let callable = Mcp::of(app).callable(app).await.map_err(|_| gone())?;
            let known = executing_server(&callable, tool, server).ok_or_else(gone)?;
            let own_name = own_name(&tool.name, server).ok_or_else(gone)?;
            let lease = Self::lease(app, context, known).await.ok_or_else(gone)?;
            let unready = |problem: McpProblem| ToolError::failed(format!("the MCP server {server}: {problem}"));
            let connecting = |_| ToolError::failed(not_connected(server, CONNECTING_RETRY));
            let ready = timeout(CONNECT_WITHIN, lease.ready()).await.map_err(connecting)?.map_err(unready)?;
            // Until here, nothing was sent.
            match lease.call(&ready, own_name, arguments.clone()).await {
                Ok(result) => read_result(result),
                Err(McpProblem::CallRefused(message)) => {
                    // Redacted before it is cut: half of a secret could not be recognised.
                    let clean = CallRedactor::of_context(app, context).redact(message).await;
                    let message = clip(&clean, REFUSAL_CHARS_MAX);
                    Err(ToolError::failed(format!("the MCP server {server} refused the call: {message}")))
                }
                Err(problem @ McpProblem::TooLarge) => {
                    let message = format!(
                        "the tool was executed, but its result is too large: the MCP server {server}: {problem}"
                    );
                    Err(ToolError::failed(message))
                }
                Err(problem) => Err(ToolError::OutcomeUnknown(format!("the MCP server {server}: {problem}"))),
            }
        })
    }
}

/// The text of a result. Other content is described, because a model gets texts only.
fn read_result(result: CallToolResult) -> Result<String, ToolError> {
    let mut texts: Vec<String> = result.content.into_iter().map(describe).collect();
    if texts.iter().all(String::is_empty)
        && let Some(structured) = result.structured_content.filter(|value| !value.is_null())
    {
        texts = vec![structured.to_string()];
    }
    let text = if texts.len() == 1 { texts.swap_remove(0) } else { texts.join("\n") };
    if result.is_error == Some(true) { Err(ToolError::Failed(text)) } else { Ok(text) }
}

fn describe(block: ContentBlock) -> String {
    match block {
        ContentBlock::Text(content) => content.text,
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text,
            _ => "[a resource that is not text]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[a resource: {}]", link.uri),
        ContentBlock::Image(image) => format!("[image {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[audio {}]", audio.mime_type),
        _ => "[content of another kind]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ostler_protocol::mcp::config::McpServer;
    use serde_json::json;

    use super::*;

    fn read(result: Value) -> Result<String, ToolError> {
        read_result(serde_json::from_value(result).unwrap())
    }

    #[test]
    fn results_are_read_as_text() {
        let texts = json!({"content": [{"type": "text", "text": "a"}, {"type": "image", "mimeType": "image/png", "data": "x"},
            {"type": "resource", "resource": {"uri": "u", "text": "b"}},
            {"type": "resource", "resource": {"uri": "u", "blob": "eA=="}},
            {"type": "resource_link", "uri": "file:///c", "name": "c"}]});
        assert_eq!(
            read(texts).unwrap(),
            "a\n[image image/png]\nb\n[a resource that is not text]\n[a resource: file:///c]"
        );
        assert_eq!(read(json!({"content": [{"type": "text", "text": "a"}]})).unwrap(), "a");
        let structured = json!({"content": [], "structuredContent": {"n": 1}});
        assert_eq!(read(structured).unwrap(), r#"{"n":1}"#);
        let failed = json!({"content": [{"type": "text", "text": "no"}], "isError": true});
        assert_eq!(read(failed).unwrap_err(), ToolError::failed("no"));
        assert_eq!(read(json!({"content": []})).unwrap(), "");
    }

    fn server(command: &str) -> RegisteredServer {
        let server: McpServer = serde_json::from_value(json!({"command": command})).unwrap();
        let fingerprint = server.fingerprint();
        RegisteredServer {
            name: "files".into(),
            server,
            fingerprint,
            origin: ServerOrigin::Configured,
            is_enabled: true,
        }
    }

    #[test]
    fn a_call_reaches_only_the_server_that_offered_the_tool() {
        let listed = McpTool {
            name: "mcp__files__read".into(),
            server_tool_name: "read".into(),
            description: None,
            schema: json!({"type": "object"}).as_object().cloned(),
            annotations: None,
            invalid_reason: None,
        };
        let tool = definition(&server("one"), &listed).unwrap();
        let callable =
            |known: RegisteredServer| CallableServers { servers: vec![known], disabled_tools: BTreeSet::new() };
        assert!(executing_server(&callable(server("one")), &tool, "files").is_some());
        assert!(executing_server(&callable(server("two")), &tool, "files").is_none(), "added under the same name");
        let mut direct = server("one");
        direct.server.expose = McpExposure::Direct;
        assert!(executing_server(&callable(direct), &tool, "files").is_none());
    }

    #[test]
    fn definitions_are_made_once_for_the_same_tools_of_a_server() {
        let source = McpSource::default();
        let list = || {
            let schema = json!({"type": "object"}).as_object().cloned();
            let (name, server_tool_name) = ("mcp__files__read".to_owned(), "read".to_owned());
            Arc::new(vec![McpTool {
                name,
                server_tool_name,
                description: None,
                schema,
                annotations: None,
                invalid_reason: None,
            }])
        };
        let first = source.define(&server("one"), &list());
        let (mine, mut others) = (list(), list());
        Arc::make_mut(&mut others)[0].description = Some("Reads.".into());
        assert!(Arc::ptr_eq(&first, &source.define(&server("one"), &mine)));
        assert!(!Arc::ptr_eq(&first, &source.define(&server("one"), &others)), "another session's list differs");
        assert!(Arc::ptr_eq(&first, &source.define(&server("one"), &mine)), "both connections still exist");
        assert_eq!(source.cached.lock()["files"].len(), 2);
        assert!(Arc::ptr_eq(&first, &source.define(&server("one"), &list())), "of another session's connection");
        let mut trusted = server("one");
        trusted.server.trust_hints = true;
        assert!(source.define(&trusted, &list())[0].is_trusted && !first[0].is_trusted);
        assert!(!Arc::ptr_eq(&first, &source.define(&server("two"), &list())), "of another server");
    }
}
