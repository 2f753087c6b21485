//! Submitting to a session that may have a run already. An agent that is a program keeps its run for a while after a turn; a
//! prompt for the same session then goes on in that run, so that the same process takes it.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    kernel::{
        commands::CreateCommand,
        runs::{CreateRun, CreatedRun, Run},
    },
};
use serde_json::{Value, json};

use crate::errors;

/// The run with the command that was asked for, and the number of the run's last event before it.
pub async fn submit(client: &Client, request: &CreateRun) -> Result<(CreatedRun, i64), Failure> {
    let busy = match client.create_run(request).await {
        Ok(created) => return Ok((created, 0)),
        Err(failure) if failure.kind == FailureKind::SessionBusy => failure,
        Err(failure) => return Err(failure),
    };
    let details = busy.details.as_ref();
    let active = details.and_then(|details| details.get("activeRunId")?.as_str().map(str::to_owned));
    let (Some(run_id), Some(first)) = (active, &request.command) else { return Err(busy) };
    let Ok(run) = client.get_run(&run_id).await else { return Err(busy) };
    if let Some(hint) = differs(&run, request) {
        return Err(errors::with_hint(busy, hint));
    }
    let command = client.create_command(&run_id, &lowered(first, request)).await?;
    let before = run.last_seq;
    Ok((CreatedRun { run, command: Some(command), runner_job: None }, before))
}

/// Why the active run cannot take the request, as what to do about it. What was not asked for may be as it is.
fn differs(run: &Run, request: &CreateRun) -> Option<String> {
    let id = run.run_id;
    if run.unfinished_commands > 0 || run.cancel_requested_at.is_some() {
        return Some(format!("its run {id} is at work: wait for it, `ostler steer {id}` it, or use another session"));
    }
    let is = |asked: &Option<String>, has: &str| asked.as_deref().is_none_or(|asked| asked == has);
    let policy = request.execution_policy.as_ref().map(RawJson::to_value).unwrap_or_default();
    let allowed = |name: &str, has: Value| policy.get(name).is_none_or(|asked| *asked == has);
    let place = request.workspace_ref.as_ref().map(RawJson::to_value).unwrap_or_default();
    let other = [
        ("profile", is(&request.backend_profile, &run.backend_profile)),
        ("project", is(&request.project_id, &run.project_id)),
        ("provider", is(&request.provider_id, &run.provider_id)),
        ("workspace", place["kind"] == "none" || place == run.workspace_ref.to_value()),
        ("sandbox", allowed("sandbox", json!(run.execution_policy.sandbox))),
        ("approval policy", allowed("approval", json!(run.execution_policy.approval))),
    ];
    let (what, _) = other.into_iter().find(|(_, same)| !same)?;
    Some(format!(
        "its run {id} waits for another turn with another {what}: ask for the same, end it with `ostler cancel {id}`, \
         or wait until its runner is let go"
    ))
}

/// The command in a run that was made earlier: the time it may take is its own too, and one above the run's changes nothing.
fn lowered(first: &CreateCommand, request: &CreateRun) -> CreateCommand {
    let policy = request.execution_policy.as_ref().map(RawJson::to_value).unwrap_or_default();
    let mut payload = first.payload.to_value();
    if let Some(asked) = policy.get("timeoutMs") {
        payload["budgets"]["timeoutMs"] = asked.clone();
    }
    CreateCommand { payload: RawJson::of(&payload), ..first.clone() }
}
