//! A process of an ACP backend outside of turns, which answers requests about its workspace and its settings. Requests are
//! multiplexed: each has its own deadline, and none waits for another. The companion works on nothing: its own requests for
//! permissions, files and terminals are refused, and its session is in the mode that changes nothing.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ostler_protocol::{
    FailureKind, RawJson, Rule,
    kernel::{policy::Sandbox, provider_profiles::AgentConfig},
    limits::NAME_BYTES_MAX,
    rpc::{RpcError, RpcFrame, RpcId},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Duration, timeout},
};

use super::{
    AcpBackend,
    failures::{call_failed, error_text},
    host::cancelled_outcome,
    session::{CALL_MS, START_MS},
    wire::{AcpInitialized, PROTOCOL_VERSION, SessionReply},
};
use crate::{
    backend::{
        child::{MESSAGE_CHARS_MAX, call, client_info, send_reply, start_process, unreadable_reply},
        process::{CallError, Incoming, Process},
        turn::TurnEnd,
    },
    environment::BackendEnvironment,
    text_cutter::TextCutter,
};

/// Requests that wait for a reply at once.
const PENDING_MAX: usize = 64;
/// Size of one reply.
pub const COMPANION_REPLY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Lines that are no frames, after which the companion is given up.
const INVALID_LINES_MAX: u32 = 200;
/// The mode in which a backend changes nothing.
const PLAN_MODE: &str = "plan";

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq)]
pub enum CompanionError {
    /// The companion did not start.
    NotStarted {
        kind: FailureKind,
        message: String,
    },
    /// The backend does not have this request.
    Unknown,
    /// The backend answered with an error.
    Refused {
        code: i64,
        message: String,
    },
    TimedOut,
    /// The reply is larger than [`COMPANION_REPLY_BYTES_MAX`].
    TooLarge,
    /// Too many requests wait.
    Busy,
    /// The process ended.
    Gone,
}

impl fmt::Display for CompanionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { message, .. } => f.write_str(message),
            Self::Unknown => f.write_str("the agent does not have this request"),
            Self::Refused { message, .. } => write!(f, "the agent refused: {message}"),
            Self::TimedOut => f.write_str("the agent did not answer in time"),
            Self::TooLarge => write!(f, "the agent's reply is over {COMPANION_REPLY_BYTES_MAX} bytes"),
            Self::Busy => f.write_str("too many requests wait for the agent"),
            Self::Gone => f.write_str("the agent's process ended"),
        }
    }
}

impl From<TurnEnd> for CompanionError {
    fn from(end: TurnEnd) -> Self {
        let kind = end.failure_kind.unwrap_or(FailureKind::BackendFailed);
        Self::NotStarted { kind, message: end.message.unwrap_or_default() }
    }
}

type Reply = oneshot::Sender<Result<RawJson, CompanionError>>;

struct Request {
    method: String,
    params: Value,
    reply: Reply,
}

/// A running companion. The process ends when it is closed or dropped.
#[derive(Debug)]
pub struct Companion {
    requests: mpsc::Sender<Request>,
    stop: Arc<Notify>,
    /// Changes when the process has ended and was cleaned up.
    ended: watch::Receiver<bool>,
    is_running: Arc<AtomicBool>,
    session_id: String,
}

impl Companion {
    /// Starts the program of an ACP backend, and opens a session in the environment's workspace.
    pub async fn start(environment: &BackendEnvironment, sandbox: Sandbox) -> Result<Self, CompanionError> {
        let AgentConfig::Acp { command, keep, .. } = &environment.backend else {
            let message = "this backend is no program that speaks the Agent Client Protocol".to_owned();
            return Err(CompanionError::NotStarted { kind: FailureKind::NotImplemented, message });
        };
        if let Some(reason) = &environment.unavailable {
            return Err(CompanionError::NotStarted { kind: reason.failure_kind, message: reason.message.clone() });
        }
        let program = AcpBackend::new(command, keep, environment).program(sandbox)?;
        let mut process = start_process(&program, environment.text_cutter(), Rule::ProfileProgram)?;
        let session_id = match open(&mut process, environment).await {
            Ok(session_id) => session_id,
            Err(end) => {
                tracing::warn!(log = process.log_tail(), "an agent's companion did not start");
                process.close().await;
                return Err(end.into());
            }
        };
        let (requests, incoming) = mpsc::channel(PENDING_MAX);
        let (ended_sender, ended) = watch::channel(false);
        let is_running = Arc::new(AtomicBool::new(true));
        let stop = Arc::<Notify>::default();
        let pending = HashMap::new();
        let task = CompanionTask { process, requests: incoming, stop: stop.clone(), pending, invalid_lines: 0 };
        tokio::spawn({
            let is_running = is_running.clone();
            async move {
                task.run(&is_running).await;
                let _ = ended_sender.send(true);
            }
        });
        Ok(Self { requests, stop, ended, is_running, session_id })
    }

    /// The backend's own session, for requests that are about one.
    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    pub fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    /// Sends a request and waits for its reply.
    pub async fn ask(&self, method: &str, params: Value, limit: Duration) -> Result<RawJson, CompanionError> {
        let (reply, replied) = oneshot::channel();
        let request = Request { method: method.to_owned(), params, reply };
        let asked = async {
            self.requests.send(request).await.map_err(|_| CompanionError::Gone)?;
            replied.await.unwrap_or(Err(CompanionError::Gone))
        };
        timeout(limit, asked).await.unwrap_or(Err(CompanionError::TimedOut))
    }

