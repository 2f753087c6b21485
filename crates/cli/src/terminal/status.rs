//! The status of a run and the phase of a turn, as words for people.

use ostler_protocol::kernel::{
    liveness::{Phase, Recovery},
    runs::{Run, RunStatus},
};

use crate::terminal::output::line;

/// Whether every command of the run has ended and no runner holds it. An idle run costs nothing and waits for another
/// command.
pub(crate) fn is_idle(run: &Run) -> bool {
    run.status == RunStatus::Pending && run.command_count > 0 && run.unfinished_commands == 0
}

pub(crate) fn run_status(run: &Run) -> &'static str {
    if run.cancel_requested_at.is_some() && !run.status.is_terminal() {
        "cancelling"
    } else if is_idle(run) {
        "idle"
    } else {
        RunStatus::as_str(run.status)
    }
}

pub(crate) fn phase_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "idle",
        Phase::WaitingRunner => "waiting for a runner",
        Phase::WaitingModel => "waiting for the agent",
        Phase::WaitingTool => "running a tool",
        Phase::WaitingPermission => "waiting for permission",
        Phase::WaitingProvider => "waiting for the provider",
        Phase::IdleAfterTool => "silent after a tool",
        Phase::TransportDisconnected => "disconnected from the agent",
        Phase::RunnerHeartbeatStale => "no heartbeat from its runner",
        Phase::Terminal => "ended",
    }
}

/// The command that sends the suggested request.
pub(crate) fn recovery_command(recovery: &Recovery) -> String {
    let Recovery { method, path, body } = recovery;
    // Escaped for a shell, because the server could send any text.
    let body = body.to_string().replace('\'', "'\\''");
    line(&format!("ostler api {method} {path} -d '{body}'"), 400)
}
