//! Trials: an ordinary run with a short prompt shows whether a profile works.

use ostler_protocol::{
    Failure, RawJson, Rule,
    ids::ValidationId,
    kernel::{
        commands::{CommandType, CreateCommand},
        policy::Sandbox,
        provider_profiles::{ProfileOwner, ProfileScope, ValidateProfile, Validation, ValidationRecord, secret_ref},
        runs::CreateRun,
    },
};
use ostler_store as store;
use serde_json::json;

use super::{external, get, owners};
use crate::{
    app::App,
    auth::{Access, Principal},
    service::runs,
    traces::note_tenant,
};

/// The prompt of a trial, and how long it may take.
const PROMPT: &str = "Reply with the single word: ready";
const MS_MAX: i64 = 120_000;
/// The project and provider of a trial's run, unless the policy or the request names others.
const PROJECT: &str = "ostler/provider-profiles";
const PROVIDER: &str = "local";

/// Starts a trial of a profile: an ordinary run with a short prompt. Returns at once.
pub async fn validate(
    app: &App,
    caller: &Principal,
    profile: &str,
    request: ValidateProfile,
) -> Result<Validation, Failure> {
    Access::Provide.admit(caller)?;
    let profile = app.config.policy.profile(profile)?;
    let (owner, tenant_id) = trial_owner(app, caller, profile, request.tenant_id.as_deref()).await?;
    caller.may_provide(&owner)?;
    let scope = ProfileScope { tenant_id: owner.tenant_id().map(str::to_owned) };
    let found = get(app, caller, profile, &scope).await?;
    if !found.configured {
        let message = found.message.unwrap_or_else(|| "the profile is not configured".into());
        return Err(Failure::rule(Rule::ProfileSecretMissing, message));
    }
    let client = caller.as_client_of(&tenant_id);
    let created = runs::create(app, &client, trial_run(app, profile, tenant_id, request)).await?.value;
    let (Some(command), Some(job)) = (&created.command, &created.runner_job) else {
        return Err(Failure::internal("a run with a first command has a job"));
    };
    let record = ValidationRecord {
        validation_id: ValidationId::of(created.run.run_id),
        profile: found.profile,
        tenant_id: found.tenant_id,
        resource_version: found.resource_version,
        run_id: created.run.run_id,
        command_id: command.command_id,
        runner_job_id: job.runner_job_id,
        created_at: created.run.created_at,
    };
    store::kernel::provider_profiles::insert(&app.db, &record).await?;
    find(app, record.validation_id).await
}

/// The owner of the profile that is tried, and the tenant of the trial's run. The run finds the profile by its name as every
/// run does, so a tenant's profile is tried by a run of that tenant.
async fn trial_owner(
    app: &App,
    caller: &Principal,
    profile: &str,
    requested_tenant: Option<&str>,
) -> Result<(ProfileOwner, String), Failure> {
    let stored = app.secrets.list().await?;
    let is_tenants = |tenant_id: &str| stored.contains(&ProfileOwner::of(Some(tenant_id)).stored_name(profile));
    let is_operators = |tenant_id: &str| {
        owners::is_operators(&stored, profile) || (external::is_external(app, profile) && !is_tenants(tenant_id))
    };
    let owner = match (requested_tenant, caller.tenants()) {
        (Some(tenant_id), _) if is_operators(tenant_id) => {
            return Ok((ProfileOwner::Operator, tenant_id.to_owned()));
        }
        (Some(tenant_id), _) => ProfileOwner::of(Some(tenant_id)),
        (None, _) => owners::of_read(app, caller, profile, &ProfileScope::default()).await?,
    };
    let default = || app.config.policy.tenants.first().map_or("local", String::as_str);
    let tenant_id = owner.tenant_id().unwrap_or_else(default).to_owned();
    Ok((owner, tenant_id))
}

/// Read-only, short, and otherwise like any other run.
fn trial_run(app: &App, profile: &str, tenant_id: String, request: ValidateProfile) -> CreateRun {
    let policy = &app.config.policy;
    let first = |list: &[String], default: &str| list.first().map_or(default, String::as_str).to_owned();
    let scope = json!({"providerCredentials": [{"profile": profile, "secretRef": secret_ref(profile)}]});
    let timeout_ms = policy.ceiling.timeout_ms.min(MS_MAX);
    let execution = json!({"sandbox": Sandbox::ReadOnly, "timeoutMs": timeout_ms, "secretScope": scope});
    CreateRun {
        tenant_id: Some(tenant_id),
        project_id: Some(request.project_id.unwrap_or_else(|| first(&policy.projects, PROJECT))),
        workspace_ref: Some(RawJson::of(&json!({"kind": "none"}))),
        provider_id: Some(request.provider_id.unwrap_or_else(|| first(&policy.providers, PROVIDER))),
        backend_profile: Some(profile.to_owned()),
        execution_policy: Some(RawJson::of(&execution)),
        trace_sink: Some(RawJson::null()),
        idempotency_key: request.idempotency_key,
        command: Some(CreateCommand {
            command_type: CommandType::Turn,
            payload: RawJson::of(&json!({"prompt": PROMPT})),
            idempotency_key: None,
        }),
        ..CreateRun::default()
    }
}

/// The state of a trial: a fold of its run, which outlives this server. Another owner's trial is not found.
pub async fn get_validation(
    app: &App,
    caller: &Principal,
    profile: &str,
    validation_id: ValidationId,
) -> Result<Validation, Failure> {
    Access::Provide.admit(caller)?;
    let trial = find(app, validation_id).await?;
    let owner = ProfileOwner::of(trial.tenant_id.as_deref());
    if trial.profile == profile && caller.may_provide(&owner).is_ok() {
        owner.tenant_id().into_iter().for_each(note_tenant);
        return Ok(trial);
    }
    Err(Failure::not_found("validation"))
}

async fn find(app: &App, id: ValidationId) -> Result<Validation, Failure> {
    let trial = store::kernel::provider_profiles::get(&app.db, id).await?;
    trial.ok_or_else(|| Failure::not_found("validation"))
}
