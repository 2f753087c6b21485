//! Every operation of the daemon dialect, each with a body that the server accepts in a scene that holds everything an operation
//! can be about. Each succeeds there, and callers who are wrong for it get nowhere.

use ostler_protocol::{daemon::files::content_hash, mcp::config::McpServer};
use ostler_stand_ins::IdentityProvider;
use serde_json::{Value, json};

use super::{CLIENT, auth, configure, segment, shell_agent};
use crate::{
    harness::{Answer, Caller, Engine, Setup, TestServer, both_engines, check_request, id},
    mcp::configure_servers,
    operations::{DIGEST, Row, none},
};

/// What the calls of the table can name.
pub(crate) struct Scene {
    session_id: String,
    client_id: String,
    prompt_id: String,
    /// A session without a prompt that waits or runs, and its client.
    idle: (String, String),
    /// Permission requests that are open, one for each route that answers one.
    permissions: [String; 2],
    cwd: String,
    /// A device flow that is pending.
    device_flow_id: String,
    /// An MCP server that is configured.
    mcp: McpServer,
    /// A change of extensions that has ended.
    operation_id: String,
}

fn allow(_: &Scene) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": "yes"}})
}

/// A file of the workspace.
const FILE: &str = "notes.txt";
const TEXT: &[u8] = b"one\ntwo\n";

/// No MCP server of this build has a login.
const NO_LOGIN: &str = "/workspace/mcp/{server}/authenticate";
/// Streams do not end by themselves.
const STREAM: &str = "/session/{sessionId}/events";

/// In an order in which each call can succeed: the ends come last.
pub(crate) const OPERATIONS: &[Row<Scene>] = &[
    ("POST", "/session", |scene| json!({"cwd": scene.cwd, "modelServiceId": "scripted", "sessionScope": "thread"})),
    ("GET", "/file", none),
    ("GET", "/file/bytes", none),
    ("GET", "/stat", none),
    ("GET", "/list", none),
    ("GET", "/glob", none),
    ("POST", "/file/write", |_| {
        json!({"path": "written", "content": "x", "mode": "create", "expectedHash": content_hash(b"x"), "bom": false,
            "encoding": "utf-8", "lineEnding": "lf"})
    }),
    (
        "POST",
        "/file/edit",
        |_| json!({"path": FILE, "oldText": "two", "newText": "three", "expectedHash": content_hash(TEXT)}),
    ),
    ("POST", "/workspace/memory", |_| json!({"scope": "workspace", "mode": "append", "content": "- be brief"})),
    ("GET", "/workspace/memory", none),
    ("POST", "/workspace/init", |_| json!({"force": true})),
    ("POST", "/workspace/settings", |_| json!({"scope": "workspace", "key": "memory.enabled", "value": false})),
    ("GET", "/workspace/settings", none),
    ("POST", "/workspace/reload", none),
    ("GET", "/workspace/env", none),
    ("GET", "/workspace/preflight", none),
    ("GET", "/workspace/providers", none),
    ("GET", "/workspace/auth/providers", none),
    (
        "POST",
        "/workspace/auth/provider",
        |_| json!({"providerId": "deepseek", "apiKey": "a-key-0123456789", "modelIds": ["m"]}),
    ),
    ("POST", "/workspace/auth/device-flow", |_| json!({"providerId": "other-id"})),
    ("GET", "/workspace/auth/device-flow/{deviceFlowId}", none),
    ("DELETE", "/workspace/auth/device-flow/{deviceFlowId}", none),
    ("GET", "/workspace/auth/status", none),
    ("GET", "/workspace/mcp", none),
    ("GET", "/workspace/mcp/{server}/tools", none),
    ("POST", "/workspace/mcp/{server}/disable", none),
    ("POST", "/workspace/mcp/{server}/enable", none),
    ("POST", "/workspace/mcp/{server}/clear-auth", none),
    ("POST", "/workspace/mcp/{server}/authenticate", none),
    ("POST", "/workspace/mcp/{server}/restart", none),
    ("POST", "/workspace/mcp/servers", |scene| {
        json!({"name": "added", "config": {"command": scene.mcp.command,
        "args": scene.mcp.args}})
    }),
    ("DELETE", "/workspace/mcp/servers/{name}", none),
    ("POST", "/workspace/tools/{name}/enable", |_| json!({"enabled": false})),
    // What only a coding agent has.
    ("GET", "/session/{sessionId}/supported-commands", none),
    ("GET", "/session/{sessionId}/lsp", none),
    ("GET", "/session/{sessionId}/hooks", none),
    ("POST", "/session/{sessionId}/approval-mode", |_| json!({"mode": "plan", "persist": true})),
    ("GET", "/workspace/skills", none),
    ("GET", "/workspace/hooks", none),
    (
        "POST",
        "/workspace/agents",
        |_| json!({"scope": "workspace", "name": "tester", "description": "Tests", "systemPrompt": "You test."}),
    ),
    ("GET", "/workspace/agents", none),
    ("POST", "/workspace/agents/generate", |_| json!({"description": "a tester"})),
    ("GET", "/workspace/agents/{agentType}", none),
    ("POST", "/workspace/agents/{agentType}", |_| json!({"description": "Tests all"})),
    ("DELETE", "/workspace/agents/{agentType}", none),
    (
        "POST",
        "/workspace/extensions/install",
        |scene| json!({"source": scene.cwd, "ref": "main", "autoUpdate": false, "allowPreRelease": false, "consent": true}),
    ),
    ("POST", "/workspace/extensions/{name}/enable", |_| json!({"scope": "workspace"})),
    ("POST", "/workspace/extensions/{name}/disable", |_| json!({"scope": "user"})),
    ("POST", "/workspace/extensions/{name}/update", none),
    ("DELETE", "/workspace/extensions/{name}", none),
    ("GET", "/workspace/extensions/operations/{operationId}", none),
    ("GET", "/workspace/extensions", none),
    ("POST", "/workspace/extensions/check-updates", none),
    ("POST", "/workspace/extensions/refresh", none),
    ("POST", "/session/{sessionId}/load", |scene| json!({"cwd": scene.cwd})),
    ("POST", "/session/{sessionId}/resume", |scene| json!({"cwd": scene.cwd})),
    ("GET", "/workspace/{cwd}/sessions", none),
    ("PATCH", "/session/{sessionId}/metadata", |_| json!({"displayName": "Plan"})),
    ("POST", "/session/{sessionId}/heartbeat", none),
    ("GET", "/session/{sessionId}/context", none),
    ("GET", "/session/{sessionId}/stats", none),
    ("GET", "/session/{sessionId}/tasks", none),
    ("POST", "/session/{sessionId}/model", |_| json!({"modelId": "scripted"})),
    ("POST", "/session/{sessionId}/language", |_| json!({"language": "en", "syncOutputLanguage": true})),
    ("POST", "/session/{sessionId}/recap", none),
    ("POST", "/session/{sessionId}/btw", |_| json!({"question": "why?"})),
    ("GET", "/session/{sessionId}/context-usage", none),
    ("GET", STREAM, none),
    ("POST", "/session/{sessionId}/permission/{requestId}", allow),
    ("POST", "/permission/{requestId}", allow),
    (
        "POST",
        "/session/{sessionId}/prompt",
        |_| json!({"prompt": [{"type": "text", "text": "hi"}], "deadlineMs": 60_000, "retry": false, "_meta": {}}),
    ),
    ("POST", "/session/{sessionId}/tasks/{taskId}/cancel", |_| json!({"kind": "agent"})),
    ("POST", "/session/{sessionId}/cancel", none),
    ("GET", "/session/{sessionId}/rewind/snapshots", none),
    ("POST", "/session/{sessionId}/shell", |_| json!({"command": "true"})),
    ("POST", "/session/{sessionId}/branch", |_| json!({"name": "Another way"})),
    (
        "POST",
        "/session/{sessionId}/rewind",
        |scene| json!({"promptId": format!("{}########1", scene.idle.0), "rewindFiles": true}),
    ),
    ("DELETE", "/session/{sessionId}", none),
];

