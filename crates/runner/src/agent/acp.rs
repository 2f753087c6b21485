//! Any agent that speaks the Agent Client Protocol over its standard streams. The process lives across the turns of a
//! tenure; the session it works on is the agent's own, and outlives the process where the agent keeps it.
//!
//! What the agent says is turned into events; how a turn ends is what it answers to its prompt, or our own reason to stop
//! it. A session that cannot be resumed is never replaced by a new one.

mod files;
mod host;
pub mod program;
mod talk;
mod terminals;
mod updates;
mod wire;

use std::{
    ffi::OsString,
    sync::{Arc, LazyLock},
};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    FailureKind, RawJson,
    events::{EventType, clip},
    limits::NAME_BYTES_MAX,
    policy::{Approval, Network, Sandbox},
    redaction::Redactor,
    rpc::{Frame, NotAFrame, Version},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Duration;

use super::{
    AfterCrash, Agent, Left, Turn, TurnEnd, TurnResult,
    process::{CallError, Heard, Process, Program},
    process_lost,
};
use crate::{Outfit, link::Link};
use talk::Talk;
use wire::{AUTH_REQUIRED, Initialized, Modes, Opened, PROTOCOL_VERSION, Updated};

/// Starting a program that is itself started by an interpreter takes its time.
const START_MS: u64 = 60_000;
const CALL_MS: u64 = 60_000;
const MESSAGE_CHARS_MAX: usize = 500;
/// The mode, by the name agents give it, in which an agent asks before it acts.
const ASKING_MODE: &str = "default";

static REDACTOR: LazyLock<Arc<Redactor>> = LazyLock::new(|| Arc::new(Redactor::new(&[])));

pub struct Acp {
    command: Vec<String>,
    /// Folders of the home where the agent keeps its sessions.
    keep: Vec<String>,
    outfit: Outfit,
    /// Between two turns; nothing is left here of a turn that did not end well.
    live: Option<Live>,
    /// The agent's session, once there is one.
    session_id: Option<String>,
}

/// A process with its session open.
struct Live {
    process: Process,
    session_id: String,
    model: String,
}

/// What a turn begins with.
struct Opening {
    live: Live,
    /// An earlier attempt has said the prompt to this session.
    holds_prompt: bool,
}

impl Acp {
    pub fn new(command: &[String], keep: &[String], outfit: &Outfit) -> Self {
        Self { command: command.to_vec(), keep: keep.to_vec(), outfit: outfit.clone(), live: None, session_id: None }
    }

    async fn work(&mut self, turn: &Turn, mut link: Link) -> TurnResult {
        if turn.run.execution_policy.network == Network::Disabled {
            let message = "nothing would keep this agent's tools from the network, as the run's policy wants";
            return Ok(TurnEnd::failed(FailureKind::TenantPolicyDenied, message));
        }
        if let Some(lost) = self.live.take_if(|live| !live.process.is_running()) {
            process_lost(&link, lost.process.id()).await;
        }
        let opening = match self.live.take() {
            Some(live) => Opening { live, holds_prompt: false },
            None => {
                let stopped = link.stopped();
                tokio::select! {
                    () = stopped => return Err(Left::Stopped),
                    opened = self.open(turn, &mut link) => match opened {
                        Ok(opening) => opening,
                        Err(end) => return Ok(end),
                    },
                }
            }
        };
        let Opening { mut live, holds_prompt } = opening;
        self.session_id = Some(live.session_id.clone());
        let mut talk = Talk::new(&mut live, &self.outfit, turn, link);
        let result = talk.run(holds_prompt).await;
        match talk.is_well {
            true => self.live = Some(live),
            false => {
                live.process.close().await;
            }
        }
        result
    }

    /// Starts the program and opens the agent's session in it.
    async fn open(&mut self, turn: &Turn, link: &mut Link) -> Result<Opening, TurnEnd> {
        let program = self.program(turn.run.execution_policy.sandbox)?;
        let mut process = Process::start(&program, REDACTOR.clone()).map_err(|error| {
            TurnEnd::failed(FailureKind::InfraFailed, format!("the agent's program did not start: {}", error.kind()))
        })?;
        match self.converse(&mut process, turn, link).await {
            Ok((session_id, model, holds_prompt)) => {
                Ok(Opening { live: Live { process, session_id, model }, holds_prompt })
            }
            Err(end) => {
                process_ended(link, &process).await;
                process.close().await;
                Err(end)
            }
        }
    }

