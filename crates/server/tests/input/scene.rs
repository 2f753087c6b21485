//! A scene in which every write could succeed, and every write with a body that would be accepted.

use serde_json::{Value, json};

use crate::{
    harness::{Agent, EXTERNAL, Engine, Played, TestServer, id, run_body},
    surface::{agent_run, uuid},
    trust::agents::sample_manifest,
};

pub const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
pub const USER: &str = "ada";
pub const PROFILE: &str = "mine";
pub const PERMISSION_ID: &str = "prm_0123456789abcdef0123456789abcdef";

/// A run with a command in progress and an open question, so that every write could succeed.
pub struct Scene {
    pub server: TestServer,
    pub runner: Played,
    pub session_id: String,
    pub command_id: String,
    pub agent_id: String,
    /// One that asks for a scope, its manifest's hash, and a relation with such a one.
    pub asking_id: String,
    pub manifest_hash: String,
    pub relation_id: String,
    /// An agent of the mesh.
    pub peer: Agent,
}

/// What becomes of a field that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// It is left for a later version.
    Open,
    /// It is refused: a body that grants something is taken as it was meant, or not at all.
    Closed,
}

use Form::{Closed, Open};

/// Method, path and a body that would be accepted, and its form.
pub type Write = (Form, &'static str, String, Value);

impl Scene {
    pub async fn set(engine: Engine) -> Self {
        let server = TestServer::start(engine).await;
        let run_id = server.create_run().await;
        let command_id = server.turn(&run_id, "hi").await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        runner.ask(&command_id, PERMISSION_ID, DIGEST).await;
        let session_id = id(&server.run(&run_id).await, "sessionId");
        server.post("/api/v1/users", &json!({"name": USER, "timezone": "UTC"})).await.with_status(201);
        let files = json!({"auth.json": "{}", "config.toml": "model = \"m\""});
        let path = format!("/api/v1/provider-profiles/{PROFILE}/credential");
        server.call("PUT", &path, &json!({"files": files})).await.with_status(200);
        let agent_id = id(&server.post("/agents", &json!({"name": "reader"})).await.with_status(201), "id");
        let (granted, _) = server.agent().await;
        let body = json!({"agent_id": granted, "granted_scopes": ["notes:read"]});
        let relation_id = id(&server.post("/h2a/relations", &body).await.with_status(201), "id");
        let (asking_id, manifest_hash) = server.agent().await;
        let peer = Agent::register(&server, "peer").await;
        Self { server, runner, session_id, command_id, agent_id, asking_id, manifest_hash, relation_id, peer }
    }

    /// Every operation that takes a body.
    pub fn writes(&self) -> Vec<Write> {
        let (run, session, command) = (&self.runner.run_id, &self.session_id, &self.command_id);
        let signed = |extra: Value| {
            let mut body = json!({"runnerId": "runner-a", "leaseEpoch": self.runner.epoch});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            body
        };
        let event = json!({"type": "custom", "commandId": command, "payload": {"name": "n"}});
        let turn = json!({"type": "turn", "payload": {"prompt": "x"}, "idempotencyKey": "k"});
        let mut whole_run = run_body();
        whole_run["sessionRef"] = json!({"sessionId": "s"});
        whole_run["idempotencyKey"] = json!("k");
        whole_run["labels"] = json!({"team": "search"});
        whole_run["command"] = json!({"type": "turn", "payload": {"prompt": "x"}});
        let agent = &self.agent_id;
        let whole_agent =
            json!({"name": "reader", "backend_profile": "scripted", "capability_manifest": sample_manifest()});
        let key = self.peer.key.public_key().to_base64();
        let register = json!({"runnerId": "runner-a", "runId": run, "backendProfile": "scripted"});
        vec![
            (Open, "POST", "/api/v1/runs".into(), whole_run),
            (Open, "PATCH", format!("/api/v1/runs/{run}"), json!({"labels": {"team": "search", "old": null}})),
            (Open, "POST", format!("/api/v1/runs/{run}/cancel"), json!({"reason": "r"})),
            (Open, "PATCH", format!("/api/v1/runs/{run}/status"), signed(json!({"status": "failed", "message": "m"}))),
            (Open, "POST", format!("/api/v1/runs/{run}/events"), signed(json!({"batchNo": 1, "events": [event]}))),
            (Open, "POST", format!("/api/v1/runs/{run}/commands"), turn),
            (Open, "POST", format!("/api/v1/commands/{command}/cancel"), json!({"reason": "r"})),
            (
                Open,
                "POST",
                format!("/api/v1/commands/{command}/ack"),
                signed(json!({"attemptId": self.runner.attempt_id})),
            ),
            (Open, "PATCH", format!("/api/v1/commands/{command}/status"), signed(json!({"status": "completed"}))),
            (Open, "POST", format!("/api/v1/runs/{run}/runner-jobs"), json!({"commandId": command, "standing": false})),
            (
                Open,
                "POST",
                format!("/api/v1/runs/{run}/permissions/{PERMISSION_ID}/answer"),
                json!({"optionId": "yes", "digest": DIGEST}),
            ),
            (Open, "POST", format!("/api/v1/runs/{run}/claim"), json!({"runnerId": "runner-a", "leaseMs": 60_000})),
            (Open, "PATCH", format!("/api/v1/runs/{run}/lease"), signed(json!({"leaseMs": 1_000, "release": true}))),
            (Open, "POST", "/api/v1/runner-jobs/claim".into(), json!({"runnerId": "runner-a", "profiles": [EXTERNAL]})),
            (Open, "POST", "/api/v1/runners/register".into(), register),
            (
                Open,
                "POST",
                "/api/v1/sessions".into(),
                json!({"tenantId": "hwlab", "sessionId": "mine", "backendProfile": "scripted", "title": "t",
                    "labels": {"team": "search"},
                    "idempotencyKey": "k"}),
            ),
            (
                Open,
                "PATCH",
                format!("/api/v1/sessions/{session}"),
                json!({"title": "t", "labels": {"team": null}, "tenantId": "hwlab"}),
            ),
            (
                Open,
                "POST",
                format!("/api/v1/sessions/{session}/read"),
                json!({"readerId": "r", "version": 0, "tenantId": "hwlab"}),
            ),
            (
                Open,
                "POST",
                format!("/api/v1/sessions/{session}/control"),
                json!({"action": "cancel", "reason": "r", "tenantId": "hwlab"}),
            ),
            (
                Open,
                "POST",
                format!("/api/v1/sessions/{session}/storage/refresh"),
                json!({"runId": run, "sizeBytes": 7, "filesCount": 1, "sha256": DIGEST}),
            ),
            (Open, "POST", "/api/v1/sessions/storage/gc".into(), json!({"now": "2026-01-01T00:00:00Z", "limit": 10})),
            (
                Closed,
                "POST",
                "/api/v1/retention/sweeps".into(),
                json!({"dryRun": true, "tenantId": "hwlab", "noun": "events"}),
            ),
            (
                Closed,
                "POST",
                "/api/v1/retention/holds".into(),
                json!({"tenantId": "hwlab", "sessionId": session, "reason": "r"}),
            ),
            (Open, "POST", "/api/v1/identities".into(), json!({"aid": "wren.localhost.test", "publicKey": key})),
            (
                Open,
                "POST",
                "/api/v1/identities/invites".into(),
                json!({"aid": "wren.localhost.test", "expiresInMs": 1_000}),
            ),
            (Open, "POST", format!("/api/v1/identities/{}/revoke", self.peer.aid), json!({"reason": "superseded"})),
            (
                Closed,
                "POST",
                "/api/v1/tokens".into(),
                json!({"name": "ci", "role": "client", "tenants": ["hwlab"], "expiresInMs": 1_000}),
            ),
            (
                Closed,
                "POST",
                "/h2a/relations".into(),
                json!({"agent_id": self.asking_id, "granted_scopes": ["notes:read"], "denied_scopes": [],
                    "terms": {"notes:read": {"once": true}}, "manifest_hash": self.manifest_hash, "language": "zh"}),
            ),
            (
                Closed,
                "PATCH",
                format!("/h2a/relations/{}", self.relation_id),
                json!({"granted_scopes": ["notes:read"], "denied_scopes": [], "terms": {"notes:read": {"once": true}},
                    "manifest_hash": self.manifest_hash, "language": "zh"}),
            ),
            (
                Closed,
                "POST",
                format!("/h2a/relations/{}/uses", self.relation_id),
                json!({"scope": "notes:read", "call_id": "call_1"}),
            ),
            (Open, "POST", "/api/v1/users".into(), json!({"name": "bob", "timezone": "UTC", "tenants": ["hwlab"]})),
            (Open, "PATCH", format!("/api/v1/users/{USER}"), json!({"timezone": "UTC"})),
            (Closed, "POST", format!("/api/v1/users/{USER}/token"), json!({"expiresInMs": 1_000})),
            (Closed, "POST", "/agents".into(), whole_agent.clone()),
            (Closed, "PATCH", format!("/agents/{agent}"), whole_agent.clone()),
            (
                Closed,
                "POST",
                format!("/agents/{agent}/manifest/diff"),
                json!({"capability_manifest": sample_manifest()}),
            ),
            (Closed, "POST", format!("/agents/{agent}/tokens"), json!({"name": "laptop", "expires_in_ms": 1_000})),
            (Closed, "PUT", format!("/agents/{agent}/webhook"), json!({"url": "https://localhost:9/hook"})),
            (
                Open,
                "PUT",
                format!("/api/v1/provider-profiles/{PROFILE}/credential"),
                json!({"files": {"auth.json": "{}", "config.toml": ""}, "resourceVersion": "v"}),
            ),
            (
                Open,
                "PUT",
                format!("/api/v1/provider-profiles/{PROFILE}/config"),
                json!({"config": "a = 1", "resourceVersion": "v"}),
            ),
            (
                Open,
                "POST",
                format!("/api/v1/provider-profiles/{PROFILE}/validate"),
                json!({"tenantId": "hwlab", "projectId": "p", "providerId": "p", "idempotencyKey": "k"}),
            ),
            (Open, "POST", "/api/v1/agent/runs".into(), agent_run(&uuid(run), "run-1")),
        ]
    }

    /// All that could have changed.
    pub async fn state(&self) -> Vec<Value> {
        let run_id = &self.runner.run_id;
        let jobs = format!("/api/v1/runs/{run_id}/runner-jobs");
        let mut state = self.server.events(run_id).await;
        let listed = ["/api/v1/tokens", "/api/v1/users", "/api/v1/provider-profiles", "/agents", "/h2a/relations"];
        for path in ["/api/v1/runs", &jobs, "/api/v1/sessions?state=all"].into_iter().chain(listed) {
            state.push(self.server.get(path).await.ok());
        }
        state
    }
}
