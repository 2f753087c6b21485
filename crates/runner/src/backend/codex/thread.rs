//! The thread of a session: how it is started or resumed in a new process of Codex, and which settings it has.

use std::collections::HashMap;

use ostler_protocol::{
    FailureKind,
    kernel::{
        events::EventType,
        policy::{Approval, ExecutionPolicy},
    },
    rpc::RpcFrame,
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::{
    failures, permissions,
    wire::{CodexInitialized, Notice, ThreadList, ThreadReply, TokenCounts, WireTurn},
};
use crate::{
    backend::{
        child::{call, call_failed, client_info, report_process_lost, unreadable_reply},
        process::{Incoming, Process},
        turn::{Turn, TurnEnd},
    },
    environment::BackendEnvironment,
    text_cutter::TextCutter,
    tool_gateway::{GATEWAY, ToolGateway},
    turn_sink::TurnSink,
};

/// A call that Codex normally replies to at once.
pub(super) const CALL_MS: u64 = 30_000;
/// How long to wait for another process that has the thread open, and how often to retry.
const WRITER_WAIT_MS: u64 = 30_000;
const WRITER_RETRY_MS: u64 = 200;
/// Number of latest turns of a thread that are searched for the prompt.
const TURNS_SEARCHED: u32 = 5;
/// Where Codex stores its rollouts, inside its home and inside the session's storage.
pub(super) const ROLLOUT_FOLDER: &str = "sessions";
/// Who reviews approvals: the user, through our permission requests. A profile's config may name an agent of Codex's own.
const REVIEWER: &str = "user";
pub(super) const NOTICE_CHARS_MAX: usize = 500;

/// A process of Codex with a thread open.
pub(super) struct OpenThread {
    pub(super) process: Process,
    pub(super) thread_id: String,
    pub(super) model: String,
    /// Whether the thread can be resumed. A new one cannot before its first turn.
    pub(super) is_on_disk: bool,
    /// Whether it was given the server's tools.
    pub(super) has_gateway: bool,
    /// Names the tools of the front end that it was offered when it was opened.
    pub(super) front_end: String,
    /// Tokens used by each thread so far, as far as they were reported.
    pub(super) used: HashMap<String, TokenCounts>,
}

impl OpenThread {
    /// `None` if the process has ended while it was idle, which is reported.
    pub(super) async fn if_running(mut self, sink: &TurnSink) -> Option<Self> {
        if self.process.is_running() {
            return Some(self);
        }
        report_process_lost(sink, &self.process).await;
        None
    }
}

/// A thread that was just started or resumed.
pub(super) struct OpenedThread {
    pub(super) thread_id: String,
    pub(super) model: String,
    pub(super) is_on_disk: bool,
    pub(super) prompt: PromptState,
}

/// What the thread already contains of the turn's prompt.
#[derive(Debug, PartialEq)]
pub(super) enum PromptState {
    New,
    /// An earlier attempt sent it and was interrupted.
    Interrupted,
    /// An earlier attempt completed it and could not report the reply.
    Completed {
        reply: String,
    },
}

/// Initializes a new process and opens the thread: the known one, else one that an earlier attempt has left, else a new one.
pub(super) async fn open_thread(
    process: &mut Process,
    thread_id: Option<&String>,
    environment: &BackendEnvironment,
    gateway: Option<&ToolGateway>,
    turn: &Turn,
    sink: &TurnSink,
) -> Result<OpenedThread, TurnEnd> {
    initialize(process, sink).await?;
    let settings = thread_settings(&turn.run.execution_policy, environment, gateway)?;
    let command_id = turn.command.command_id.to_string();
    let has_storage = environment.storage.is_some();
    let unreported = match thread_id {
        None if turn.is_repeat => find_unreported_thread(process).await?,
        _ => None,
    };
    let resumed = match thread_id.or(unreported.as_ref()) {
        Some(thread_id) => Some(resume_thread(process, thread_id, settings.clone(), has_storage, sink).await?),
        None => None,
    };
    // A thread without this prompt is none that this command started: after a rewind, the storage also has the one that
    // was given up.
    let resumed = resumed.filter(|reply| thread_id.is_some() || prompt_state(reply, &command_id) != PromptState::New);
    if let Some(reply) = resumed.as_ref().filter(|_| unreported.is_some()) {
        sink.emit(EventType::Session, &json!({"threadId": reply.thread.id})).await;
    }
    let is_on_disk = resumed.is_some();
    let (method, reply) = match resumed {
        Some(reply) => ("thread/resume", reply),
        None => ("thread/start", call(process, "thread/start", &settings, CALL_MS, call_failed).await?),
    };
    reject_default_config(process, sink).await?;
    permissions::check_active_profile(&turn.run.execution_policy, &reply)?;
    let phase = json!({"phase": format!("{method}:completed"), "threadId": reply.thread.id, "model": reply.model,
        "modelProvider": reply.model_provider});
    sink.emit(EventType::BackendStatus, &phase).await;
    let prompt = if turn.is_repeat { prompt_state(&reply, &command_id) } else { PromptState::New };
    Ok(OpenedThread { thread_id: reply.thread.id, model: reply.model, is_on_disk, prompt })
}

async fn initialize(process: &mut Process, sink: &TurnSink) -> Result<(), TurnEnd> {
    // The call that cleans up terminals which outlive an interrupt is still experimental.
    let params = json!({"clientInfo": client_info(),
        "capabilities": {"experimentalApi": true, "requestAttestation": false}});
    let reply: CodexInitialized = call(process, "initialize", &params, CALL_MS, call_failed).await?;
    let initialized = process.notify("initialized", &()).await;
    initialized.map_err(|error| call_failed(process.cutter(), "initialized", &error))?;
    let agent = sink.cutter().cut(&reply.user_agent, NOTICE_CHARS_MAX);
    let phase = json!({"phase": "initialize:completed", "userAgent": agent, "processId": process.id()});
    sink.emit(EventType::BackendStatus, &phase).await;
    Ok(())
}

async fn resume_thread(
    process: &mut Process,
    thread_id: &str,
    settings: Value,
    has_storage: bool,
    sink: &TurnSink,
) -> Result<ThreadReply, TurnEnd> {
    let method = "thread/resume";
    let mut params = settings;
    params["threadId"] = thread_id.into();
    params["excludeTurns"] = true.into();
    params["initialTurnsPage"] = json!({"limit": TURNS_SEARCHED, "sortDirection": "desc", "itemsView": "full"});
    let until = Instant::now() + Duration::from_millis(WRITER_WAIT_MS);
    let mut is_waiting = false;
    loop {
        match process.call(method, &params, Duration::from_millis(CALL_MS)).await {
            Ok(reply) => return reply.view().ok_or_else(|| unreadable_reply(method)),
            // The process that has it open belongs to a runner that lost its lease, and is about to end.
            Err(error) if failures::is_writer_conflict(&error) && Instant::now() < until => {
                if !std::mem::replace(&mut is_waiting, true) {
                    let phase = json!({"phase": "thread/resume:waiting", "threadId": thread_id});
                    sink.emit(EventType::BackendStatus, &phase).await;
                }
                sleep(Duration::from_millis(WRITER_RETRY_MS)).await;
            }
            Err(error) => return Err(failures::resume_failed(process.cutter(), &error, has_storage)),
        }
    }
}

/// The thread that an earlier attempt started in the session's storage without reporting it to the server, because its
/// runner died first or could not reach the server.
async fn find_unreported_thread(process: &mut Process) -> Result<Option<String>, TurnEnd> {
    let latest = json!({"limit": 1, "sortKey": "created_at", "sortDirection": "desc", "modelProviders": []});
    let threads: ThreadList = call(process, "thread/list", &latest, CALL_MS, call_failed).await?;
    Ok(threads.data.into_iter().next().map(|thread| thread.id))
}

/// Fails if Codex ignored the profile's configuration. It would run with its defaults: another provider, another account.
async fn reject_default_config(process: &mut Process, sink: &TurnSink) -> Result<(), TurnEnd> {
    let mut warnings = vec![];
    process.retain_queued(|incoming| match incoming {
        Incoming::Frame(RpcFrame::Notification { method, params }) if method == "configWarning" => {
            warnings.push(params.view::<Notice>().unwrap_or_default());
            false
        }
        _ => true,
    });
    for notice in warnings {
        let text = notice_text(sink.cutter(), &notice);
        sink.emit(EventType::BackendStatus, &json!({"phase": "config-warning", "message": text})).await;
        if notice.summary.is_some_and(|summary| summary.contains("using defaults")) {
            return Err(TurnEnd::failed(FailureKind::BackendFailed, format!("the profile's configuration: {text}")));
        }
    }
    Ok(())
}

pub(super) fn notice_text(cutter: &TextCutter, notice: &Notice) -> String {
    let parts = [&notice.message, &notice.summary, &notice.details];
    cutter.cut(&parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" "), NOTICE_CHARS_MAX)
}

