//! What a run gets from its profile. The profile is looked up by the run's tenant, so a run never uses another tenant's.

use std::collections::BTreeMap;

use ostler_client::outgoing;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    kernel::{
        policy::ProviderCredential,
        provider_profiles::{AUTH, AgentConfig, ProfileConfig, ProfileOwner},
    },
};
use ostler_store::failures::is_of_store;
use secrecy::SecretString;

use super::{learn, owners};
use crate::{
    app::{App, RunRef},
    secrets::Secret,
    service::lookup,
};

/// What a run's agent is started with.
pub struct Furnishing {
    pub config: ProfileConfig,
    /// The files of the agent's home.
    pub files: BTreeMap<String, SecretString>,
    pub owner: ProfileOwner,
}

/// Checks that the profile has everything that a run's agent needs, before anything is started for the run.
pub async fn check_ready(app: &App, tenant_id: &str, profile: &str) -> Result<(), Failure> {
    if needs_none(app, profile) {
        return Ok(());
    }
    furnish(app, tenant_id, profile).await.map(drop)
}

/// The same for a run that exists.
pub async fn check_still_ready(app: &App, run: &RunRef) -> Result<(), Failure> {
    if needs_none(app, &run.backend_profile) {
        return Ok(());
    }
    furnish_run(app, &run.tenant_id, &run.backend_profile).await.map(drop)
}

/// The same for another turn of a run, if the runner that will be started for it is ours: a runner elsewhere brings what it
/// needs.
pub async fn check_turn(app: &App, run: &RunRef) -> Result<(), Failure> {
    if needs_none(app, &run.backend_profile) || lookup::run_unchecked(app, run.run_id).await?.standing_job_id.is_none()
    {
        return Ok(());
    }
    furnish_run(app, &run.tenant_id, &run.backend_profile).await.map(drop)
}

/// Rejects a run that does not name the credential of its profile. That applies even to profiles that need none, once they
/// have one.
pub async fn check_named(
    app: &App,
    tenant_id: &str,
    profile: &str,
    named: &[ProviderCredential],
) -> Result<(), Failure> {
    if profile == "scripted" || !named.is_empty() || !needs_none(app, profile) {
        return Ok(());
    }
    if !is_keyed(app, tenant_id, profile).await? {
        return Ok(());
    }
    let message = format!("backendProfile {profile:?} has a credential; the run must name it in secretScope");
    Err(Failure::rule(Rule::ProviderCredentialRequired, message))
}

/// Whether a run of the profile has a credential to name.
pub async fn has_credential(app: &App, tenant_id: &str, profile: &str) -> Result<bool, Failure> {
    if profile == "scripted" {
        return Ok(false);
    }
    let keyed = is_keyed(app, tenant_id, profile).await?;
    Ok(!needs_none(app, profile) || keyed)
}

async fn is_keyed(app: &App, tenant_id: &str, profile: &str) -> Result<bool, Failure> {
    let secret = owners::find(app, tenant_id, profile).await?.and_then(|(_, secret)| secret);
    Ok(secret.is_some_and(|secret| secret.credential.text(AUTH).is_some()))
}

fn needs_none(app: &App, profile: &str) -> bool {
    app.config.policy.credential_free_profiles.iter().any(|name| name == profile)
}

/// As [`furnish`], for a run that exists: what is missing of its profile is a secret, also if it is the whole profile.
pub async fn furnish_run(app: &App, tenant_id: &str, profile: &str) -> Result<Furnishing, Failure> {
    furnish(app, tenant_id, profile).await.map_err(|failure| match failure.broken_rule() {
        Some(Rule::ProfileUnknown) => failure.with_kind(FailureKind::SecretUnavailable),
        _ => failure,
    })
}

/// What a run of this tenant starts its agent with.
pub async fn furnish(app: &App, tenant_id: &str, profile: &str) -> Result<Furnishing, Failure> {
    let Some((owner, secret)) = owners::find(app, tenant_id, profile).await? else {
        let message = format!("there is no profile {profile:?}");
        return Err(Failure::rule(Rule::ProfileUnknown, message));
    };
    if let Some(secret) = &secret {
        learn(app, &secret.credential);
    }
    let (config, files) = home(secret.as_ref(), &owner, profile)?;
    // The operator's current rules apply, not those from when the profile was set.
    check_allowed(app, &owner, &config)?;
    check_addresses(app, &owner, &config).await?;
    Ok(Furnishing { config, files, owner })
}

