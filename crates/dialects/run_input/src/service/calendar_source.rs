//! The calendar's tools as a source of the server's toolkit. A call acts for the user whose run makes it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    kernel::context::Context,
    run_input::{
        agui::input::ClientTime,
        calendar::tool::{CALENDAR_WRITE, CalendarTool, EVENT_TIMEZONE},
    },
    tools::{ToolDefinition, ToolOrigin},
};
use serde_json::{Map, Value, json};

use super::{
    calendar_tools::{
        CalendarCallContext, calendar_tools, check_read, check_write, missing_zone_of, read_calendar, write_calendar,
    },
    owners,
};
use ostler_server::{
    app::App,
    auth::Principal,
    tools::{Invocation, ToolContext, ToolError, ToolSource},
};

/// The scopes that the user must have granted to a run's agent.
const READ_SCOPE: &str = "calendar:read";
const WRITE_SCOPE: &str = "calendar:write";

/// The calendar's tools, for runs that belong to a user.
pub(crate) struct CalendarSource {
    tools: Vec<Arc<ToolDefinition>>,
}

impl CalendarSource {
    pub(crate) fn new() -> Self {
        Self { tools: calendar_tools().into_iter().filter_map(define).map(Arc::new).collect() }
    }
}

/// `None` if the toolkit cannot use the definition. It is ours, and a test offers each of them.
fn define(tool: CalendarTool) -> Option<ToolDefinition> {
    let CalendarTool { name, description, parameters, changes } = tool;
    let Value::Object(parameters) = parameters else { return None };
    let defined = ToolDefinition::new(ToolOrigin::Dialect("run_input"), name, description, parameters);
    let defined = defined
        .inspect_err(|problem| tracing::error!(name, %problem, "a tool of the calendar cannot be offered"))
        .ok()?;
    Some(if changes { defined.scope(WRITE_SCOPE) } else { defined.reads_only().scope(READ_SCOPE) })
}

impl ToolSource for CalendarSource {
    fn list<'a>(
        &'a self,
        _: &'a App,
        context: &'a ToolContext,
    ) -> BoxFuture<'a, Result<Vec<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async move { Ok(if context.owner.is_some() { self.tools.clone() } else { vec![] }) })
    }

    fn find<'a>(
        &'a self,
        _: &'a App,
        context: &'a ToolContext,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ToolDefinition>>, Failure>> {
        let found = self.tools.iter().find(|tool| tool.name == name && context.owner.is_some());
        Box::pin(async move { Ok(found.cloned()) })
    }

    fn call<'a>(&'a self, app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
        Box::pin(async move {
            let no_owner = || ToolError::failed("the run belongs to no user, so that there is no calendar");
            let owner = invocation.context.owner.as_deref().ok_or_else(no_owner)?;
            let caller = owners::principal(app, owner).await.map_err(tool_error)?.ok_or_else(no_owner)?;
            let arguments = Value::Object(invocation.arguments.clone());
            let result = match invocation.tool.name.as_str() {
                CALENDAR_WRITE => write(app, &caller, invocation, &arguments).await,
                _ => read_calendar(app, &caller, &arguments).await,
            };
            result.map(|result| result.to_string()).map_err(tool_error)
        })
    }

    /// The final call of `calendar_write` names the zone of the event: it is recorded, and a person who is asked sees it.
    fn complete<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
        tool: &'a ToolDefinition,
        mut arguments: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Map<String, Value>, Failure>> {
        Box::pin(async move {
            let caller = match context.owner.as_deref().filter(|_| tool.name == CALENDAR_WRITE) {
                Some(owner) => owners::principal(app, owner).await?,
                None => None,
            };
            if let Some(caller) = caller
                && let Some((zone, _)) = missing_zone_of(app, &caller, &call_context(context), &arguments).await?
            {
                arguments.insert(EVENT_TIMEZONE.into(), zone.into());
            }
            Ok(arguments)
        })
    }

    fn check<'a>(
        &'a self,
        app: &'a App,
        context: &'a ToolContext,
        tool: &'a ToolDefinition,
        arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Result<(), String>, Failure>> {
        Box::pin(async move {
            let caller = match context.owner.as_deref() {
                Some(owner) => owners::principal(app, owner).await?,
                None => None,
            };
            // Without a calendar, the call fails with that reason.
            let Some(caller) = caller else { return Ok(Ok(())) };
            let arguments = Value::Object(arguments.clone());
            let checked = match tool.name.as_str() {
                CALENDAR_WRITE => check_write(app, &caller, &call_context(context), &arguments).await,
                _ => check_read(&arguments),
            };
            match checked {
                Err(failure) if failure.kind.row().status < 500 => Ok(Err(failure.message)),
                checked => checked.map(Ok),
            }
        })
    }
}

/// Writes with the final arguments. The result tells where the zone came from if neither the agent nor the person who edited the
/// arguments has named it.
async fn write(app: &App, caller: &Principal, invocation: &Invocation, arguments: &Value) -> Result<Value, Failure> {
    let context = call_context(&invocation.context);
    let assumed = missing_zone_of(app, caller, &context, &invocation.requested).await?;
    let mut result = write_calendar(app, caller, &context, arguments).await?;
    if let Some((_, source)) = assumed {
        result["timezone_source"] = json!(source);
    }
    Ok(result)
}

/// The clock of the user's device, as the run's message has it. A clock that no device has sent is in the user's zone, which
/// comes after the device's in the order of zones.
fn call_context(context: &ToolContext) -> CalendarCallContext {
    let clock = context.command.as_ref().and_then(|command| Context::of(&command.payload).clock);
    let client_time = clock.filter(|clock| clock.device).and_then(|clock| {
        let at: Timestamp = clock.now.parse().ok()?;
        Some(ClientTime {
            device_timezone: clock.timezone,
            client_now_iso: clock.now,
            client_epoch_ms: at.as_millisecond(),
        })
    });
    CalendarCallContext { client_time }
}

/// A rejected call has done nothing. Whether one that the store did not answer has an effect is not known.
fn tool_error(failure: Failure) -> ToolError {
    if matches!(failure.kind, FailureKind::SchemaInvalid | FailureKind::RunInputInvalid) {
        return ToolError::invalid(failure.message);
    }
    if failure.kind.row().status < 500 {
        return ToolError::failed(failure.message);
    }
    tracing::warn!(%failure, cause = failure.cause.as_deref(), "a call of a calendar's tool failed");
    ToolError::OutcomeUnknown("the calendar did not respond".into())
}
