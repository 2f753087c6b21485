//! Side queries: a question about a session's conversation that is no turn of it. The backend gets no tools, no event is
//! written, and the session stays as it is.

use std::time::Duration;

use ostler_protocol::kernel::conversation::ConversationMessage;

/// A question to a backend beside a session.
#[derive(Clone, Debug, Default)]
pub struct SideQuery {
    /// The messages of the session so far.
    pub conversation: Vec<ConversationMessage>,
    /// How the backend should answer.
    pub instruction: String,
    pub question: String,
}

/// The limits of one side query.
#[derive(Clone, Copy, Debug)]
pub struct SideQueryLimits {
    /// The whole time that the backend gets.
    pub deadline: Duration,
    /// Characters of an answer. The rest is cut off.
    pub answer_chars_max: usize,
}

impl SideQuery {
    /// What the backend is asked, after the messages of the conversation.
    pub(crate) fn prompt(&self) -> String {
        format!("{}\n\n{}", self.instruction, self.question)
    }
}