async fn server(engine: Engine, identity: &IdentityProvider) -> TestServer {
    server_with(engine, identity, |_| ()).await
}

/// A server on which every operation of the daemon can succeed.
pub(crate) async fn server_with(
    engine: Engine,
    identity: &IdentityProvider,
    choose: impl FnOnce(&mut Setup),
) -> TestServer {
    TestServer::with(engine, |setup| {
        choose(setup);
        shell_agent::choose(setup);
        for provider_id in ["example-id", "other-id"] {
            auth::configure_flow(setup, provider_id, auth::section(identity));
        }
        configure_servers(setup, &[("good", "good")]);
        setup.token("stranger", "client", &["hwlab"]);
        setup.token("runner", "runner", &["local"]);
        configure(setup, |section| {
            (section.prompt_deadline_ms, section.session_shell) = (Some(60_000), true);
        });
    })
    .await
}

impl Scene {
    /// A session with a client, whose prompt has asked for two permissions.
    async fn set(server: &TestServer) -> Self {
        shell_agent::install(server).await;
        let opened = server.post("/session", &json!({"sessionScope": "thread"})).await.with_status(200);
        let session_id = id(&opened, "sessionId");
        let prompt_id = id(&server.prompt(&session_id, "hi").await, "promptId");
        let said = server.logged(&session_id).await.into_iter().find(|event| event["type"] == "user_message").unwrap();
        let (run_id, command_id) = (id(&said, "runId"), id(&said, "commandId"));
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        let permissions = [1, 2].map(|last| format!("prm_{}{last}", &command_id[4..35]));
        for permission in &permissions {
            runner.ask(&command_id, permission, DIGEST).await;
        }
        let idle = server.post("/session", &json!({"sessionScope": "thread"})).await.with_status(200);
        let idle = (id(&idle, "sessionId"), id(&idle, "clientId"));
        server.prompt(&idle.0, "hi").await;
        server.post(&format!("/session/{}/cancel", idle.0), &json!({})).await.with_status(204);
        let cwd = server.config.server.workspace.as_ref().unwrap().to_str().unwrap().to_owned();
        std::fs::write(std::path::Path::new(&cwd).join(FILE), TEXT).unwrap();
        auth::set_profile(server).await;
        let flow = json!({"providerId": "example-id"});
        let flow = server.post("/workspace/auth/device-flow", &flow).await.with_status(201);
        let (client_id, device_flow_id) = (id(&opened, "clientId"), id(&flow, "deviceFlowId"));
        let mcp = server.config.mcp.servers["good"].clone();
        let refused = json!({"source": "/nowhere", "consent": true});
        let operation = server.post("/workspace/extensions/install", &refused).await.with_status(202);
        let operation_id = id(&operation, "operationId");
        shell_agent::ended(server, &operation_id).await;
        Self { session_id, client_id, prompt_id, idle, permissions, cwd, device_flow_id, mcp, operation_id }
    }

