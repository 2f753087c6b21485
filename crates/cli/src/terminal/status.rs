//! The state of a run and the phase of a turn, as words for people. Every phrase begins with one of the six words of
//! [`RunState`], so that tables, results and filters use the same vocabulary.

use ostler_protocol::{
    Timestamp,
    ids::RunId,
    kernel::{
        liveness::{Liveness, Phase},
        run_views::RunView,
        runner_jobs::CreateRunnerJob,
        runs::RunState,
    },
};

use crate::terminal::{output::line, times::age_ms};

/// The state of a run, and what it waits for.
pub(crate) fn run_words(run: &RunView) -> String {
    words_with_phase(run, None)
}

/// As [`run_words`], with what a running turn does in this phase, in the same words as for a session.
pub(crate) fn words_with_phase(run: &RunView, phase: Option<Phase>) -> String {
    let state = run.standing.state;
    let words = match state {
        RunState::Waiting if run.standing.open_permissions > 0 => phase_words(Phase::WaitingPermission),
        RunState::Waiting if run.run.command_count == 0 => "waiting for a command",
        RunState::Waiting => phase_words(Phase::WaitingRunner),
        RunState::Running => phase.map_or(state.as_str(), phase_words),
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

/// As [`waiting_words`], with the workspace whose server a run waits for, if that is another one, and why its pod does not start.
pub(crate) fn liveness_words(liveness: &Liveness) -> String {
    let is_waiting = liveness.phase == Phase::WaitingRunner;
    match (liveness.other_workspace.as_deref(), liveness.pod_reason.as_deref()) {
        (Some(workspace), _) if is_waiting => format!("waiting for a server of workspace {}", line(workspace, 200)),
        (None, Some(reason)) if is_waiting => format!("waiting for the pod of its runner: {}", line(reason, 100)),
        _ => waiting_words(liveness.phase, liveness.external_profile.as_deref()),
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
            Some(at) => format!("the runner waits for the provider {} and tries again; {cancel}", until(at, now)),
            None => format!("the runner waits for the provider and has not reported until when; {cancel}"),
        },
        Phase::IdleAfterTool => format!("the agent has been silent since its last tool call; {cancel}"),
        Phase::TransportDisconnected => format!("the runner lost its agent and tries again; {cancel}"),
        Phase::RunnerHeartbeatStale => "another runner takes over when the lease ends".to_owned(),
    }
}

/// `until 02:49:22 UTC (in 20s)`, with the date if it is another one than now.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> String {
    let ms = at.as_millisecond() - now.as_millisecond();
    let day = |at: Timestamp| at.strftime("%F").to_string();
    let format = if day(at) == day(now) { "%H:%M:%S" } else { "%F %H:%M:%S" };
    let clock = at.strftime(format);
    if ms > 0 { format!("until {clock} UTC (in {})", age_ms(ms)) } else { format!("until {clock} UTC") }
}

/// The runner job that would continue the turn. `None` if no runner has to be started. Other recoveries cancel the turn, which
/// [`next_step`] already suggests.
pub(crate) fn recovery_job(liveness: &Liveness) -> Option<CreateRunnerJob> {
    let recovery = liveness.recovery.as_ref().filter(|recovery| recovery.path.ends_with("/runner-jobs"))?;
    serde_json::from_value(recovery.body.clone()).ok()
}

/// The command that starts a runner for a turn that has none.
pub(crate) fn recovery_command(liveness: &Liveness, run: RunId) -> Option<String> {
    recovery_job(liveness).map(|_| format!("ostler jobs create {run}"))
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
    fn a_recovery_is_a_command_of_this_program() {
        let run: RunId = format!("run_{:032x}", 1).parse().unwrap();
        let command = |path: &str, body: serde_json::Value| {
            let liveness: Liveness = serde_json::from_value(serde_json::json!({"phase": "waiting-runner", "active": true,
                "lastSeq": 9, "lastEventAgeMs": 1, "lastCommandActivity": null, "openToolCalls": [], "lease": null,
                "resumeAt": null, "suggestedAction": "wait", "recovery": {"method": "POST", "path": path, "body": body}}))
            .unwrap();
            recovery_command(&liveness, run)
        };
        let job = serde_json::json!({"commandId": "cmd_1", "idempotencyKey": "recovery-1"});
        let created = command(&format!("/api/v1/runs/{run}/runner-jobs"), job);
        assert_eq!(created, Some(format!("ostler jobs create {run}")));
        let cancel = serde_json::json!({"reason": "cancelled while waiting-provider"});
        assert_eq!(command("/api/v1/commands/cmd_1/cancel", cancel), None);
    }

    #[test]
    fn a_wait_for_the_provider_shows_until_when() {
        let now = "2030-01-01T02:49:02Z".parse().unwrap();
        let next = |resume_at: serde_json::Value| {
            let liveness: Liveness =
                serde_json::from_value(serde_json::json!({"phase": "waiting-provider", "active": true,
                "lastSeq": 9, "lastEventAgeMs": 1, "lastCommandActivity": null, "openToolCalls": [], "lease": null,
                "resumeAt": resume_at, "suggestedAction": "wait", "recovery": null}))
                .unwrap();
            next_step(&liveness, format!("run_{:032x}", 1).parse().unwrap(), now)
        };
        let known = next("2030-01-01T02:49:22Z".into());
        assert!(known.starts_with("the runner waits for the provider until 02:49:22 UTC (in 20s)"), "{known}");
        let unknown = next(serde_json::Value::Null);
        assert!(unknown.contains("has not reported until when") && unknown.contains("ostler cancel"), "{unknown}");
    }

    #[test]
    fn a_pod_that_does_not_start_is_named_with_its_reason() {
        let liveness: Liveness = serde_json::from_value(serde_json::json!({"phase": "waiting-runner", "active": true,
            "lastSeq": 1, "lastEventAgeMs": 1, "lastCommandActivity": null, "openToolCalls": [], "lease": null,
            "resumeAt": null, "podReason": "ImagePullBackOff", "suggestedAction": "wait", "recovery": null}))
        .unwrap();
        assert_eq!(liveness_words(&liveness), "waiting for the pod of its runner: ImagePullBackOff");
    }

    #[test]
    fn the_end_of_a_wait_is_relative() {
        let (at, now) = ("2030-01-01T02:49:22Z".parse().unwrap(), "2030-01-01T02:49:02Z".parse().unwrap());
        assert_eq!(until(at, now), "until 02:49:22 UTC (in 20s)");
        assert_eq!(until(now, at), "until 02:49:02 UTC");
        let tomorrow = at + std::time::Duration::from_secs(24 * 3_600);
        assert_eq!(
            until(tomorrow, at),
            format!("until {} 02:49:22 UTC (in {})", tomorrow.strftime("%F"), age_ms(86_400_000))
        );
    }
}
