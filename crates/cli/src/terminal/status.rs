//! The state of a run and the phase of a turn, as words for people. Every phrase begins with one of the six words of
//! [`RunState`], so that tables, results and filters use the same vocabulary.

use ostler_protocol::{
    Timestamp,
    ids::RunId,
    kernel::{
        liveness::{Liveness, Phase, Recovery},
        run_views::RunView,
        runs::RunState,
    },
};

use crate::terminal::{output::line, times::age_ms};

/// The state of a run, and what it waits for.
pub(crate) fn run_words(run: &RunView) -> String {
    let state = run.standing.state;
    let words = match state {
        RunState::Waiting if run.standing.open_permissions > 0 => phase_words(Phase::WaitingPermission),
        RunState::Waiting if run.run.command_count == 0 => "waiting for a command",
        RunState::Waiting => phase_words(Phase::WaitingRunner),
        _ => state.as_str(),
    };
    let is_cancelling = run.run.cancel_requested_at.is_some() && !state.is_ended();
    if is_cancelling { format!("{words}, cancelling") } else { words.to_owned() }
}

/// What a turn does or waits for. The state of a turn that has ended is its outcome, which a phase does not contain.
pub(crate) fn phase_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle | Phase::Terminal => "ended",
        Phase::WaitingRunner => "waiting for a runner",
        Phase::WaitingModel => "running",
        Phase::WaitingTool => "running a tool",
        Phase::WaitingPermission => "waiting for permission",
        Phase::WaitingProvider => "running, provider busy",
        Phase::IdleAfterTool => "running, silent",
        Phase::TransportDisconnected => "running, disconnected",
        Phase::RunnerHeartbeatStale => "running, no heartbeat",
    }
}

/// As [`phase_words`], with the profile whose runner a run waits for, if the server starts none for it.
pub(crate) fn waiting_words(phase: Phase, external_profile: Option<&str>) -> String {
    match external_profile.filter(|_| phase == Phase::WaitingRunner) {
        Some(profile) => format!("waiting for a runner that claims profile {}", line(profile, 63)),
        None => phase_words(phase).to_owned(),
    }
}

/// As [`waiting_words`], with the workspace whose server a run waits for, if that is another one.
pub(crate) fn liveness_words(liveness: &Liveness) -> String {
    match liveness.other_workspace.as_deref().filter(|_| liveness.phase == Phase::WaitingRunner) {
        Some(workspace) => format!("waiting for a server of workspace {}", line(workspace, 200)),
        None => waiting_words(liveness.phase, liveness.external_profile.as_deref()),
    }
}

/// As [`liveness_words`], short enough for a column.
pub(crate) fn short_words(liveness: &Liveness) -> &'static str {
    match liveness.phase {
        Phase::WaitingRunner if liveness.other_workspace.is_some() => "waiting for another server",
        phase => phase_words(phase),
    }
}

/// What a person can do about an unfinished turn, with commands to copy.
pub(crate) fn next_step(liveness: &Liveness, run: RunId, now: Timestamp) -> String {
    let cancel = format!("`ostler cancel {run}` stops it");
    match liveness.phase {
        Phase::Idle | Phase::Terminal => format!("`ostler result {run}` shows the outcome"),
        Phase::WaitingRunner if liveness.external_profile.is_some() => {
            "start that runner, or see with `ostler doctor` whether one has requested a job".to_owned()
        }
        Phase::WaitingRunner if liveness.other_workspace.is_some() => {
            format!("start a server that is bound to that workspace; {cancel}")
        }
        Phase::WaitingRunner => format!("`ostler jobs list {run}` shows its runner job"),
        Phase::WaitingModel | Phase::WaitingTool => format!("`ostler trace -f {run}` follows it"),
        Phase::WaitingPermission => format!("answer it: ostler approve {run}"),
        Phase::WaitingProvider => match liveness.resume_at {
            Some(at) => format!("the provider asked us to wait {}; {cancel}", until(at, now)),
            None => format!("the provider asked us to wait; {cancel}"),
        },
        Phase::IdleAfterTool => format!("the agent has been silent since its last tool call; {cancel}"),
        Phase::TransportDisconnected => format!("the runner lost its agent and tries again; {cancel}"),
        Phase::RunnerHeartbeatStale => "another runner takes over when the lease ends".to_owned(),
    }
}

/// `until 02:49:22 (in 20s)`.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> String {
    let ms = at.as_millisecond() - now.as_millisecond();
    let clock = at.strftime("%H:%M:%S");
    if ms > 0 { format!("until {clock} UTC (in {})", age_ms(ms)) } else { format!("until {clock} UTC") }
}

/// The command that sends the suggested request.
pub(crate) fn recovery_command(recovery: &Recovery) -> String {
    let Recovery { method, path, body } = recovery;
    // Escaped for a shell, because the server could send any text.
    let body = body.to_string().replace('\'', "'\\''");
    line(&format!("ostler api {method} {path} -d '{body}'"), 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phrase_begins_with_a_state() {
        use Phase::*;
        let unfinished = [
            WaitingRunner,
            WaitingModel,
            WaitingTool,
            WaitingPermission,
            WaitingProvider,
            IdleAfterTool,
            TransportDisconnected,
            RunnerHeartbeatStale,
        ];
        for phase in unfinished {
            let words = phase_words(phase);
            assert!(words.starts_with("waiting") || words.starts_with("running"), "{words}");
        }
    }

    #[test]
    fn the_end_of_a_wait_is_relative() {
        let (at, now) = ("2030-01-01T02:49:22Z".parse().unwrap(), "2030-01-01T02:49:02Z".parse().unwrap());
        assert_eq!(until(at, now), "until 02:49:22 UTC (in 20s)");
        assert_eq!(until(now, at), "until 02:49:02 UTC");
    }
}
