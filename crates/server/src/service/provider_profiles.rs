//! Provider profiles: list, get, delete, put the credential or the config, and try a profile with an ordinary run. Values go
//! in here and come out only towards an agent's home.

use std::{collections::BTreeMap, time::Duration};

use ostler_protocol::{
    Failure, FailureKind, RawJson,
    commands::{CommandType, CreateCommand},
    ids::ValidationId,
    kernel::DismissOp,
    limits::PROFILES_MAX,
    policy::{ProviderCredential, Sandbox, SecretRef},
    provider_profiles::{
        AUTH, AgentConfig, AgentKind, BUILT_IN, CONFIG, Credential, ProfileConfig, ProfileConfigText, ProviderProfile,
        ProviderProfileList, PutConfig, PutCredential, ValidateProfile, Validation, ValidationRecord, profile_of,
        secret_name, secret_ref,
    },
    redaction::Redactor,
    runs::CreateRun,
};
use ostler_runner::agent::acp;
use ostler_store as store;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::{leases, runs};
use crate::{
    app::{App, RunRef, store_failure},
    auth::{Access, Principal},
    secrets::Secret,
};

/// What a trial asks of the agent, and how long it may take.
const TRIAL_PROMPT: &str = "Reply with the single word: ready";
const TRIAL_MS_MAX: i64 = 120_000;
/// Between two attempts to let runners go while the store does not answer.
const RECALL_PAUSE: Duration = Duration::from_millis(500);
/// Where a trial's run belongs unless the policy or the caller says otherwise.
const TRIAL_PROJECT: &str = "ostler/provider-profiles";
const TRIAL_PROVIDER: &str = "local";

pub async fn list(app: &App, caller: &Principal) -> Result<ProviderProfileList, Failure> {
    Access::Provide.admit(caller)?;
    let stored = app.secrets.list().await?;
    let dynamic = stored.iter().filter_map(|name| profile_of(name)).filter(|name| !BUILT_IN.contains(name));
    let mut latest = latest_trials(app).await?;
    let mut provider_profiles = vec![];
    for profile in BUILT_IN.into_iter().chain(dynamic) {
        let secret = app.secrets.get(&secret_name(profile)).await;
        provider_profiles.push(describe(profile, secret, latest.remove(profile)));
    }
    Ok(ProviderProfileList { provider_profiles })
}

pub async fn get(app: &App, caller: &Principal, profile: &str) -> Result<ProviderProfile, Failure> {
    Access::Provide.admit(caller)?;
    let profile = app.config.policy.profile(profile)?;
    let secret = app.secrets.get(&secret_name(profile)).await;
    if matches!(secret, Ok(None)) && !BUILT_IN.contains(&profile) {
        return Err(Failure::not_found("provider profile"));
    }
    Ok(describe(profile, secret, latest_trials(app).await?.remove(profile)))
}

/// Lets the profile's runners go on every server: what they were given is not what it is now. Those at work finish first.
/// The secret is changed by now, and the same change again changes nothing: a store that fails here is tried again until
/// it answers.
async fn recall(app: &App, profile: &str) {
    if try_recall(app, profile).await.is_ok() {
        return;
    }
    let (app, profile) = (app.clone(), profile.to_owned());
    tokio::spawn(async move {
        let recalled = async {
            while try_recall(&app, &profile).await.is_err() {
                tokio::time::sleep(RECALL_PAUSE).await;
            }
        };
        tokio::select! {
            () = recalled => {}
            () = app.stopped() => {}
        }
    });
}

async fn try_recall(app: &App, profile: &str) -> Result<(), Failure> {
    let held = store::leases::list_by_profile(&app.db, profile).await.map_err(store_failure)?;
    leases::dismiss(app, held, DismissOp { only_if_idle: false }).await
}

/// Idempotent. Agents at work keep what they were given until their work is done.
pub async fn delete(app: &App, caller: &Principal, profile: &str) -> Result<ProviderProfile, Failure> {
    Access::Provide.admit(caller)?;
    let profile = app.config.policy.profile(profile)?;
    app.secrets.delete(&secret_name(profile)).await?;
    recall(app, profile).await;
    tracing::info!(profile, by = caller.name(), "a provider profile's secret was deleted");
    Ok(describe(profile, Ok(None), latest_trials(app).await?.remove(profile)))
}

pub async fn put_credential(
    app: &App,
    caller: &Principal,
    profile: &str,
    asked: PutCredential,
) -> Result<ProviderProfile, Failure> {
    let (version, name) = (asked.resource_version.clone(), profile.to_owned());
    change(app, caller, profile, version, move |credential| credential.put(&name, &asked)).await
}

