//! Side queries: a question about a session's conversation that is no turn of it. The backend gets no tools, no event is
//! written, and the session stays as it is.

use std::time::Duration;

use ostler_protocol::kernel::conversation::{ConversationMessage, Role};

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
    /// The whole time that the backend gets, its start included.
    pub deadline: Duration,
    /// Characters of an answer. The rest is cut off.
    pub answer_chars_max: usize,
}

impl SideQuery {
    /// What the backend is asked, after the messages of the conversation.
    pub(crate) fn prompt(&self) -> String {
        format!("{}\n\n{}", self.instruction, self.question)
    }

    /// The conversation and the question as one text, for a backend that has its own format of messages.
    pub(crate) fn transcript(&self) -> String {
        let speaker = |role| match role {
            Role::User => "User",
            Role::Assistant => "Assistant",
        };
        let said = |message: &ConversationMessage| format!("{}: {}\n\n", speaker(message.role), message.text);
        let conversation: String = self.conversation.iter().map(said).collect();
        format!("This is a conversation so far:\n\n{conversation}End of the conversation.\n\n{}", self.prompt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_names_who_said_what_and_ends_with_the_question() {
        let message = |role, text: &str| ConversationMessage { role, text: text.into() };
        let conversation = vec![message(Role::User, "Fix it"), message(Role::Assistant, "Done")];
        let query = SideQuery { conversation, instruction: "Be brief.".into(), question: "What?".into() };
        let expected = "This is a conversation so far:\n\nUser: Fix it\n\nAssistant: Done\n\nEnd of the conversation.\n\n\
            Be brief.\n\nWhat?";
        assert_eq!(query.transcript(), expected);
    }
}
