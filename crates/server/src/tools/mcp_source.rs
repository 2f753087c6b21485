//! Tools of MCP servers whose `expose` is `toolkit`. They have the operator's credentials, so that only runs in the workspace that the
//! server is bound to get them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use ostler_protocol::{
    Failure,
    mcp::{
        config::{McpExposure, McpTransport},
        names::qualified,
        tools::McpTool,
    },
    tools::{ToolDefinition, ToolOrigin},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::source::{Invocation, ToolContext, ToolError, ToolSource};
use crate::{
    app::App,
    launcher::workspaces,
    mcp::{KnownServer, Lease, Mcp, McpProblem, disabled_tools},
};

/// How long the list of tools waits for a server that connects. One that takes longer is left out of this list.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How the names of all tools of MCP servers begin.
const PREFIX: &str = "mcp__";

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
    /// The servers whose tools a run gets.
    async fn servers(app: &App, context: &ToolContext) -> Result<Vec<KnownServer>, Failure> {
        let is_bound = context.run.as_ref().map_or(context.is_operator, |run| workspaces::is_bound(app, run));
        if !is_bound {
            return Ok(vec![]);
        }
        let servers = Mcp::of(app).for_agents(app).await?.into_iter();
        Ok(servers.filter(|known| known.server.expose == McpExposure::Toolkit).collect())
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
            let servers = Self::servers(app, context).await?;
            if servers.is_empty() {
                return Ok(vec![]);
            }
            let disabled = disabled_tools(app).await?;
            let listed = join_all(servers.iter().map(|known| self.of_server(app, context, known))).await;
            let tools = listed.iter().flat_map(|definitions| definitions.iter().cloned());
            Ok(tools.filter(|tool| !disabled.contains(&tool.name)).collect())
        })
    }

    fn find<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async move {
            if !name.starts_with(PREFIX) {
                return Ok(None);
            }
            // Server names may contain the separator, so that the longest one is not always the right one.
            for known in Self::servers(app, context).await? {
                if !name.starts_with(&qualified(&known.name, "")) {
                    continue;
                }
                let definitions = self.of_server(app, context, &known).await;
                if let Some(tool) = definitions.iter().find(|tool| tool.name == name) {
                    let is_disabled = disabled_tools(app).await?.contains(name);
                    return Ok((!is_disabled).then(|| tool.clone()));
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
            let known = Mcp::of(app).server(app, server).await.map_err(|_| gone())?;
            let known = known.filter(|known| known.is_enabled).ok_or_else(gone)?;
            let own_name = tool.name.strip_prefix(&qualified(server, "")).ok_or_else(gone)?;
            let lease = Self::lease(app, context, &known).await.ok_or_else(gone)?;
            // Until here, nothing was sent.
            lease.ready().await.map_err(|problem| ToolError::failed(format!("the MCP server {server}: {problem}")))?;
            match lease.call(own_name, arguments.clone()).await {
                Ok(result) => read_result(&result),
                Err(problem @ McpProblem::CallRefused) => Err(ToolError::failed(problem.to_string())),
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
