//! `ostler cancel`: cancels runs, the active command of sessions, or one command. Cancelling something that has ended changes
//! nothing and shows how it ended.

use clap::builder::NonEmptyStringValueParser;
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    kernel::{
        run_views::RunView,
        runs::{Cancel, RunState, RunStatus, Terminal},
        sessions::{ControlSession, SessionView},
    },
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    candidates,
    connection::Connection,
    errors, exit_codes,
    targets::{Finder, SessionKey, Target, Within},
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        status::{phase_words, run_words},
    },
};

/// Cancel runs, the active command of sessions, or one command
///
/// A command that a runner is working on ends as soon as the runner has stopped it; any other ends at once. A run ends with
/// all its unfinished commands. In a session only the active command ends, and the session stays open.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler cancel my-session\n  ostler cancel 01a1dd6b --reason \"wrong branch\"\n  \
    ostler cancel RUN --command CMD --yes\n  ostler cancel RUN OTHER-RUN --dry-run")]
pub(crate) struct CancelArgs {
    #[arg(value_name = "RUN|SESSION", required = true, value_parser = NonEmptyStringValueParser::new(),
        add = candidates::targets(), help = "What to cancel")]
    targets: Vec<String>,
    /// Cancel only this command of the run; the run continues
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new())]
    command: Option<String>,
    /// Why, for the record
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// The state of a run without a turn, whose runner still has the lease.
const IDLE_BACKEND: &str = "no turn runs; the backend stays open for the next one";

/// Something to cancel, with its current state.
struct CancelTarget {
    target: Target,
    command: Option<String>,
    state: String,
    /// No turn runs: only the backend that stays open for the next turn is stopped.
    is_idle_backend: bool,
}

pub(crate) async fn cancel(connection: &Connection, args: &CancelArgs) -> Result<u8, Failure> {
    if args.command.is_some() && args.targets.len() > 1 {
        return Err(errors::usage("a command belongs to one run", "name only the run that `--command` belongs to"));
    }
    let finder = args.within.finder(connection)?;
    let mut targets = vec![];
    for word in &args.targets {
        targets.extend(look(&finder, word, args.command.as_deref()).await?);
    }
    if targets.is_empty() {
        args.output.many::<Value>(&[], String::new);
        return Ok(exit_codes::OK);
    }
    let list: String = targets.iter().map(|one| format!("  {}\n", one.state)).collect();
    output::message(&list);
    let question =
        if targets.len() == 1 { "cancel this?".to_owned() } else { format!("cancel these {}?", targets.len()) };
    if !args.confirm.ask(&question)? {
        return Ok(exit_codes::OK);
    }
    let mut all = vec![];
    for one in targets {
        all.push(end(&finder.client, one, args.reason.clone()).await?);
    }
    let values: Vec<&Value> = all.iter().map(|(value, _)| value).collect();
    args.output.many(&values, || all.iter().map(|(_, text)| text.as_str()).collect());
    Ok(exit_codes::OK)
}

/// Finds the target and its state, which is shown before the question. `None` if nothing runs there.
async fn look(finder: &Finder, word: &str, command: Option<&str>) -> Result<Option<CancelTarget>, Failure> {
    let client = &finder.client;
    if let Some(command) = command {
        let run = finder.run(word).await?;
        let command = finder.command(&run, command).await?;
        // A command of another run is not found, rather than cancelled by mistake.
        let found = client.get_command(&run, &command).await?;
        let state = format!("command {} · {}", found.command_id, found.state.as_str());
        let (target, command) = (Target::Run(run), Some(command));
        return Ok(Some(CancelTarget { target, command, state, is_idle_backend: false }));
    }
    let target = finder.any(word).await?;
    let (state, is_idle_backend) = match &target {
        Target::Run(id) => {
            let run = client.get_run(id).await?;
            if let Some(message) = nothing_runs(&run) {
                output::message(&message);
                return Ok(None);
            }
            let is_idle_backend = run.run.unfinished_commands == 0 && run.run.command_count > 0;
            let rest = match is_idle_backend {
                true => IDLE_BACKEND.to_owned(),
                false => output::count(run.run.unfinished_commands, "unfinished command"),
            };
            (format!("run {} · {} · {rest}", run.run.run_id, run_words(&run)), is_idle_backend)
        }
        Target::Session(key) => {
            let session = client.get_session(&key.id, &key.query()).await?;
            let (id, tenant) = (line(&session.session_id, 200), line(&session.tenant_id, 80));
            let Some(run) = session.active_run_id else {
                output::message(&format!("nothing runs in {id}\n"));
                return Ok(None);
            };
            let is_idle_backend = session.liveness.as_ref().is_some_and(|liveness| !liveness.active);
            let phase = match &session.liveness {
                _ if is_idle_backend => IDLE_BACKEND,
                Some(liveness) => phase_words(liveness.phase),
                None => "running",
            };
            (format!("session {id} of {tenant} · {phase} · {run}"), is_idle_backend)
        }
    };
    Ok(Some(CancelTarget { target, command: None, state, is_idle_backend }))
}

/// Why there is nothing to cancel: the run has ended, or all its turns have and no backend stays open for the next one. `None` if
/// there is something.
fn nothing_runs(view: &RunView) -> Option<String> {
    let (run, state) = (&view.run, view.standing.state);
    let is_idle = run.status == RunStatus::Pending && run.unfinished_commands == 0 && run.command_count > 0;
    let message = match state {
        RunState::Cancelled => "the run was cancelled".to_owned(),
        RunState::Blocked => "the run was blocked".to_owned(),
        _ => format!("the run {}", state.as_str()),
    };
    (run.status.is_terminal() || is_idle).then(|| format!("nothing to cancel: {message} ({})\n", run.run_id))
}

