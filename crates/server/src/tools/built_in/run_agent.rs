//! `run_agent`: a run of another profile, for one prompt, whose reply is the result. It gets no more than is left of the budgets of
//! the run that starts it, and may start others only to a bounded depth. What is left is reserved for it while it runs, so that a
//! second child waits for the first; what it has used is charged to the command that started it when it ends.

mod child;
mod creator;
mod lost;
mod reservations;

pub(crate) use lost::{SettlingCommands, settle_lost_runs};
pub(crate) use reservations::StartLocks;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure, RawJson,
    ids::AgentId,
    kernel::{
        budgets::Allowance,
        commands::{Command, CommandType, CreateCommand},
        events::{Event, EventType},
        facts::{DelegatedUse, Facts},
        modes::ApprovalMode,
        policy::Budgets,
        provider_profiles::secret_ref,
        runs::{Cancel, CreateRun, Run, TerminalStatus},
    },
    mcp::names::TOOL_PREFIX,
    tools::{ToolDefinition, definition::DEADLINE_MS_MAX},
};
use ostler_store as store;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::{
    child::{Child, depth_of, key_of},
    reservations::StartedChild,
};
use super::{
    BuiltIn,
    definitions::{define, text},
};
use crate::{
    app::App,
    auth::{LOCAL, Principal},
    dialect::Dialects,
    recheck::SessionWatch,
    service::{lookup, provider_profiles, results, runs},
    tools::{
        scopes::granted_scopes,
        source::{Invocation, McpAccess, ToolContext, ToolError, ToolSource},
    },
};

/// The name of the tool.
pub(super) const NAME: &str = "run_agent";
/// How deeply runs may start others.
const DEPTH_MAX: u32 = 3;
const PROMPT_BYTES_MAX: usize = 32 * 1024;
/// Why a run without a caller for its child starts none.
const NO_CREATOR: &str =
    "the caller that created this run is unknown, or it is the operator and did not submit this turn";
/// A run that has less time left is not started.
const TIME_LEFT_MS_MIN: i64 = 1_000;
/// Why a child is cancelled whose budget another child has.
const RESERVED_BY_OTHER: &str = "another agent has reserved the budget";
/// How long before the deadline of the call its run is cancelled.
const CANCEL_BEFORE: Duration = Duration::from_secs(2);

pub(super) fn definition(profiles: &[String]) -> Option<ToolDefinition> {
    let properties = json!({
        "profile": {"type": "string", "enum": profiles, "description": "Which agent to run"},
        // A prompt of blanks only is no prompt.
        "prompt": {"type": "string", "minLength": 1, "maxLength": PROMPT_BYTES_MAX, "pattern": r"\S"},
    });
    let schema = json!({"type": "object", "properties": properties, "required": ["profile", "prompt"], "additionalProperties": false});
    let description = "Gives a task to another agent, waits until it is done and returns its reply. The agent knows nothing of this \
        conversation.";
    let defined = define(NAME, description, schema)?;
    // The key of the run is that of the call, so that a repeated call finds its run.
    Some(defined.resumable().scope("agents:run").deadline_ms(DEADLINE_MS_MAX))
}

pub(super) fn call<'a>(app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
    Box::pin(async move {
        let (Some(parent), Some(command)) = (&invocation.context.run, &invocation.context.command) else {
            return Err(ToolError::failed("run_agent can be called in a run only"));
        };
        let depth = depth_of(parent) + 1;
        if depth > DEPTH_MAX {
            return Err(ToolError::failed(format!("agents may start others {DEPTH_MAX} levels deep at most")));
        }
        let caller = creator::creator_of(app, parent, command).await.map_err(refused)?;
        let caller = caller.ok_or_else(|| ToolError::failed(NO_CREATOR))?;
        // What is left of the budgets has changed since the first request, so that a repeated one would not be the same.
        let child = match find_child(app, parent, &invocation.call_id).await.map_err(refused)? {
            Some(child) => child,
            None => start(app, &caller, invocation, parent, command).await?,
        };
        let reply = child.reply(app, &caller, parent, command, invocation.deadline).await;
        child.charge(app, invocation, parent, command).await;
        reply
    })
}

