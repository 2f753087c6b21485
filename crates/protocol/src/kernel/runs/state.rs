//! The state of a run or a turn in one word, for people. A run outlives its turns, so its own status shows little about the
//! work: a run that can take another turn is `pending` although its last turn has failed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::status::{RunStatus, TerminalStatus, from_terminal_status};

/// What became of a run's latest turn, or of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// It waits for a runner, or for a person's answer to a permission request.
    Waiting,
    /// A runner has claimed it, and it has not ended.
    Running,
    Completed,
    Failed,
    Blocked,
    Cancelled,
}

enum_words!(RunState {
    Waiting => "waiting",
    Running => "running",
    Completed => "completed",
    Failed => "failed",
    Blocked => "blocked",
    Cancelled => "cancelled",
});

impl RunState {
    /// The state that follows from the run and the end of its latest turn, if that has ended. The end of the turn counts
    /// before the end of the run: a turn stays completed if its run is cancelled later.
    pub fn of(run: RunStatus, open_permissions: i64, turn: Option<TerminalStatus>) -> Self {
        match (turn, run) {
            (Some(end), _) => end.into(),
            (None, RunStatus::Completed) => Self::Completed,
            (None, RunStatus::Failed) => Self::Failed,
            (None, RunStatus::Blocked) => Self::Blocked,
            (None, RunStatus::Cancelled) => Self::Cancelled,
            (None, RunStatus::Running | RunStatus::Claimed) if open_permissions == 0 => Self::Running,
            (None, RunStatus::Running | RunStatus::Pending | RunStatus::Claimed) => Self::Waiting,
        }
    }

    /// `failed` or `failed,blocked`, each once. `None` if a word is no state.
    pub fn parse_list(words: &str) -> Option<Vec<Self>> {
        let named: Option<Vec<_>> = words.split(',').map(Self::parse).collect();
        named.map(|named| Self::ALL.into_iter().filter(|state| named.contains(state)).collect())
    }

    pub fn is_ended(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }
}

from_terminal_status!(RunState);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_latest_turn_is_the_state() {
        for run in [RunStatus::Pending, RunStatus::Claimed, RunStatus::Running, RunStatus::Cancelled] {
            assert_eq!(RunState::of(run, 0, Some(TerminalStatus::Failed)), RunState::Failed);
        }
        assert_eq!(RunState::of(RunStatus::Cancelled, 0, None), RunState::Cancelled);
    }

    #[test]
    fn a_turn_that_waits_for_a_runner_or_an_answer_is_waiting() {
        assert_eq!(RunState::of(RunStatus::Pending, 0, None), RunState::Waiting);
        assert_eq!(RunState::of(RunStatus::Claimed, 0, None), RunState::Running);
        assert_eq!(RunState::of(RunStatus::Running, 0, None), RunState::Running);
        for claimed in [RunStatus::Claimed, RunStatus::Running] {
            assert_eq!(RunState::of(claimed, 1, None), RunState::Waiting);
        }
    }

    #[test]
    fn every_word_is_read_back() {
        for state in RunState::ALL {
            assert_eq!(RunState::parse(state.as_str()), Some(state));
        }
        assert_eq!(RunState::parse("pending"), None);
    }
}
