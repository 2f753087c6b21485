//! Submits a turn to a session that may already have an active run. A backend process keeps its run for a while after a turn;
//! the next prompt of the session is then submitted to that run, so that the same process handles it.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    kernel::{
        commands::CreateCommand,
        run_views::RunView,
        runs::{CreateRun, CreatedRun, Run, UpdateRun},
    },
};
use serde_json::{Value, json};

use crate::{errors, terminal::output::line};

/// Returns the run with the submitted command, and the number of the run's last event before it.
pub(crate) async fn submit(client: &Client, request: &CreateRun) -> Result<(CreatedRun, i64), Failure> {
    let busy = match client.create_run(request).await {
        Ok(created) => return Ok((created, 0)),
        Err(failure) if failure.kind == FailureKind::SessionBusy => failure,
        Err(failure) if failure.broken_rule() == Some(Rule::TenantAllowList) => {
            return Err(with_tenants(client, failure).await);
        }
        Err(failure) => return Err(failure),
    };
    let details = busy.details.as_ref();
    let active = details.and_then(|details| details.get("activeRunId")?.as_str().map(str::to_owned));
    let (Some(run_id), Some(first)) = (active, &request.command) else { return Err(busy) };
    let Ok(RunView { run, .. }) = client.get_run(&run_id).await else { return Err(busy) };
    if let Some(hint) = mismatch(&run, request) {
        return Err(errors::with_hint(busy, hint));
    }
    let command = client.create_command(&run_id, &with_timeout(first, request)).await?;
    let before = run.last_seq;
    if let Some(labels) = &request.labels {
        let labels = labels.iter().map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).collect();
        client.update_run(&run_id, &UpdateRun { labels: Some(labels) }).await?;
    }
    Ok((CreatedRun { run, command: Some(command), runner_job: None }, before))
}

/// Adds the tenants that the caller may name. If they cannot be read, the hint of the rule stays.
async fn with_tenants(client: &Client, failure: Failure) -> Failure {
    let known = client.caller().await.map(|caller| caller.known_tenants).unwrap_or_default();
    if known.is_empty() {
        return failure;
    }
    let known = line(&known.join(", "), 400);
    let hint = format!("your tenants are {known}; the operator adds others to `policy.tenants` of the server's config");
    errors::with_hint(failure, hint)
}

/// If the active run cannot take the request: a hint with the reason. Only what was requested explicitly has to match.
fn mismatch(run: &Run, request: &CreateRun) -> Option<String> {
    let id = run.run_id;
    if run.unfinished_commands > 0 || run.cancel_requested_at.is_some() {
        return Some(format!("its run {id} is busy: wait for it, `ostler steer {id}` it, or use another session"));
    }
    let is =
        |requested: &Option<String>, current: &str| requested.as_deref().is_none_or(|requested| requested == current);
    let policy = request.execution_policy.as_ref().map(RawJson::to_value).unwrap_or_default();
    let allowed = |name: &str, current: Value| policy.get(name).is_none_or(|requested| *requested == current);
    let workspace = request.workspace_ref.as_ref().map(RawJson::to_value).unwrap_or_default();
    let other = [
        ("profile", is(&request.backend_profile, &run.backend_profile)),
        ("project", is(&request.project_id, &run.project_id)),
        ("provider", is(&request.provider_id, &run.provider_id)),
        ("workspace", workspace["kind"] == "none" || workspace == run.workspace_ref.to_value()),
        ("sandbox", allowed("sandbox", json!(run.execution_policy.sandbox))),
        ("approval policy", allowed("approval", json!(run.execution_policy.approval))),
    ];
    let (what, _) = other.into_iter().find(|(_, same)| !same)?;
    Some(format!(
        "its run {id} is kept for another turn, with another {what}: request the same, end it with `ostler cancel {id}`, \
         or wait until its runner is released"
    ))
}

/// The command for an existing run: the timeout becomes a budget of the command. One above the run's has no effect.
fn with_timeout(first: &CreateCommand, request: &CreateRun) -> CreateCommand {
    let policy = request.execution_policy.as_ref().map(RawJson::to_value).unwrap_or_default();
    let mut payload = first.payload.to_value();
    if let Some(timeout) = policy.get("timeoutMs") {
        payload["budgets"]["timeoutMs"] = timeout.clone();
    }
    CreateCommand { payload: RawJson::of(&payload), ..first.clone() }
}