    async fn converse(
        &self,
        process: &mut Process,
        turn: &Turn,
        link: &mut Link,
    ) -> Result<(String, String, bool), TurnEnd> {
        let agent = self.initialize(process, turn, link).await?;
        let known = self.session_id.as_ref().or(turn.thread_id.as_ref());
        let (method, session_id, opened, holds_prompt) = match known {
            Some(known) => {
                let (method, opened, holds_prompt) = self.resume(process, &agent, known, turn).await?;
                (method, known.clone(), opened, holds_prompt)
            }
            None => {
                let opened: Opened = call(process, "session/new", &self.place(None)?, CALL_MS).await?;
                let fits = |id: &String| (1..=NAME_BYTES_MAX).contains(&id.len());
                let id = opened.session_id.clone().filter(fits).ok_or_else(|| senseless("session/new"))?;
                ("session/new", id, opened, false)
            }
        };
        if turn.run.execution_policy.approval != Approval::Never {
            ask_first(process, &session_id, opened.modes.as_ref()).await?;
        }
        let name = agent.agent_info.map(|info| info.name).unwrap_or_default();
        let model = opened.models.map(|models| models.current_model_id).filter(|model| !model.is_empty());
        let model = clip(&model.unwrap_or(name), NAME_BYTES_MAX / 4);
        let phase = json!({"phase": format!("{method}:completed"), "threadId": session_id, "model": model});
        link.emit(EventType::BackendStatus, &phase).await;
        if known.is_none() {
            link.emit(EventType::Session, &json!({"threadId": session_id})).await;
            // Before anything is done in it somebody must know where.
            link.flushed().await;
        }
        Ok((session_id, model, holds_prompt))
    }

    async fn initialize(&self, process: &mut Process, turn: &Turn, link: &Link) -> Result<Initialized, TurnEnd> {
        let has_files = self.outfit.workspace.is_some() && cfg!(target_os = "linux");
        let may_write = has_files && turn.run.execution_policy.sandbox > Sandbox::ReadOnly;
        let params = json!({"protocolVersion": PROTOCOL_VERSION,
            "clientInfo": {"name": "ostler", "title": "Ostler", "version": env!("CARGO_PKG_VERSION")},
            "clientCapabilities": {"fs": {"readTextFile": has_files, "writeTextFile": may_write}, "terminal": may_write}});
        let agent: Initialized = call(process, "initialize", &params, START_MS).await?;
        if agent.protocol_version != PROTOCOL_VERSION {
            let message =
                format!("the agent speaks version {} of the protocol, not {PROTOCOL_VERSION}", agent.protocol_version);
            return Err(TurnEnd::failed(FailureKind::BackendFailed, message));
        }
        let info = agent.agent_info.as_ref().map(|info| format!("{} {}", info.name, info.version)).unwrap_or_default();
        let phase = json!({"phase": "initialize:completed", "userAgent": clip(&info, NAME_BYTES_MAX), "processId": process.id()});
        link.emit(EventType::BackendStatus, &phase).await;
        Ok(agent)
    }

    /// Goes on with a session. A turn that was cut off wants to know what the session holds, so it is loaded, with its
    /// history, where the agent can do both.
    async fn resume(
        &self,
        process: &mut Process,
        agent: &Initialized,
        session_id: &str,
        turn: &Turn,
    ) -> Result<(&'static str, Opened, bool), TurnEnd> {
        let abilities = agent.agent_capabilities.as_ref();
        let loads = abilities.is_some_and(|can| can.load_session);
        let resumes = abilities.and_then(|can| can.session_capabilities.as_ref()?.resume.as_ref()).is_some();
        let method = match (loads, resumes) {
            (true, true) if turn.is_repeat => "session/load",
            (_, true) => "session/resume",
            (true, false) => "session/load",
            (false, false) => return Err(not_resumed("this agent can resume no session")),
        };
        let answer = process.call(method, &self.place(Some(session_id))?, Duration::from_millis(CALL_MS)).await;
        let opened = match answer {
            Ok(answer) => answer.view().unwrap_or_default(),
            Err(CallError::Refused(error)) if error.code == AUTH_REQUIRED => return Err(wants_login()),
            Err(CallError::Refused(error)) => return Err(not_resumed(&clip(&error.message, MESSAGE_CHARS_MAX))),
            Err(error) => return Err(refused(method, &error)),
        };
        Ok((method, opened, last_said(process, session_id).is_some_and(|said| said.contains(turn.prompt.trim()))))
    }

    fn place(&self, session_id: Option<&str>) -> Result<Value, TurnEnd> {
        let mut place = json!({"cwd": self.outfit.needs_workspace()?, "mcpServers": []});
        if let Some(session_id) = session_id {
            place["sessionId"] = session_id.into();
        }
        Ok(place)
    }

