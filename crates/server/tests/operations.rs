//! One table of all operations, each with a body that the server accepts in a scene that holds everything an operation can be
//! about. The tests of the surface, of authorisation and of bad input call the operations by this table. Dialects whose operations
//! need a scene of their own have their part of the table in their folder; [`elsewhere`] joins it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    daemon,
    harness::{Caller, EXTERNAL, Identity, ManualRunner, PNG, TestServer, id, run_body},
    mcp_server,
    trust::agents::sample_manifest,
};

/// What the calls of the table can name.
pub(crate) struct Scene {
    peer: Identity,
    peer_token: String,
    /// Holds the run's lease.
    pub runner: ManualRunner,
    pub run_id: String,
    pub session_id: String,
    pub command_id: String,
    pub job_id: String,
    pub permission_id: String,
    token_id: String,
    hold_id: String,
    user_name: String,
    pub agent_id: String,
    agent_token_id: String,
    asking_id: String,
    manifest_hash: String,
    pub relation_id: String,
    pub profile: String,
    pub validation_id: String,
    pub thread_id: String,
    pub picture: Picture,
    /// A dead one.
    delivery_id: String,
    pub automation_id: String,
    pub event_id: String,
}

/// A picture that was uploaded for the thread.
pub(crate) struct Picture {
    pub bucket: String,
    pub path: String,
    /// Without the server.
    pub url: String,
}

impl Picture {
    pub(crate) async fn upload(caller: &Caller, thread_id: &str) -> Self {
        let made = caller.upload(thread_id, PNG).await.with_status(201);
        let url = id(&made, "url");
        let url = url[url.find("/api/").unwrap()..].to_owned();
        Self { bucket: id(&made, "bucket"), path: id(&made, "path"), url }
    }
}

/// A message for a thread, as chat front ends post it.
pub(crate) fn agent_run(thread_id: &str, run_id: &str) -> Value {
    json!({"threadId": thread_id, "runId": run_id, "messages": [{"id": "m", "role": "user", "content": "hi"}],
        "forwardedProps": {"runtime_mode": "chat"}})
}

/// An automation with every field that it can have.
pub(crate) fn automation() -> Value {
    json!({"title": "Digest", "bootstrap_key": null, "timezone": "Europe/Berlin", "status": "active", "config": {
        "input_template": "Summarise {{date}}.", "enabled_tools": ["calendar_write"],
        "context": {"source": "latest_chat", "window_mode": "day", "window_count": 1},
        "schedule": {"type": "weekly", "run_at": {"hour": 7, "minute": 30}, "weekdays": [1, 5]}}})
}

/// An event of a calendar with every field that it can have.
pub(crate) fn calendar_event() -> Value {
    json!({"title": "Standup", "description": "d", "location": "Room 7", "starts_at": "2026-03-16T09:00",
        "ends_at": "2026-03-16T09:30", "all_day": false, "event_timezone": "Europe/Berlin",
        "recurrence": "FREQ=WEEKLY"})
}

pub(crate) const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const AUTH: &str = r#"{"OPENAI_API_KEY":"sk-0123456789abcdef"}"#;

/// Where a picture is shown.
pub(crate) const PICTURE: &str =
    "/api/v1/agent/attachments/object/{bucket}/agent-inputs/{owner}/{threadId}/{runId}/{file}";

/// Method, path and body of an operation, in a scene of this type.
pub(crate) type Row<S> = (&'static str, &'static str, fn(&S) -> Value);

pub(crate) fn none<S>(_: &S) -> Value {
    Value::Null
}

/// Method and path of every operation.
pub(crate) fn all() -> BTreeSet<(String, String)> {
    let here = OPERATIONS.iter().map(|(method, path, _)| (method.to_string(), path.to_string()));
    here.chain(elsewhere()).collect()
}

/// The operations that `matrix.rs` and `input/` do not call, each group with the reason and with what calls it instead.
pub(crate) fn elsewhere() -> BTreeSet<(String, String)> {
    // They are about a workspace, a coding agent and an identity provider, and their failures have another form. The table's own
    // file calls each of them, also as callers who are wrong for it; the tests of each noun send bad input.
    let daemon = daemon::operations::OPERATIONS.iter().map(|(method, path, _)| (*method, *path));
    // One path that speaks JSON-RPC within a session. The table's own file calls it, also as callers who are wrong for it;
    // `mcp_server/protocol.rs` sends bad input.
    let mcp_server = mcp_server::operations::OPERATIONS;
    daemon.chain(mcp_server).map(|(method, path)| (method.to_owned(), path.to_owned())).collect()
}