    /// The session that an operation is about, and its client.
    fn session(&self, template: &str) -> (&str, &str) {
        match ["/rewind", "/branch"].iter().any(|part| template.contains(part)) {
            true => (&self.idle.0, &self.idle.1),
            false => (&self.session_id, &self.client_id),
        }
    }

    fn path(&self, template: &str) -> String {
        let permission = usize::from(template.starts_with("/permission"));
        match template {
            "/file" | "/file/bytes" | "/stat" => return format!("{template}?path={FILE}"),
            "/list" => return "/list?path=.".into(),
            "/glob" => return "/glob?pattern=*".into(),
            _ => {}
        }
        template
            .replace("{sessionId}", self.session(template).0)
            .replace("{id}", &self.session_id)
            .replace("{taskId}", &self.prompt_id)
            .replace("{deviceFlowId}", &self.device_flow_id)
            .replace("{server}", "good")
            .replace("{requestId}", &self.permissions[permission])
            .replace("{agentType}", "tester")
            .replace("{name}", if template.contains("extensions") { "demo" } else { "added" })
            .replace("{operationId}", &self.operation_id)
            .replace("{cwd}", &segment(std::path::Path::new(&self.cwd)))
    }

    async fn call(&self, caller: &Caller, (method, template, body): &Row<Self>) -> Answer {
        let (path, body) = (self.path(template), body(self));
        let request = caller.request(method, &path);
        caller.send(caller.with_body(request, template, &body)).await
    }
}

#[both_engines]
async fn every_operation_of_the_daemon_succeeds(engine: Engine) {
    let identity = IdentityProvider::start();
    call_all(&server(engine, &identity).await).await;
}

/// Calls every operation of the daemon once, and checks that it succeeds.
pub(crate) async fn call_all(server: &TestServer) {
    let scene = Scene::set(server).await;
    for row @ (method, template, body) in OPERATIONS {
        let (path, body) = (scene.path(template), body(&scene));
        if *template == STREAM {
            let stream = server.request(method, &path).send().await.unwrap();
            assert_eq!(stream.status(), 200, "{method} {template}");
            continue;
        }
        if !body.is_null() {
            check_request(method, template, &body);
        }
        let request = server.with_body(server.request(method, &path), template, &body);
        // Anonymous clients are admitted; a client that is registered is recognised.
        let request = if *template == "/session" { request } else { request.header(CLIENT, scene.session(template).1) };
        let answer = server.send(request).await;
        if *template == NO_LOGIN {
            assert_eq!(answer.body["code"], "mcp_auth_unsupported");
            continue;
        }
        assert!((200..300).contains(&answer.status), "{row:?}: {} {}", answer.status, answer.text);
    }
}

#[both_engines]
async fn callers_who_are_wrong_for_an_operation_get_nowhere(engine: Engine) {
    let identity = IdentityProvider::start();
    let server = server(engine, &identity).await;
    let scene = Scene::set(&server).await;
    let before = server.logged(&scene.session_id).await;
    for row @ (method, template, _) in OPERATIONS {
        let name = format!("{method} {template}");
        let garbage = server.with_token(Some("garbage"));
        let unauthenticated = scene.call(&garbage, row).await;
        assert_eq!((unauthenticated.status, unauthenticated.body), (401, json!({"error": "Unauthorized"})), "{name}");
        let reads = *method == "GET";
        if !reads {
            let role = scene.call(server.caller("runner"), row).await;
            assert_eq!((role.status, &role.body["code"]), (403, &json!("role")), "{name}: {}", role.text);
        }
        let foreign = scene.call(server.caller("stranger"), row).await;
        let is_list = *template == "/workspace/{cwd}/sessions";
        let fits = if is_list { foreign.body == json!({"sessions": []}) } else { [403, 404].contains(&foreign.status) };
        assert!(fits, "{name}: {} {}", foreign.status, foreign.text);
    }
    assert_eq!(server.logged(&scene.session_id).await, before, "something was written");
}
