//! Agents: what a runner can drive. An agent works on one turn at a time, tells what it does through a [`Link`], and ends
//! the turn by saying how it ended.
//!
//! An agent knows nothing of leases, epochs, batches or the server; a [`Link`] is all it has.

pub mod acp;
pub mod codex;
mod model;
pub mod process;
pub mod scripted;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ostler_protocol::{FailureKind, ids::AttemptId, kernel::{commands::Command, context::Context, conversation::Message, events::{EventType, PHASE_TRANSPORT_DISCONNECTED}, provider_profiles::AgentConfig, runs::{Run, TerminalStatus}}};
use serde_json::json;

use crate::{Lack, Outfit, link::Link};

pub trait Agent: Send + Sync {
    /// Works on one turn. When the link says stop, the agent should end what it does soon; it is dropped if it does not.
    fn turn<'a>(&'a mut self, turn: &'a Turn, link: Link) -> BoxFuture<'a, TurnResult>;

    /// What can be done about a turn whose runner died.
    fn after_crash(&self) -> AfterCrash;

    /// Whether the lease is kept for a while when the run is idle, because starting the agent again is expensive.
    fn keeps_lease(&self) -> bool;

    /// The tenure is over: ends what the agent kept between turns. One that is dropped without this ends all the same, but
    /// not in peace.
    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Whether each turn should bring what was said in the session before it. An agent with a thread of its own knows.
    fn wants_conversation(&self) -> bool {
        false
    }

    /// Whether it can be shown pictures. One that cannot is told that there were some.
    fn sees_images(&self) -> bool {
        false
    }
}

/// One turn to work on.
#[derive(Clone, Debug)]
pub struct Turn {
    pub run: Arc<Run>,
    pub command: Command,
    pub prompt: String,
    /// The agent's own thread, where the session has one.
    pub thread_id: Option<String>,
    pub attempt_id: AttemptId,
    /// An earlier attempt worked on this command and died.
    pub is_repeat: bool,
    /// What was said in the session before, for an agent that wants it.
    pub conversation: Vec<Message>,
    /// What the message shows, for an agent that sees: `https` and `data` URLs.
    pub images: Vec<String>,
    /// Pictures of the message that the agent is not shown.
    pub images_unseen: usize,
}

impl Turn {
    /// The prompt, with what the front end told beside it.
    pub fn asked(&self) -> String {
        let asked = Context::of(&self.command.payload).before(&self.prompt);
        match self.images_unseen {
            0 => asked,
            1 => asked + "\n\n[The message came with an image that you cannot see.]",
            many => asked + &format!("\n\n[The message came with {many} images that you cannot see.]"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCrash {
    /// The agent goes on where its thread stands.
    Resume,
    /// The agent has no side effects: the turn is run again from its beginning.
    Repeat,
    /// Neither: the turn ends as failed.
    GiveUp,
}

/// How an agent says a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnEnd {
    pub status: TerminalStatus,
    pub failure_kind: Option<FailureKind>,
    pub message: Option<String>,
}

impl TurnEnd {
    pub fn completed() -> Self {
        Self { status: TerminalStatus::Completed, failure_kind: None, message: None }
    }

    pub fn failed(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { status: TerminalStatus::Failed, failure_kind: Some(kind), message: Some(message.into()) }
    }

    pub fn blocked(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { status: TerminalStatus::Blocked, failure_kind: Some(kind), message: Some(message.into()) }
    }

    pub fn cancelled(message: impl Into<String>) -> Self {
        let failure_kind = Some(FailureKind::Cancelled);
        Self { status: TerminalStatus::Cancelled, failure_kind, message: Some(message.into()) }
    }
}

/// Why an agent left a turn without an end of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It was told to stop. The runner knows why, and states the end.
    Stopped,
    /// The runner is to die here, as if its machine had: nothing more is written.
    Crashed,
}

pub type TurnResult = Result<TurnEnd, Left>;

/// The agent of an outfit.
pub fn in_outfit(outfit: &Outfit) -> Box<dyn Agent> {
    if let Some(lack) = &outfit.lacks {
        return Box::new(Absent(lack.clone()));
    }
    match &outfit.agent {
        AgentConfig::Scripted => Box::new(scripted::Scripted),
        AgentConfig::Codex => Box::new(codex::Codex::new(outfit.clone())),
        AgentConfig::Model { base_url, model } => Box::new(model::Model::new(base_url, model, outfit)),
        AgentConfig::Acp { command, keep } => Box::new(acp::Acp::new(command, keep, outfit)),
    }
}

/// Reports that an agent's process ended between two turns, before the next turn starts another one.
async fn process_lost(link: &Link, process_id: i32) {
    let phase = json!({"phase": PHASE_TRANSPORT_DISCONNECTED, "processId": process_id,
        "message": "the agent's process ended between two turns; another one is started"});
    link.emit(EventType::BackendStatus, &phase).await;
}

/// Stands for an agent that cannot be had here: every turn ends with a reason instead of waiting for ever.
struct Absent(Lack);

impl Agent for Absent {
    fn turn<'a>(&'a mut self, _: &'a Turn, _: Link) -> BoxFuture<'a, TurnResult> {
        Box::pin(async { Ok(TurnEnd::failed(self.0.failure_kind, self.0.message.clone())) })
    }

    fn after_crash(&self) -> AfterCrash {
        AfterCrash::GiveUp
    }

    fn keeps_lease(&self) -> bool {
        false
    }
}
