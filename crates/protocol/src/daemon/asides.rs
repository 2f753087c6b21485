//! Questions beside a session: a recap of it, and a question of the user that is no turn.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Failure, Rule};

/// Characters of a question.
pub const QUESTION_CHARS_MAX: usize = 4_096;
/// Messages of a conversation that a recap is made from: the newest ones.
pub const RECAP_MESSAGES_MAX: usize = 30;
/// A conversation with fewer messages has nothing to recap.
pub const RECAP_MESSAGES_MIN: usize = 2;

/// How a backend should recap. The tags separate the recap from what models say around it.
pub const RECAP_INSTRUCTION: &str = "The user of this conversation was away and comes back. Remind the user where the work \
    is, in one or two plain sentences of at most 40 words together: first the goal and the current task, then the next step. \
    No Markdown and no details of earlier steps.";
pub const RECAP_QUESTION: &str = "Write the recap between <recap> and </recap>, and nothing else.";
/// How a backend should answer a question of the user.
pub const BTW_INSTRUCTION: &str = "The user asks something beside the work. Answer in one message, from this conversation \
    only. There are no tools: no file can be read and no command be run, so do not offer to. If the conversation does not \
    contain the answer, say that you do not know it.";

/// `POST /session/{sessionId}/recap`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecap {
    pub session_id: String,
    /// Where the work is, in a sentence or two. Null: there is too little to recap, or the model has no recap now.
    #[schema(required)]
    pub recap: Option<String>,
}

/// `POST /session/{sessionId}/btw`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AskBtw {
    /// At most 4096 characters.
    pub question: Option<String>,
}

impl AskBtw {
    /// The question, if it is one.
    pub fn question(&self) -> Result<&str, Failure> {
        let question = self.question.as_deref().unwrap_or_default();
        // Published clients count UTF-16 units.
        if question.trim().is_empty() || question.encode_utf16().count() > QUESTION_CHARS_MAX {
            let message = format!("question must be a text of 1 to {QUESTION_CHARS_MAX} characters");
            return Err(Failure::invalid(Rule::InvalidQuestion, message));
        }
        Ok(question.trim())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BtwAnswer {
    pub session_id: String,
    /// Null: the backend has no answer, or cannot be asked without its tools.
    #[schema(required)]
    pub answer: Option<String>,
}

/// The recap in a model's reply: what is between its tags, up to the end if the reply was cut off. `None` without the tags.
pub fn recap_in(reply: &str) -> Option<String> {
    let (_, recap) = reply.split_once("<recap>")?;
    let recap = recap.split_once("</recap>").map_or(recap, |(recap, _)| recap).trim();
    (!recap.is_empty()).then(|| recap.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recap_is_what_is_between_its_tags() {
        let found = |reply| recap_in(reply);
        assert_eq!(found("Well: <recap> Fixing the race. </recap> bye").as_deref(), Some("Fixing the race."));
        assert_eq!(found("<recap>Fixing the").as_deref(), Some("Fixing the"));
        assert_eq!((found("Fixing the race."), found("<recap> </recap>")), (None, None));
    }

    #[test]
    fn a_question_is_trimmed_and_bounded() {
        let question = |text: &str| AskBtw { question: Some(text.to_owned()) }.question().map(str::to_owned);
        assert_eq!(question(" why? ").unwrap(), "why?");
        assert!(question(&"é".repeat(QUESTION_CHARS_MAX)).is_ok());
        for bad in ["", " \n", &"a".repeat(QUESTION_CHARS_MAX + 1)] {
            assert_eq!(question(bad).unwrap_err().rule_name(), Some("invalid-question"), "{bad:.10}");
        }
        assert!(AskBtw::default().question().is_err());
    }
}