    fn program(&self, sandbox: Sandbox) -> Result<Program, TurnEnd> {
        let path = program::find(&self.command, std::env::var_os("PATH").as_deref())
            .map_err(|message| TurnEnd::failed(FailureKind::InfraFailed, message))?;
        let arguments = self.command.iter().skip(1);
        let home = self.outfit.needs_home()?;
        self.outfit.mount(self.keep.iter().map(AsRef::as_ref))?;
        let environment: Vec<(OsString, OsString)> = vec![("HOME".into(), home.into())];
        Ok(Program {
            path,
            arguments: arguments.map(Into::into).collect(),
            directory: Some(self.outfit.needs_workspace()?.to_owned()),
            environment,
            version: Version::Two,
            guarded: self.outfit.guarded(sandbox),
        })
    }
}

impl Agent for Acp {
    fn turn<'a>(&'a mut self, turn: &'a Turn, link: Link) -> BoxFuture<'a, TurnResult> {
        Box::pin(self.work(turn, link))
    }

    fn after_crash(&self) -> AfterCrash {
        AfterCrash::Resume
    }

    fn keeps_lease(&self) -> bool {
        true
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(live) = self.live.take() {
                live.process.close().await;
            }
        })
    }
}

/// A policy that wants to be asked is never widened by a mode in which the agent decides alone.
async fn ask_first(process: &mut Process, session_id: &str, modes: Option<&Modes>) -> Result<(), TurnEnd> {
    let Some(modes) = modes else { return Ok(()) };
    let can_ask = modes.available_modes.iter().any(|mode| mode.id == ASKING_MODE);
    if !can_ask || [ASKING_MODE, "plan"].contains(&modes.current_mode_id.as_str()) {
        return Ok(());
    }
    let params = json!({"sessionId": session_id, "modeId": ASKING_MODE});
    let _: Value = call(process, "session/set_mode", &params, CALL_MS).await?;
    Ok(())
}

/// The last thing a user said, in the history that was told while the session was loaded. All of that is old.
fn last_said(process: &mut Process, session_id: &str) -> Option<String> {
    let mut said: Option<String> = None;
    let mut is_open = false;
    process.retain_kept(|heard| {
        let Heard::Frame(Frame::Notification { method, params }) = heard else { return true };
        let Some(told) = (method == "session/update").then(|| params.view::<Updated>()).flatten() else { return false };
        let of_user = told.session_id == session_id && told.update.kind == "user_message_chunk";
        if of_user {
            let text = told.update.content["text"].as_str().unwrap_or_default();
            match &mut said {
                Some(said) if is_open => said.push_str(text),
                _ => said = Some(text.to_owned()),
            }
        }
        is_open = of_user;
        false
    });
    said
}

async fn call<T: DeserializeOwned>(process: &mut Process, method: &str, params: &Value, ms: u64) -> Result<T, TurnEnd> {
    let answer: Result<RawJson, CallError> = process.call(method, params, Duration::from_millis(ms)).await;
    let answer = answer.map_err(|error| refused(method, &error))?;
    answer.view().ok_or_else(|| senseless(method))
}

/// How a turn ends when a call it depends on has no result.
fn refused(method: &str, error: &CallError) -> TurnEnd {
    match error {
        CallError::Refused(refusal) if refusal.code == AUTH_REQUIRED => wants_login(),
        CallError::Refused(refusal) => {
            let message = format!("the agent refused {method}: {}", clip(&refusal.message, MESSAGE_CHARS_MAX));
            TurnEnd::failed(FailureKind::BackendFailed, message)
        }
        CallError::TimedOut => {
            TurnEnd::failed(FailureKind::BackendTimeout, format!("the agent did not answer {method}"))
        }
        CallError::Gone => TurnEnd::failed(FailureKind::BackendFailed, format!("the agent ended during {method}")),
        CallError::Broken(fault) => TurnEnd::failed(FailureKind::BackendFailed, not_protocol(fault)),
    }
}

/// What a person who wrote the agent needs to know.
fn not_protocol(fault: &NotAFrame) -> String {
    format!("the agent does not keep to its protocol: its standard output holds {fault}")
}

fn senseless(method: &str) -> TurnEnd {
    TurnEnd::failed(FailureKind::BackendFailed, format!("the agent's answer to {method} makes no sense"))
}

fn wants_login() -> TurnEnd {
    TurnEnd::failed(FailureKind::SecretUnavailable, "the agent asks for a login that the profile does not give it")
}

fn not_resumed(why: &str) -> TurnEnd {
    TurnEnd::failed(FailureKind::ThreadResumeFailed, format!("the agent cannot resume its session: {why}"))
}

/// Says that a process is given up, with the end of its log.
async fn process_ended(link: &Link, process: &Process) {
    let phase = json!({"phase": "process-ended", "processId": process.id(), "logTail": process.log_tail()});
    link.emit(EventType::BackendStatus, &phase).await;
}