/// What the latest turns of a thread, newest first, contain of this command's prompt.
fn prompt_state(reply: &ThreadReply, command_id: &str) -> PromptState {
    let mut turns = reply.initial_turns_page.iter().flat_map(|page| &page.data);
    let is_ours = |turn: &&WireTurn| turn.items.iter().any(|item| item.client_id.as_deref() == Some(command_id));
    match turns.find(is_ours) {
        None => PromptState::New,
        Some(turn) if turn.status != "completed" => PromptState::Interrupted,
        Some(turn) => {
            let reply = turn.items.iter().rfind(|item| item.kind == "agentMessage");
            PromptState::Completed { reply: reply.map(|item| item.text.clone()).unwrap_or_default() }
        }
    }
}

/// The settings a thread is started or resumed with: the run's policy, nothing wider. They hold for all its turns.
fn thread_settings(
    policy: &ExecutionPolicy,
    environment: &BackendEnvironment,
    gateway: Option<&ToolGateway>,
) -> Result<Value, TurnEnd> {
    let workspace = environment.require_workspace()?;
    let mut settings = json!({"cwd": workspace, "approvalPolicy": approval_policy(policy),
        "approvalsReviewer": REVIEWER, "experimentalRawEvents": true});
    let profile = permissions::profile(policy, environment).map_err(|error| {
        let message = format!("a directory that must be hidden from the agent cannot be listed: {}", error.kind());
        TurnEnd::failed(FailureKind::InfraFailed, message)
    })?;
    match profile {
        Some(profile) => {
            settings["permissions"] = permissions::PROFILE.into();
            settings["config"] = json!({"permissions": {permissions::PROFILE: profile}});
        }
        None => settings["sandbox"] = json!(policy.sandbox),
    }
    if let Some(gateway) = gateway {
        // Beside the servers of the profile's own configuration.
        settings["config"]["mcp_servers"] = json!({GATEWAY: gateway.codex_config()});
    }
    let variables = environment.tool_variables();
    if !variables.is_empty() {
        settings["config"]["shell_environment_policy"] = json!({"set": variables});
    }
    Ok(settings)
}