/// Starts the child. If other children have reserved what is left of the budgets, this waits until one of them has ended.
async fn start(
    app: &App,
    caller: &Principal,
    invocation: &Invocation,
    parent: &Run,
    command: &Command,
) -> Result<Child, ToolError> {
    if !creator::may_start(app, caller, &parent.tenant_id).await.map_err(refused)? {
        return Err(ToolError::failed("the user or service that created this run may not start runs any more"));
    }
    let until = invocation.deadline - CANCEL_BEFORE;
    let mut watch = SessionWatch::new(app, command.session);
    loop {
        if let Some(child) = try_start(app, caller, invocation, parent, command).await? {
            return Ok(child);
        }
        if Instant::now() >= until {
            return Err(ToolError::failed("other agents have reserved what is left of the run's budget"));
        }
        if let Some(reason) = stop_reason(app, parent, command).await.map_err(refused)? {
            return Err(ToolError::failed(format!("{reason}, and the agent was not started")));
        }
        watch.changed(until, |event| may_stop(event) || is_end_of_call(event, command)).await;
    }
}

/// `None` if other children have reserved what is left of the budgets.
async fn try_start(
    app: &App,
    caller: &Principal,
    invocation: &Invocation,
    parent: &Run,
    command: &Command,
) -> Result<Option<Child>, ToolError> {
    let budgets = Allowance::of(&parent.execution_policy, &command.payload).map_err(refused)?.budgets;
    let is_charged = reservations::are_charged(&budgets);
    let _one_at_a_time = if is_charged { Some(reservations::lock(app, parent.run_id).await) } else { None };
    let mut children = if is_charged { children_of(app, parent, command).await? } else { vec![] };
    // Read after the children: a call whose child was read is open, unless it has ended.
    let current = lookup::command_of(app, parent.run_id, command.command_id).await.map_err(refused)?;
    let mut has_orphans = false;
    for orphan in reservations::orphans(&current, &children) {
        orphan.cancel(app, caller, "the call that started it was given up").await;
        has_orphans = true;
    }
    if has_orphans {
        children = children_of(app, parent, command).await?;
    }
    let mut used = reservations::used(&current, &children);
    if budgets.max_tool_calls.is_some() {
        let upcoming = reservations::upcoming_calls(app, &current, &invocation.reply_calls).await.map_err(refused)?;
        used.tool_calls = used.tool_calls.saturating_add(upcoming);
    }
    if reservations::left_of(&budgets, &used).is_none() {
        return Err(ToolError::failed("the run's budget is used up"));
    }
    let reserved = reservations::with_reserved(used, &children);
    let Some(left) = reservations::left_of(&budgets, &reserved) else { return Ok(None) };
    let request = request(app, invocation, parent, &current, &left).await?;
    let created = runs::create_in_background(app, caller, request).await.map_err(refused)?.value;
    let first = created.command.ok_or_else(|| ToolError::failed("the agent could not be started"))?;
    let child = Child { run_id: created.run.run_id, command_id: first.command_id, session: created.run.session };
    if is_charged && !keeps_reservation(app, caller, parent, command, &children, &child).await {
        child.cancel(app, caller, RESERVED_BY_OTHER).await;
        child.charge(app, invocation, parent, command).await;
        return Err(ToolError::failed("another agent has reserved what is left of the run's budget; try again"));
    }
    Ok(Some(child))
}

async fn children_of(app: &App, parent: &Run, command: &Command) -> Result<Vec<StartedChild>, ToolError> {
    reservations::children_of(app, parent, command).await.map_err(refused)
}

