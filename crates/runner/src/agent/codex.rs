//! Codex: drives `codex app-server`, the native program, over its standard streams. The process lives across the turns of a
//! tenure; the thread it works on lives in the session's storage and outlives both.
//!
//! What Codex says is turned into events; how a turn ends is what Codex says of it, or our own reason to stop it. A thread
//! that cannot be resumed is never replaced by a new one.

mod approvals;
mod conversation;
mod failures;
mod items;
mod later;
mod output;
mod permissions;
pub mod program;
mod untold;
mod wire;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    FailureKind,
    events::EventType,
    policy::{Approval, ExecutionPolicy, Sandbox},
    redaction::Redactor,
    rpc::{Frame, Version},
};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::{
    AfterCrash, Agent, Left, Turn, TurnEnd, TurnResult,
    process::{Heard, Process, Program},
    process_lost,
};
use crate::{Outfit, holdback::clip, link::Link};
use conversation::Conversation;
use wire::{Initialized, Notice, ThreadAnswer, Threads, Tokens};

/// A call that Codex answers at once when it is well.
const CALL_MS: u64 = 30_000;
/// Another process has the thread open: how long its end is waited for, and how often it is looked for.
const WRITER_WAIT_MS: u64 = 30_000;
const WRITER_RETRY_MS: u64 = 200;
/// Turns of a thread that are looked through for a prompt it may hold already.
const TURNS_SEEN: u32 = 5;
/// Where Codex keeps its rollouts, inside its home and inside the session's storage.
const ROLLOUT_FOLDER: &str = "sessions";
/// Where tools put what they need for a moment, inside the home. Not `tmp`, where Codex keeps programs of its own.
const SCRATCH_FOLDER: &str = "scratch";
/// Who answers approvals: whoever answers ours. A profile's config may name an agent of Codex's own.
const REVIEWER: &str = "user";
const NOTICE_CHARS_MAX: usize = 500;

static REDACTOR: LazyLock<Arc<Redactor>> = LazyLock::new(|| Arc::new(Redactor::new(&[])));

pub struct Codex {
    outfit: Outfit,
    /// Between two turns; nothing is left here of a turn that did not end well.
    live: Option<Live>,
    /// The session's thread, once it is known to be on disk.
    thread_id: Option<String>,
    /// Of the folders that Codex shuts off, those that were not in the workspace when its process began.
    absent: Vec<PathBuf>,
}

/// A process with its thread open.
struct Live {
    process: Process,
    thread_id: String,
    model: String,
    /// The thread can be resumed. A new one cannot before its first turn.
    is_on_disk: bool,
    /// What each thread has used so far, as far as it is known.
    used: HashMap<String, Tokens>,
}

/// Folders that Codex shuts off from its tools. Where one is not there it makes one to do so, and may leave it behind.
const SHUT_FOLDERS: [&str; 4] = [".agents", ".aws", ".codex", ".git"];

impl Live {
    /// `None` if the process has ended. Then the turn says so before it starts another.
    async fn if_running(mut self, link: &Link) -> Option<Self> {
        if self.process.is_running() {
            return Some(self);
        }
        process_lost(link, self.process.id()).await;
        None
    }
}

/// What a turn begins with.
struct Opening {
    live: Live,
    prompt: Prompt,
}

/// What the thread knows of the prompt.
#[derive(Debug, PartialEq)]
enum Prompt {
    New,
    /// An earlier attempt has said it, and was cut off.
    Heard,
    /// An earlier attempt saw it through, and nobody was told: this was the reply.
    Answered(String),
}

impl Codex {
    pub fn new(outfit: Outfit) -> Self {
        Self { outfit, live: None, thread_id: None, absent: vec![] }
    }

