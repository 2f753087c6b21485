//! What became of a call, within the limits of its tool and without secrets.

use ostler_protocol::{
    kernel::facts::DelegatedUse,
    tools::{CallState, ToolDefinition, wire::CalledTool},
};
use serde_json::{Map, Value};

use super::{call_redactor::CallRedactor, source::ToolError};

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallOutcome {
    pub state: CallState,
    /// The result, or why there is none.
    pub text: String,
    pub is_truncated: bool,
    /// The arguments with which a person has replaced those of the call.
    pub edited: Option<Map<String, Value>>,
    /// What runs that the call started have used.
    pub delegated: DelegatedUse,
}

impl CallOutcome {
    pub(super) async fn failed(redactor: &CallRedactor<'_>, message: &str) -> Self {
        Self::of(redactor, CallState::Failed, message.to_owned(), usize::MAX).await
    }

    pub(super) async fn declined(redactor: &CallRedactor<'_>, message: &str) -> Self {
        Self::of(redactor, CallState::Declined, message.to_owned(), usize::MAX).await
    }

    pub(super) fn unknown() -> Self {
        let text = "the outcome of this call is not known: the process that executed it has ended, and it may have had an effect";
        Self::unknown_because(text)
    }

    fn unknown_because(text: &str) -> Self {
        let (state, delegated) = (CallState::OutcomeUnknown, DelegatedUse::default());
        Self { state, text: text.into(), is_truncated: false, edited: None, delegated }
    }

    /// Of a call that was given up because its command has ended. The kernel has recorded its end with that of the command.
    pub(super) fn interrupted() -> Self {
        let text = "the outcome of this call is not known: the turn ended before the tool had responded";
        Self::unknown_because(text)
    }

    /// What a source returned.
    pub(super) async fn executed(
        redactor: &CallRedactor<'_>,
        tool: &ToolDefinition,
        result: Result<String, ToolError>,
    ) -> Self {
        let (state, text) = match result {
            Ok(text) => (CallState::Completed, text),
            Err(ToolError::OutcomeUnknown(text)) if tool.changes => {
                (CallState::OutcomeUnknown, format!("{text}; it is not known whether the call had an effect"))
            }
            Err(ToolError::Failed(text) | ToolError::Invalid(text) | ToolError::OutcomeUnknown(text)) => {
                (CallState::Failed, text)
            }
        };
        Self::of(redactor, state, text, tool.output_bytes_max).await
    }

    /// Redacts before it cuts: half of a secret could not be recognised.
    async fn of(redactor: &CallRedactor<'_>, state: CallState, text: String, bytes_max: usize) -> Self {
        let mut clean = redactor.redact(text).await;
        let is_truncated = clean.len() > bytes_max;
        if is_truncated {
            clean.truncate(clean.floor_char_boundary(bytes_max));
        }
        Self { state, text: clean, is_truncated, edited: None, delegated: DelegatedUse::default() }
    }

    pub(super) fn into_reply(self, call_id: &str) -> CalledTool {
        let Self { state, text, is_truncated, edited, delegated } = self;
        let delegated = (!delegated.is_none()).then_some(delegated);
        CalledTool {
            call_id: call_id.to_owned(),
            status: state.into(),
            content: text,
            truncated: is_truncated,
            edited_arguments: edited,
            delegated_tokens: delegated.map(|delegated| delegated.tokens),
            delegated_cost_usd: delegated.map(|delegated| delegated.cost_usd),
            delegated_tool_calls: delegated.map(|delegated| delegated.tool_calls),
        }
    }
}