/// Whether a new child keeps what it has reserved. Another server may have started a child at the same moment, and neither has seen
/// the other's before. The older of the two stays. `seen`: the children that were known when it was started.
async fn keeps_reservation(
    app: &App,
    caller: &Principal,
    parent: &Run,
    command: &Command,
    seen: &[StartedChild],
    child: &Child,
) -> bool {
    let children = match reservations::children_of(app, parent, command).await {
        Ok(children) => children,
        Err(failure) => {
            tracing::warn!(%failure, run_id = %child.run_id, "the reservations of a run could not be read");
            return false;
        }
    };
    let collisions = reservations::collisions(&children, seen, child.run_id);
    // Its server may have looked before this child was stored.
    for younger in collisions.younger {
        younger.cancel(app, caller, RESERVED_BY_OTHER).await;
    }
    !collisions.has_older
}

/// The run that a call has started. A caller may choose any key, so that only a run of the same creator is the child.
async fn find_child_run(app: &App, parent: &Run, call_id: &str) -> Result<Option<Run>, Failure> {
    let found = store::kernel::runs::find_by_key(&app.db, &parent.tenant_id, &key_of(parent, call_id)).await?;
    Ok(found.filter(|run| run.created_by == parent.created_by))
}

/// The child that an earlier execution of the call has started.
async fn find_child(app: &App, parent: &Run, call_id: &str) -> Result<Option<Child>, Failure> {
    let Some(run) = find_child_run(app, parent, call_id).await? else { return Ok(None) };
    let first = store::kernel::commands::get_first(&app.db, run.run_id).await?;
    Ok(first.map(|first| Child { run_id: run.run_id, command_id: first.command_id, session: run.session }))
}

fn refused(failure: Failure) -> ToolError {
    ToolError::failed(format!("the agent could not be started: {}", failure.message))
}

/// The request for the run: in an empty workspace, with what is left of the parent's budgets and nothing wider than its policy, the
/// mode of its turn and the scopes of its agent.
async fn request(
    app: &App,
    invocation: &Invocation,
    parent: &Run,
    command: &Command,
    left: &Budgets,
) -> Result<CreateRun, ToolError> {
    let profile = text(invocation, "profile").unwrap_or_default();
    let allowance = Allowance::of(&parent.execution_policy, &command.payload).map_err(refused)?;
    let began = command.acked_at.unwrap_or(command.created_at);
    let passed_ms = i64::try_from(app.now().duration_since(began).as_millis()).unwrap_or(i64::MAX);
    let left_ms = allowance.timeout_ms.saturating_sub(passed_ms).min(DEADLINE_MS_MAX as i64);
    if left_ms < TIME_LEFT_MS_MIN {
        return Err(ToolError::failed("too little time is left to run an agent"));
    }
    let policy = &parent.execution_policy;
    let mut execution = json!({"sandbox": policy.sandbox, "network": policy.network, "approval": policy.approval,
        "timeoutMs": left_ms});
    if let (Some(execution), Value::Object(left)) = (execution.as_object_mut(), json!(left)) {
        execution.extend(left);
    }
    if provider_profiles::has_credential(app, &parent.tenant_id, profile).await.map_err(refused)? {
        let credential = json!({"profile": profile, "secretRef": secret_ref(profile)});
        execution["secretScope"] = json!({"providerCredentials": [credential]});
    }
    let mut payload = json!({"prompt": text(invocation, "prompt")});
    if let Some(mode) = ApprovalMode::of(&command.payload) {
        payload["mode"] = mode.as_str().into();
    }
    let (agent_id, enabled_tools) = restriction(app, &invocation.context, profile).await.map_err(refused)?;
    if let Some(names) = enabled_tools {
        payload["runtimeConfig"] = json!({"enabledTools": names});
    }
    let payload = RawJson::of(&payload);
    // By this key the child is found as one of the command, also if its call is given up.
    let key = Some(command.command_id.to_string());
    Ok(CreateRun {
        tenant_id: Some(parent.tenant_id.clone()),
        project_id: Some(parent.project_id.clone()),
        workspace_ref: Some(RawJson::of(&json!({"kind": "none"}))),
        provider_id: Some(parent.provider_id.clone()),
        backend_profile: Some(profile.to_owned()),
        execution_policy: Some(RawJson::of(&execution)),
        trace_sink: Some(RawJson::null()),
        idempotency_key: Some(key_of(parent, &invocation.call_id)),
        agent_id,
        command: Some(CreateCommand { command_type: CommandType::Turn, payload, idempotency_key: key }),
        ..CreateRun::default()
    })
}

