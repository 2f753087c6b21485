//! The surface: every operation of the OpenAPI document is called here at least once, with success, and the document
//! that is served and the one that is kept are the one that the handlers make.

mod capabilities;
mod enums;
mod kept;
mod paths;
mod promises;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    harness::{Agent, Caller, Engine, PNG, TestServer, both_engines, check_request, id, one_engine, openapi, run_body},
    trust::agents::sample_manifest,
};

/// What the calls of the table can name.
pub struct Scene {
    peer: Agent,
    peer_token: String,
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
}

/// A picture that was uploaded for the thread.
pub struct Picture {
    pub bucket: String,
    pub path: String,
    /// Without the server.
    pub url: String,
}

impl Picture {
    pub async fn upload(caller: &Caller, thread_id: &str) -> Self {
        let made = caller.upload(thread_id, PNG).await.with_status(201);
        let url = id(&made, "url");
        let url = url[url.find("/api/").unwrap()..].to_owned();
        Self { bucket: id(&made, "bucket"), path: id(&made, "path"), url }
    }
}

/// A message for a thread, as chat front ends post it.
pub fn agent_run(thread_id: &str, run_id: &str) -> Value {
    json!({"threadId": thread_id, "runId": run_id, "messages": [{"id": "m", "role": "user", "content": "hi"}],
        "forwardedProps": {"runtime_mode": "chat"}})
}

pub const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Where a picture is shown.
pub const PICTURE: &str = "/api/v1/agent/attachments/object/{bucket}/agent-inputs/{owner}/{threadId}/{runId}/{file}";

type Row = (&'static str, &'static str, fn(&Scene) -> Value);

fn none(_: &Scene) -> Value {
    Value::Null
}

fn signed(_: &Scene) -> Value {
    json!({"runnerId": "runner-a", "leaseEpoch": 1})
}