pub async fn put_config(
    app: &App,
    caller: &Principal,
    profile: &str,
    asked: PutConfig,
) -> Result<ProviderProfile, Failure> {
    change(app, caller, profile, asked.resource_version, move |credential| credential.put_config(&asked.config)).await
}

pub async fn get_config(app: &App, caller: &Principal, profile: &str) -> Result<ProfileConfigText, Failure> {
    Access::Provide.admit(caller)?;
    let profile = app.config.policy.profile(profile)?;
    let secret = app.secrets.get(&secret_name(profile)).await?.ok_or_else(|| Failure::not_found("config"))?;
    let config = secret.credential.text(CONFIG).ok_or_else(|| Failure::not_found("config"))?;
    Ok(ProfileConfigText {
        profile: profile.to_owned(),
        config: config.to_owned(),
        config_hash_suffix: secret.credential.hash_suffix(CONFIG).unwrap_or_default(),
        resource_version: secret.resource_version,
    })
}

/// Changes a profile's secret, whole or not at all. A change that changes nothing keeps the version.
async fn change(
    app: &App,
    caller: &Principal,
    profile: &str,
    expected: Option<String>,
    make: impl FnOnce(Credential) -> Result<Credential, Failure> + Send + 'static,
) -> Result<ProviderProfile, Failure> {
    Access::Provide.admit(caller)?;
    let profile = app.config.policy.profile(profile)?;
    if profile == "scripted" {
        return Err(Failure::invalid("profile-scripted", "the scripted agent has neither credential nor config"));
    }
    let name = secret_name(profile);
    check_room(app, &name).await?;
    let (owned, app_too) = (profile.to_owned(), app.clone());
    let changed = app
        .secrets
        .update(&name, move |known| {
            check_version(known, expected.as_deref())?;
            let before = known.map(|secret| secret.credential.clone()).unwrap_or_default();
            let credential = make(before.clone())?;
            check_shown(&credential, &owned)?;
            // Before it is kept: no agent may have it sooner than we know it.
            learn(&app_too, &credential);
            let hashes =
                |of: &Credential| of.keys().into_iter().map(|key| (of.hash_suffix(&key), key)).collect::<Vec<_>>();
            let same = known.is_some() && hashes(&before) == hashes(&credential);
            let resource_version = app_too.ids.body().simple().to_string();
            Ok((!same).then(|| Secret { resource_version, updated_at: app_too.now(), credential }))
        })
        .await?;
    if changed {
        recall(app, profile).await;
    }
    tracing::info!(profile, by = caller.name(), "a provider profile's secret was set");
    get(app, caller, profile).await
}

async fn check_room(app: &App, name: &str) -> Result<(), Failure> {
    let names = app.secrets.list().await?;
    if names.len() < PROFILES_MAX + BUILT_IN.len() || names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(Failure::rule(FailureKind::StateConflict, "profiles-max", format!("there are {PROFILES_MAX} profiles already")))
}

fn check_version(known: Option<&Secret>, expected: Option<&str>) -> Result<(), Failure> {
    let version = known.map(|secret| secret.resource_version.as_str());
    if expected.is_none() || expected == version {
        return Ok(());
    }
    let message = "the profile has been changed meanwhile; read it again";
    Err(Failure::rule(FailureKind::StateConflict, "resource-version", message).detail("resourceVersion", version))
}

/// A command and a URL are seen by others: in lists of processes, in logs. A key may not stand there.
fn check_shown(credential: &Credential, profile: &str) -> Result<(), Failure> {
    let config = credential.config(profile).ok();
    let shown = match config.as_ref().map(|config| &config.agent) {
        Some(AgentConfig::Acp { command, .. }) => command.join(" "),
        Some(AgentConfig::Model { base_url, .. }) => base_url.clone(),
        _ => return Ok(()),
    };
    let values = credential.values();
    let values: Vec<_> = values.iter().map(ExposeSecret::expose_secret).collect();
    if Redactor::new(&values).redact(&shown) == shown {
        return Ok(());
    }
    let message = "a command or URL of [ostler] holds a credential; put it into auth.json and name it in ostler.files";
    Err(Failure::invalid("config-credential", message))
}

/// From now on its values are found in whatever an agent says.
fn learn(app: &App, credential: &Credential) {
    let values = credential.values();
    app.redactor.learn(values.iter().map(ExposeSecret::expose_secret));
}

