//! Shell commands of clients. A command runs in the workspace, confined as the tools of agents are; followers see it, and the
//! agent gets its output with the next prompt.

use std::time::Duration;

use ostler_protocol::{
    Failure, FailureKind, Rule,
    daemon::shell::{RunShell, ShellResult, cut_output, mark_cut, shell_message},
    ids::SessionId,
    kernel::operations::{ChangeSessionOp, SessionChange},
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::shell::{self, ShellOutcome, ShellRequest},
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    lookup,
    notes::{self, Note},
    restores,
    sessions::RETRY_AFTER_MS,
};
use crate::state::DaemonState;

/// How long a command may take.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Size of the output that is returned, and of the rest that is read only to recognise secrets at its end.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
const REST_BYTES: usize = 4 * 1024;
/// Characters of the output that followers receive. Each may take six bytes in the event.
const FRAME_CHARS_MAX: usize = 32 * 1024;

/// Runs a command to its end. It is killed if the client hangs up.
pub(crate) async fn run(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &RunShell,
) -> Result<ShellResult, Failure> {
    app.accepting()?;
    let state = DaemonState::of(app);
    if !state.config.session_shell {
        let message = "shell commands are not enabled; start the server with --enable-session-shell";
        return Err(Failure::rule(Rule::SessionShellDisabled, message));
    }
    let workspace = state.workspace()?.clone();
    let required = || Failure::rule(Rule::ClientIdRequired, "only a client of the session may run a command");
    let client = client.ok_or_else(required)?;
    let open = lookup::controlled_session(app, caller, id, Some(client)).await?;
    let command = request.command()?.to_owned();
    restores::check_none(app, &open.session).await?;
    let full =
        || Failure::new(FailureKind::Overloaded, "too many shell commands run").detail("retryAfterMs", RETRY_AFTER_MS);
    let permit = state.shells.clone().try_acquire_owned().map_err(|_| full())?;
    let followers = Followers { caller: caller.clone(), session: open.session.session, client: client.to_owned() };
    let session_id = open.session.public_id();
    // Dropped with this request, whether it ends or its client hangs up.
    let (_wanted, unwanted) = oneshot::channel::<()>();
    app.to_the_end(move |app| async move {
        let _permit = permit;
        let shown = app.redactor.redact(&command).into_owned();
        let cwd = workspace.to_string_lossy().into_owned();
        let data = json!({"sessionId": session_id, "command": shown, "cwd": cwd});
        followers.send(&app, "user_shell_command", data).await?;
        let output_bytes_max = OUTPUT_BYTES_MAX + REST_BYTES;
        let request = ShellRequest { command, workspace, time_max: TIME_MAX, output_bytes_max };
        let unwanted = async { drop(unwanted.await) };
        let outcome = match shell::run(&app, request, unwanted).await {
            Ok(outcome) => outcome,
            Err(failure) => {
                let data = json!({"sessionId": session_id, "exitCode": null, "signal": null, "aborted": false,
                    "error": failure.message});
                followers.send(&app, "user_shell_result", data).await?;
                return Err(failure);
            }
        };
        report(&app, &followers, &session_id, &shown, outcome).await
    })
    .await
}

/// The session whose followers see a command, and the client that runs it.
struct Followers {
    caller: Principal,
    session: SessionId,
    client: String,
}

impl Followers {
    async fn send(&self, app: &App, frame: &'static str, data: Value) -> Result<(), Failure> {
        let note = Note { frame, data, client: Some(self.client.clone()) };
        notes::record(app, &self.caller, self.session, &note).await
    }
}

/// The output without secrets, and whether it was cut. It is redacted as a whole, because a secret may be cut at any place.
fn shown_output(app: &App, output: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(output).replace('\0', "");
    let mut shown = app.redactor.redact(&text).into_owned();
    if output.len() <= OUTPUT_BYTES_MAX {
        return (shown, false);
    }
    let end = shown.len().saturating_sub(REST_BYTES);
    shown.truncate((0..=end).rev().find(|end| shown.is_char_boundary(*end)).unwrap_or(0));
    (mark_cut(shown), true)
}

/// Records the end of a command for followers and for the agent.
async fn report(
    app: &App,
    followers: &Followers,
    session_id: &str,
    command: &str,
    outcome: ShellOutcome,
) -> Result<ShellResult, Failure> {
    let (output, output_truncated) = shown_output(app, &outcome.output);
    let aborted = outcome.is_aborted;
    let result = ShellResult { exit_code: outcome.exit_code, output, aborted, output_truncated };
    if !result.output.is_empty() {
        let (output, is_cut) = cut_output(&result.output, FRAME_CHARS_MAX);
        let mut update = json!({"sessionUpdate": "shell_output", "output": output, "_meta": {"source": "user-shell"}});
        if is_cut || output_truncated {
            update["outputTruncated"] = true.into();
        }
        followers.send(app, "session_update", json!({"sessionId": session_id, "update": update})).await?;
    }
    let data = json!({"sessionId": session_id, "exitCode": result.exit_code, "signal": outcome.signal,
        "aborted": result.aborted});
    followers.send(app, "user_shell_result", data).await?;
    let change = SessionChange::AddMessage { text: shell_message(command, &result) };
    let op = ChangeSessionOp { change, by: followers.caller.name() };
    app.try_submit(followers.session, None, op).await?;
    Ok(result)
}
