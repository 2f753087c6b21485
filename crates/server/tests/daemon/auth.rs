//! Credentials of providers: by key, and by device flow.

mod device_flows;
mod install;
mod misbehaviour;

use ostler_daemon::config::{DaemonSection, DeviceFlowSection};
use ostler_stand_ins::IdentityProvider;
use serde_json::{Value, json};

use super::workspace::{Bound, refused};
use crate::harness::{Answer, Caller, Engine, Setup, TestServer, eventually, id};

const PROVIDERS: &str = "/workspace/auth/providers";
const INSTALL: &str = "/workspace/auth/provider";
const FLOWS: &str = "/workspace/auth/device-flow";
const STATUS: &str = "/workspace/auth/status";
/// The provider and the profile of device flows in these tests.
const PROVIDER: &str = "example-id";
const PROFILE: &str = "signed-in";
const TOKEN: &str = "pl4nted-access-token-0123456789";
/// The interval of the provider.
const INTERVAL_MS: i64 = 5_000;

/// The section of a provider, with PKCE.
pub(crate) fn section(identity: &IdentityProvider) -> DeviceFlowSection {
    DeviceFlowSection {
        device_authorization_url: identity.device_authorization_url(),
        token_url: identity.token_url(),
        client_id: "ostler tests".into(),
        scope: Some("openid model".into()),
        profile: PROFILE.into(),
        pkce: true,
    }
}

pub(crate) fn configure_flow(setup: &mut Setup, provider_id: &str, section: DeviceFlowSection) {
    setup.config.change(|daemon: &mut DaemonSection| drop(daemon.device_flows.insert(provider_id.into(), section)));
}

/// Stores the config of the profile that gets the token, as its tenant's.
pub(crate) async fn set_profile(server: &Caller) {
    let config = "[ostler]\nagent = \"model\"\nbase_url = \"https://models.example/v1\"\nmodel = \"m\"\n";
    let path = format!("/api/v1/provider-profiles/{PROFILE}/config?tenantId=local");
    server.call("PUT", &path, &json!({"config": config})).await.with_status(200);
}

/// A bound server, its identity provider, and a session that is followed.
struct Flows {
    identity: IdentityProvider,
    bound: Bound,
    session: String,
}

impl Flows {
    async fn start(engine: Engine) -> Self {
        let identity = IdentityProvider::start();
        let section = section(&identity);
        let bound = Bound::with(engine, |setup| configure_flow(setup, PROVIDER, section)).await;
        set_profile(&bound.server).await;
        let session = bound.open_session("client_a").await;
        bound.server.store(&client_of(&session, "client_b")).await;
        Self { identity, bound, session }
    }

    async fn begin(&self, client: &str) -> Answer {
        self.bound.post_as(client, FLOWS, &json!({"providerId": PROVIDER})).await
    }

    /// A flow that the first client has started: its id.
    async fn begun(&self) -> String {
        id(&self.begin("client_a").await.with_status(201), "deviceFlowId")
    }

    async fn call(&self, method: &str, flow: &str, client: &str) -> Answer {
        self.bound.server.as_client(client, method, &format!("{FLOWS}/{flow}"), &Value::Null).await
    }

    async fn state(&self, flow: &str) -> Value {
        self.call("GET", flow, "client_a").await.with_status(200)
    }

    /// Lets one poll happen.
    async fn poll(&self) {
        let before = self.identity.seen("/token").len();
        let interval = self.bound.server.get(STATUS).await.with_status(200)["pendingDeviceFlows"][0].clone();
        let state = self.state(&id(&interval, "deviceFlowId")).await;
        self.bound.server.clock.advance_ms(state["intervalMs"].as_i64().unwrap());
        eventually("a poll", async || (self.identity.seen("/token").len() > before).then_some(())).await;
    }

    /// The state of a flow once it has this status.
    async fn ended(&self, flow: &str, status: &str) -> Value {
        eventually("the flow ends", async || {
            let state = self.state(flow).await;
            (state["status"] == status).then_some(state)
        })
        .await
    }

    /// Types and data of the frames about flows.
    async fn frames(&self) -> Vec<(String, Value)> {
        let frames = self.bound.frames(&self.session).await.into_iter();
        frames.filter(|(frame, ..)| frame.starts_with("auth_")).map(|(frame, data, _)| (frame, data)).collect()
    }

    /// The hash of the stored credential.
    async fn credential(&self) -> Value {
        let path = format!("/api/v1/provider-profiles/{PROFILE}?tenantId=local");
        self.bound.server.get(&path).await.with_status(200)["credentialHashSuffix"].clone()
    }
}

fn client_of(session: &str, client: &str) -> String {
    format!(
        "INSERT INTO daemon_clients (client_id, session_id, principal, registered_at, last_seen_at)
         VALUES ('{client}', '{session}', 'operator', 0, 0)"
    )
}

/// Whether a key sets up a provider.
pub(crate) async fn installs(server: &TestServer) -> bool {
    if server.get(PROVIDERS).await.body["code"] == "no_workspace" {
        return false;
    }
    let body = json!({"providerId": "deepseek", "apiKey": "proved-key-0123456789"});
    let installed = server.post(INSTALL, &body).await.with_status(200);
    let providers = server.get("/workspace/providers").await.with_status(200).to_string();
    assert!(providers.contains(installed["modelId"].as_str().unwrap()), "{providers}");
    true
}

/// Whether device flows are there. Without a configured provider, each one is unknown.
pub(crate) async fn has_device_flows(server: &TestServer) -> bool {
    let status = server.get(STATUS).await;
    if status.body["code"] == "no_workspace" {
        return false;
    }
    assert_eq!(status.with_status(200)["supportedDeviceFlowProviders"], json!([]));
    refused(server.post(FLOWS, &json!({"providerId": "x"})).await, 400, "unsupported_provider");
    refused(server.get(&format!("{FLOWS}/x")).await, 404, "device_flow_not_found");
    refused(server.remove(&format!("{FLOWS}/x")).await, 404, "device_flow_not_found");
    true
}