/// A body of the runner that holds the lease.
fn signed(scene: &Scene, fields: Value) -> Value {
    let mut body = json!({"runnerId": "runner-a", "leaseEpoch": scene.runner.epoch});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn whole_run(_: &Scene) -> Value {
    let mut body = run_body();
    body["sessionRef"] = json!({"sessionId": "s"});
    body["idempotencyKey"] = json!("k");
    body["labels"] = json!({"team": "search"});
    body["command"] = json!({"type": "turn", "payload": {"prompt": "x"}});
    body
}

/// The order of the scene's own job again: for a command in progress no other runner is started.
fn runner_job(scene: &Scene) -> Value {
    json!({"commandId": scene.command_id, "standing": false, "idempotencyKey": "scene"})
}

/// A person's answers to the manifest of an agent that asks for one scope.
fn answers(scene: &Scene) -> Value {
    json!({"granted_scopes": ["notes:read"], "denied_scopes": [], "terms": {"notes:read": {"once": true}},
        "manifest_hash": scene.manifest_hash, "language": "zh"})
}

fn whole_agent(_: &Scene) -> Value {
    json!({"name": "reader", "backend_profile": "scripted", "capability_manifest": sample_manifest()})
}

/// In an order in which each call can succeed: the ends come last. A body has all fields that it can have.
pub(crate) const OPERATIONS: &[Row<Scene>] = &[
    ("GET", "/health", none),
    ("GET", "/health/live", none),
    ("GET", "/health/readiness", none),
    ("GET", "/capabilities", none),
    ("GET", "/metrics", none),
    ("GET", "/api/v1/backends", none),
    ("POST", "/api/v1/runs", whole_run),
    ("GET", "/api/v1/runs", none),
    ("GET", "/api/v1/runs/{runId}", none),
    ("PATCH", "/api/v1/runs/{runId}", |_| json!({"labels": {"team": "search", "old": null}})),
    ("GET", "/api/v1/usage", none),
    ("GET", "/api/v1/runs/{runId}/result", none),
    (
        "POST",
        "/api/v1/runs/{runId}/commands",
        |_| json!({"type": "turn", "payload": {"prompt": "x"}, "idempotencyKey": "k"}),
    ),
    ("GET", "/api/v1/runs/{runId}/commands", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}/result", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}/conversation", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}/payload", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}/diff", none),
    ("POST", "/api/v1/runs/{runId}/runner-jobs", runner_job),
    ("GET", "/api/v1/runs/{runId}/runner-jobs", none),
    ("GET", "/api/v1/runs/{runId}/runner-jobs/{runnerJobId}", none),
    ("GET", "/api/v1/runs/{runId}/runner-jobs/{runnerJobId}/log", none),
    ("POST", "/api/v1/runner-jobs/claim", |_| json!({"runnerId": "runner-a", "profiles": [EXTERNAL]})),
    (
        "POST",
        "/api/v1/runners/register",
        |scene| json!({"runnerId": "runner-a", "runId": scene.run_id, "backendProfile": "scripted", "placement": "host-process"}),
    ),
    ("PATCH", "/api/v1/runs/{runId}/lease", |scene| signed(scene, json!({"leaseMs": 60_000, "release": false}))),
    ("POST", "/api/v1/commands/{commandId}/ack", |scene| signed(scene, json!({"attemptId": scene.runner.attempt_id}))),
    ("POST", "/api/v1/runs/{runId}/events", |scene| {
        let event = json!({"type": "custom", "commandId": scene.command_id, "payload": {"name": "n"}});
        signed(scene, json!({"batchNo": 1, "events": [event]}))
    }),
    ("GET", "/api/v1/runs/{runId}/events", none),
    ("GET", "/api/v1/runs/{runId}/permissions", none),
    ("GET", "/api/v1/tools", none),
    ("POST", "/api/v1/tools/{tool}/calls", |_| json!({"arguments": {"timezone": "UTC"}})),
    ("GET", "/api/v1/runs/{runId}/tools", none),
    ("POST", "/api/v1/runs/{runId}/tools/calls", |scene| {
        signed(
            scene,
            json!({"attemptId": scene.runner.attempt_id, "commandId": scene.command_id, "callId": "call_1",
            "name": "time_now", "arguments": "{}", "repeated": false, "waitMs": 20_000}),
        )
    }),
    ("POST", "/api/v1/sessions", |_| {
        json!({"tenantId": "hwlab", "sessionId": "mine", "backendProfile": "scripted", "title": "t",
            "labels": {"team": "search"}, "conversationId": "c", "metadata": {"ticket": 7}, "idempotencyKey": "k"})
    }),
    ("GET", "/api/v1/sessions", none),
    ("GET", "/api/v1/sessions/{sessionId}", none),
    (
        "PATCH",
        "/api/v1/sessions/{sessionId}",
        |_| json!({"title": "Ours", "labels": {"team": null}, "tenantId": "hwlab"}),
    ),
    ("GET", "/api/v1/sessions/{sessionId}/trace", none),
    ("GET", "/api/v1/sessions/{sessionId}/output", none),
    ("POST", "/api/v1/sessions/{sessionId}/read", |_| json!({"readerId": null, "version": 0, "tenantId": "hwlab"})),
    ("GET", "/api/v1/sessions/{sessionId}/storage", none),
    (
        "POST",
        "/api/v1/sessions/{sessionId}/storage/refresh",
        |scene| json!({"runId": scene.run_id, "sizeBytes": 7, "filesCount": 1, "sha256": DIGEST}),
    ),
    ("POST", "/api/v1/sessions/storage/gc", |_| json!({"now": "2026-01-01T00:00:00Z", "limit": 10})),
    (
        "POST",
        "/api/v1/runs/{runId}/permissions/{permissionId}/answer",
        |_| json!({"optionId": "yes", "digest": DIGEST}),
    ),
    ("POST", "/api/v1/commands/{commandId}/cancel", |_| json!({"reason": "enough"})),
    (
        "POST",
        "/api/v1/sessions/{sessionId}/control",
        |_| json!({"action": "cancel", "reason": "enough", "tenantId": "hwlab"}),
    ),
    ("PATCH", "/api/v1/commands/{commandId}/status", |scene| signed(scene, json!({"status": "cancelled"}))),
    ("POST", "/api/v1/runs/{runId}/claim", |_| json!({"runnerId": "runner-a", "leaseMs": 60_000})),
    ("PATCH", "/api/v1/runs/{runId}/status", |scene| {
        let mut body = signed(scene, json!({"status": "failed", "message": "m"}));
        // The claim before this call has raised it.
        body["leaseEpoch"] = json!(scene.runner.epoch + 1);
        body
    }),
    ("POST", "/api/v1/runs/{runId}/cancel", |_| json!({"reason": "enough"})),
    ("DELETE", "/api/v1/sessions/{sessionId}/storage", none),
    ("GET", "/api/v1/provider-profiles", none),
    ("GET", "/api/v1/provider-profile-changes", none),
    ("GET", "/api/v1/provider-profiles/{profile}", none),
    (
        "PUT",
        "/api/v1/provider-profiles/{profile}/credential",
        |_| json!({"files": {"auth.json": AUTH, "config.toml": "model = \"m\""}, "resourceVersion": null}),
    ),
    (
        "PUT",
        "/api/v1/provider-profiles/{profile}/config",
        |_| json!({"config": "model = \"m\"", "resourceVersion": null}),
    ),
    ("GET", "/api/v1/provider-profiles/{profile}/config", none),
    (
        "POST",
        "/api/v1/provider-profiles/{profile}/validate",
        |_| json!({"tenantId": "hwlab", "projectId": "p", "providerId": "p", "idempotencyKey": "trial"}),
    ),
    ("GET", "/api/v1/provider-profiles/{profile}/validations/{validationId}", none),
    ("DELETE", "/api/v1/provider-profiles/{profile}", none),
    ("GET", "/api/v1/retention", none),
    ("POST", "/api/v1/retention/sweeps", |_| json!({"dryRun": true, "tenantId": "hwlab", "noun": "events"})),
    (
        "POST",
        "/api/v1/retention/holds",
        |scene| json!({"tenantId": "hwlab", "sessionId": scene.session_id, "reason": "case 7"}),
    ),
    ("GET", "/api/v1/retention/holds", none),
    ("DELETE", "/api/v1/retention/holds/{holdId}", none),
    ("POST", "/api/v1/tokens", |_| json!({"name": "ci", "role": "client", "tenants": ["hwlab"], "expiresInMs": 1_000})),
    ("GET", "/api/v1/tokens", none),
    ("GET", "/api/v1/caller", none),
    ("DELETE", "/api/v1/tokens/{tokenId}", none),
    ("POST", "/h2a/relations", |scene| {
        let mut body = answers(scene);
        body["agent_id"] = json!(scene.asking_id);
        body
    }),
    ("GET", "/h2a/relations", none),
    ("GET", "/h2a/relations/{relationId}", none),
    ("GET", "/h2a/relations/{relationId}/changes", none),
    ("GET", "/h2a/pending", none),
    ("POST", "/h2a/relations/{relationId}/uses", |_| json!({"scope": "notes:read", "call_id": "call_1"})),
    ("PATCH", "/h2a/relations/{relationId}", answers),
    ("GET", "/h2a/relations/{relationId}/receipts", none),
    ("GET", "/h2a/receipts", none),
    ("DELETE", "/h2a/relations/{relationId}", none),
    ("POST", "/api/v1/users", |_| json!({"name": "bob", "timezone": "Europe/Berlin", "tenants": ["hwlab"]})),
    ("GET", "/api/v1/users", none),
    ("POST", "/api/v1/users/{userName}/token", |_| json!({"expiresInMs": 1_000})),
    ("PATCH", "/api/v1/users/{userName}", |_| json!({"timezone": "Europe/Berlin"})),
    ("DELETE", "/api/v1/users/{userName}", none),
    ("GET", "/.well-known/jwks.json", none),
    ("POST", "/api/v1/agent/runs/{threadId}/cancel", none),
    ("GET", "/api/v1/agent/runs/{threadId}/events", none),
    ("POST", "/api/v1/agent/attachments", |scene| json!({"threadId": scene.thread_id, "runId": "run-2"})),
    ("POST", "/api/v1/agent/transcribe", |_| json!({})),
    ("GET", "/api/v1/agent/attachments/signed-url", none),
    ("GET", PICTURE, none),
    ("GET", "/api/v1/agent/history", none),
    ("POST", "/api/v1/agent/runs", |scene| agent_run(&scene.thread_id, "run-2")),
    ("DELETE", "/api/v1/agent/sessions/{threadId}", none),
    ("POST", "/api/v1/automations", |_| automation()),
    ("GET", "/api/v1/automations", none),
    ("GET", "/api/v1/automations/{automationId}", none),
    ("PATCH", "/api/v1/automations/{automationId}", |_| {
        let made = automation();
        json!({"title": "Other", "config": made["config"], "timezone": "UTC", "status": "disabled"})
    }),
    ("POST", "/api/v1/automations/{automationId}/start", |_| json!({"idempotencyKey": "k"})),
    ("GET", "/api/v1/automations/{automationId}/runs", none),
    ("GET", "/api/v1/automations/{automationId}/next", none),
    ("DELETE", "/api/v1/automations/{automationId}", none),
    ("POST", "/api/v1/calendar-events", |_| calendar_event()),
    ("GET", "/api/v1/calendar-events", none),
    ("GET", "/api/v1/calendar-events/occurrences", none),
    ("GET", "/api/v1/calendar-events/export", none),
    ("GET", "/api/v1/calendar-events/{eventId}", none),
    ("PATCH", "/api/v1/calendar-events/{eventId}", |_| calendar_event()),
    ("DELETE", "/api/v1/calendar-events/{eventId}", none),
    ("POST", "/agents", whole_agent),
    ("GET", "/agents", none),
    ("GET", "/agents/{agentId}", none),
    ("PATCH", "/agents/{agentId}", whole_agent),
    ("POST", "/agents/{agentId}/manifest/diff", |_| json!({"capability_manifest": sample_manifest()})),
    ("POST", "/agents/{agentId}/tokens", |_| json!({"name": "laptop", "expires_in_ms": 1_000})),
    ("GET", "/agents/{agentId}/tokens", none),
    ("DELETE", "/agents/{agentId}/tokens/{agentTokenId}", none),
    ("PUT", "/agents/{agentId}/webhook", |_| json!({"url": UNREACHABLE})),
    ("GET", "/agents/{agentId}/webhook", none),
    ("GET", "/agents/{agentId}/webhook/deliveries", none),
    ("GET", "/agents/{agentId}/webhook/deliveries/{deliveryId}", none),
    ("POST", "/agents/{agentId}/webhook/deliveries/{deliveryId}/replay", none),
    ("POST", "/agents/{agentId}/webhook/test", none),
    ("DELETE", "/agents/{agentId}/webhook", none),
    ("DELETE", "/agents/{agentId}", none),
    ("GET", "/.well-known/aun-gateway", none),
    ("GET", "/pki/chain", none),
    ("GET", "/pki/root.crt", none),
    ("GET", "/pki/cert/{aid}", none),
    ("GET", "/pki/crl.json", none),
    ("GET", "/pki/crl", none),
    ("GET", "/pki/ocsp/{serial}", none),
    ("POST", "/pki/ocsp", |_| json!({})),
    ("GET", "/pki/trust-roots.json", none),
    ("PUT", "/agent.md", agent_md),
    ("GET", "/agent.md", agent_md),
    (
        "POST",
        "/api/v1/identities",
        |scene| json!({"aid": scene.peer.aid, "publicKey": scene.peer.key.public_key().to_base64()}),
    ),
    ("GET", "/api/v1/identities", none),
    ("GET", "/api/v1/identities/{aid}", none),
    ("POST", "/api/v1/identities/invites", |_| json!({"aid": "wren.localhost.test", "expiresInMs": 60_000})),
    ("POST", "/api/v1/identities/{aid}/revoke", |_| json!({"reason": "superseded"})),
];