/// In an order in which each call can succeed: the ends come last.
pub const OPERATIONS: &[Row] = &[
    ("GET", "/health", none),
    ("GET", "/health/live", none),
    ("GET", "/health/readiness", none),
    ("GET", "/capabilities", none),
    ("GET", "/metrics", none),
    ("GET", "/api/v1/backends", none),
    ("POST", "/api/v1/runs", |_| run_body()),
    ("GET", "/api/v1/runs", none),
    ("GET", "/api/v1/runs/{runId}", none),
    ("PATCH", "/api/v1/runs/{runId}", |_| json!({"labels": {"team": "search", "old": null}})),
    ("GET", "/api/v1/usage", none),
    ("GET", "/api/v1/runs/{runId}/result", none),
    ("POST", "/api/v1/runs/{runId}/commands", |_| json!({"type": "turn", "payload": {"prompt": "x"}})),
    ("GET", "/api/v1/runs/{runId}/commands", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}/result", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}/conversation", none),
    ("GET", "/api/v1/runs/{runId}/commands/{commandId}/diff", none),
    ("POST", "/api/v1/runs/{runId}/runner-jobs", |scene| json!({"commandId": scene.command_id})),
    ("GET", "/api/v1/runs/{runId}/runner-jobs", none),
    ("GET", "/api/v1/runs/{runId}/runner-jobs/{runnerJobId}", none),
    ("POST", "/api/v1/runner-jobs/claim", |_| json!({"runnerId": "runner-a", "profiles": [crate::harness::EXTERNAL]})),
    (
        "POST",
        "/api/v1/runners/register",
        |scene| json!({"runnerId": "runner-a", "runId": scene.run_id, "backendProfile": "scripted", "placement": "host-process"}),
    ),
    ("POST", "/api/v1/runs/{runId}/claim", |_| json!({"runnerId": "runner-a", "leaseMs": 60_000})),
    ("PATCH", "/api/v1/runs/{runId}/lease", signed),
    ("POST", "/api/v1/commands/{commandId}/ack", signed),
    ("POST", "/api/v1/runs/{runId}/events", |scene| {
        let ask = json!({"permissionId": scene.permission_id, "title": "?", "digest": DIGEST,
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]});
        let event = json!({"type": "permission_request", "commandId": scene.command_id, "payload": ask});
        json!({"runnerId": "runner-a", "leaseEpoch": 1, "events": [event]})
    }),
    ("GET", "/api/v1/runs/{runId}/events", none),
    ("GET", "/api/v1/runs/{runId}/permissions", none),
    ("POST", "/api/v1/sessions", |_| json!({"tenantId": "hwlab", "backendProfile": "scripted"})),
    ("GET", "/api/v1/sessions", none),
    ("GET", "/api/v1/sessions/{sessionId}", none),
    ("PATCH", "/api/v1/sessions/{sessionId}", |_| json!({"title": "Ours"})),
    ("GET", "/api/v1/sessions/{sessionId}/trace", none),
    ("GET", "/api/v1/sessions/{sessionId}/output", none),
    ("POST", "/api/v1/sessions/{sessionId}/read", |_| json!({})),
    ("GET", "/api/v1/sessions/{sessionId}/storage", none),
    (
        "POST",
        "/api/v1/sessions/{sessionId}/storage/refresh",
        |scene| json!({"runId": scene.run_id, "sizeBytes": 7, "filesCount": 1, "sha256": DIGEST}),
    ),
    ("POST", "/api/v1/sessions/storage/gc", |_| json!({"limit": 10})),
    (
        "POST",
        "/api/v1/runs/{runId}/permissions/{permissionId}/answer",
        |_| json!({"optionId": "yes", "digest": DIGEST}),
    ),
    ("POST", "/api/v1/commands/{commandId}/cancel", |_| json!({"reason": "enough"})),
    ("POST", "/api/v1/sessions/{sessionId}/control", |_| json!({"action": "cancel"})),
    (
        "PATCH",
        "/api/v1/commands/{commandId}/status",
        |_| json!({"runnerId": "runner-a", "leaseEpoch": 1, "status": "cancelled"}),
    ),
    (
        "PATCH",
        "/api/v1/runs/{runId}/status",
        |_| json!({"runnerId": "runner-a", "leaseEpoch": 1, "status": "completed"}),
    ),
    ("POST", "/api/v1/runs/{runId}/cancel", |_| json!({})),
    ("DELETE", "/api/v1/sessions/{sessionId}/storage", none),
    ("GET", "/api/v1/provider-profiles", none),
    ("GET", "/api/v1/provider-profile-changes", none),
    ("GET", "/api/v1/provider-profiles/{profile}", none),
    ("PUT", "/api/v1/provider-profiles/{profile}/credential", |_| json!({"apiKey": "sk-0123456789abcdef"})),
    ("PUT", "/api/v1/provider-profiles/{profile}/config", |_| json!({"config": "model = \"m\""})),
    ("GET", "/api/v1/provider-profiles/{profile}/config", none),
    ("POST", "/api/v1/provider-profiles/{profile}/validate", |_| json!({"tenantId": "hwlab"})),
    ("GET", "/api/v1/provider-profiles/{profile}/validations/{validationId}", none),
    ("DELETE", "/api/v1/provider-profiles/{profile}", none),
    ("GET", "/api/v1/retention", none),
    ("POST", "/api/v1/retention/sweeps", |_| json!({"dryRun": true})),
    ("POST", "/api/v1/retention/holds", |_| json!({"identity": "wren.localhost.test", "reason": "case 7"})),
    ("GET", "/api/v1/retention/holds", none),
    ("DELETE", "/api/v1/retention/holds/{holdId}", none),
    ("POST", "/api/v1/tokens", |_| json!({"name": "ci", "role": "client", "tenants": ["hwlab"]})),
    ("GET", "/api/v1/tokens", none),
    ("GET", "/api/v1/caller", none),
    ("DELETE", "/api/v1/tokens/{tokenId}", none),
    ("POST", "/h2a/relations", |scene| json!({"agent_id": scene.asking_id, "granted_scopes": []})),
    ("GET", "/h2a/relations", none),
    ("GET", "/h2a/relations/{relationId}", none),
    ("GET", "/h2a/relations/{relationId}/changes", none),
    ("GET", "/h2a/pending", none),
    ("POST", "/h2a/relations/{relationId}/uses", |_| json!({"scope": "notes:read", "call_id": "call_1"})),
    (
        "PATCH",
        "/h2a/relations/{relationId}",
        |scene| json!({"granted_scopes": [], "manifest_hash": scene.manifest_hash}),
    ),
    ("GET", "/h2a/relations/{relationId}/receipts", none),
    ("GET", "/h2a/receipts", none),
    ("DELETE", "/h2a/relations/{relationId}", none),
    ("POST", "/api/v1/users", |_| json!({"name": "bob", "timezone": "Europe/Berlin"})),
    ("GET", "/api/v1/users", none),
    ("POST", "/api/v1/users/{userName}/token", |_| json!({})),
    ("PATCH", "/api/v1/users/{userName}", |_| json!({"timezone": "Europe/Berlin"})),
    ("DELETE", "/api/v1/users/{userName}", none),
    ("GET", "/.well-known/jwks.json", none),
    ("POST", "/api/v1/agent/runs/{threadId}/cancel", none),
    ("GET", "/api/v1/agent/runs/{threadId}/events", none),
    ("POST", "/api/v1/agent/attachments", |scene| json!({"threadId": scene.thread_id, "runId": "run-2"})),
    ("GET", "/api/v1/agent/attachments/signed-url", none),
    ("GET", PICTURE, none),
    ("GET", "/api/v1/agent/history", none),
    ("POST", "/api/v1/agent/runs", |scene| agent_run(&scene.thread_id, "run-2")),
    ("DELETE", "/api/v1/agent/sessions/{threadId}", none),
    ("POST", "/agents", |_| json!({"name": "reader", "capability_manifest": sample_manifest()})),
    ("GET", "/agents", none),
    ("GET", "/agents/{agentId}", none),
    ("PATCH", "/agents/{agentId}", |_| json!({"backend_profile": "scripted"})),
    ("POST", "/agents/{agentId}/manifest/diff", |_| json!({"capability_manifest": sample_manifest()})),
    ("POST", "/agents/{agentId}/tokens", |_| json!({"name": "laptop"})),
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
    ("POST", "/api/v1/identities/invites", |_| json!({"expiresInMs": 60_000})),
    ("POST", "/api/v1/identities/{aid}/revoke", |_| json!({"reason": "superseded"})),
];

