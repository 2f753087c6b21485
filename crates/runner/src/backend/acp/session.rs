//! The session of an ACP backend: how it is created or resumed in a new process.

use ostler_protocol::{
    FailureKind,
    kernel::{events::EventType, policy::Sandbox},
    limits::NAME_BYTES_MAX,
    rpc::RpcFrame,
};
use serde_json::{Value, json};
use tokio::time::Duration;

use super::{
    failures::{call_failed, login_required, resume_failed},
    modes::SessionModes,
    wire::{AUTH_REQUIRED, AcpInitialized, PROTOCOL_VERSION, SessionReply, SessionUpdate},
};
use crate::{
    backend::{
        child::{MESSAGE_CHARS_MAX, call, client_info, unreadable_reply},
        process::{CallError, Incoming, Process},
        turn::{Turn, TurnEnd},
    },
    environment::BackendEnvironment,
    tool_gateway::{GATEWAY, ToolGateway},
    tools::acp_servers,
    turn_sink::TurnSink,
};

/// Starting a program that is itself run by an interpreter takes a while.
pub(super) const START_MS: u64 = 60_000;
pub(super) const CALL_MS: u64 = 60_000;

/// A process with its session open.
pub(super) struct OpenSession {
    pub(super) process: Process,
    pub(super) session_id: String,
    pub(super) model: String,
    pub(super) modes: SessionModes,
    /// The commands that were last reported. Null: none.
    pub(super) commands: Value,
    /// The tokens that the context of the model may have, if the backend has reported that.
    pub(super) context_window: Option<u64>,
    /// Whether it was just created, and no prompt was sent to it.
    pub(super) is_new: bool,
    pub(super) sees_images: bool,
    /// Whether the backend was given the server's tools.
    pub(super) has_gateway: bool,
    /// Whether another process can resume the session.
    pub(super) can_resume: bool,
    /// Names the tools of the front end that it was offered when it was opened.
    pub(super) front_end: String,
}

/// A session that was just created or resumed.
pub(super) struct OpenedSession {
    pub(super) session_id: String,
    pub(super) model: String,
    pub(super) modes: SessionModes,
    /// Whether an earlier attempt has sent the prompt to this session.
    pub(super) has_prompt: bool,
    pub(super) is_new: bool,
    /// Whether the backend accepts images in prompts.
    pub(super) sees_images: bool,
    /// Whether the backend was given the server's tools.
    pub(super) has_gateway: bool,
    /// Whether another process can resume the session.
    pub(super) can_resume: bool,
}

/// Initializes a new process and opens the session: the known one, else a new one.
pub(super) async fn open_session(
    process: &mut Process,
    existing: Option<&String>,
    environment: &BackendEnvironment,
    gateway: Option<&ToolGateway>,
    turn: &Turn,
    sink: &TurnSink,
) -> Result<OpenedSession, TurnEnd> {
    let initialized = initialize(process, environment, turn, sink).await?;
    let gateway = gateway.filter(|_| connects_over_http(&initialized));
    let params = session_params(environment, gateway, &initialized, existing)?;
    let listing = gateway.map(ToolGateway::listing);
    let (method, session_id, reply, has_prompt, is_new) = match existing {
        Some(session_id) => {
            let (method, reply) = resume_session(process, &initialized, &params, turn).await?;
            let last_prompt = take_last_prompt(process, session_id);
            // An earlier attempt created it and sent no prompt.
            let is_new = method == "session/load" && last_prompt.is_none();
            // A user may send the same words again. Only an earlier attempt of this turn has sent its prompt.
            let has_prompt = turn.is_repeat && last_prompt.is_some_and(|text| text.contains(turn.prompt.trim()));
            (method, session_id.clone(), reply, has_prompt, is_new)
        }
        None => {
            let reply: SessionReply = call(process, "session/new", &params, CALL_MS, call_failed).await?;
            let fits = |id: &String| (1..=NAME_BYTES_MAX).contains(&id.len());
            let id = reply.session_id.clone().filter(fits).ok_or_else(|| unreadable_reply("session/new"))?;
            ("session/new", id, reply, false, true)
        }
    };
    if let Some(listing) = listing {
        // Some backends open the session first, and have no tools in the first prompt if it comes at once.
        listing.wait().await;
    }
    let modes = reply.modes.map(SessionModes::from).unwrap_or_default();
    let capabilities = initialized.agent_capabilities.as_ref();
    let sees_images = capabilities.and_then(|can| can.prompt_capabilities.as_ref()).is_some_and(|can| can.image);
    let (can_load, resumes) = ways_to_resume(&initialized);
    let can_resume = can_load || resumes;
    let name = initialized.agent_info.map(|info| info.name).unwrap_or_default();
    let model = reply.models.map(|models| models.current_model_id).filter(|model| !model.is_empty());
    let model = sink.cutter().cut_name(&model.unwrap_or(name), NAME_BYTES_MAX / 4);
    let phase = json!({"phase": format!("{method}:completed"), "threadId": session_id, "model": model});
    sink.emit(EventType::BackendStatus, &phase).await;
    if existing.is_none() {
        sink.emit(EventType::Session, &json!({"threadId": session_id})).await;
        // The server must know the session before anything is done in it.
        sink.flush().await;
    }
    let has_gateway = gateway.is_some();
    Ok(OpenedSession { session_id, model, modes, has_prompt, is_new, sees_images, has_gateway, can_resume })
}