/// Operations whose bodies are no JSON.
pub(crate) const NOT_JSON: [&str; 4] =
    ["/api/v1/agent/attachments", "/api/v1/agent/transcribe", "/pki/ocsp", "/agent.md"];

/// The agent.md of an identity of the mesh, with its host and its token.
fn agent_md(scene: &Scene) -> Value {
    let text = format!("---\naid: {}\nname: A\ntype: assistant\nversion: 1.0.0\ndescription: d\n---\n", scene.peer.aid);
    json!({"host": scene.peer.aid, "token": scene.peer_token, "text": text})
}

/// A webhook that is never connected to: its name is this machine's.
const UNREACHABLE: &str = "https://localhost:9/hook";

/// The body of an id of ours, as a UUID.
pub(crate) fn uuid(id: &str) -> String {
    let body = &id[id.len() - 32..];
    format!("{}-{}-{}-{}-{}", &body[..8], &body[8..12], &body[12..16], &body[16..20], &body[20..])
}

impl Scene {
    /// A run with a command in progress, a job and an open permission request, a token, a user of this name, a profile that was
    /// tried, and a thread of the operator's.
    pub(crate) async fn set(server: &TestServer, user_name: &str) -> Self {
        let stored = json!({"tenantId": "hwlab", "backendProfile": "scripted", "storageKind": "local"});
        let session_id = id(&server.post("/api/v1/sessions", &stored).await.with_status(201), "sessionId");
        let run_id = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await;
        let command_id = server.turn(&run_id, "hi").await;
        let ordered = json!({"commandId": command_id, "idempotencyKey": "scene"});
        let job = server.create_job(&run_id, &ordered).await.with_status(201);
        let job_id = id(&job, "runnerJobId");
        let permission_id = job_id.replace("job_", "prm_");
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        runner.ask(&command_id, &permission_id, DIGEST).await;
        let token = json!({"name": "ci", "role": "runner", "tenants": ["hwlab"]});
        let token_id = id(&server.post("/api/v1/tokens", &token).await.with_status(201), "tokenId");
        let hold = json!({"identity": "wren.localhost.test", "reason": "case 7"});
        let hold_id = id(&server.post("/api/v1/retention/holds", &hold).await.with_status(201), "holdId");
        server.post("/api/v1/users", &json!({"name": user_name, "timezone": "UTC"})).await.ok();
        let profile = format!("profile-{}", &job_id[job_id.len() - 8..]);
        let path = format!("/api/v1/provider-profiles/{profile}");
        let files = json!({"auth.json": AUTH, "config.toml": "model = \"m\""});
        server.call("PUT", &format!("{path}/credential"), &json!({"files": files})).await.with_status(200);
        let validation = server.post(&format!("{path}/validate"), &json!({"tenantId": "hwlab"})).await.with_status(202);
        let validation_id = id(&validation, "validationId");
        let user_name = user_name.to_owned();
        let thread_id = uuid(&job_id);
        server.post("/api/v1/agent/runs", &agent_run(&thread_id, "run-1")).await.with_status(202);
        let picture = Picture::upload(server, &thread_id).await;
        let agent_id = id(&server.post("/agents", &json!({"name": "reader"})).await.with_status(201), "id");
        let token = server.post(&format!("/agents/{agent_id}/tokens"), &json!({"name": "laptop"})).await;
        let agent_token_id = id(&token.with_status(201), "token_id");
        let (granted, manifest_hash) = server.agent().await;
        let body = json!({"agent_id": granted, "granted_scopes": ["notes:read"]});
        let relation_id = id(&server.post("/h2a/relations", &body).await.with_status(201), "id");
        let (asking_id, _) = server.agent().await;
        let webhook = format!("/agents/{agent_id}/webhook");
        server.call("PUT", &webhook, &json!({"url": UNREACHABLE})).await.with_status(200);
        let delivery = server.send(server.request("POST", &format!("{webhook}/test"))).await.with_status(202);
        server.send(server.request("DELETE", &webhook)).await.with_status(200);
        let automation = server.post("/api/v1/automations", &automation()).await.with_status(201);
        let event = server.post("/api/v1/calendar-events", &calendar_event()).await.with_status(201);
        let peer = Identity::register(server, &format!("peer-{}", &job_id[job_id.len() - 8..])).await;
        let peer_token = peer.login(server).await.access;
        let scene = Self {
            peer,
            peer_token,
            runner,
            agent_id,
            agent_token_id,
            asking_id,
            manifest_hash,
            relation_id,
            run_id,
            session_id,
            command_id,
            job_id,
            permission_id,
            token_id,
            hold_id,
            user_name,
            profile,
            validation_id,
            thread_id,
            picture,
            delivery_id: id(&delivery, "delivery_id"),
            automation_id: id(&automation, "id"),
            event_id: id(&event, "id"),
        };
        let request = server.with_body(server.request("PUT", "/agent.md"), "/agent.md", &agent_md(&scene));
        server.send(request).await;
        scene
    }

