//! The tools of this server: their sources, and the calls that it executes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ostler_protocol::{
    Failure, FailureKind, Rule,
    created::Created,
    ids::CommandId,
    json::text_of,
    kernel::chain::{Hash, payload_digest},
    mcp::names::qualified,
    tools::{
        ToolDefinition, ToolOrigin, merge,
        wire::{CallTool, CalledTool, EarlierCall, TryTool},
    },
};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    built_in::BuiltIn,
    call_redactor::CallRedactor,
    calls::{CallKey, Calls},
    checks::check_arguments,
    execute,
    mcp_source::McpSource,
    outcome::CallOutcome,
    recover,
    reply_sets::ReplySets,
    scopes::granted_scopes,
    source::{Invocation, ToolContext, ToolError, ToolSource},
};
use crate::{
    app::{App, RunRef},
    config::{ALL_TOOLS, Config},
    dialect::Dialects,
    mcp::Mcp,
};

/// The tools of this server.
pub struct Toolkit {
    /// In the order in which a name is looked for.
    sources: Vec<Arc<dyn ToolSource>>,
    calls: Calls,
    replies: Arc<ReplySets>,
}

/// A tool with the source that executes its calls.
pub(super) struct FoundTool {
    pub tool: Arc<ToolDefinition>,
    pub source: Arc<dyn ToolSource>,
}

impl Toolkit {
    pub(crate) fn new(config: &Config, dialects: &Dialects) -> Self {
        let own: Arc<dyn ToolSource> = Arc::new(BuiltIn::new(config));
        let mcp: Arc<dyn ToolSource> = Arc::new(McpSource::default());
        let of_dialects = dialects.iter().flat_map(|dialect| dialect.tool_sources.iter().cloned());
        let sources = std::iter::once(own).chain(of_dialects).chain([mcp]).collect();
        Self { sources, calls: Calls::default(), replies: Arc::default() }
    }

    /// The tools of this server.
    pub fn of(app: &App) -> &Self {
        app.state()
    }

    /// Every tool that a run can be offered, by its name. A run of an agent is not offered tools whose scope was not granted to the
    /// agent.
    pub async fn list(
        &self,
        app: &App,
        context: &ToolContext,
    ) -> Result<BTreeMap<String, Arc<ToolDefinition>>, Failure> {
        let mut tools = vec![];
        let (restriction, granted) = (context.enabled_tools(), granted_scopes(app, context).await?);
        let is_granted = |tool: &ToolDefinition| match (&tool.scope, &granted) {
            (Some(scope), Some(granted)) => granted.contains(scope),
            _ => true,
        };
        for source in &self.sources {
            let listed = source.list(app, context).await?;
            let is_offered = |tool: &Arc<ToolDefinition>| {
                is_enabled(app, tool) && is_granted(tool) && is_allowed(restriction.as_deref(), &tool.name)
            };
            tools.extend(listed.into_iter().filter(is_offered));
        }
        let (offered, conflicts) = merge(tools);
        for conflict in conflicts {
            let (offered, left_out) = (conflict.offered.to_string(), conflict.left_out.to_string());
            tracing::warn!(tool = conflict.name, offered, left_out, "two sources have a tool of the same name");
        }
        Ok(offered)
    }

    /// How the names of tools of MCP servers begin, also of servers that are disabled, or that a run does not get. Servers are not
    /// started to find out which tools they have.
    pub async fn mcp_prefixes(app: &App) -> Result<Vec<String>, Failure> {
        Ok(Mcp::of(app).servers(app).await?.iter().map(|known| qualified(&known.name, "")).collect())
    }

    /// The tool of this name, as [`Toolkit::list`] would have it. `None` if the command may not use it, whatever backend runs it.
    pub(super) async fn find(
        &self,
        app: &App,
        context: &ToolContext,
        name: &str,
    ) -> Result<Option<FoundTool>, Failure> {
        if !is_allowed(context.enabled_tools().as_deref(), name) {
            return Ok(None);
        }
        for source in &self.sources {
            let found = source.find(app, context, name).await?.filter(|tool| is_enabled(app, tool));
            if let Some(tool) = found {
                return Ok(Some(FoundTool { tool, source: source.clone() }));
            }
        }
        Ok(None)
    }