async fn initialize(
    process: &mut Process,
    environment: &BackendEnvironment,
    turn: &Turn,
    sink: &TurnSink,
) -> Result<AcpInitialized, TurnEnd> {
    let has_files = environment.workspace.is_some() && cfg!(target_os = "linux");
    let may_write = has_files && turn.run.execution_policy.sandbox > Sandbox::ReadOnly;
    let params = json!({"protocolVersion": PROTOCOL_VERSION, "clientInfo": client_info(),
        "clientCapabilities": {"fs": {"readTextFile": has_files, "writeTextFile": may_write}, "terminal": may_write}});
    let reply: AcpInitialized = call(process, "initialize", &params, START_MS, call_failed).await?;
    check_version(&reply)?;
    let info = reply.agent_info.as_ref().map(|info| format!("{} {}", info.name, info.version)).unwrap_or_default();
    let agent = sink.cutter().cut_name(&info, NAME_BYTES_MAX);
    let phase = json!({"phase": "initialize:completed", "userAgent": agent, "processId": process.id()});
    sink.emit(EventType::BackendStatus, &phase).await;
    Ok(reply)
}

/// Rejects a backend that speaks another version of the protocol.
pub(super) fn check_version(reply: &AcpInitialized) -> Result<(), TurnEnd> {
    if reply.protocol_version == PROTOCOL_VERSION {
        return Ok(());
    }
    let message =
        format!("the agent speaks version {} of the protocol, not {PROTOCOL_VERSION}", reply.protocol_version);
    Err(TurnEnd::failed(FailureKind::BackendFailed, message))
}

/// Resumes a session. After an interrupted turn it must be known what the session contains, so it is loaded with its
/// history if the backend supports that.
async fn resume_session(
    process: &mut Process,
    initialized: &AcpInitialized,
    params: &Value,
    turn: &Turn,
) -> Result<(&'static str, SessionReply), TurnEnd> {
    let (can_load, can_resume) = ways_to_resume(initialized);
    let method = match (can_load, can_resume) {
        (true, true) if turn.is_repeat => "session/load",
        (_, true) => "session/resume",
        (true, false) => "session/load",
        (false, false) => return Err(resume_failed("this agent does not support resuming sessions")),
    };
    match process.call(method, params, Duration::from_millis(CALL_MS)).await {
        Ok(reply) => Ok((method, reply.view().unwrap_or_default())),
        Err(CallError::Refused(error)) if error.code == AUTH_REQUIRED => Err(login_required()),
        Err(CallError::Refused(error)) => Err(resume_failed(&process.cutter().cut(&error.message, MESSAGE_CHARS_MAX))),
        Err(error) => Err(call_failed(process.cutter(), method, &error)),
    }
}

/// Whether the backend can load a session with its history, and whether it can resume one without.
fn ways_to_resume(initialized: &AcpInitialized) -> (bool, bool) {
    let capabilities = initialized.agent_capabilities.as_ref();
    let can_load = capabilities.is_some_and(|can| can.load_session);
    (can_load, capabilities.and_then(|can| can.session_capabilities.as_ref()?.resume.as_ref()).is_some())
}

/// Whether the backend connects to MCP servers over HTTP.
fn connects_over_http(initialized: &AcpInitialized) -> bool {
    let capabilities = initialized.agent_capabilities.as_ref();
    capabilities.and_then(|can| can.mcp_capabilities.as_ref()).is_some_and(|can| can.http)
}

fn session_params(
    environment: &BackendEnvironment,
    gateway: Option<&ToolGateway>,
    initialized: &AcpInitialized,
    session_id: Option<&String>,
) -> Result<Value, TurnEnd> {
    let direct = environment.mcp_servers.iter().filter(|server| gateway.is_none() || server.name != GATEWAY);
    let offered: Vec<_> = direct.cloned().chain(gateway.map(ToolGateway::offer)).collect();
    let servers = acp_servers(&offered, connects_over_http(initialized));
    let mut params = json!({"cwd": environment.require_workspace()?, "mcpServers": servers});
    if let Some(session_id) = session_id {
        params["sessionId"] = session_id.as_str().into();
    }
    Ok(params)
}

/// The last user message in the history that arrived while the session was loaded. Removes the whole history from the
/// queue, because all of it is old.
fn take_last_prompt(process: &mut Process, session_id: &str) -> Option<String> {
    let mut prompt: Option<String> = None;
    let mut is_open = false;
    process.retain_queued(|incoming| {
        let Incoming::Frame(RpcFrame::Notification { method, params }) = incoming else { return true };
        let update = (method == "session/update").then(|| params.view::<SessionUpdate>()).flatten();
        let Some(notification) = update else { return false };
        let of_user = notification.session_id == session_id && notification.update.kind == "user_message_chunk";
        if of_user {
            let text = notification.update.content["text"].as_str().unwrap_or_default();
            match &mut prompt {
                Some(prompt) if is_open => prompt.push_str(text),
                _ => prompt = Some(text.to_owned()),
            }
        }
        is_open = of_user;
        false
    });
    prompt
}
