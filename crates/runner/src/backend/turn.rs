//! One turn of a backend: its input, and how it ended.

use std::sync::Arc;

use ostler_protocol::{
    FailureKind,
    ids::AttemptId,
    kernel::{
        commands::Command,
        context::Context,
        conversation::ConversationMessage,
        runs::{Run, TerminalStatus},
    },
};

/// One turn to work on.
#[derive(Clone, Debug)]
pub struct Turn {
    pub run: Arc<Run>,
    pub command: Command,
    pub prompt: String,
    /// The backend's own thread. `None` if the session has none yet.
    pub thread_id: Option<String>,
    pub attempt_id: AttemptId,
    /// An earlier attempt worked on this command and died.
    pub is_repeat: bool,
    /// The earlier messages of the session, for a backend that wants them.
    pub conversation: Vec<ConversationMessage>,
    /// The images of the message, for a backend that accepts them: `https` and `data` URLs.
    pub images: Vec<String>,
    /// Number of images of the message that the backend does not receive.
    pub images_unseen: usize,
}

impl Turn {
    /// The prompt as the backend receives it: with the context that the front end sent, and a note about images that
    /// the backend does not receive.
    pub fn full_prompt(&self) -> String {
        let prompt = Context::of(&self.command.payload).before(&self.prompt);
        match self.images_unseen {
            0 => prompt,
            1 => prompt + "\n\n[The message came with an image that you cannot see.]",
            many => prompt + &format!("\n\n[The message came with {many} images that you cannot see.]"),
        }
    }
}

/// How a turn ended, as the backend reports it.
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

    /// A turn that cannot go on. Without its credential or config a turn is blocked, and not failed: nothing went wrong, and it
    /// can be repeated once they are there.
    pub fn failed(kind: FailureKind, message: impl Into<String>) -> Self {
        if kind == FailureKind::SecretUnavailable {
            return Self::blocked(kind, message);
        }
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

/// Why a backend left a turn without stating how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnAbort {
    /// The runner stopped it. The runner knows why, and states the end.
    Stopped,
    /// The runner must die here, as if its machine had: nothing more is written.
    Crashed,
}

pub type TurnResult = Result<TurnEnd, TurnAbort>;
