//! The states of a run, and how a run or a turn ends.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FailureKind, Rule, Timestamp};

/// How a command or a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TerminalStatus {
    Completed,
    Failed,
    Blocked,
    Cancelled,
}

impl TerminalStatus {
    pub fn as_str(self) -> &'static str {
        RunStatus::from(self).as_str()
    }

    pub fn parse(text: &str) -> Option<Self> {
        use TerminalStatus::*;
        [Completed, Failed, Blocked, Cancelled].into_iter().find(|s| s.as_str() == text)
    }
}

/// Converts how a command or a run ends into the state of the same name.
macro_rules! from_terminal_status {
    ($state:ident) => {
        impl From<TerminalStatus> for $state {
            fn from(end: TerminalStatus) -> Self {
                match end {
                    TerminalStatus::Completed => Self::Completed,
                    TerminalStatus::Failed => Self::Failed,
                    TerminalStatus::Blocked => Self::Blocked,
                    TerminalStatus::Cancelled => Self::Cancelled,
                }
            }
        }
    };
}
pub(crate) use from_terminal_status;

/// The explicit fact that ended a command or a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Terminal {
    pub status: TerminalStatus,
    pub failure_kind: Option<FailureKind>,
    /// The exact rule that was broken. Null: no rule covers this end, or the runner did not name one.
    #[serde(default, deserialize_with = "Rule::deserialize_known")]
    #[schema(value_type = Option<String>)]
    pub rule: Option<Rule>,
    pub message: Option<String>,
    /// Who stated the fact: `runner`, `manager`, `run`.
    pub source: String,
    /// The run's number of the `terminal_status` event.
    pub seq: i64,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

impl Terminal {
    /// The same end without its text, as retention leaves it.
    pub fn without_text(self) -> Self {
        Self { message: None, ..self }
    }
}

/// `pending → claimed → running → completed | failed | blocked | cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    Pending,
    Claimed,
    Running,
    Completed,
    Failed,
    Blocked,
    Cancelled,
}

enum_words!(RunStatus {
    Pending => "pending",
    Claimed => "claimed",
    Running => "running",
    Completed => "completed",
    Failed => "failed",
    Blocked => "blocked",
    Cancelled => "cancelled",
});

impl RunStatus {
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Claimed | Self::Running)
    }
}

from_terminal_status!(RunStatus);