/// Learns every value that is kept. Run once at start; a secret that cannot be opened is for its operator to mend.
pub async fn learn_all(app: &App) -> Result<(), Failure> {
    for name in app.secrets.list().await? {
        match app.secrets.get(&name).await {
            Ok(secret) => learn(app, &secret.map(|secret| secret.credential).unwrap_or_default()),
            Err(failure) => tracing::warn!(%failure, "a provider profile's secret cannot be used"),
        }
    }
    Ok(())
}

fn describe(profile: &str, secret: Result<Option<Secret>, Failure>, trial: Option<Validation>) -> ProviderProfile {
    let (secret, broken) = match secret {
        Ok(secret) => (secret, None),
        Err(failure) => (None, Some(failure)),
    };
    let credential = secret.as_ref().map(|secret| secret.credential.clone()).unwrap_or_default();
    let ready = broken.map_or_else(|| credential.home(profile).map(|(config, _)| config.agent), Err);
    let missing = ready.as_ref().ok().and_then(missing_program);
    let resource_version = secret.as_ref().map(|secret| secret.resource_version.clone());
    let tried = trial.as_ref().filter(|trial| trial.resource_version == resource_version);
    let keys = if secret.is_some() { credential.keys() } else { secret_ref(profile).keys };
    ProviderProfile {
        profile: profile.to_owned(),
        built_in: BUILT_IN.contains(&profile),
        agent: match &ready {
            Ok(agent) => agent.kind(),
            Err(_) if profile == "model" => AgentKind::Model,
            Err(_) => credential.config(profile).map_or(AgentKind::Codex, |config| config.agent.kind()),
        },
        secret_ref: SecretRef { name: secret_name(profile), keys },
        configured: ready.is_ok(),
        resource_version: resource_version.clone(),
        credential_hash_suffix: credential.hash_suffix(AUTH),
        config_hash_suffix: credential.hash_suffix(CONFIG),
        updated_at: secret.as_ref().map(|secret| secret.updated_at),
        failure_kind: ready
            .as_ref()
            .err()
            .map(|_| FailureKind::SecretUnavailable)
            .or(missing.is_some().then_some(FailureKind::InfraFailed))
            .or(tried.and_then(|t| t.failure_kind)),
        message: ready
            .err()
            .map(|failure| failure.message)
            .or(missing)
            .or(tried.and_then(|trial| trial.message.clone())),
        validation: trial.map(|trial| trial.summary()),
    }
}

/// What is wrong with the program of a profile that brings its own, as far as it can be seen from here.
fn missing_program(agent: &AgentConfig) -> Option<String> {
    let AgentConfig::Acp { command, .. } = agent else { return None };
    acp::program::find(command, std::env::var_os("PATH").as_deref()).err()
}

async fn latest_trials(app: &App) -> Result<BTreeMap<String, Validation>, Failure> {
    let latest = store::provider_profiles::list_latest(&app.db).await.map_err(store_failure)?;
    Ok(latest.into_iter().map(|trial| (trial.profile.clone(), trial)).collect())
}

/// Whether a run of this profile finds what its agent needs. Asked before anything is started for it.
pub async fn check_ready(app: &App, profile: &str) -> Result<(), Failure> {
    if needs_none(app, profile) {
        return Ok(());
    }
    outfit(app, profile).await.map(drop)
}

/// The same for another turn of a run, if the runner that will be started for it is ours: somebody else's brings what it
/// needs.
pub async fn check_turn(app: &App, run: &RunRef) -> Result<(), Failure> {
    if needs_none(app, &run.backend_profile) || runs::read(app, run.run_id).await?.standing_job_id.is_none() {
        return Ok(());
    }
    outfit(app, &run.backend_profile).await.map(drop)
}

/// A profile that needs no credential needs it named all the same once it has one.
pub async fn check_named(app: &App, profile: &str, named: &[ProviderCredential]) -> Result<(), Failure> {
    if profile == "scripted" || !named.is_empty() || !needs_none(app, profile) {
        return Ok(());
    }
    let secret = app.secrets.get(&secret_name(profile)).await?;
    if secret.is_none_or(|secret| secret.credential.text(AUTH).is_none()) {
        return Ok(());
    }
    let message = format!("backendProfile {profile:?} has a credential; the run must name it in secretScope");
    Err(Failure::rule(FailureKind::SecretUnavailable, "provider-credential-required", message))
}

