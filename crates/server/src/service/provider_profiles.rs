//! Provider profiles: list, get, delete, put the credential or the config. Values are written here and
//! read only into an agent's home. Each profile has an owner, the operator or one tenant; `docs/profiles-threat-model.md` has the permissions.

mod changes;
mod external;
mod owners;
mod programs;
mod readiness;
mod trials;

use std::{collections::BTreeMap, time::Duration};

use ostler_protocol::{
    Failure, FailureKind, Rule,
    kernel::{
        backends::CodexProgram,
        launching::is_worth_repeating,
        operations::DismissOp,
        policy::SecretRef,
        provider_profiles::{
            AUTH, AgentConfig, AgentKind, BUILT_IN, CONFIG, Credential, ProfileAction, ProfileConfigText, ProfileOwner,
            ProfileScope, ProviderProfile, ProviderProfileList, PutConfig, PutCredential, Validation, secret_name,
            secret_ref,
        },
    },
    limits::{PROFILES_MAX, PROFILES_PER_TENANT_MAX},
    redaction::Redactor,
};
use ostler_store as store;
use secrecy::ExposeSecret;
use tokio::runtime::Handle;

use super::leases;
use crate::{
    app::App,
    auth::{Access, Principal},
    secrets::Secret,
};
use changes::AuditedChange;
pub use changes::list as list_changes;
pub use external::{is_external, note as external_note, set_external_profile};
pub(super) use owners::{is_shown, owning_tenant};
pub(super) use programs::codex as codex_program;
pub use readiness::{
    Furnishing, ModelFacts, check_named, check_ready, check_still_ready, check_turn, furnish, furnish_run,
    has_credential, model_facts,
};
pub use trials::{get_validation, validate};

/// Pause between two attempts to dismiss runners while the store does not respond: the first, and the longest.
const RECALL_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The operator's profiles, and those of the caller's tenants.
pub async fn list(app: &App, caller: &Principal, scope: &ProfileScope) -> Result<ProviderProfileList, Failure> {
    Access::Inspect.admit(caller)?;
    let tenants = caller.tenants_within(scope.tenant_id.as_deref())?;
    let tenants = tenants.unwrap_or_else(|| app.config.policy.tenants.clone());
    let mut provider_profiles = list_of(app, caller, &tenants).await?;
    provider_profiles.retain(|profile| is_shown(app, caller, profile));
    Ok(ProviderProfileList { provider_profiles })
}

/// The operator's profiles, and those of these tenants, as the caller sees them.
pub(super) async fn list_of(
    app: &App,
    caller: &Principal,
    tenants: &[String],
) -> Result<Vec<ProviderProfile>, Failure> {
    let stored = app.secrets.list().await?;
    let codex = programs::codex(app).await;
    let mut latest = latest_trials(app).await?;
    let own = stored.iter().filter_map(|name| ProfileOwner::Operator.profile_of(name));
    let external = app.config.runner.external_profiles.iter().map(String::as_str);
    let mut operators = BUILT_IN.to_vec();
    own.chain(external.filter(|name| *name != "scripted")).for_each(|name| {
        if !operators.contains(&name) {
            operators.push(name);
        }
    });
    let mut found: Vec<_> = operators.into_iter().map(|profile| (ProfileOwner::Operator, profile)).collect();
    for tenant_id in tenants {
        let owner = ProfileOwner::of(Some(tenant_id));
        found.extend(stored.iter().filter_map(|name| Some((owner.clone(), owner.profile_of(name)?))));
    }
    let mut provider_profiles = vec![];
    for (owner, profile) in found {
        let secret = app.secrets.get(&owner.stored_name(profile)).await;
        let trial = latest.remove(&(owner.tenant_id().map(str::to_owned), profile.to_owned()));
        let shadowed = owner != ProfileOwner::Operator && owners::is_operators(&stored, profile);
        let described = describe(app, &codex, &owner, profile, secret, trial, shadowed);
        provider_profiles.push(external::with_note(app, caller, seen_by(caller, &owner, described)));
    }
    Ok(provider_profiles)
}

