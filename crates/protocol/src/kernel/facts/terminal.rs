//! The explicit fact that ends a command or a run.

use crate::{Failure, FailureKind, Rule, kernel::runs::TerminalStatus, text::clip};

#[derive(Clone, Debug, PartialEq)]
pub struct TerminalFacts {
    pub status: TerminalStatus,
    pub failure_kind: Option<FailureKind>,
    /// The exact rule that was broken. Never set for an end that is not a failure.
    pub rule: Option<Rule>,
    pub message: Option<String>,
}

impl TerminalFacts {
    /// A `failed` or `blocked` end without a kind is the backend's failure.
    pub fn checked(status: Option<&str>, failure_kind: Option<&str>, message: Option<String>) -> Result<Self, Failure> {
        let status = status.and_then(TerminalStatus::parse).ok_or_else(|| {
            Failure::invalid(Rule::TerminalStatus, "status must be completed, failed, blocked or cancelled")
        })?;
        let named = match failure_kind {
            None => None,
            Some(text) => Some(FailureKind::parse(text).ok_or_else(|| {
                let message = "failureKind is not one of the known kinds";
                Failure::invalid(Rule::FailureKindUnknown, message).detail("failureKind", clip(text, 80))
            })?),
        };
        let failure_kind = match status {
            TerminalStatus::Completed => None,
            TerminalStatus::Cancelled => Some(FailureKind::Cancelled),
            _ => named.or(Some(FailureKind::BackendFailed)),
        };
        Ok(Self { status, failure_kind, rule: None, message })
    }

    /// The same end with the rule that was broken, if it is a failure.
    pub fn with_rule(self, rule: Option<Rule>) -> Self {
        let is_failure = matches!(self.status, TerminalStatus::Failed | TerminalStatus::Blocked);
        Self { rule: rule.filter(|_| is_failure), ..self }
    }

    /// Whether something ended unsuccessfully because it was cancelled, or because something that it waited for was.
    pub fn is_by_cancel(&self) -> bool {
        match self.status {
            TerminalStatus::Cancelled => true,
            TerminalStatus::Completed => false,
            TerminalStatus::Failed | TerminalStatus::Blocked => self.failure_kind == Some(FailureKind::Cancelled),
        }
    }
}
