//! Providers that a key sets up. An installation stores a backend profile for each model, as `ostler profiles set` would, so that
//! it is recorded and sealed like every other profile.

use ostler_client::outgoing::{self, OutgoingError};
use ostler_protocol::{
    Failure, Rule,
    daemon::auth_providers::{
        AUTH_PROVIDERS, AuthProvider, AuthProviderCatalog, AuthProviderGroup, CATALOG_VERSION, InstallProvider,
        ProviderInstall, ProviderInstalled,
    },
    kernel::provider_profiles::{AgentKind, ProfileScope},
};
use ostler_server::{app::App, auth::Principal, service::provider_profiles};

use super::workspace;

pub(crate) fn catalog(app: &App, caller: &Principal) -> Result<AuthProviderCatalog, Failure> {
    workspace::check_read(app, caller)?;
    Ok(AuthProviderCatalog {
        v: CATALOG_VERSION,
        workspace_cwd: workspace::cwd(app)?,
        providers: AUTH_PROVIDERS.iter().map(AuthProvider::descriptor).collect(),
        groups: AuthProviderGroup::entries(),
    })
}

/// Stores a profile for each model. The profiles are the tenant's if the caller may change those, and otherwise the operator's. The
/// same request again changes nothing.
pub(crate) async fn install(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: InstallProvider,
) -> Result<ProviderInstalled, Failure> {
    let owner = workspace::check_provide(app, caller, client.as_deref()).await?;
    let install = request.check()?;
    check_address(app, &install)?;
    for model in &install.models {
        app.config.policy.profile(&model.profile)?;
    }
    let scope = ProfileScope { tenant_id: owner.tenant_id().map(str::to_owned) };
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        for model in &install.models {
            provider_profiles::put_credential(&app, &caller, &model.profile, &scope, install.put(model)?).await?;
        }
        Ok(installed(&install))
    })
    .await
}

/// The address rules of tenants hold for every caller: the server may connect to it for others, too.
fn check_address(app: &App, install: &ProviderInstall) -> Result<(), Failure> {
    let rules = app.config.outgoing.rules()?;
    let refused = |why: OutgoingError| {
        let remedy = match why {
            OutgoingError::NotHttps | OutgoingError::Address => "; the operator can list its host in outgoing.allow",
            OutgoingError::NotAUrl | OutgoingError::NoHostOrUser => "",
        };
        Failure::invalid(Rule::InvalidBaseUrl, format!("baseUrl cannot be used: {why}{remedy}"))
    };
    outgoing::check_url(&rules, &install.base_url).map(drop).map_err(refused)
}

fn installed(install: &ProviderInstall) -> ProviderInstalled {
    let label = install.provider.label;
    let profiles: Vec<_> = install.models.iter().map(|model| model.profile.as_str()).collect();
    ProviderInstalled {
        v: CATALOG_VERSION,
        provider_id: install.provider.id.to_owned(),
        provider_label: label.to_owned(),
        auth_type: AgentKind::Model.as_str().to_owned(),
        model_id: profiles.first().copied().unwrap_or_default().to_owned(),
        base_url: install.base_url.clone(),
        message: format!("{label} is set up; sessions can use {}", profiles.join(", ")),
    }
}