pub async fn get(
    app: &App,
    caller: &Principal,
    profile: &str,
    scope: &ProfileScope,
) -> Result<ProviderProfile, Failure> {
    Access::Inspect.admit(caller)?;
    let profile = app.config.policy.profile(profile)?;
    let owner = owners::of_read(app, caller, profile, scope).await?;
    let secret = app.secrets.get(&owner.stored_name(profile)).await;
    let is_operators = BUILT_IN.contains(&profile) || external::is_external(app, profile);
    if matches!(secret, Ok(None)) && !(owner == ProfileOwner::Operator && is_operators) {
        return Err(Failure::not_found("provider profile"));
    }
    let described = described(app, &owner, profile, secret).await?;
    Ok(external::with_note(app, caller, seen_by(caller, &owner, described)))
}

/// The profile as its manager sees it.
async fn described(
    app: &App,
    owner: &ProfileOwner,
    profile: &str,
    secret: Result<Option<Secret>, Failure>,
) -> Result<ProviderProfile, Failure> {
    let codex = programs::codex(app).await;
    let key = (owner.tenant_id().map(str::to_owned), profile.to_owned());
    let trial = latest_trials(app).await?.remove(&key);
    let shadowed = *owner != ProfileOwner::Operator && owners::is_operators(&app.secrets.list().await?, profile);
    Ok(describe(app, &codex, owner, profile, secret, trial, shadowed))
}

/// Callers who may use a profile and not manage it see whether it can be used, and no more.
fn seen_by(caller: &Principal, owner: &ProfileOwner, profile: ProviderProfile) -> ProviderProfile {
    if caller.may_provide(owner).is_ok() {
        return profile;
    }
    let message = (!profile.ready).then(|| "the profile is not ready; its owner can see why".to_owned());
    ProviderProfile {
        secret_ref: secret_ref(&profile.profile),
        resource_version: None,
        credential_hash_suffix: None,
        config_hash_suffix: None,
        updated_at: None,
        validation: None,
        failure_kind: profile.failure_kind.filter(|_| !profile.ready),
        message,
        ..profile
    }
}

/// Dismisses the profile's runners on every server, because they were started with the previous secret. Those at work
/// finish first. The secret is already stored and the same change again changes nothing, so a store that fails here is
/// tried again in the background, less and less often, until it responds. Runners whose rows cannot be read are left alone.
async fn recall(app: &App, owner: &ProfileOwner, profile: &str) {
    if is_recalled(app, owner, profile).await {
        return;
    }
    let (app, owner, profile) = (app.clone(), owner.clone(), profile.to_owned());
    tokio::spawn(async move {
        let recalled = async {
            let mut pause = RECALL_PAUSE.0;
            loop {
                tokio::time::sleep(pause).await;
                if is_recalled(&app, &owner, &profile).await {
                    break;
                }
                pause = (pause * 2).min(RECALL_PAUSE.1);
            }
        };
        tokio::select! {
            () = recalled => {}
            () = app.stopped() => {}
        }
    });
}

/// False if another attempt is needed.
async fn is_recalled(app: &App, owner: &ProfileOwner, profile: &str) -> bool {
    let Err(failure) = try_recall(app, owner, profile).await else { return true };
    let is_final = !is_worth_repeating(&failure);
    if is_final {
        tracing::error!(%failure, cause = failure.cause.as_deref(), profile, "the runners of a changed profile could not be listed");
    }
    is_final
}

async fn try_recall(app: &App, owner: &ProfileOwner, profile: &str) -> Result<(), Failure> {
    let held = store::kernel::leases::list_by_profile(&app.db, profile, owner.tenant_id()).await?;
    leases::dismiss(app, held, DismissOp { only_if_idle: false }).await
}

/// Idempotent. Running agents keep the deleted secret until their work is done.
pub async fn delete(
    app: &App,
    caller: &Principal,
    profile: &str,
    scope: &ProfileScope,
) -> Result<ProviderProfile, Failure> {
    let owner = owners::of_write(caller, scope)?;
    let profile = app.config.policy.profile(profile)?;
    let name = owner.stored_name(profile);
    // A secret that cannot be opened can still be deleted.
    let before = match app.secrets.get(&name).await {
        Ok(secret) => secret.map(|secret| secret.credential),
        Err(_) => Some(Credential::default()),
    };
    if before.is_none() && owner != ProfileOwner::Operator && !is_deleted(app, &owner, profile).await? {
        check_name(app, &owner, profile).await?;
    }
    if let Some(before) = before {
        AuditedChange::new(caller, &owner, profile, ProfileAction::Deleted).record(app, &before, None).await?;
    }
    app.secrets.delete(&name).await?;
    recall(app, &owner, profile).await;
    // Not shadowed: a deleted profile conflicts with no profile of the operator.
    let key = (owner.tenant_id().map(str::to_owned), profile.to_owned());
    let codex = programs::codex(app).await;
    Ok(describe(app, &codex, &owner, profile, Ok(None), latest_trials(app).await?.remove(&key), false))
}