/// Cancels the target. Returns its new state as JSON and as text.
async fn end(client: &Client, target: CancelTarget, reason: Option<String>) -> Result<(Value, String), Failure> {
    let why = Cancel { reason: reason.clone() };
    if let Some(command) = &target.command {
        let command = client.cancel_command(command, &why).await?;
        let text = render(&command.command_id.to_string(), command.terminal.as_ref(), command.cancel_requested_at);
        return Ok((value(&command)?, text));
    }
    match &target.target {
        Target::Run(id) => {
            let run = client.cancel_run(id, &why).await?;
            let text = render(&run.run_id.to_string(), run.terminal.as_ref(), run.cancel_requested_at);
            Ok((value(&run)?, text))
        }
        Target::Session(SessionKey { id, tenant }) => {
            let control = ControlSession { action: "cancel".into(), reason, tenant_id: tenant.clone() };
            let session = client.control_session(id, &control).await?;
            let text =
                format!("{} {}\n", line(&session.session_id, 200), session_words(&session, target.is_idle_backend));
            Ok((value(&session)?, text))
        }
    }
}

/// What became of a session whose turn, or whose idle backend, was cancelled.
fn session_words(session: &SessionView, was_idle_backend: bool) -> &'static str {
    match (session.active_command_id, session.active_run_id) {
        (Some(_), _) => "cancelling: waiting for its runner to stop",
        (None, Some(_)) if was_idle_backend => "cancelling: waiting for the idle backend to stop",
        (None, None) if was_idle_backend => "cancelled: the idle backend was stopped",
        (None, _) => session.state.filter(|state| state.is_ended()).map_or("nothing runs", RunState::as_str),
    }
}

fn value<T: Serialize>(thing: &T) -> Result<Value, Failure> {
    serde_json::to_value(thing).map_err(Failure::internal)
}

fn render(id: &str, terminal: Option<&Terminal>, requested_at: Option<Timestamp>) -> String {
    match terminal {
        Some(terminal) => match &terminal.message {
            Some(message) => format!("{id} {}: {}\n", terminal.status.as_str(), line(message, 500)),
            None => format!("{id} {}\n", terminal.status.as_str()),
        },
        None if requested_at.is_some() => format!("{id} cancelling: waiting for its runner to stop\n"),
        None => format!("{id} not cancelled yet\n"),
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::kernel::runs::TerminalStatus;

    use super::*;
    use crate::commands::session_table::fixtures::session;

    #[test]
    fn a_run_without_work_has_nothing_to_cancel() {
        let run = |status: &str, state: &str, commands: (i64, i64)| -> RunView {
            serde_json::from_value(serde_json::json!({"runId": format!("run_{:032x}", 1), "sessionId": "s",
                "tenantId": "local", "projectId": "p", "workspaceRef": {"kind": "none"}, "providerId": "p",
                "backendProfile": "scripted", "executionPolicy": {"sandbox": "workspace-write", "network": "enabled",
                "approval": "never", "timeoutMs": 1, "secretScope": {}}, "traceSink": null, "status": status,
                "terminal": null, "lastSeq": 1, "commandCount": commands.0, "unfinishedCommands": commands.1,
                "leaseEpoch": 1, "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:00:00Z",
                "state": state, "openPermissions": 0}))
            .unwrap()
        };
        let idle = nothing_runs(&run("pending", "completed", (1, 0))).unwrap();
        assert!(idle.starts_with("nothing to cancel: the run completed (run_"), "{idle}");
        let ended = nothing_runs(&run("cancelled", "cancelled", (1, 0))).unwrap();
        assert!(ended.starts_with("nothing to cancel: the run was cancelled"), "{ended}");
        assert_eq!(nothing_runs(&run("pending", "waiting", (1, 1))), None);
        assert_eq!(nothing_runs(&run("running", "running", (1, 1))), None);
        assert_eq!(
            nothing_runs(&run("claimed", "completed", (1, 0))),
            None,
            "the backend stays open for the next turn"
        );
        assert_eq!(nothing_runs(&run("pending", "waiting", (0, 0))), None, "it could still be given work");
    }

    #[test]
    fn a_cancelled_session_shows_what_was_stopped() {
        let run = format!("run_{:032x}", 1);
        let words = |command: Option<&str>, run: Option<&str>, was_idle_backend| {
            let session = session(|body| {
                body["activeCommandId"] = command.into();
                body["activeRunId"] = run.into();
                body["state"] = "cancelled".into();
            });
            session_words(&session, was_idle_backend)
        };
        let command = format!("cmd_{:032x}", 1);
        assert_eq!(words(Some(&command), Some(&run), false), "cancelling: waiting for its runner to stop");
        assert_eq!(words(None, Some(&run), true), "cancelling: waiting for the idle backend to stop");
        assert_eq!(words(None, None, true), "cancelled: the idle backend was stopped");
        assert_eq!(words(None, None, false), "cancelled");
    }

    #[test]
    fn the_outcome_is_printed() {
        let at: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let terminal = |status, message: Option<&str>| Terminal {
            status,
            failure_kind: None,
            rule: None,
            message: message.map(str::to_owned),
            source: "manager".into(),
            seq: 1,
            at,
        };
        let cancelled = terminal(TerminalStatus::Cancelled, Some("cancelled on request"));
        assert_eq!(render("run_1", Some(&cancelled), Some(at)), "run_1 cancelled: cancelled on request\n");
        assert_eq!(render("run_1", Some(&terminal(TerminalStatus::Completed, None)), None), "run_1 completed\n");
        assert_eq!(render("run_1", None, Some(at)), "run_1 cancelling: waiting for its runner to stop\n");
    }
}
