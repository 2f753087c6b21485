//! Codex: drives `codex app-server`, the native program, over its standard streams. The process lives across the turns of
//! a lease. The thread it works on is stored in the session's storage and outlives both.
//!
//! Notifications of Codex are turned into events. A turn ends as Codex reports it, or for our own reason to stop it. A
//! thread that cannot be resumed is never replaced by a new one.

mod approvals;
mod command_output;
mod failures;
mod items;
mod notifications;
mod permissions;
pub mod program;
mod provider_wait;
mod thread;
mod tool_sandbox;
mod turn;
mod unreported_commands;
mod wire;

use std::{collections::HashMap, ffi::OsString, path::PathBuf};

use futures_util::future::BoxFuture;
use ostler_protocol::{FailureKind, Rule, kernel::policy::Sandbox, rpc::Version};

use super::{
    child::{close_unopened, program_unusable, start_process, unless_stopped},
    interface::Backend,
    process::{Process, Program},
    toolkit,
    turn::{Turn, TurnAbort, TurnEnd, TurnResult},
};
use crate::{
    environment::BackendEnvironment, guard::PROTECTED_FOLDERS, tool_gateway::ToolGateway, turn_sink::TurnSink,
};
use permissions::SCRATCH_FOLDER;
use thread::{OpenThread, OpenedThread, PromptState, ROLLOUT_FOLDER, open_thread};
use turn::CodexTurn;

pub(crate) struct CodexBackend {
    environment: BackendEnvironment,
    /// The thread that is open between two turns. `None` after a turn that did not end well.
    open: Option<OpenThread>,
    /// The session's thread, once it is known to be on disk.
    thread_id: Option<String>,
    /// The denied folders that did not exist in the workspace when the process started.
    absent: Vec<PathBuf>,
    /// How Codex reaches the server's tools, once it has been started.
    gateway: Option<ToolGateway>,
}

impl CodexBackend {
    pub(crate) fn new(environment: BackendEnvironment) -> Self {
        Self { environment, open: None, thread_id: None, absent: vec![], gateway: None }
    }

    async fn run_turn(&mut self, turn: &Turn, mut sink: TurnSink) -> TurnResult {
        // Until the turn ends.
        let _attached = toolkit::attach(&mut self.gateway, &self.environment, turn, &sink).await;
        let front_end = toolkit::front_end_digest(turn);
        // A thread that is not on disk could not be resumed.
        let is_stale =
            |thread: &mut OpenThread| thread.has_gateway && thread.is_on_disk && thread.front_end != front_end;
        if let Some(stale) = self.open.take_if(is_stale) {
            stale.process.close().await;
        }
        let open = match self.open.take() {
            Some(thread) => thread.if_running(&sink).await,
            None => None,
        };
        let (mut thread, prompt) = match open {
            Some(thread) => (thread, PromptState::New),
            None => match self.open(turn, &sink, front_end).await? {
                Ok(opened) => opened,
                Err(end) => return Ok(end),
            },
        };
        if let PromptState::Completed { reply } = prompt {
            let id = sink.new_id("msg");
            sink.emit_message(&id, &reply, true).await;
            self.open = Some(thread);
            return Ok(TurnEnd::completed());
        }
        let mut codex_turn = CodexTurn::new(&mut thread, &mut self.thread_id, &self.environment, turn, sink);
        let result = codex_turn.run(prompt == PromptState::Interrupted).await;
        match codex_turn.is_reusable {
            true => self.open = Some(thread),
            false => {
                thread.process.close().await;
            }
        }
        result
    }

