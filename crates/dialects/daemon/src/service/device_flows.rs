//! Device flows: a person authorises the server at a provider with a code, and the token becomes the credential of a backend
//! profile. Flows are in the memory of this process and end with it. A refresh token is not stored: when the token has
//! expired, a person starts another flow.

mod endpoint;
mod poll;

use std::{collections::BTreeMap, sync::Arc};

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        auth_providers::invalid_request,
        cells::CellStatus,
        device_flows::{
            AUTH_STATUS_VERSION, AuthProviderStatus, AuthStatus, DEVICE_FLOWS_MAX, DeviceFlow, DeviceFlowFrame,
            DeviceFlowStarted, DeviceFlowState, DeviceFlowTable, Initiator, StartDecision, StartDeviceFlow,
        },
    },
    kernel::provider_profiles::{ProfileOwner, ProfileScope},
};
use ostler_server::{
    app::App,
    auth::{Access, Principal},
    config::Config,
    service::provider_profiles,
};
use parking_lot::Mutex;
use tokio::sync::RwLock;

use self::{endpoint::Endpoint, poll::FlowTask};
use super::{
    notes::Note,
    profiles,
    workspace::{self, announce},
};
use crate::{
    config::{DaemonSection, DeviceFlowSection},
    state::DaemonState,
};

/// The flows of this process.
pub(crate) struct DeviceFlowStates {
    table: Mutex<DeviceFlowTable>,
    /// One for each configured provider, held while its flow is being started.
    starting: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// Each flow's task holds it for reading until it has ended.
    tasks: Arc<RwLock<()>>,
    /// When tokens that this process has received expire, in milliseconds since 1970.
    expiries: Mutex<BTreeMap<String, i64>>,
}

impl DeviceFlowStates {
    pub(crate) fn open(config: &Config) -> Self {
        let providers = config.section::<DaemonSection>().device_flows.into_keys();
        let starting = providers.map(|provider_id| (provider_id, Arc::default())).collect();
        Self { table: Mutex::default(), starting, tasks: Arc::default(), expiries: Mutex::default() }
    }

    fn of(app: &App) -> &Self {
        app.state()
    }

    /// Changes one flow. `None` if it is not there any more.
    fn change<T>(&self, id: &str, change: impl FnOnce(&mut DeviceFlow) -> T) -> Option<T> {
        self.table.lock().get_mut(id).map(change)
    }
}

fn now_ms(app: &App) -> i64 {
    app.now().as_millisecond()
}

fn sections(app: &App) -> &BTreeMap<String, DeviceFlowSection> {
    &DaemonState::of(app).config.device_flows
}

fn not_found() -> Failure {
    Failure::rule(Rule::DeviceFlowNotFound, "there is no such device flow")
}

/// Notifies the clients of open sessions. Frames have no codes and no tokens.
async fn notify(app: &App, caller: &Principal, client: Option<String>, frame: DeviceFlowFrame) {
    announce(app, caller, &Note { frame: frame.frame, data: frame.data, client }).await;
}

/// Starts a flow, or takes over the pending one of the provider.
pub(crate) async fn start(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: StartDeviceFlow,
) -> Result<DeviceFlowStarted, Failure> {
    workspace::check_provide(app, caller, client.as_deref()).await?;
    let provider_id = request.provider_id.filter(|id| !id.is_empty());
    let provider_id = provider_id.ok_or_else(|| invalid_request("providerId is required"))?;
    let Some(section) = sections(app).get(&provider_id).cloned() else {
        let supported: Vec<_> = sections(app).keys().map(String::as_str).collect();
        let message = "there is no device flow for this provider";
        return Err(Failure::invalid(Rule::UnsupportedProvider, message).detail("supportedProviders", supported));
    };
    app.accepting()?;
    let owner = profile_owner(app, caller, &section.profile).await?;
    let initiator = Initiator { principal: caller.name(), client_id: client };
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        let states = DeviceFlowStates::of(&app);
        let starting = states.starting.get(&provider_id).cloned().unwrap_or_default();
        let _one_at_a_time = starting.lock().await;
        let decision = {
            let mut table = states.table.lock();
            table.forget_ended(now_ms(&app));
            table.start(&provider_id)
        };
        match decision {
            StartDecision::TakeOver(flow) => Ok(flow.started_for(&initiator, true)),
            StartDecision::TooMany => {
                let message = format!("{DEVICE_FLOWS_MAX} device flows wait already");
                Err(Failure::rule(Rule::TooManyActiveFlows, message).detail("limit", DEVICE_FLOWS_MAX))
            }
            StartDecision::Start => {
                let begun = begin(&app, &caller, &provider_id, initiator, &section, owner).await;
                begun.inspect_err(|_| states.table.lock().not_started(&provider_id))
            }
        }
    })
    .await
}

