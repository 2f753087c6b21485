//! Whether a session or a run takes more work.

use crate::{
    Failure, FailureKind, Rule,
    ids::RunId,
    kernel::{
        runs::{Run, RunStatus},
        sessions::Session,
    },
};

pub(super) fn session_busy(active: RunId) -> Failure {
    Failure::new(FailureKind::SessionBusy, "the session has another active run")
        .detail("activeRunId", active.to_string())
}

/// A run that has ended takes nothing more.
pub(super) fn check_open(run: &Run) -> Result<(), Failure> {
    match run.status {
        RunStatus::Cancelled => Err(Failure::rule(Rule::RunCancelled, "the run was cancelled")),
        status if status.is_terminal() => {
            let message = format!("the run has ended: {}", status.as_str());
            Err(Failure::rule(Rule::RunTerminal, message).detail("status", status.as_str()))
        }
        _ => Ok(()),
    }
}

/// As [`check_open`], for what must not be added once a cancel was requested.
pub(super) fn check_accepting(run: &Run) -> Result<(), Failure> {
    check_open(run)?;
    match run.cancel_requested_at {
        Some(_) => Err(Failure::rule(Rule::RunCancelling, "the run is being cancelled")),
        None => Ok(()),
    }
}

/// A session that was closed takes no more work, and neither does one whose agent has lost its memory.
pub(super) fn check_takes_work(session: &Session) -> Result<(), Failure> {
    check_session_open(session)?;
    session.storage.check()
}

/// A session that was closed takes no more work.
pub(super) fn check_session_open(session: &Session) -> Result<(), Failure> {
    match session.closed_at {
        Some(_) => Err(Failure::rule(Rule::SessionClosed, "the session was closed")),
        None => Ok(()),
    }
}