/// Whether the tenant had a profile of this name, which has been deleted: then deleting it again changes nothing.
async fn is_deleted(app: &App, owner: &ProfileOwner, profile: &str) -> Result<bool, Failure> {
    let Some(tenant_id) = owner.tenant_id() else { return Ok(false) };
    let owners = store::kernel::provider_profiles::Owners::Tenants(vec![tenant_id.to_owned()]);
    let changes = store::kernel::provider_profiles::list_changes(&app.db, &owners, Some(profile), None, 1).await;
    Ok(!changes?.is_empty())
}

pub async fn put_credential(
    app: &App,
    caller: &Principal,
    profile: &str,
    scope: &ProfileScope,
    request: PutCredential,
) -> Result<ProviderProfile, Failure> {
    let owner = owners::of_write(caller, scope)?;
    let change = AuditedChange::new(caller, &owner, profile, ProfileAction::CredentialSet);
    let (version, name) = (request.resource_version.clone(), profile.to_owned());
    apply(app, change, version, move |credential| Ok((credential.put(&name, &request)?, Dropped::No))).await
}

pub async fn put_config(
    app: &App,
    caller: &Principal,
    profile: &str,
    scope: &ProfileScope,
    request: PutConfig,
) -> Result<ProviderProfile, Failure> {
    let owner = owners::of_write(caller, scope)?;
    let change = AuditedChange::new(caller, &owner, profile, ProfileAction::ConfigSet);
    apply(app, change, request.resource_version, move |credential| {
        let (credential, dropped) = credential.put_config(&request.config)?;
        Ok((credential, if dropped { Dropped::Yes } else { Dropped::AsBefore }))
    })
    .await
}

/// Reads the config back, for its manager: it may name headers and tokens.
pub async fn get_config(
    app: &App,
    caller: &Principal,
    profile: &str,
    scope: &ProfileScope,
) -> Result<ProfileConfigText, Failure> {
    Access::Provide.admit(caller)?;
    let profile = app.config.policy.profile(profile)?;
    let owner = owners::of_read(app, caller, profile, scope).await?;
    let secret = app.secrets.get(&owner.stored_name(profile)).await;
    if !matches!(secret, Ok(None)) {
        caller.may_provide(&owner)?;
    }
    let secret = secret?.ok_or_else(|| Failure::not_found("config"))?;
    let config = secret.credential.text(CONFIG).ok_or_else(|| Failure::not_found("config"))?;
    Ok(ProfileConfigText {
        profile: profile.to_owned(),
        config: config.to_owned(),
        config_hash_suffix: secret.credential.hash_suffix(CONFIG).unwrap_or_default(),
        resource_version: secret.resource_version,
    })
}

/// Whether the credential is gone because the config sends it elsewhere.
#[derive(Clone, Copy)]
enum Dropped {
    Yes,
    No,
    AsBefore,
}