/// Whether a run of the profile has a credential to name.
pub async fn has_credential(app: &App, profile: &str) -> Result<bool, Failure> {
    if profile == "scripted" {
        return Ok(false);
    }
    let secret = app.secrets.get(&secret_name(profile)).await?;
    Ok(!needs_none(app, profile) || secret.is_some_and(|secret| secret.credential.text(AUTH).is_some()))
}

fn needs_none(app: &App, profile: &str) -> bool {
    app.config.policy.credential_free_profiles.iter().any(|name| name == profile)
}

/// What a profile's config says, and the files of its agent's home.
pub async fn outfit(app: &App, profile: &str) -> Result<(ProfileConfig, BTreeMap<String, SecretString>), Failure> {
    let secret = app.secrets.get(&secret_name(profile)).await?;
    if secret.is_none() && !BUILT_IN.contains(&profile) {
        let message = format!("there is no profile {profile:?}");
        return Err(Failure::rule(FailureKind::SecretUnavailable, "profile-unknown", message));
    }
    let credential = secret.map(|secret| secret.credential).unwrap_or_default();
    learn(app, &credential);
    credential.home(profile)
}

/// Tries a profile: an ordinary run with a short prompt. Answers at once.
pub async fn validate(
    app: &App,
    caller: &Principal,
    profile: &str,
    asked: ValidateProfile,
) -> Result<Validation, Failure> {
    let known = get(app, caller, profile).await?;
    if !known.configured {
        let message = known.message.unwrap_or_else(|| "the profile is not configured".into());
        return Err(Failure::rule(FailureKind::SecretUnavailable, "profile-secret-missing", message));
    }
    let (created, _) = runs::create(app, caller, trial_run(app, caller, &known.profile, asked)).await?;
    let (Some(command), Some(job)) = (&created.command, &created.runner_job) else {
        return Err(Failure::internal("a run with a first command has a job"));
    };
    let record = ValidationRecord {
        validation_id: ValidationId::of(created.run.run_id),
        profile: known.profile,
        resource_version: known.resource_version,
        run_id: created.run.run_id,
        command_id: command.command_id,
        runner_job_id: job.runner_job_id,
        created_at: created.run.created_at,
    };
    store::provider_profiles::insert(&app.db, &record).await.map_err(store_failure)?;
    find_trial(app, record.validation_id).await
}

/// Read-only, short, and otherwise like any other run.
fn trial_run(app: &App, caller: &Principal, profile: &str, asked: ValidateProfile) -> CreateRun {
    let policy = &app.config.policy;
    let first = |list: &[String], default: &str| list.first().map_or(default, String::as_str).to_owned();
    let tenant = || first(caller.tenants().unwrap_or(&policy.tenants), "local");
    let scope = json!({"providerCredentials": [{"profile": profile, "secretRef": secret_ref(profile)}]});
    let timeout_ms = policy.ceiling.timeout_ms.min(TRIAL_MS_MAX);
    let execution = json!({"sandbox": Sandbox::ReadOnly, "timeoutMs": timeout_ms, "secretScope": scope});
    CreateRun {
        tenant_id: Some(asked.tenant_id.unwrap_or_else(tenant)),
        project_id: Some(asked.project_id.unwrap_or_else(|| first(&policy.projects, TRIAL_PROJECT))),
        workspace_ref: Some(RawJson::of(&json!({"kind": "none"}))),
        provider_id: Some(asked.provider_id.unwrap_or_else(|| first(&policy.providers, TRIAL_PROVIDER))),
        backend_profile: Some(profile.to_owned()),
        execution_policy: Some(RawJson::of(&execution)),
        trace_sink: Some(RawJson::null()),
        idempotency_key: asked.idempotency_key,
        command: Some(CreateCommand {
            command_type: CommandType::Turn,
            payload: RawJson::of(&json!({"prompt": TRIAL_PROMPT})),
            idempotency_key: None,
        }),
        ..CreateRun::default()
    }
}

/// How a trial stands: a fold of its run, which outlives this server.
pub async fn get_validation(
    app: &App,
    caller: &Principal,
    profile: &str,
    validation_id: ValidationId,
) -> Result<Validation, Failure> {
    Access::Provide.admit(caller)?;
    let trial = find_trial(app, validation_id).await?;
    caller.may_read(&app.run_ref(trial.run_id).await?)?;
    if trial.profile == profile { Ok(trial) } else { Err(Failure::not_found("validation")) }
}

async fn find_trial(app: &App, id: ValidationId) -> Result<Validation, Failure> {
    let trial = store::provider_profiles::get(&app.db, id).await.map_err(store_failure)?;
    trial.ok_or_else(|| Failure::not_found("validation"))
}