    /// Ends the process, and waits until it is gone.
    pub async fn close(&self) {
        self.stop.notify_one();
        let mut ended = self.ended.clone();
        // An error means that the task is gone, and the process with it.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Initializes the process and opens its session.
async fn open(process: &mut Process, environment: &BackendEnvironment) -> Result<String, TurnEnd> {
    let params = json!({"protocolVersion": PROTOCOL_VERSION, "clientInfo": client_info(),
        "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false}});
    let initialized: AcpInitialized = call(process, "initialize", &params, START_MS, call_failed).await?;
    if initialized.protocol_version != PROTOCOL_VERSION {
        let message = format!("the agent speaks version {} of the protocol", initialized.protocol_version);
        return Err(TurnEnd::failed(FailureKind::BackendFailed, message));
    }
    let params = json!({"cwd": environment.require_workspace()?, "mcpServers": []});
    let reply: SessionReply = call(process, "session/new", &params, CALL_MS, call_failed).await?;
    let fits = |id: &String| (1..=NAME_BYTES_MAX).contains(&id.len());
    let session_id = reply.session_id.filter(fits).ok_or_else(|| unreadable_reply("session/new"))?;
    let has_plan = reply.modes.is_some_and(|modes| modes.available_modes.iter().any(|mode| mode.id == PLAN_MODE));
    if has_plan {
        let params = json!({"sessionId": session_id, "modeId": PLAN_MODE});
        let _: Value = call(process, "session/set_mode", &params, CALL_MS, call_failed).await?;
    }
    Ok(session_id)
}

/// The task that owns the process.
struct CompanionTask {
    process: Process,
    requests: mpsc::Receiver<Request>,
    stop: Arc<Notify>,
    pending: HashMap<i64, Reply>,
    invalid_lines: u32,
}

impl CompanionTask {
    /// Passes requests and replies on until the companion is dropped or the process ends.
    async fn run(mut self, is_running: &AtomicBool) {
        loop {
            let goes_on = tokio::select! {
                () = self.stop.notified() => false,
                request = self.requests.recv() => match request {
                    Some(request) => self.send(request).await,
                    None => false,
                },
                incoming = self.process.next() => match incoming {
                    Some(incoming) => self.receive(incoming).await,
                    None => false,
                },
            };
            if !goes_on {
                break;
            }
        }
        is_running.store(false, Ordering::Release);
        let reason = self.process.log_tail();
        if !self.pending.is_empty() {
            tracing::warn!(log = reason, pending = self.pending.len(), "an agent's companion ended with open requests");
        }
        self.requests.close();
        for (_, reply) in self.pending.drain() {
            let _ = reply.send(Err(CompanionError::Gone));
        }
        self.process.close().await;
    }

    /// False if the process is gone.
    async fn send(&mut self, request: Request) -> bool {
        // Requests whose caller has given up are no longer waited for.
        self.pending.retain(|_, reply| !reply.is_closed());
        if self.pending.len() >= PENDING_MAX {
            let _ = request.reply.send(Err(CompanionError::Busy));
            return true;
        }
        match self.process.start_call(&request.method, &request.params).await {
            Ok(id) => {
                self.pending.insert(id, request.reply);
                true
            }
            Err(_) => {
                let _ = request.reply.send(Err(CompanionError::Gone));
                false
            }
        }
    }

    /// False if the process cannot be used any longer.
    async fn receive(&mut self, incoming: Incoming) -> bool {
        match incoming {
            Incoming::Frame(RpcFrame::Answer { id: RpcId::Number(id), result }) => {
                if let Some(reply) = self.pending.remove(&id) {
                    let fits = result.as_str().len() <= COMPANION_REPLY_BYTES_MAX;
                    let _ = reply.send(if fits { Ok(result) } else { Err(CompanionError::TooLarge) });
                }
            }
            Incoming::Frame(RpcFrame::Error { id: Some(RpcId::Number(id)), error }) => {
                if let Some(reply) = self.pending.remove(&id) {
                    let _ = reply.send(Err(refused(self.process.cutter(), &error)));
                }
            }
            Incoming::Frame(RpcFrame::Request { id, method, .. }) => {
                let reply = match method.as_str() {
                    "session/request_permission" => Ok(cancelled_outcome()),
                    _ => Err(RpcError::unknown_method(&method)),
                };
                return !matches!(send_reply(&mut self.process, id, reply).await, Err(CallError::Gone));
            }
            Incoming::Frame(_) => {}
            Incoming::Invalid(fault) => {
                self.invalid_lines += 1;
                // A line that is too long may have been the reply to any request.
                return !fault.is_fatal() && self.invalid_lines <= INVALID_LINES_MAX;
            }
        }
        true
    }
}

fn refused(cutter: &TextCutter, error: &RpcError) -> CompanionError {
    match error.code {
        ostler_protocol::rpc::METHOD_NOT_FOUND => CompanionError::Unknown,
        code => CompanionError::Refused { code, message: cutter.cut(&error_text(error), MESSAGE_CHARS_MAX) },
    }
}

#[cfg(test)]
mod tests;