    async fn work(&mut self, turn: &Turn, mut link: Link) -> TurnResult {
        // It may have died while nothing was asked of it.
        let live = match self.live.take() {
            Some(live) => live.if_running(&link).await,
            None => None,
        };
        let opening = match live {
            Some(live) => Opening { live, prompt: Prompt::New },
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
        let Opening { mut live, prompt } = opening;
        if let Prompt::Answered(reply) = prompt {
            let id = link.new_id("msg");
            link.message(&id, &reply, true).await;
            self.live = Some(live);
            return Ok(TurnEnd::completed());
        }
        let mut conversation = Conversation::new(&mut live, &mut self.thread_id, &self.outfit, turn, link);
        let result = conversation.run(prompt == Prompt::Heard).await;
        let is_well = conversation.is_well;
        match is_well {
            true => self.live = Some(live),
            false => {
                live.process.close().await;
            }
        }
        result
    }

    /// Takes away what Codex left behind, when no tool runs any more: a folder that has something in it stays.
    fn tidy(&self) {
        for folder in &self.absent {
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// Starts the program and opens the session's thread in it.
    async fn open(&mut self, turn: &Turn, link: &mut Link) -> Result<Opening, TurnEnd> {
        let program = self.program(turn.run.execution_policy.sandbox)?;
        let folders = SHUT_FOLDERS.iter().filter_map(|name| Some(self.outfit.workspace.as_ref()?.join(name)));
        self.absent = folders.filter(|folder| folder.symlink_metadata().is_err()).collect();
        let mut process = Process::start(&program, REDACTOR.clone()).map_err(|error| {
            TurnEnd::failed(FailureKind::InfraFailed, format!("the agent's program did not start: {error}"))
        })?;
        let opened = self.converse(&mut process, turn, link).await;
        match opened {
            Ok((answer, is_on_disk, prompt)) => {
                let ThreadAnswer { thread, model, .. } = answer;
                if is_on_disk {
                    self.thread_id = Some(thread.id.clone());
                }
                let live = Live { process, thread_id: thread.id, model, is_on_disk, used: HashMap::new() };
                Ok(Opening { live, prompt })
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
    ) -> Result<(ThreadAnswer, bool, Prompt), TurnEnd> {
        initialize(process, link).await?;
        if let Some(storage) = &self.outfit.storage {
            let phase = json!({"phase": "codex-rollout-storage-mounted", "mountPath": storage,
                "codexRolloutSubdir": ROLLOUT_FOLDER, "valuesPrinted": false});
            link.emit(EventType::BackendStatus, &phase).await;
        }
        let settings = settings(&turn.run.execution_policy, &self.outfit)?;
        let told = self.thread_id.clone().or_else(|| turn.thread_id.clone());
        let untold = match &told {
            None if turn.is_repeat => untold(process).await?,
            _ => None,
        };
        if let Some(thread_id) = &untold {
            link.emit(EventType::Session, &json!({"threadId": thread_id})).await;
        }
        let known = told.or(untold);
        let is_on_disk = known.is_some();
        let (method, answer) = match &known {
            Some(thread_id) => ("thread/resume", self.resume(process, thread_id, settings, link).await?),
            None => ("thread/start", call(process, "thread/start", &settings).await?),
        };
        refuse_defaults(process, link).await?;
        permissions::check_taken(&turn.run.execution_policy, &answer)?;
        let phase = json!({"phase": format!("{method}:completed"), "threadId": answer.thread.id, "model": answer.model,
            "modelProvider": answer.model_provider});
        link.emit(EventType::BackendStatus, &phase).await;
        let command_id = turn.command.command_id.to_string();
        let prompt = if turn.is_repeat { known_of(&answer, &command_id) } else { Prompt::New };
        Ok((answer, is_on_disk, prompt))
    }

    async fn resume(
        &self,
        process: &mut Process,
        thread_id: &str,
        settings: Value,
        link: &Link,
    ) -> Result<ThreadAnswer, TurnEnd> {
        let method = "thread/resume";
        let mut params = settings;
        params["threadId"] = thread_id.into();
        params["excludeTurns"] = true.into();
        params["initialTurnsPage"] = json!({"limit": TURNS_SEEN, "sortDirection": "desc", "itemsView": "full"});
        let until = Instant::now() + Duration::from_millis(WRITER_WAIT_MS);
        let mut is_waiting = false;
        loop {
            match process.call(method, &params, Duration::from_millis(CALL_MS)).await {
                Ok(answer) => return read(method, answer),
                // Whoever has it open lost its lease, and is about to end.
                Err(error) if failures::is_writer_conflict(&error) && Instant::now() < until => {
                    if !std::mem::replace(&mut is_waiting, true) {
                        let phase = json!({"phase": "thread/resume:waiting", "threadId": thread_id});
                        link.emit(EventType::BackendStatus, &phase).await;
                    }
                    sleep(Duration::from_millis(WRITER_RETRY_MS)).await;
                }
                Err(error) => return Err(failures::not_resumed(&error, self.outfit.storage.is_some())),
            }
        }
    }

    /// The program, in its own home, with the session's storage where it keeps its rollouts.
    fn program(&self, sandbox: Sandbox) -> Result<Program, TurnEnd> {
        let path = program::find(self.outfit.program.as_deref(), std::env::var_os("PATH").as_deref())
            .map_err(|message| TurnEnd::failed(FailureKind::InfraFailed, message))?;
        let home = self.outfit.needs_home()?;
        self.outfit.mount([ROLLOUT_FOLDER])?;
        let scratch = home.join(SCRATCH_FOLDER);
        std::fs::create_dir_all(&scratch).map_err(|error| {
            let message = format!("the agent's home cannot be used: {}", error.kind());
            TurnEnd::failed(FailureKind::InfraFailed, message)
        })?;
        let environment = [("CODEX_HOME", home), ("HOME", home), ("TMPDIR", scratch.as_path())];
        Ok(Program {
            path,
            arguments: vec!["app-server".into()],
            directory: Some(self.outfit.needs_workspace()?.to_owned()),
            environment: environment.map(|(name, value)| (name.into(), value.into())).to_vec(),
            version: Version::Bare,
            guarded: self.outfit.guarded(sandbox),
        })
    }
}

impl Agent for Codex {
    fn turn<'a>(&'a mut self, turn: &'a Turn, link: Link) -> BoxFuture<'a, TurnResult> {
        Box::pin(async move {
            let result = self.work(turn, link).await;
            self.tidy();
            result
        })
    }

    fn sees_images(&self) -> bool {
        true
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
            self.tidy();
        })
    }
}

/// What the last turns of a thread say about this command's prompt. The latest comes first.
fn known_of(answer: &ThreadAnswer, command_id: &str) -> Prompt {
    let mut turns = answer.initial_turns_page.iter().flat_map(|page| &page.data);
    let is_ours = |turn: &&wire::Turn| turn.items.iter().any(|item| item.client_id.as_deref() == Some(command_id));
    match turns.find(is_ours) {
        None => Prompt::New,
        Some(turn) if turn.status != "completed" => Prompt::Heard,
        Some(turn) => {
            let reply = turn.items.iter().rfind(|item| item.kind == "agentMessage");
            Prompt::Answered(reply.map(|item| item.text.clone()).unwrap_or_default())
        }
    }
}

async fn initialize(process: &mut Process, link: &Link) -> Result<(), TurnEnd> {
    // Terminals that outlive an interrupt are cleaned up by a call that is still experimental.
    let params = json!({"clientInfo": {"name": "ostler", "title": "Ostler", "version": env!("CARGO_PKG_VERSION")},
        "capabilities": {"experimentalApi": true, "requestAttestation": false}});
    let answer = process.call("initialize", &params, Duration::from_millis(CALL_MS)).await;
    let answer: Initialized = read("initialize", answer.map_err(|error| failures::refused("initialize", &error))?)?;
    let initialized = process.notify("initialized", &()).await;
    initialized.map_err(|error| failures::refused("initialized", &error))?;
    let phase = json!({"phase": "initialize:completed", "userAgent": clip(&answer.user_agent, NOTICE_CHARS_MAX),
        "processId": process.id()});
    link.emit(EventType::BackendStatus, &phase).await;
    Ok(())
}

async fn call<T: serde::de::DeserializeOwned>(
    process: &mut Process,
    method: &str,
    params: &Value,
) -> Result<T, TurnEnd> {
    let answer = process.call(method, params, Duration::from_millis(CALL_MS)).await;
    read(method, answer.map_err(|error| failures::refused(method, &error))?)
}

/// The thread that an earlier attempt began in the session's storage without the server hearing of it: its runner died
/// first, or could not reach the server.
async fn untold(process: &mut Process) -> Result<Option<String>, TurnEnd> {
    let latest = json!({"limit": 1, "sortKey": "created_at", "sortDirection": "desc", "modelProviders": []});
    let threads: Threads = call(process, "thread/list", &latest).await?;
    Ok(threads.data.into_iter().next().map(|thread| thread.id))
}

/// A profile whose configuration makes no sense would run with Codex's defaults: another provider, another account.
async fn refuse_defaults(process: &mut Process, link: &Link) -> Result<(), TurnEnd> {
    let mut warnings = vec![];
    process.retain_kept(|heard| match heard {
        Heard::Frame(Frame::Notification { method, params }) if method == "configWarning" => {
            warnings.push(params.view::<Notice>().unwrap_or_default());
            false
        }
        _ => true,
    });
    for notice in warnings {
        let text = notice_text(&notice);
        link.emit(EventType::BackendStatus, &json!({"phase": "config-warning", "message": text})).await;
        if notice.summary.is_some_and(|summary| summary.contains("using defaults")) {
            return Err(TurnEnd::failed(FailureKind::BackendFailed, format!("the profile's configuration: {text}")));
        }
    }
    Ok(())
}

fn notice_text(notice: &Notice) -> String {
    let parts = [&notice.message, &notice.summary, &notice.details];
    clip(&parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" "), NOTICE_CHARS_MAX)
}

/// Says that a process is given up, with the end of its log.
async fn process_ended(link: &Link, process: &Process) {
    let phase = json!({"phase": "process-ended", "processId": process.id(), "logTail": process.log_tail()});
    link.emit(EventType::BackendStatus, &phase).await;
}

fn read<T: serde::de::DeserializeOwned>(method: &str, answer: ostler_protocol::RawJson) -> Result<T, TurnEnd> {
    let misread =
        || TurnEnd::failed(FailureKind::BackendFailed, format!("the agent's answer to {method} makes no sense"));
    serde_json::from_str(answer.as_str()).map_err(|_| misread())
}

/// What a thread is started or resumed with: the run's policy, nothing wider. It holds for all its turns.
fn settings(policy: &ExecutionPolicy, outfit: &Outfit) -> Result<Value, TurnEnd> {
    let workspace = outfit.needs_workspace()?;
    let mut settings = json!({"cwd": workspace, "approvalPolicy": asking(policy), "approvalsReviewer": REVIEWER,
        "experimentalRawEvents": true});
    let profile = permissions::profile(policy, outfit).map_err(|error| {
        let message = format!("what is to be hidden from the agent cannot be looked into: {}", error.kind());
        TurnEnd::failed(FailureKind::InfraFailed, message)
    })?;
    match profile {
        Some(profile) => {
            settings["permissions"] = permissions::PROFILE.into();
            settings["config"] = json!({"permissions": {permissions::PROFILE: profile}});
        }
        None => settings["sandbox"] = json!(policy.sandbox),
    }
    Ok(settings)
}

/// When Codex asks us. Told never to ask, it refuses by itself and says so to its model alone; so it asks, and a run
/// whose policy is never to ask declines where the log can say it.
fn asking(policy: &ExecutionPolicy) -> Approval {
    match policy.approval {
        Approval::Never => Approval::OnRequest,
        asks => asks,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod opening {
    use super::*;

    #[test]
    fn a_prompt_that_was_seen_through_is_not_said_again() {
        let turn = |status: &str| {
            let items = json!([{"type": "userMessage", "id": "u", "clientId": "cmd_1"},
                {"type": "agentMessage", "id": "a", "text": "on it"}, {"type": "agentMessage", "id": "b", "text": "done"}]);
            let page = json!({"data": [{"id": "t", "status": status, "items": items}]});
            let answer = json!({"thread": {"id": "th"}, "initialTurnsPage": page});
            serde_json::from_value::<ThreadAnswer>(answer).unwrap()
        };
        assert_eq!(known_of(&turn("completed"), "cmd_1"), Prompt::Answered("done".into()));
        assert_eq!(known_of(&turn("interrupted"), "cmd_1"), Prompt::Heard);
        assert_eq!(known_of(&turn("completed"), "cmd_2"), Prompt::New);
    }
}