/// Operations whose bodies are no JSON.
const NOT_JSON: [&str; 3] = ["/api/v1/agent/attachments", "/pki/ocsp", "/agent.md"];

/// What an agent of the mesh says of itself, as its host and with its token.
fn agent_md(scene: &Scene) -> Value {
    let text = format!("---\naid: {}\nname: A\ntype: assistant\nversion: 1.0.0\ndescription: d\n---\n", scene.peer.aid);
    json!({"host": scene.peer.aid, "token": scene.peer_token, "text": text})
}

/// A webhook that is never connected to: its name is this machine's.
const UNREACHABLE: &str = "https://localhost:9/hook";

/// Every operation the document has.
fn documented() -> BTreeSet<(String, String)> {
    let document = openapi().clone();
    let mut operations = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            if ["get", "put", "post", "delete", "patch", "head", "options"].contains(&method.as_str()) {
                operations.insert((method.to_uppercase(), path.clone()));
            }
        }
    }
    operations
}

#[both_engines]
async fn every_operation_of_the_document_succeeds(engine: Engine) {
    let server = TestServer::start(engine).await;
    let listed = OPERATIONS.iter().map(|(method, path, _)| (method.to_string(), path.to_string())).collect();
    assert_eq!(documented(), listed, "the table here and the document name the same operations");
    let scene = Scene::set(&server, "ada").await;
    for (method, path, body) in OPERATIONS {
        let body = body(&scene);
        if !body.is_null() && !NOT_JSON.contains(path) {
            check_request(method, path, &body);
        }
        let answer = call(&server, method, &scene.path(path), &body).await;
        assert!((200..300).contains(&answer.0), "{method} {path}: {answer:?}");
    }
}

