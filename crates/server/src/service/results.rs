//! Results: how a command ended, in one read whatever its length.

use ostler_protocol::{
    Failure, FailureKind,
    ids::{CommandId, RunId},
    kernel::{
        commands::CommandType,
        facts::ChangeFacts,
        fold::CommandFold,
        results::{ResultParts, RunResult},
        workspaces::{CHANGES_REMOVED, CommandDiff, WorkspaceChanges},
    },
};
use ostler_store::{self as store, kernel::results::ResultRow};
use serde::Deserialize;

use super::{provider_profiles, runner_jobs};
use crate::{app::App, auth::Principal};

/// The result of the named command, or of the run's latest turn.
pub async fn get(
    app: &App,
    caller: &Principal,
    run_id: RunId,
    command_id: Option<CommandId>,
) -> Result<RunResult, Failure> {
    app.visible_run(caller, run_id).await?;
    let row = store::kernel::results::get(&app.db, run_id, command_id).await?;
    let row = row.ok_or_else(|| Failure::not_found("run"))?;
    if command_id.is_some() && row.command.is_none() {
        return Err(Failure::not_found("command"));
    }
    let open_permissions = match row.run.open_permissions {
        0 => vec![],
        _ => {
            let all = store::kernel::permissions::list_open(&app.db, run_id).await?;
            let mine = |id| row.command.as_ref().is_none_or(|c| c.command_id == id);
            all.into_iter().filter(|p| mine(p.command_id)).collect()
        }
    };
    let (profile, tenant_id, job_id) =
        (row.run.backend_profile.clone(), row.run.tenant_id.clone(), row.run.standing_job_id);
    let mut result = RunResult::of(parts(row, open_permissions), app.now());
    provider_profiles::set_external_profile(app, &profile, &mut result.liveness);
    runner_jobs::set_other_workspace(app, job_id, &mut result.liveness).await?;
    runner_jobs::set_pod_reason(app, run_id, &mut result.liveness).await?;
    result.supervisor = result.liveness.supervisor();
    if result.failure_kind.is_some_and(may_be_the_profiles) {
        // For a command that changes the profile.
        result.profile_tenant_id = provider_profiles::owning_tenant(app, &tenant_id, &profile).await;
    }
    Ok(result)
}

/// The changes that the command's last attempt reported in the workspace. Empty if it reported none, and unknown if retention has
/// removed them.
pub async fn diff(app: &App, caller: &Principal, run_id: RunId, command_id: CommandId) -> Result<CommandDiff, Failure> {
    let run = app.visible_run(caller, run_id).await?;
    let command = store::kernel::commands::get(&app.db, command_id).await?;
    let command = command.filter(|command| command.run_id == run_id).ok_or_else(|| Failure::not_found("command"))?;
    let changes = match &command.fold.changes {
        None => WorkspaceChanges::default(),
        Some(reported) => {
            let event = store::kernel::events::get(&app.db, run.session, reported.session_seq).await?;
            match event.and_then(|event| event.payload) {
                Some(payload) => serde_json::from_str(&payload).unwrap_or_default(),
                None => removed(&reported.facts),
            }
        }
    };
    Ok(CommandDiff { run_id, command_id, changes })
}

/// What is left of changes after retention has removed their text: the counts.
fn removed(facts: &ChangeFacts) -> WorkspaceChanges {
    WorkspaceChanges {
        files_changed: facts.files_changed,
        bytes_added: facts.bytes_added,
        bytes_removed: facts.bytes_removed,
        lines_added: facts.lines_added,
        lines_removed: facts.lines_removed,
        ..WorkspaceChanges::unknown(CHANGES_REMOVED.into())
    }
}

#[derive(Deserialize)]
struct Text {
    text: Option<String>,
}

fn parts(
    row: ResultRow,
    open_permissions: Vec<ostler_protocol::kernel::permissions::PermissionRequest>,
) -> ResultParts {
    let steer = row.command.as_ref().is_some_and(|c| c.command_type == CommandType::Steer);
    let target: Option<CommandFold> =
        row.target_fold.filter(|_| steer).and_then(|text| serde_json::from_str(&text).ok());
    let reply: Option<Text> = row.reply_payload.and_then(|text| serde_json::from_str(&text).ok());
    ResultParts {
        run: row.run,
        command: row.command,
        lease: row.lease,
        open_permissions,
        reply_text: reply.and_then(|reply| reply.text),
        target_last_seq: target.map(|fold| fold.last_seq),
        targeting: row.targeting,
        session_seq: row.session_seq,
        chain_head: row.chain_head,
        payloads_removed_at: row.payloads_removed_at,
    }
}

/// Whether a failure of this kind may be mended by a change of the profile. Its owner is looked up for no other one.
fn may_be_the_profiles(kind: FailureKind) -> bool {
    use FailureKind::{BackendFailed, InfraFailed, ProviderAuthFailed, ProviderUnavailable, SecretUnavailable};
    matches!(kind, BackendFailed | InfraFailed | ProviderAuthFailed | ProviderUnavailable | SecretUnavailable)
}
