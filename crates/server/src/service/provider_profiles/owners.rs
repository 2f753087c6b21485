//! Which owner's profile a name refers to. The operator's profiles are for every tenant; a tenant's are for itself. A name of the
//! operator's always means the operator's profile, so that no tenant can put another one in its place.

use std::time::Duration;

use ostler_protocol::{
    Failure, FailureKind, Rule,
    kernel::provider_profiles::{AgentKind, BUILT_IN, ProfileOwner, ProfileScope, ProviderProfile},
};

use tokio::time::timeout;

use crate::{
    app::App,
    auth::{Access, Principal},
    secrets::Secret,
    traces::note_tenant,
};

/// How long a response waits for the owner of a profile. A cluster that keeps the secrets may be away.
const LOOKUP_MAX: Duration = Duration::from_secs(1);

/// The owner whose profile a caller writes: the tenant that is named, otherwise the caller's own.
pub(super) fn of_write(caller: &Principal, scope: &ProfileScope) -> Result<ProfileOwner, Failure> {
    Access::Provide.admit(caller)?;
    let owner = match (scope.tenant_id.as_deref(), caller.tenants()) {
        (Some(tenant_id), _) => ProfileOwner::of(Some(tenant_id)),
        (None, None | Some([])) => ProfileOwner::Operator,
        (None, Some([only])) => ProfileOwner::of(Some(only)),
        (None, Some(_)) => return Err(tenant_required()),
    };
    caller.may_provide(&owner)?;
    owner.tenant_id().into_iter().for_each(note_tenant);
    Ok(owner)
}

/// The owner of the profile that a caller means by a name: the tenant that is named; otherwise the operator if the name is
/// the operator's; otherwise the one tenant of the caller's that has such a profile.
pub(super) async fn of_read(
    app: &App,
    caller: &Principal,
    profile: &str,
    scope: &ProfileScope,
) -> Result<ProfileOwner, Failure> {
    Access::Inspect.admit(caller)?;
    if let Some(tenant_id) = scope.tenant_id.as_deref() {
        caller.is_of(tenant_id)?;
        note_tenant(tenant_id);
        return Ok(ProfileOwner::of(Some(tenant_id)));
    }
    let stored = app.secrets.list().await?;
    if is_operators(&stored, profile) {
        return Ok(ProfileOwner::Operator);
    }
    let tenants = caller.tenants().unwrap_or(&app.config.policy.tenants);
    let owners = tenants.iter().map(|tenant_id| ProfileOwner::of(Some(tenant_id)));
    let mut having = owners.filter(|owner| stored.contains(&owner.stored_name(profile)));
    match (having.next(), having.next()) {
        (Some(_), Some(_)) => Err(tenant_required()),
        (found, _) => {
            let owner = found.unwrap_or(ProfileOwner::Operator);
            owner.tenant_id().into_iter().for_each(note_tenant);
            Ok(owner)
        }
    }
}

/// Whether lists show the profile to the caller. A user sees what a run of theirs may name; built-in and external profiles are
/// shown to everyone.
pub(in crate::service) fn is_shown(app: &App, caller: &Principal, profile: &ProviderProfile) -> bool {
    let may_see = match caller {
        Principal::User { .. } => app.config.policy.profile(&profile.profile).is_ok(),
        _ => Access::Inspect.admit(caller).is_ok(),
    };
    may_see || profile.built_in || profile.agent == AgentKind::External
}

/// Whether a name is the operator's, given the names of all stored secrets. The built-in ones are, set or not.
pub(super) fn is_operators(stored: &[String], profile: &str) -> bool {
    BUILT_IN.contains(&profile)
        || profile == "scripted"
        || stored.contains(&ProfileOwner::Operator.stored_name(profile))
}

/// The profile that a run of this tenant means by a name, and its secret if it has one. `None`: there is no such profile.
pub(super) async fn find(
    app: &App,
    tenant_id: &str,
    profile: &str,
) -> Result<Option<(ProfileOwner, Option<Secret>)>, Failure> {
    // An operator's profile that cannot be opened is an error: a tenant's profile must not take its place.
    let operators = app.secrets.get(&ProfileOwner::Operator.stored_name(profile)).await?;
    if operators.is_some() || BUILT_IN.contains(&profile) || profile == "scripted" {
        return Ok(Some((ProfileOwner::Operator, operators)));
    }
    let owner = ProfileOwner::of(Some(tenant_id));
    let secret = app.secrets.get(&owner.stored_name(profile)).await?;
    Ok(secret.map(|secret| (owner, Some(secret))))
}

/// The tenant whose profile a run of this tenant means by a name. `None` if the profile is the operator's or does not exist, and if
/// the secrets cannot be read in time.
pub(in crate::service) async fn owning_tenant(app: &App, tenant_id: &str, profile: &str) -> Option<String> {
    if BUILT_IN.contains(&profile) || profile == "scripted" {
        return None;
    }
    // The names suffice, also if the secret cannot be opened.
    let stored = timeout(LOOKUP_MAX, app.secrets.list()).await.ok()?.ok()?;
    let is_tenants = stored.contains(&ProfileOwner::of(Some(tenant_id)).stored_name(profile));
    (is_tenants && !is_operators(&stored, profile)).then(|| tenant_id.to_owned())
}

fn tenant_required() -> Failure {
    let message = "the token is for several tenants; name the tenant of the profile in tenantId";
    Failure::rule(Rule::TenantIdRequired, message).with_kind(FailureKind::StateConflict)
}