/// Changes a profile's secret, whole or not at all. A change that changes nothing keeps the version.
async fn apply(
    app: &App,
    change: AuditedChange,
    expected: Option<String>,
    make: impl Fn(Credential) -> Result<(Credential, Dropped), Failure> + Send + 'static,
) -> Result<ProviderProfile, Failure> {
    let (owner, profile) = (change.owner.clone(), change.profile.clone());
    app.config.policy.profile(&profile)?;
    check_name(app, &owner, &profile).await?;
    let name = owner.stored_name(&profile);
    let (app_too, runtime) = (app.clone(), Handle::current());
    let changed = app
        .secrets
        .update(&name, move |existing| {
            check_version(existing, expected.as_deref())?;
            let before = existing.map(|secret| secret.credential.clone()).unwrap_or_default();
            let (credential, dropped) = make(before.clone())?;
            check_shown(&before, &credential, &change.profile)?;
            if let Ok(config) = credential.config(&change.profile) {
                readiness::check_allowed(&app_too, &change.owner, &config)?;
            }
            let hashes =
                |of: &Credential| of.keys().into_iter().map(|key| (of.hash_suffix(&key), key)).collect::<Vec<_>>();
            if existing.is_some() && hashes(&before) == hashes(&credential) {
                return Ok(None);
            }
            // Before it is stored: the redactor must know a value before any agent can have it.
            learn(&app_too, &credential);
            let credential_dropped = match dropped {
                Dropped::Yes => true,
                Dropped::No => false,
                Dropped::AsBefore => existing.is_some_and(|existing| existing.credential_dropped),
            };
            let resource_version = app_too.ids.body().simple().to_string();
            let after = Secret { resource_version, updated_at: app_too.now(), credential, credential_dropped };
            // Blocking is allowed here: this is not a thread of the runtime.
            runtime.block_on(change.record(&app_too, &before, Some(&after)))?;
            Ok(Some(after))
        })
        .await?;
    if changed {
        recall(app, &owner, &profile).await;
    }
    described(app, &owner, &profile, app.secrets.get(&name).await).await
}

/// Whether the owner may have a profile of this name, and another one.
async fn check_name(app: &App, owner: &ProfileOwner, profile: &str) -> Result<(), Failure> {
    if profile == "scripted" {
        return Err(Failure::invalid(Rule::ProfileScripted, "the scripted agent has neither credential nor config"));
    }
    let stored = app.secrets.list().await?;
    let max = match owner {
        ProfileOwner::Operator => PROFILES_MAX + BUILT_IN.len(),
        ProfileOwner::Tenant(tenant_id) => {
            app.config.policy.tenant(tenant_id)?;
            if owners::is_operators(&stored, profile) {
                let message =
                    format!("the name {profile:?} is the operator's; choose another for a profile of your own");
                return Err(Failure::rule(Rule::ProfileName, message));
            }
            PROFILES_PER_TENANT_MAX
        }
    };
    let is_new = !stored.contains(&owner.stored_name(profile));
    if is_new && stored.iter().filter(|name| owner.profile_of(name).is_some()).count() >= max {
        let message = format!("there are {max} profiles already");
        return Err(Failure::rule(Rule::ProfilesMax, message));
    }
    Ok(())
}

/// Fails unless the profile has the expected version. `None` expects nothing; an empty version expects that there is no profile.
fn check_version(existing: Option<&Secret>, expected: Option<&str>) -> Result<(), Failure> {
    let version = existing.map(|secret| secret.resource_version.as_str());
    if expected.is_none_or(|expected| expected == version.unwrap_or_default()) {
        return Ok(());
    }
    let message = "the profile was changed concurrently; read it again";
    Err(Failure::rule(Rule::ResourceVersion, message).detail("resourceVersion", version))
}

/// Rejects a command or URL that contains a key: both are visible to others, in process lists and logs.
fn check_shown(before: &Credential, credential: &Credential, profile: &str) -> Result<(), Failure> {
    let config = credential.config(profile).ok();
    let shown = match config.as_ref().map(|config| &config.agent) {
        Some(AgentConfig::Acp { command, .. }) => command.join(" "),
        Some(AgentConfig::Model { base_url, .. }) => base_url.clone(),
        _ => return Ok(()),
    };
    let values = [before.values(), credential.values()].concat();
    let values: Vec<_> = values.iter().map(ExposeSecret::expose_secret).collect();
    if Redactor::new(&values).redact(&shown) == shown {
        return Ok(());
    }
    let message = "a command or URL of [ostler] holds a credential; put it into auth.json and name it in ostler.files";
    Err(Failure::invalid(Rule::ConfigCredential, message))
}

/// Adds the values to the redactor, which removes them from all output of agents.
fn learn(app: &App, credential: &Credential) {
    let values = credential.values();
    app.redactor.learn(values.iter().map(ExposeSecret::expose_secret));
}