/// The agent of the child and the tools to which its command is restricted: a child has no tools that its parent lacks. A child of an
/// agent's run is a run of the same agent, so that it has no other scopes. An agent that only another profile may run cannot have this
/// child: then the child is restricted to the tools for which the agent has the scopes now.
async fn restriction(
    app: &App,
    context: &ToolContext,
    profile: &str,
) -> Result<(Option<AgentId>, Option<Vec<String>>), Failure> {
    let mut enabled_tools = context.enabled_tools();
    if child_has_more_servers(app, context) {
        let of_servers = Dialects::of(app).mcp_tools(&app.config);
        enabled_tools = Some(match enabled_tools {
            // The operator may have removed a tool of a server since this list was made.
            Some(mut names) => {
                names.retain(|name| !name.starts_with(TOOL_PREFIX) || of_servers.contains(name));
                names
            }
            None => {
                let own = own_tools(app, context).await?.into_iter().map(|tool| tool.name.clone());
                own.chain(of_servers).collect::<BTreeSet<_>>().into_iter().collect()
            }
        });
    }
    let Some(agent_id) = context.run.as_ref().and_then(|run| run.agent_id) else { return Ok((None, enabled_tools)) };
    let find = Dialects::of(app).iter().find_map(|dialect| dialect.profile_of_agent.as_ref());
    let own_profile = match find {
        Some(find) => find(app.clone(), agent_id).await?,
        None => None,
    };
    if own_profile.is_none_or(|own| own == profile) {
        return Ok((Some(agent_id), enabled_tools));
    }
    let granted = granted_scopes(app, context).await?.unwrap_or_default();
    // The child gets no tools of MCP servers.
    let tools = own_tools(app, context).await?;
    let is_allowed = |tool: &ToolDefinition| {
        tool.scope.as_ref().is_none_or(|scope| granted.contains(scope))
            && enabled_tools.as_ref().is_none_or(|names| names.contains(&tool.name))
    };
    let names = tools.iter().filter(|tool| is_allowed(tool)).map(|tool| tool.name.clone()).collect();
    Ok((None, Some(names)))
}

/// The tools of a run without those of MCP servers.
async fn own_tools(app: &App, context: &ToolContext) -> Result<Vec<Arc<ToolDefinition>>, Failure> {
    let mut tools = BuiltIn::new(&app.config).list(app, context).await?;
    for source in Dialects::of(app).iter().flat_map(|dialect| dialect.tool_sources.iter()) {
        tools.extend(source.list(app, context).await?);
    }
    Ok(tools)
}

/// Whether a child would get the tools of all MCP servers although its parent does not. A child is in no thread: without a workspace,
/// a child that the operator creates gets all of them, and the operator's chats and automations only those that the operator names.
fn child_has_more_servers(app: &App, context: &ToolContext) -> bool {
    let is_of_operator = context.owner.as_deref() == Some(LOCAL);
    is_of_operator && app.config.server.workspace.is_none() && context.mcp != McpAccess::All
}

