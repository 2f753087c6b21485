//! How a runner ends, and the summary of its job.

use ostler_protocol::{Failure, RawJson};
use serde_json::json;

use crate::{backend::turn::TurnEnd, text_cutter::TextCutter};

/// Of the message in a summary. The turn's own end has all of it.
const MESSAGE_CHARS_MAX: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerStatus {
    /// Nothing was left to do, and the lease was released.
    Idle,
    /// The run has ended or was cancelled.
    RunEnded,
    /// Another runner held the run for too long.
    NotClaimed,
    /// Another claim is in force. Nothing was written since.
    FencedOut,
    /// The backend asked for a crash: everything was dropped.
    Crashed,
    /// It was stopped from outside. What it worked on is left to another runner.
    Stopped,
    Failed,
}

impl RunnerStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::RunEnded => "run-ended",
            Self::NotClaimed => "not-claimed",
            Self::FencedOut => "fenced-out",
            Self::Crashed => "crashed",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// How a runner ended, for the launcher.
#[derive(Clone, Debug)]
pub struct RunnerOutcome {
    pub status: RunnerStatus,
    /// Number of turns it worked on.
    pub turns: u32,
    pub failure: Option<Failure>,
    /// How the last turn ended.
    pub last_end: Option<TurnEnd>,
    /// Whether the runner's job has ended together with its lease. Otherwise its launcher reports the end.
    pub is_job_ended: bool,
}

impl RunnerOutcome {
    /// Whether the runner finished all its work.
    pub fn succeeded(&self) -> bool {
        matches!(self.status, RunnerStatus::Idle | RunnerStatus::RunEnded)
    }

    /// Removes the secrets that the cutter knows from the messages, so that the summary can cut them.
    pub(crate) fn redacted(mut self, cutter: &TextCutter) -> Self {
        let end_message = self.last_end.as_mut().and_then(|end| end.message.as_mut());
        for message in self.failure.as_mut().map(|failure| &mut failure.message).into_iter().chain(end_message) {
            *message = cutter.redact(message).into_owned();
        }
        self
    }

    /// The job's terminal summary.
    pub fn summary(&self) -> RawJson {
        let cutter = TextCutter::default();
        summary(&cutter, self.status, self.turns, self.failure.as_ref(), self.last_end.as_ref())
    }
}

fn summary(
    cutter: &TextCutter,
    status: RunnerStatus,
    turns: u32,
    failure: Option<&Failure>,
    end: Option<&TurnEnd>,
) -> RawJson {
    let kind = failure.map(|f| f.kind).or(end.and_then(|end| end.failure_kind));
    let message = failure.map(|f| &f.message).or(end.and_then(|end| end.message.as_ref()));
    let message = message.map(|message| cutter.cut(message, MESSAGE_CHARS_MAX));
    let turn_status = end.map(|end| end.status.as_str());
    RawJson::of(&json!({"status": status.as_str(), "turnStatus": turn_status, "failureKind": kind,
        "message": message, "turns": turns}))
}

/// The summary of a job whose runner has nothing left to do.
pub(crate) fn idle_summary(cutter: &TextCutter, turns: u32, last_end: Option<&TurnEnd>) -> RawJson {
    summary(cutter, RunnerStatus::Idle, turns, None, last_end)
}
