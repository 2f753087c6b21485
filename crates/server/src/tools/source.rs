//! What the toolkit requires of a source of tools.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure,
    kernel::{commands::Command, context::Context, facts::DelegatedUse, runs::Run},
    tools::{ToolDefinition, enabled_tools},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{
    app::{App, RunRef},
    auth::LOCAL,
};

/// For whom tools are listed, or a call is made.
#[derive(Clone)]
pub struct ToolContext {
    pub tenant_id: Arc<str>,
    /// The user for whom tools act: the one in whose thread the run is, or `local` for the operator's turns in the operator's own runs.
    /// `None` if there is no such user.
    pub owner: Option<Arc<str>>,
    /// `None` outside of any run: if tools are listed, or the operator tries one.
    pub run: Option<Arc<Run>>,
    pub command: Option<Arc<Command>>,
    /// Which tools of MCP servers there are outside of the workspace that the server is bound to.
    pub mcp: McpAccess,
}

/// The tools of MCP servers for a caller outside of any run, or for a run of a server without a workspace. A run in the workspace that
/// the server is bound to gets all of them, and another run of a user those that the operator offers to users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum McpAccess {
    /// No server is connected.
    #[default]
    None,
    /// Those that the operator offers to users' runs.
    Granted,
    /// All: runs of the caller may work in the workspace, or the operator submitted the turn to a run of its own that is in no thread.
    All,
}

impl ToolContext {
    /// For a run, and the command that its runner works on, if that is known.
    pub(crate) fn of_run(run: &RunRef, stored: Arc<Run>, command: Option<Arc<Command>>) -> Self {
        // The operator's own runs are those of the user `local`. Other callers of the tenant may submit turns to them, and such a turn
        // does not act for the operator.
        let operator = Some("operator");
        let is_of_operator = stored.created_by.as_deref() == operator;
        let is_by_operator = |command: &Arc<Command>| command.submitted_by.as_deref() == operator;
        let has_all = is_of_operator && run.owner.is_none() && command.as_ref().is_some_and(is_by_operator);
        let mcp = if has_all { McpAccess::All } else { McpAccess::None };
        // Without a command, tools are listed and none is called.
        let is_local = is_of_operator && command.as_ref().is_none_or(is_by_operator);
        let owner = run.owner.clone().or_else(|| is_local.then(|| LOCAL.into()));
        Self { tenant_id: run.tenant_id.clone(), owner, run: Some(stored), command, mcp }
    }

    /// The names of the tools to which the command restricts its run. `None` if it does not restrict it.
    pub fn enabled_tools(&self) -> Option<Vec<String>> {
        enabled_tools(&self.command.as_ref()?.payload)
    }

    /// The time zone of the user's clock, as the command has it: the device's if the front end reported it, else the user's.
    pub fn device_timezone(&self) -> Option<String> {
        Some(Context::of(&self.command.as_ref()?.payload).clock?.timezone)
    }
}

/// One call that is to be executed: checked and allowed.
pub struct Invocation {
    pub tool: Arc<ToolDefinition>,
    /// Complete: what the source adds to them is recorded and shown with them.
    pub arguments: Map<String, Value>,
    /// The arguments before the source completed them: as the agent sent them, or as a person sent them instead.
    pub requested: Map<String, Value>,
    pub context: ToolContext,
    /// Unique in its run.
    pub call_id: String,
    /// The ids of all calls that the agent makes at once, this one among them. Empty if it makes no others.
    pub reply_calls: Vec<String>,
    /// When the call is given up.
    pub deadline: Instant,
    /// What runs that the call started have used. It counts against the budgets of the call's command.
    pub delegated: Mutex<DelegatedUse>,
}

/// Why a call has no result. The message is for the model.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolError {
    /// Nothing was done, or it is known what was done.
    Failed(String),
    /// Nothing was done, because the arguments cannot be used.
    Invalid(String),
    /// It may have had an effect.
    OutcomeUnknown(String),
}

impl ToolError {
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}

/// A source of tools.
pub trait ToolSource: Send + Sync + 'static {
    /// The tools that a run can be offered. Fails only if the store does not respond.
    fn list<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
    ) -> BoxFuture<'a, Result<Vec<Arc<ToolDefinition>>, Failure>>;

    /// The tool of this name, if [`ToolSource::list`] would have it. Sources that can find one without listing all do so.
    fn find<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async move { Ok(self.list(app, context).await?.into_iter().find(|tool| tool.name == name)) })
    }

    /// Why the tool of this name was not found although it may exist, for the model. `None` if there is no such tool.
    fn unavailable<'a>(
        &'a self,
        _app: &'a App,
        _context: &'a ToolContext,
        _name: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, Failure>> {
        Box::pin(async move { Ok(None) })
    }

    /// Adds to checked arguments what the tool would otherwise assume, so that the call which is recorded, and which a person permits,
    /// is the one that is executed.
    fn complete<'a>(
        &'a self,
        _app: &'a App,
        _context: &'a ToolContext,
        _tool: &'a ToolDefinition,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Map<String, Value>, Failure>> {
        Box::pin(async move { Ok(arguments) })
    }

    /// Checks complete arguments beyond their schema, without changing anything: before a person is asked to permit the call, and when
    /// a person edits them. The inner error is the reason for which a call with these arguments cannot work.
    fn check<'a>(
        &'a self,
        _app: &'a App,
        _context: &'a ToolContext,
        _tool: &'a ToolDefinition,
        _arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Result<(), String>, Failure>> {
        Box::pin(async move { Ok(Ok(())) })
    }

    /// Whether calls of this tool end by themselves when their command has ended. Calls of other tools are dropped then.
    fn ends_with_command(&self, _tool: &ToolDefinition) -> bool {
        false
    }

    /// Executes a call once. The toolkit drops the future at the deadline of the tool, and when the command has ended.
    fn call<'a>(&'a self, app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>>;
}