    /// A path of the table, with the ids of this scene put in.
    pub(crate) fn path(&self, template: &str) -> String {
        let Picture { bucket, path, url } = &self.picture;
        let signing = format!("signed-url?bucket={bucket}&path={path}");
        template
            .replace(PICTURE, url)
            .replace("attachments/signed-url", &format!("attachments/{signing}"))
            .replace("sessions/{threadId}", &format!("sessions/{}", self.thread_id))
            .replace("{runId}", &self.run_id)
            .replace("{sessionId}", &self.session_id)
            .replace("{commandId}", &self.command_id)
            .replace("{runnerJobId}", &self.job_id)
            .replace("{permissionId}", &self.permission_id)
            .replace("{tokenId}", &self.token_id)
            .replace("{holdId}", &self.hold_id)
            .replace("{agentId}", &self.agent_id)
            .replace("{agentTokenId}", &self.agent_token_id)
            .replace("{aid}", &self.peer.aid)
            .replace("{serial}", "1234")
            .replace("{userName}", &self.user_name)
            .replace("{profile}", &self.profile)
            .replace("{validationId}", &self.validation_id)
            .replace("{relationId}", &self.relation_id)
            .replace("{threadId}/events", &format!("{}/events?runId=run-1&idle_limit=1", self.thread_id))
            .replace("{threadId}/cancel", &format!("{}/cancel?runId=run-1", self.thread_id))
            .replace("{deliveryId}", &self.delivery_id)
            .replace("{tool}", "time_now")
            .replace("{automationId}", &self.automation_id)
            .replace("{eventId}", &self.event_id)
            .replace("/occurrences", "/occurrences?from=2026-03-01T00:00:00Z&to=2026-04-01T00:00:00Z")
    }
}
