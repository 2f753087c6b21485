//! One turn of a backend: its input, and how it ended.

use std::sync::Arc;

use ostler_protocol::{
    Failure, FailureKind, Rule,
    ids::AttemptId,
    kernel::{
        commands::Command,
        context::Context,
        conversation::{ConversationMessage, PastCall, Role},
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
    /// The earlier messages of the session, for a backend that wants them, or that may start a new thread.
    pub conversation: Vec<ConversationMessage>,
    /// How many of the last of them came after the session's last turn, so that an existing thread lacks them.
    pub unsent: usize,
    /// Calls of the server's tools in earlier turns, between those messages.
    pub past_calls: Vec<PastCall>,
    /// Messages before them were left out.
    pub truncated: bool,
    /// The images of the message, for a backend that accepts them: `https` and `data` URLs.
    pub images: Vec<String>,
    /// Number of images of the message that the backend does not receive.
    pub images_unseen: usize,
}

impl Turn {
    /// The prompt as the backend receives it: with this context, and a note about images that the backend does not receive.
    pub(crate) fn prompt_with(&self, context: &Context) -> String {
        self.prompt_of(context, self.images_unseen)
    }

    /// The prompt with the context that the front end sent, for a backend that does not receive this number of images.
    fn prompt_without(&self, images_unseen: usize) -> String {
        self.prompt_of(&Context::of(&self.command.payload), images_unseen)
    }

    fn prompt_of(&self, context: &Context, images_unseen: usize) -> String {
        let prompt = context.before(&self.prompt);
        match images_unseen {
            0 => prompt,
            1 => prompt + "\n\n[The message came with an image that you cannot see.]",
            many => prompt + &format!("\n\n[The message came with {many} images that you cannot see.]"),
        }
    }
}

/// Size of the earlier messages that precede a prompt, in bytes. The oldest are left out.
const HISTORY_BYTES_MAX: usize = 64 * 1024;

impl Turn {
    /// The prompt for a backend with a thread of its own: with its context, preceded by the messages that the thread lacks. A new
    /// thread lacks them all.
    pub(crate) fn thread_prompt(&self, is_new_thread: bool) -> String {
        self.thread_prompt_without(is_new_thread, self.images_unseen)
    }

    /// As [`Turn::thread_prompt`], for a backend that does not receive this number of images.
    pub(crate) fn thread_prompt_without(&self, is_new_thread: bool, images_unseen: usize) -> String {
        let known = if is_new_thread { 0 } else { self.conversation.len().saturating_sub(self.unsent) };
        let mut bytes = 0;
        let mut fits = |message: &&ConversationMessage| {
            bytes += message.text.len();
            bytes <= HISTORY_BYTES_MAX
        };
        let lacking = &self.conversation[known..];
        let mut messages: Vec<_> = lacking.iter().rev().take_while(|message| fits(message)).map(quote).collect();
        if messages.is_empty() {
            return self.prompt_without(images_unseen);
        }
        if messages.len() < lacking.len() || is_new_thread && self.truncated {
            messages.push("[Earlier messages are left out.]".to_owned());
        }
        messages.reverse();
        let intro = match is_new_thread {
            true => "These messages were exchanged before, in this conversation:",
            false => "This was added to the conversation since your last reply:",
        };
        format!(
            "{intro}\n\n{}\n\nThe message to respond to:\n\n{}",
            messages.join("\n\n"),
            self.prompt_without(images_unseen)
        )
    }
}

fn quote(message: &ConversationMessage) -> String {
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    format!("<{role}>\n{}\n</{role}>", message.text)
}

/// How a turn ended, as the backend reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnEnd {
    pub status: TerminalStatus,
    pub failure_kind: Option<FailureKind>,
    /// The exact rule that was broken, for the hint that people get.
    pub rule: Option<Rule>,
    pub message: Option<String>,
}

impl TurnEnd {
    pub fn completed() -> Self {
        Self { status: TerminalStatus::Completed, failure_kind: None, rule: None, message: None }
    }

    /// A turn that cannot go on. Without its credential or config a turn is blocked, and not failed: nothing went wrong, and it
    /// can be repeated once they are there.
    pub fn failed(kind: FailureKind, message: impl Into<String>) -> Self {
        if kind == FailureKind::SecretUnavailable {
            return Self::blocked(kind, message);
        }
        Self { status: TerminalStatus::Failed, failure_kind: Some(kind), rule: None, message: Some(message.into()) }
    }

    pub fn blocked(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { status: TerminalStatus::Blocked, failure_kind: Some(kind), rule: None, message: Some(message.into()) }
    }

    /// A turn that cannot go on because of this failure.
    pub(crate) fn of_failure(failure: Failure) -> Self {
        let rule = failure.broken_rule();
        Self::failed(failure.kind, failure.message).with_rule(rule)
    }

    pub(crate) fn with_rule(self, rule: Option<Rule>) -> Self {
        Self { rule, ..self }
    }

    pub fn cancelled(message: impl Into<String>) -> Self {
        let failure_kind = Some(FailureKind::Cancelled);
        Self { status: TerminalStatus::Cancelled, failure_kind, rule: None, message: Some(message.into()) }
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