impl Child {
    /// Waits for the end of the run. Cancels it shortly before the deadline, and when the command that started it ends, is cancelled
    /// or gets another runner.
    async fn reply(
        &self,
        app: &App,
        caller: &Principal,
        parent: &Run,
        command: &Command,
        deadline: Instant,
    ) -> Result<String, ToolError> {
        let until = deadline - CANCEL_BEFORE;
        let mut watch = SessionWatch::new(app, self.session);
        let mut parent_watch = SessionWatch::new(app, command.session);
        loop {
            let result = results::get(app, caller, self.run_id, Some(self.command_id)).await.map_err(refused)?;
            match result.terminal_status {
                Some(TerminalStatus::Completed) => return Ok(result.reply.unwrap_or_default()),
                Some(status) => {
                    let why = result.blocker.unwrap_or_default();
                    return Err(ToolError::failed(format!("the agent's run ended: {}: {why}", status.as_str())));
                }
                None if Instant::now() >= until => {
                    self.cancel(app, caller, "the call that started it reached its deadline").await;
                    return Err(ToolError::failed("the agent did not end in time, and was cancelled"));
                }
                None => {}
            }
            if let Some(reason) = stop_reason(app, parent, command).await.map_err(refused)? {
                self.cancel(app, caller, reason).await;
                return Err(ToolError::failed(format!("{reason}, and the agent was cancelled")));
            }
            tokio::select! {
                () = watch.changed(until, |event| event.event_type == EventType::TerminalStatus) => {}
                () = parent_watch.changed(until, may_stop) => {}
            }
        }
    }

    async fn cancel(&self, app: &App, caller: &Principal, reason: &str) {
        let reason = Cancel { reason: Some(reason.to_owned()) };
        if let Err(failure) = runs::cancel(app, caller, self.run_id, reason).await {
            tracing::warn!(%failure, run_id = %self.run_id, "a run of run_agent could not be cancelled");
        }
    }

    /// Charges what the run has used, also through others, to the command that started it.
    async fn charge(&self, app: &App, invocation: &Invocation, parent: &Run, command: &Command) {
        match self.find_charge(app, invocation, parent, command).await {
            Ok(used) => invocation.delegated.lock().add(used),
            Err(failure) => {
                tracing::warn!(%failure, run_id = %self.run_id, "the use of a run of run_agent could not be read");
            }
        }
    }

    async fn find_charge(
        &self,
        app: &App,
        invocation: &Invocation,
        parent: &Run,
        command: &Command,
    ) -> Result<DelegatedUse, Failure> {
        let own = reservations::use_of(&lookup::command_of(app, self.run_id, self.command_id).await?);
        if !reservations::are_charged(&Allowance::of(&parent.execution_policy, &command.payload)?.budgets) {
            return Ok(own);
        }
        let children = reservations::children_of(app, parent, command).await?;
        // Read after the children, so that all that was charged for them is known.
        let current = lookup::command_of(app, parent.run_id, command.command_id).await?;
        Ok(reservations::charge_of(&current, &invocation.call_id, own, &children))
    }
}

/// Why the calls of a command must stop: it has ended or is being cancelled, or its run has another runner, so that the ends of its
/// calls cannot be recorded.
async fn stop_reason(app: &App, parent: &Run, command: &Command) -> Result<Option<&'static str>, Failure> {
    let current = lookup::command_of(app, parent.run_id, command.command_id).await?;
    if current.state.is_terminal() || current.cancel_requested_at.is_some() {
        return Ok(Some("the command has ended"));
    }
    let is_taken_over = lookup::run_unchecked(app, parent.run_id).await?.lease_epoch != parent.lease_epoch;
    Ok(is_taken_over.then_some("another runner has taken over the command"))
}

/// Whether an event may be a reason to stop the calls of a command.
fn may_stop(event: &Event) -> bool {
    matches!(event.event_type, EventType::TerminalStatus | EventType::Audit | EventType::Lease)
}

/// Whether a call of the command has ended, so that what its child has reserved may be free.
fn is_end_of_call(event: &Event, command: &Command) -> bool {
    let is_call = event.event_type == EventType::ToolCall && event.command_id == Some(command.command_id);
    is_call && matches!(event.facts(), Facts::Tool(tool) if tool.status.as_deref() != Some("started"))
}