    /// Removes empty folders that Codex left behind. Called when no tool runs any more.
    fn remove_left_folders(&self) {
        for folder in &self.absent {
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// Starts the program and opens the session's thread in it. A program that is stopped during this call has ended when it returns.
    async fn open(
        &mut self,
        turn: &Turn,
        sink: &TurnSink,
        front_end: String,
    ) -> Result<Result<(OpenThread, PromptState), TurnEnd>, TurnAbort> {
        let mut process = match self.start(turn) {
            Ok(process) => process,
            Err(end) => return Ok(Err(end)),
        };
        let thread_id = self.thread_id.as_ref().or(turn.thread_id.as_ref());
        let gateway = self.gateway.as_ref();
        let opening = open_thread(&mut process, thread_id, &self.environment, gateway, turn, sink);
        let opened = unless_stopped(sink.stopped(), opening).await;
        let has_gateway = gateway.is_some();
        match opened {
            Ok(Ok(OpenedThread { thread_id, model, is_on_disk, prompt })) => {
                if is_on_disk {
                    self.thread_id = Some(thread_id.clone());
                }
                let used = HashMap::new();
                Ok(Ok((OpenThread { process, thread_id, model, is_on_disk, has_gateway, front_end, used }, prompt)))
            }
            Ok(Err(end)) => close_unopened(process, sink, Ok(end)).await,
            Err(abort) => close_unopened(process, sink, Err(abort)).await,
        }
    }

    fn start(&mut self, turn: &Turn) -> Result<Process, TurnEnd> {
        let program = self.program(turn.run.execution_policy.sandbox)?;
        // If one does not exist, Codex creates it to deny it to its tools, and may leave it behind.
        let folders = PROTECTED_FOLDERS.iter().filter_map(|name| Some(self.environment.workspace.as_ref()?.join(name)));
        self.absent = folders.filter(|folder| folder.symlink_metadata().is_err()).collect();
        start_process(&program, self.environment.text_cutter(), Rule::AgentProgram)
    }

    /// The program, in its own home, with the session's storage linked to where Codex stores its rollouts. Its environment has none of
    /// the job's short-lived variables: those are for its tools, and it holds the provider's key.
    fn program(&self, sandbox: Sandbox) -> Result<Program, TurnEnd> {
        let path = program::find(self.environment.program.as_deref(), std::env::var_os("PATH").as_deref())
            .map_err(|message| program_unusable(Rule::AgentProgram, message))?;
        let home = self.environment.require_home()?;
        self.environment.link_storage([ROLLOUT_FOLDER])?;
        let scratch = home.join(SCRATCH_FOLDER);
        std::fs::create_dir_all(&scratch).map_err(|error| {
            let message = format!("the agent's home cannot be used: {}", error.kind());
            TurnEnd::failed(FailureKind::InfraFailed, message)
        })?;
        let search_path = self.environment.tool_guard(sandbox).map(|guard| {
            tool_sandbox::install(home, guard, std::env::var_os("PATH").as_deref()).map_err(|error| {
                let message = format!("the sandbox of the agent's tools cannot be made: {}", error.kind());
                TurnEnd::failed(FailureKind::InfraFailed, message)
            })
        });
        let search_path = search_path.transpose()?.map(|path| (OsString::from("PATH"), path));
        let variables = [("CODEX_HOME", home), ("HOME", home), ("TMPDIR", scratch.as_path())];
        Ok(Program {
            path,
            arguments: vec!["app-server".into()],
            directory: Some(self.environment.require_workspace()?.to_owned()),
            environment: variables
                .map(|(name, value)| (name.into(), value.into()))
                .into_iter()
                .chain(search_path)
                .collect(),
            version: Version::Bare,
            guarded: self.environment.guarded(sandbox),
        })
    }
}

impl Backend for CodexBackend {
    fn turn<'a>(&'a mut self, turn: &'a Turn, sink: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(async move {
            let result = self.run_turn(turn, sink).await;
            self.remove_left_folders();
            result
        })
    }

    fn sees_images(&self) -> bool {
        true
    }

    fn keeps_lease(&self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        self.open.is_some()
    }

    fn keeps_thread(&self) -> bool {
        true
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(thread) = self.open.take() {
                thread.process.close().await;
            }
            self.remove_left_folders();
        })
    }
}

#[cfg(test)]
mod tests;
