//! Tools of MCP servers whose `expose` is `toolkit`. They have the operator's credentials, so that only runs in the workspace that the
//! server is bound to get all of them. Other runs of users get those that the operator offers to users, by their names.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use ostler_protocol::{
    Failure,
    mcp::{
        config::{McpExposure, McpTransport},
        names::{TOOL_PREFIX, qualified},
        tools::McpTool,
    },
    tools::{ToolDefinition, ToolOrigin},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::source::{Invocation, McpAccess, ToolContext, ToolError, ToolSource};
use crate::{
    app::App,
    dialect::Dialects,
    launcher::workspaces,
    mcp::{CallableServers, KnownServer, Lease, Mcp, McpProblem, ServerOrigin},
};

/// How long the list of tools waits for a server that connects. One that takes longer is left out of this list.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

type Definitions = Arc<Vec<Arc<ToolDefinition>>>;
/// The tools that a server listed, and their definitions.
type CachedTools = (Arc<Vec<McpTool>>, Definitions);

/// The tools of MCP servers.
#[derive(Default)]
pub(super) struct McpSource {
    /// The definitions of a server's tools, by the server's name, with the list that they are of. A changed list replaces them.
    cached: Mutex<HashMap<String, CachedTools>>,
}

impl McpSource {
    /// The servers whose tools a run may get, and which of them it gets. `None` if it gets none.
    async fn servers(app: &App, context: &ToolContext) -> Result<Option<OfferedServers>, Failure> {
        let has_all = context.run.as_ref().map_or(context.mcp == McpAccess::All, |run| workspaces::is_bound(app, run));
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

    async fn lease(app: &App, context: &ToolContext, known: &KnownServer) -> Option<Lease> {
        let scope = context.run.as_ref().map(|run| run.session.to_string()).unwrap_or_default();
        Mcp::of(app).lease(app, known, &scope).await.ok()
    }

    async fn of_server(&self, app: &App, context: &ToolContext, known: &KnownServer) -> Definitions {
        let Some(lease) = Self::lease(app, context, known).await else { return Definitions::default() };
        match timeout(CONNECT_WITHIN, lease.ready()).await {
            Ok(Ok(view)) => self.define(known, &view.tools),
            Ok(Err(problem)) => {
                tracing::warn!(server = known.name, %problem, "the tools of an MCP server are not offered");
                Definitions::default()
            }
            Err(_) => {
                tracing::warn!(server = known.name, "the tools of an MCP server that still connects are not offered");
                Definitions::default()
            }
        }
    }

    fn define(&self, known: &KnownServer, listed: &Arc<Vec<McpTool>>) -> Definitions {
        let mut cached = self.cached.lock();
        if let Some((tools, definitions)) = cached.get(&known.name)
            && Arc::ptr_eq(tools, listed)
        {
            return definitions.clone();
        }
        let definitions: Definitions = Arc::new(listed.iter().filter_map(|tool| definition(known, tool)).collect());
        cached.insert(known.name.clone(), (listed.clone(), definitions.clone()));
        definitions
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
    fn servers(&self) -> impl Iterator<Item = &KnownServer> {
        self.callable.servers.iter().filter(move |known| {
            let prefix = qualified(&known.name, "");
            let is_granted = |names: &Vec<String>| {
                known.origin == ServerOrigin::Configured && names.iter().any(|name| name.starts_with(&prefix))
            };
            known.server.expose == McpExposure::Toolkit && self.granted.as_ref().is_none_or(is_granted)
        })
    }

    fn has(&self, name: &str) -> bool {
        let is_granted = self.granted.as_ref().is_none_or(|names| names.iter().any(|granted| granted == name));
        is_granted && !self.callable.disabled_tools.contains(name)
    }
}

/// `None` if the tool cannot be called.
fn definition(known: &KnownServer, tool: &McpTool) -> Option<Arc<ToolDefinition>> {
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
            let Some(offered) = Self::servers(app, context).await? else { return Ok(vec![]) };
            let listed = join_all(offered.servers().map(|known| self.of_server(app, context, known))).await;
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
            let Some(offered) = Self::servers(app, context).await?.filter(|offered| offered.has(name)) else {
                return Ok(None);
            };
            // Server names may contain the separator, so that the longest one is not always the right one.
            for known in offered.servers().filter(|known| name.starts_with(&qualified(&known.name, ""))) {
                let definitions = self.of_server(app, context, known).await;
                if let Some(tool) = definitions.iter().find(|tool| tool.name == name) {
                    return Ok(Some(tool.clone()));
                }
            }
            Ok(None)
        })
    }

    fn call<'a>(&'a self, app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
        Box::pin(async move {
            let Invocation { tool, arguments, context, .. } = invocation;
            let ToolOrigin::Mcp(server) = &tool.origin else { return Err(ToolError::failed("there is no such tool")) };
            let gone = || ToolError::failed(format!("the MCP server {server} is not available"));
            let callable = Mcp::of(app).callable(app).await.map_err(|_| gone())?;
            let known = callable.servers.iter().find(|known| known.name == *server).ok_or_else(gone)?;
            let own_name = tool.name.strip_prefix(&qualified(server, "")).ok_or_else(gone)?;
            let lease = Self::lease(app, context, known).await.ok_or_else(gone)?;
            // Until here, nothing was sent.
            lease.ready().await.map_err(|problem| ToolError::failed(format!("the MCP server {server}: {problem}")))?;
            match lease.call(own_name, arguments.clone()).await {
                Ok(result) => read_result(&result),
                Err(problem @ McpProblem::CallRefused) => Err(ToolError::failed(problem.to_string())),
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
fn read_result(result: &Value) -> Result<String, ToolError> {
    let content = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut texts: Vec<String> = content.iter().filter_map(Value::as_object).map(describe).collect();
    if texts.iter().all(String::is_empty)
        && let Some(structured) = result.get("structuredContent").filter(|value| !value.is_null())
    {
        texts = vec![structured.to_string()];
    }
    let text = texts.join("\n");
    if result["isError"] == true { Err(ToolError::Failed(text)) } else { Ok(text) }
}

fn describe(block: &Map<String, Value>) -> String {
    let text = |name: &str| block.get(name).and_then(Value::as_str);
    match text("type") {
        Some("text") => text("text").unwrap_or_default().to_owned(),
        Some("resource") => {
            let resource = block.get("resource").and_then(Value::as_object);
            let shown = resource.and_then(|resource| resource.get("text")).and_then(Value::as_str);
            shown.unwrap_or("[a resource that is not text]").to_owned()
        }
        Some("resource_link") => format!("[a resource: {}]", text("uri").unwrap_or_default()),
        Some(kind) => format!("[{kind} {}]", text("mimeType").unwrap_or_default()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_are_read_as_text() {
        let texts = json!({"content": [{"type": "text", "text": "a"}, {"type": "image", "mimeType": "image/png", "data": "x"},
            {"type": "resource", "resource": {"uri": "u", "text": "b"}}]});
        assert_eq!(read_result(&texts).unwrap(), "a\n[image image/png]\nb");
        let structured = json!({"content": [], "structuredContent": {"n": 1}});
        assert_eq!(read_result(&structured).unwrap(), r#"{"n":1}"#);
        let failed = json!({"content": [{"type": "text", "text": "no"}], "isError": true});
        assert_eq!(read_result(&failed).unwrap_err(), ToolError::failed("no"));
        assert_eq!(read_result(&json!({"content": "odd"})).unwrap(), "");
    }
}