/// When Codex asks us for approval. With the policy `never` it would decline by itself and report that to its model only.
/// So it always asks, and for a run that never asks we decline and log it.
fn approval_policy(policy: &ExecutionPolicy) -> Approval {
    match policy.approval {
        Approval::Never => Approval::OnRequest,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ostler_protocol::kernel::provider_profiles::AgentConfig;

    use super::*;

    #[test]
    fn a_completed_prompt_is_not_sent_again() {
        let turn = |status: &str| {
            let items = json!([{"type": "userMessage", "id": "u", "clientId": "cmd_1"},
                {"type": "agentMessage", "id": "a", "text": "on it"}, {"type": "agentMessage", "id": "b", "text": "done"}]);
            let page = json!({"data": [{"id": "t", "status": status, "items": items}]});
            let reply = json!({"thread": {"id": "th"}, "initialTurnsPage": page});
            serde_json::from_value::<ThreadReply>(reply).unwrap()
        };
        assert_eq!(prompt_state(&turn("completed"), "cmd_1"), PromptState::Completed { reply: "done".into() });
        assert_eq!(prompt_state(&turn("interrupted"), "cmd_1"), PromptState::Interrupted);
        assert_eq!(prompt_state(&turn("completed"), "cmd_2"), PromptState::New);
    }

    #[test]
    fn short_lived_variables_are_in_the_settings_of_tools() {
        let bare =
            BackendEnvironment { workspace: Some("/workspace".into()), ..BackendEnvironment::bare(AgentConfig::Codex) };
        let with_token =
            BackendEnvironment { variables: BTreeMap::from([("GH_TOKEN".into(), "t".into())]), ..bare.clone() };
        for sandbox in ["workspace-write", "danger-full-access"] {
            let policy = json!({"sandbox": sandbox, "approval": "never", "timeoutMs": 1, "network": "enabled",
                "secretScope": {}});
            let policy: ExecutionPolicy = serde_json::from_str(&policy.to_string()).unwrap();
            let settings = |environment| thread_settings(&policy, environment, None).unwrap();
            let tools = settings(&with_token)["config"]["shell_environment_policy"].take();
            assert_eq!(tools, json!({"set": {"GH_TOKEN": "t"}}), "{sandbox}");
            assert_eq!(settings(&bare)["config"]["shell_environment_policy"], Value::Null, "{sandbox}");
        }
    }
}
