//! Documents and snapshots of the workspace: memory, settings, initialisation, environment, checks, providers.

mod memory;
pub(crate) mod proofs;
mod settings;
mod snapshots;

use std::path::{Path, PathBuf};

use ostler_testkit::scratch;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Answer, Caller, Engine, Setup, TestServer, id, one_engine};

/// A server that is bound to a workspace, with tokens of every role.
pub(crate) struct Bound {
    pub server: TestServer,
    directory: TempDir,
}

impl Bound {
    pub(crate) async fn start(engine: Engine) -> Self {
        Self::with(engine, |_| ()).await
    }

    pub(crate) async fn with(engine: Engine, choose: impl FnOnce(&mut Setup)) -> Self {
        let directory = scratch::in_memory();
        let server = TestServer::with(engine, |setup| {
            setup.config.server.workspace = Some(directory.path().into());
            setup.token("client", "client", &["local"]);
            setup.token("foreign", "client", &["hwlab"]);
            setup.token("provider", "provide", &["local"]);
            setup.token("foreign-provider", "provide", &["hwlab"]);
            choose(setup);
        })
        .await;
        Self { server, directory }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.root().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn put(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.root().join(name)).unwrap()
    }

    /// A session that clients have open in the workspace, with one client of the operator. The session's id.
    pub(crate) async fn open_session(&self, client: &str) -> String {
        self.open_session_in(&self.root(), client).await
    }

    pub(crate) async fn open_session_in(&self, workspace: &Path, client: &str) -> String {
        let body = json!({"tenantId": "local", "backendProfile": "scripted"});
        let session = id(&self.server.post("/api/v1/sessions", &body).await.with_status(201), "sessionId");
        let workspace = workspace.display();
        let insert = format!(
            "INSERT INTO daemon_sessions (session_id, tenant_id, owner, workspace, scope, opened_at)
             SELECT session_id, tenant_id, '', '{workspace}', 'thread', 0 FROM sessions WHERE session_id = '{session}'"
        );
        self.server.store(&insert).await;
        let insert = format!(
            "INSERT INTO daemon_clients (client_id, session_id, principal, registered_at, last_seen_at)
             VALUES ('{client}', '{session}', 'operator', 0, 0)"
        );
        self.server.store(&insert).await;
        session
    }

    /// The frames that were recorded in a session: their types, data and clients.
    pub(crate) async fn frames(&self, session: &str) -> Vec<(String, Value, Value)> {
        let trace = self.server.get(&format!("/api/v1/sessions/{session}/trace")).await.with_status(200);
        let payloads = trace["events"].as_array().unwrap().iter().map(|event| &event["payload"]);
        let frame = |payload: &Value| {
            let note = payload["note"].as_str()?.strip_prefix("daemon.")?.to_owned();
            Some((note, payload["data"]["data"].clone(), payload["data"]["clientId"].clone()))
        };
        payloads.filter_map(frame).collect()
    }

    /// A request of the operator's client.
    pub(crate) async fn post_as(&self, client: &str, path: &str, body: &Value) -> Answer {
        let request = self.server.request("POST", path).header("x-qwen-client-id", client);
        self.server.send(self.server.with_body(request, path, body)).await
    }
}

/// Checks how a request was refused.
#[track_caller]
pub(crate) fn refused(answer: Answer, status: u16, code: &str) -> Value {
    let body = answer.with_status(status);
    assert_eq!(body["code"], code, "{body}");
    assert!(body["error"].is_string(), "{body}");
    body
}

const READS: [&str; 5] =
    ["/workspace/memory", "/workspace/settings", "/workspace/env", "/workspace/preflight", "/workspace/providers"];

/// Each change, and whether it needs the right to provide.
fn changes() -> [(&'static str, Value, bool); 4] {
    [
        ("/workspace/memory", json!({"scope": "workspace", "content": "- x"}), false),
        ("/workspace/init", json!({}), false),
        ("/workspace/settings", json!({"scope": "workspace", "key": "memory.enabled", "value": false}), true),
        ("/workspace/reload", json!({}), true),
    ]
}

#[one_engine]
async fn a_server_without_a_workspace_has_no_documents(engine: Engine) {
    let server = TestServer::start(engine).await;
    for path in READS {
        refused(server.get(path).await, 409, "no_workspace");
    }
    for (path, body, _) in changes() {
        refused(server.post(path, &body).await, 409, "no_workspace");
    }
}

#[one_engine]
async fn callers_of_other_tenants_see_and_change_nothing(engine: Engine) {
    let bound = Bound::start(engine).await;
    let foreign = bound.server.caller("foreign");
    for path in READS {
        refused(foreign.get(path).await, 403, "tenant");
        refused(bound.server.caller("provider").get(path).await, 403, "role");
    }
    for (path, body, needs_provide) in changes() {
        let other = if needs_provide { bound.server.caller("foreign-provider") } else { foreign };
        refused(other.post(path, &body).await, 403, "tenant");
    }
    assert_eq!(std::fs::read_dir(bound.root()).unwrap().count(), 0, "nothing was written");
}

#[one_engine]
async fn settings_need_the_right_to_provide_and_documents_the_right_to_submit(engine: Engine) {
    let bound = Bound::start(engine).await;
    let (client, provider) = (bound.server.caller("client"), bound.server.caller("provider"));
    for path in READS {
        client.get(path).await.with_status(200);
    }
    for (path, body, needs_provide) in changes() {
        let (admitted, other) = if needs_provide { (provider, client) } else { (client, provider) };
        refused(other.post(path, &body).await, 403, "role");
        // The memory that the first change has written is no reason to refuse the second.
        let body = if path == "/workspace/init" { json!({"force": true}) } else { body };
        admitted.post(path, &body).await.with_status(200);
    }
}

#[one_engine]
async fn a_caller_without_a_token_may_read_and_not_change(engine: Engine) {
    let bound = Bound::with(engine, |setup| setup.config.server.open_loopback = true).await;
    let anonymous = bound.server.with_token(None);
    anonymous.get("/workspace/memory").await.with_status(200);
    for (path, body, _) in changes() {
        refused(anonymous.post(path, &body).await, 401, "token_required");
    }
    assert_eq!(std::fs::read_dir(bound.root()).unwrap().count(), 0, "nothing was written");
}

#[one_engine]
async fn a_client_id_must_be_registered_by_the_caller(engine: Engine) {
    let bound = Bound::start(engine).await;
    bound.open_session("client_a").await;
    for (path, body, needs_provide) in changes() {
        refused(bound.post_as("client_b", path, &body).await, 400, "invalid_client_id");
        let role = if needs_provide { "provider" } else { "client" };
        let caller: &Caller = bound.server.caller(role);
        let request = caller.request("POST", path).header("x-qwen-client-id", "client_a");
        refused(caller.send(caller.with_body(request, path, &body)).await, 400, "invalid_client_id");
    }
    assert_eq!(std::fs::read_dir(bound.root()).unwrap().count(), 0, "nothing was written");
}