async fn call(caller: &Caller, method: &str, path: &str, body: &Value) -> (u16, String) {
    let answer = caller.send(caller.with_body(caller.request(method, path), path, body)).await;
    let content_type = match path {
        "/metrics" => "text/plain",
        stream if stream.contains("/agent/") && stream.contains("/events") => "text/event-stream",
        picture if picture.contains("/object/") => "image/png",
        "/pki/crl" => "application/pkix-crl",
        "/pki/ocsp" => "application/ocsp-response",
        "/agent.md" if method == "GET" => "text/markdown",
        pem if pem.starts_with("/pki/c") && !pem.ends_with("json") || pem == "/pki/root.crt" => {
            "application/x-pem-file"
        }
        _ => "application/json",
    };
    let has_body = answer.status != 204;
    assert!(!has_body || answer.headers["content-type"].to_str().unwrap().starts_with(content_type), "{method} {path}");
    assert!(answer.headers["x-trace-id"].to_str().unwrap().starts_with("trc_"));
    (answer.status, answer.text)
}

/// The body of an id of ours, as a UUID.
pub fn uuid(id: &str) -> String {
    let body = &id[id.len() - 32..];
    format!("{}-{}-{}-{}-{}", &body[..8], &body[8..12], &body[12..16], &body[16..20], &body[20..])
}

impl Scene {
    /// A run with a command and a job, a token, a user of this name, a profile that was tried, and a thread of the operator's.
    pub async fn set(server: &TestServer, user_name: &str) -> Self {
        let stored = json!({"tenantId": "hwlab", "backendProfile": "scripted", "storageKind": "local"});
        let session_id = id(&server.post("/api/v1/sessions", &stored).await.with_status(201), "sessionId");
        let run_id = server.create_run_with(|body| body["sessionRef"] = json!({"sessionId": session_id})).await;
        let command_id = server.turn(&run_id, "hi").await;
        let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
        let job_id = id(&job, "runnerJobId");
        let permission_id = job_id.replace("job_", "prm_");
        let token = json!({"name": "ci", "role": "runner", "tenants": ["hwlab"]});
        let token_id = id(&server.post("/api/v1/tokens", &token).await.with_status(201), "tokenId");
        let hold = json!({"identity": "wren.localhost.test", "reason": "case 7"});
        let hold_id = id(&server.post("/api/v1/retention/holds", &hold).await.with_status(201), "holdId");
        server.post("/api/v1/users", &json!({"name": user_name, "timezone": "UTC"})).await.ok();
        let profile = format!("profile-{}", &job_id[job_id.len() - 8..]);
        let path = format!("/api/v1/provider-profiles/{profile}");
        let files = json!({"auth.json": r#"{"OPENAI_API_KEY":"sk-0123456789abcdef"}"#, "config.toml": "model = \"m\""});
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
        let peer = Agent::register(server, &format!("peer-{}", &job_id[job_id.len() - 8..])).await;
        let peer_token = peer.login(server).await.access;
        let scene = Self {
            peer,
            peer_token,
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
        };
        call(server, "PUT", "/agent.md", &agent_md(&scene)).await;
        scene
    }
}

#[one_engine]
async fn the_served_document_is_the_handlers_own(engine: Engine) {
    let server = TestServer::start(engine).await;
    let own = openapi().clone();
    assert_eq!(server.get("/openapi.json").await.with_status(200), own);
    // Every path parameter is described, and every operation says what a failure looks like.
    for (path, item) in own["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let described = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(described, path.matches('{').count(), "{method} {path}");
            let named = |header: &str| parameters.iter().any(|p| p["in"] == "header" && p["name"] == header);
            let streams = operation["responses"]["200"]["content"]["text/event-stream"].is_object();
            assert_eq!(named("Last-Event-ID"), streams, "{method} {path}");
            assert_eq!(named("Idempotency-Key"), takes_key(&own, operation), "{method} {path}");
            let fails = operation["responses"]["4XX"]["content"]["application/problem+json"].is_object();
            assert!(fails, "{method} {path} does not say how it fails");
        }
    }
}

/// Whether an operation's body has an idempotency key.
fn takes_key(document: &Value, operation: &Value) -> bool {
    let body = operation["requestBody"]["content"]["application/json"]["schema"].to_string();
    let schemas = document["components"]["schemas"].as_object().unwrap().iter();
    let mut keyed = schemas.filter(|(_, schema)| schema["properties"]["idempotencyKey"].is_object());
    keyed.any(|(name, _)| body.contains(&format!("/{name}\"")))
}