/// Requests codes from the provider, and polls for the token from then on.
async fn begin(
    app: &App,
    caller: &Principal,
    provider_id: &str,
    initiator: Initiator,
    section: &DeviceFlowSection,
    owner: ProfileOwner,
) -> Result<DeviceFlowStarted, Failure> {
    let endpoint = Endpoint::new(app, section)?;
    let authorization = endpoint.authorize().await.map_err(|why| Failure::rule(Rule::UpstreamError, why))?;
    let id = app.ids.body().to_string();
    let flow = DeviceFlow::new(id.clone(), provider_id.to_owned(), initiator.clone(), &authorization, now_ms(app));
    let (started, frame) = (flow.started_for(&initiator, false), flow.started_frame());
    DeviceFlowStates::of(app).table.lock().started(flow);
    tracing::info!(provider = provider_id, flow = id, by = initiator.principal, "a device flow is started");
    notify(app, caller, initiator.client_id.clone(), frame).await;
    let task = FlowTask {
        id,
        provider_id: provider_id.to_owned(),
        caller: caller.clone(),
        client: initiator.client_id,
        profile: section.profile.clone(),
        owner,
        endpoint,
        device_code: authorization.device_code,
    };
    let running = DeviceFlowStates::of(app).tasks.clone().read_owned().await;
    let app = app.clone();
    tokio::spawn(async move {
        poll::run(app, task).await;
        drop(running);
    });
    Ok(started)
}

/// Waits, when the server drains, until every flow is cancelled and its clients are notified.
pub(crate) async fn finish_at_shutdown(app: App) {
    app.drained().await;
    drop(DeviceFlowStates::of(&app).tasks.write().await);
}

/// The owner of the profile that gets the token, if the caller may change it. The profile must have a config: a person should not
/// authorise the server without effect.
async fn profile_owner(app: &App, caller: &Principal, profile: &str) -> Result<ProfileOwner, Failure> {
    let of_tenant = ProfileScope { tenant_id: Some(workspace::tenant(app).to_owned()) };
    for scope in [ProfileScope::default(), of_tenant] {
        let Ok(found) = provider_profiles::get(app, caller, profile, &scope).await else { continue };
        let owner = ProfileOwner::of(found.tenant_id.as_deref());
        if scope.tenant_id.is_none() && owner != ProfileOwner::Operator {
            continue;
        }
        caller.may_provide(&owner)?;
        if found.config_hash_suffix.is_some() {
            return Ok(owner);
        }
    }
    let message = format!("the profile {profile:?} of this device flow has no config");
    Err(Failure::invalid(Rule::UnsupportedProvider, message).detail("profile", profile))
}

pub(crate) async fn get(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    id: &str,
) -> Result<DeviceFlowState, Failure> {
    workspace::check_provide(app, caller, client.as_deref()).await?;
    let reader = Initiator { principal: caller.name(), client_id: client };
    let mut table = DeviceFlowStates::of(app).table.lock();
    table.forget_ended(now_ms(app));
    table.get(id).map(|flow| flow.state_for(&reader)).ok_or_else(not_found)
}

pub(crate) async fn cancel(app: &App, caller: &Principal, client: Option<String>, id: &str) -> Result<(), Failure> {
    workspace::check_provide(app, caller, client.as_deref()).await?;
    let now_ms = now_ms(app);
    let states = DeviceFlowStates::of(app);
    states.table.lock().forget_ended(now_ms);
    let frame = states.change(id, |flow| flow.cancel(now_ms)).ok_or_else(not_found)?;
    if let Some(frame) = frame {
        let caller = caller.clone();
        app.to_the_end(move |app| async move {
            notify(&app, &caller, client, frame).await;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

pub(crate) async fn status(app: &App, caller: &Principal) -> Result<AuthStatus, Failure> {
    workspace::check_read(app, caller)?;
    Access::Browse.admit(caller)?;
    let usable = profiles::list(app, caller).await?.into_iter().filter(profiles::is_usable);
    let usable: Vec<_> = usable.map(|backend| backend.profile).collect();
    let (states, now_ms) = (DeviceFlowStates::of(app), now_ms(app));
    let expiries = states.expiries.lock().clone();
    let providers = sections(app).iter().map(|(provider_id, section)| {
        let expires_at = expiries.get(provider_id).copied();
        let (status, error) = match (usable.contains(&section.profile), expires_at) {
            (true, Some(at)) if at <= now_ms => (CellStatus::Warning, Some("the token has expired")),
            (true, _) => (CellStatus::Ok, None),
            (false, _) => (CellStatus::NotStarted, None),
        };
        let (kind, error) = ("auth_provider".to_owned(), error.map(str::to_owned));
        AuthProviderStatus { kind, status, provider_id: provider_id.clone(), error, expires_at }
    });
    Ok(AuthStatus {
        v: AUTH_STATUS_VERSION,
        workspace_cwd: workspace::cwd(app)?,
        providers: providers.collect(),
        pending_device_flows: states.table.lock().pending().map(DeviceFlow::listed).collect(),
        supported_device_flow_providers: sections(app).keys().cloned().collect(),
    })
}