    /// Why a tool that was not found cannot be used now, although it may exist. `None` if there is no such tool.
    pub(super) async fn unavailable(
        &self,
        app: &App,
        context: &ToolContext,
        name: &str,
    ) -> Result<Option<String>, Failure> {
        if !is_allowed(context.enabled_tools().as_deref(), name) {
            return Ok(None);
        }
        for source in &self.sources {
            if let Some(reason) = source.unavailable(app, context, name).await? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    /// Executes a call of a run's runner once, and waits for its end for at most so long. The call goes on if the caller leaves.
    pub(crate) async fn call(app: &App, run: RunRef, request: CallTool, wait: Duration) -> Result<CalledTool, Failure> {
        let until = Instant::now() + wait;
        let key = CallKey { run_id: run.run_id, call_id: request.call_id.clone() };
        let fingerprint = fingerprint(&request);
        let Created { value: call, is_new } = Self::of(app).calls.begin(&key, fingerprint)?;
        if is_new {
            let reply = ReplySets::join(&Self::of(app).replies, run.run_id, &request);
            let (app, call, key) = (app.clone(), call.clone(), key.clone());
            let work = async move {
                let stopping = || Failure::new(FailureKind::Draining, "the server stopped while it executed the call");
                // Boxed, because a task is copied several times when it is spawned.
                let result = tokio::select! {
                    result = Box::pin(execute::execute(&app, &run, &request, reply.as_ref())) => result,
                    () = app.stopped() => Err(stopping()),
                };
                Self::of(&app).calls.end(&key, &call, result);
            };
            tokio::spawn(work.in_current_span());
        }
        tokio::select! {
            ended = call.wait(&key.call_id, until) => ended,
            () = app.drained() => call.wait(&key.call_id, Instant::now()).await,
        }
    }

    /// The calls that a command has made so far.
    pub(crate) async fn earlier_calls(
        app: &App,
        run: &RunRef,
        command_id: CommandId,
    ) -> Result<Vec<EarlierCall>, Failure> {
        recover::earlier_calls(app, run, command_id).await
    }

    /// Calls a tool once outside of any run. Nothing is recorded in a log.
    pub(crate) async fn try_out(
        app: &App,
        context: &ToolContext,
        name: &str,
        request: TryTool,
    ) -> Result<CalledTool, Failure> {
        let Some(FoundTool { tool, source }) = Self::of(app).find(app, context, name).await? else {
            return Err(match Self::of(app).unavailable(app, context, name).await? {
                Some(reason) => Failure::rule(Rule::ToolUnavailable, reason),
                None => Failure::rule(Rule::ToolUnknown, format!("there is no tool {name:?}")),
            });
        };
        let arguments = check_arguments(app, &tool, &text_of(&request.arguments)).await;
        let requested = arguments.map_err(|problem| Failure::rule(Rule::ToolArguments, problem))?;
        let arguments = source.complete(app, context, &tool, requested.clone()).await?;
        let deadline = Instant::now() + Duration::from_millis(tool.deadline_ms);
        let call_id = format!("try_{}", app.ids.body().simple());
        let (context, delegated) = (context.clone(), Default::default());
        let invocation = Invocation {
            tool: tool.clone(),
            arguments,
            requested,
            context,
            call_id: call_id.clone(),
            reply_calls: vec![],
            deadline,
            delegated,
        };
        let result = execute::call_source(app, source.as_ref(), &invocation).await;
        if let Err(ToolError::Invalid(message)) = &result {
            return Err(Failure::rule(Rule::ToolArguments, app.redactor.redact(message)));
        }
        let redactor = CallRedactor::of_context(app, &invocation.context);
        Ok(CallOutcome::executed(&redactor, &tool, result).await.into_reply(&call_id))
    }
}

/// Differs between requests that are not for the same call of a run. The length of the name keeps it apart from the arguments.
fn fingerprint(request: &CallTool) -> Hash {
    let CallTool { lease_epoch, command_id, name, arguments, .. } = request;
    payload_digest(&format!("{lease_epoch} {command_id} {} {name} {arguments}", name.len()))
}

/// Whether the command's restriction, if it has one, allows the tool of this name.
fn is_allowed(restriction: Option<&[String]>, name: &str) -> bool {
    restriction.is_none_or(|names| names.iter().any(|allowed| allowed == name))
}

/// MCP servers are enabled by being configured, and other tools unless the operator names those that are.
fn is_enabled(app: &App, tool: &ToolDefinition) -> bool {
    let section = &app.config.tools;
    matches!(tool.origin, ToolOrigin::Mcp(_)) || section.names(ALL_TOOLS) || section.names(&tool.name)
}