/// What a profile's config states about its model.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    pub name: Option<String>,
    /// Tokens that the model can take in at once.
    pub context_window: Option<u64>,
}

/// What is known of the model behind a profile. Nothing if the profile cannot be used. Fails only if the store does not respond.
pub async fn model_facts(app: &App, tenant_id: &str, profile: &str) -> Result<ModelFacts, Failure> {
    let config = match furnish(app, tenant_id, profile).await {
        Ok(furnishing) => furnishing.config,
        Err(failure) if is_of_store(&failure) => return Err(failure),
        Err(_) => return Ok(ModelFacts::default()),
    };
    let name = match &config.agent {
        AgentConfig::Model { model, .. } => Some(model.clone()),
        AgentConfig::Codex => config.own.get("model").and_then(|model| Some(model.as_str()?.to_owned())),
        AgentConfig::Scripted | AgentConfig::Acp { .. } => None,
    };
    Ok(ModelFacts { name, context_window: config.context_window })
}

/// The config of a profile and the files of its agent's home.
pub(super) fn home(
    secret: Option<&Secret>,
    owner: &ProfileOwner,
    profile: &str,
) -> Result<(ProfileConfig, BTreeMap<String, SecretString>), Failure> {
    if secret.is_some_and(|secret| secret.credential_dropped) {
        let message = format!(
            "the credential of the profile {profile:?} was removed, because its config names another server or command; \
             set it again, or delete the profile if it needs none"
        );
        return Err(owner.unavailable(Rule::CredentialDropped, profile, message));
    }
    secret.map(|secret| secret.credential.clone()).unwrap_or_default().home(owner, profile)
}

/// Rejects a tenant's config that names a program, or a server that is not public, unless the operator allows it. Codex connects
/// by itself and follows redirects to any address, so its server must be one that the operator has named.
pub(super) fn check_allowed(app: &App, owner: &ProfileOwner, config: &ProfileConfig) -> Result<(), Failure> {
    if *owner == ProfileOwner::Operator {
        return Ok(());
    }
    if !app.config.profiles.tenant_commands {
        config.check_no_command()?;
    }
    let rules = app.config.outgoing.rules()?;
    let denied = |message: String| Failure::rule(Rule::ProfileAddress, message);
    for url in config.base_urls() {
        let url = outgoing::check_url(&rules, url)
            .map_err(|why| denied(format!("base_url of a tenant's profile cannot be used: {why}")))?;
        let host = url.host_str().unwrap_or_default();
        if config.agent == AgentConfig::Codex && !rules.lists(host) {
            return Err(denied(format!(
                "base_url of a tenant's Codex profile must be a host of outgoing.allow, because Codex follows redirects; \
                 hint: ask the operator to list {host}, or use agent = \"model\""
            )));
        }
    }
    Ok(())
}

/// The addresses of the servers that Codex will connect to by itself. A runner that connects checks them as it does.
async fn check_addresses(app: &App, owner: &ProfileOwner, config: &ProfileConfig) -> Result<(), Failure> {
    if *owner == ProfileOwner::Operator || config.agent != AgentConfig::Codex {
        return Ok(());
    }
    let rules = app.config.outgoing.rules()?;
    for url in config.base_urls() {
        let resolved = match outgoing::check_url(&rules, url) {
            Ok(url) => outgoing::resolve(&rules, &url).await.map_err(|error| error.to_string()),
            Err(why) => Err(why.to_string()),
        };
        if let Err(why) = resolved {
            tracing::info!(why, "the server of a tenant's profile may not be connected to");
            let parsed = reqwest::Url::parse(url).ok();
            let host = parsed.as_ref().and_then(reqwest::Url::host_str).unwrap_or("its address");
            let message = format!(
                "the provider at {host} cannot be reached (its name cannot be resolved, or its address is not allowed)"
            );
            return Err(Failure::new(FailureKind::ProviderUnavailable, message));
        }
    }
    Ok(())
}