/// Adds every stored value to the redactor. Run once at start; a secret that cannot be opened is logged for the operator.
pub async fn learn_all(app: &App) -> Result<(), Failure> {
    let names = match app.secrets.list().await {
        // Each value is learned again before an agent gets it, so a cluster that does not respond must not delay the start.
        Err(failure) if failure.broken_rule() == Some(Rule::ClusterCall) => {
            tracing::warn!(%failure, "the secrets of provider profiles cannot be listed");
            return Ok(());
        }
        names => names?,
    };
    for name in names {
        match app.secrets.get(&name).await {
            Ok(secret) => learn(app, &secret.map(|secret| secret.credential).unwrap_or_default()),
            Err(failure) => tracing::warn!(%failure, "a provider profile's secret cannot be used"),
        }
    }
    Ok(())
}

fn describe(
    app: &App,
    codex: &CodexProgram,
    owner: &ProfileOwner,
    profile: &str,
    secret: Result<Option<Secret>, Failure>,
    trial: Option<Validation>,
    shadowed: bool,
) -> ProviderProfile {
    let (secret, broken) = match secret {
        Ok(secret) => (secret, None),
        Err(failure) => (None, Some(failure)),
    };
    let credential = secret.as_ref().map(|secret| secret.credential.clone()).unwrap_or_default();
    let ready = broken
        .or_else(|| shadowed.then(|| name_taken(profile)))
        .map_or_else(|| readiness::home(secret.as_ref(), owner, profile).map(|(config, _)| config), Err);
    let ready = ready.and_then(|config| readiness::check_allowed(app, owner, &config).map(|()| config.agent));
    let missing = ready.as_ref().ok().and_then(|agent| programs::missing(agent, codex));
    let resource_version = secret.as_ref().map(|secret| secret.resource_version.clone());
    let tried = trial.as_ref().filter(|trial| trial.resource_version == resource_version);
    let keys = if secret.is_some() { credential.keys() } else { secret_ref(profile).keys };
    let described = ProviderProfile {
        profile: profile.to_owned(),
        tenant_id: owner.tenant_id().map(str::to_owned),
        built_in: *owner == ProfileOwner::Operator && BUILT_IN.contains(&profile),
        agent: match &ready {
            Ok(agent) => agent.kind(),
            Err(_) if profile == "model" => AgentKind::Model,
            Err(_) => credential.config(profile).map_or(AgentKind::Codex, |config| config.agent.kind()),
        },
        secret_ref: SecretRef { name: secret_name(profile), keys },
        configured: ready.is_ok(),
        ready: ready.is_ok() && missing.is_none(),
        credential_dropped: secret.as_ref().is_some_and(|secret| secret.credential_dropped),
        resource_version: resource_version.clone(),
        credential_hash_suffix: credential.hash_suffix(AUTH),
        config_hash_suffix: credential.hash_suffix(CONFIG),
        updated_at: secret.as_ref().map(|secret| secret.updated_at),
        failure_kind: ready
            .as_ref()
            .err()
            .map(|failure| shown_kind(failure.kind))
            .or(missing.is_some().then_some(FailureKind::InfraFailed))
            .or(tried.and_then(|t| t.failure_kind)),
        message: ready
            .err()
            .map(|failure| failure.message)
            .or(missing)
            .or(tried.and_then(|trial| trial.message.clone())),
        validation: trial.map(|trial| trial.summary()),
        last_claim_at: None,
    };
    if external::is_external(app, profile) { external::described(described) } else { described }
}

/// The failure kind to report for a profile: one that lacks something is unavailable; one that may not be used keeps its kind.
fn shown_kind(kind: FailureKind) -> FailureKind {
    match kind {
        FailureKind::TenantPolicyDenied | FailureKind::StateConflict => kind,
        _ => FailureKind::SecretUnavailable,
    }
}

/// A tenant's profile whose name has become the operator's since.
fn name_taken(profile: &str) -> Failure {
    let message = format!("the operator has a profile {profile:?} too, and runs use that one; delete this one");
    Failure::rule(Rule::ProfileName, message).with_kind(FailureKind::StateConflict)
}

/// The latest trial of each profile, by owner and name.
async fn latest_trials(app: &App) -> Result<BTreeMap<(Option<String>, String), Validation>, Failure> {
    let latest = store::kernel::provider_profiles::list_latest(&app.db).await?;
    Ok(latest.into_iter().map(|trial| ((trial.tenant_id.clone(), trial.profile.clone()), trial)).collect())
}
