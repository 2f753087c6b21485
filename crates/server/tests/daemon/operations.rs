//! Every operation of the daemon dialect, each with a body that the server accepts in a scene that holds everything an operation
//! can be about. Each succeeds there, and callers who are wrong for it get nowhere.

use std::collections::BTreeSet;

use ostler_protocol::daemon::files::content_hash;
use serde_json::{Value, json};

use super::{CLIENT, configure, segment};
use crate::harness::{Answer, Caller, Engine, TestServer, both_engines, check_request, id, openapi};

/// What the calls of the table can name.
pub struct Scene {
    session_id: String,
    client_id: String,
    prompt_id: String,
    /// Permission requests that are open, one for each route that answers one.
    permissions: [String; 2],
    cwd: String,
}

/// Method, path and body of an operation.
type Row = (&'static str, &'static str, fn(&Scene) -> Value);

fn none(_: &Scene) -> Value {
    Value::Null
}

fn allow(_: &Scene) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": "yes"}})
}

/// A file of the workspace.
const FILE: &str = "notes.txt";
const TEXT: &[u8] = b"one\ntwo\n";

/// Streams do not end by themselves.
const STREAM: &str = "/session/{sessionId}/events";

/// In an order in which each call can succeed: the ends come last.
const OPERATIONS: &[Row] = &[
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
    ("DELETE", "/session/{sessionId}", none),
];

/// The operations of the document that belong to the daemon.
pub fn documented() -> BTreeSet<(String, String)> {
    let paths = openapi()["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, item)| item.as_object().unwrap().iter().map(move |it| (path, it)));
    let of_daemon = operations.filter(|(_, (_, operation))| operation["tags"] == json!(["daemon"]));
    of_daemon.map(|(path, (method, _))| (method.to_uppercase(), path.clone())).collect()
}

async fn server(engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.bind_workspace();
        setup.token("stranger", "client", &["hwlab"]);
        setup.token("runner", "runner", &["local"]);
        configure(setup, |section| section.prompt_deadline_ms = Some(60_000));
    })
    .await
}

impl Scene {
    /// A session with a client, whose prompt has asked for two permissions.
    async fn set(server: &TestServer) -> Self {
        let opened = server.post("/session", &json!({"sessionScope": "thread"})).await.with_status(200);
        let session_id = id(&opened, "sessionId");
        let prompt_id = id(&server.prompt(&session_id, "hi").await, "promptId");
        let said = server.logged(&session_id).await.into_iter().find(|event| event["type"] == "user_message").unwrap();
        let (run_id, command_id) = (id(&said, "runId"), id(&said, "commandId"));
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        let permissions = [1, 2].map(|last| format!("prm_{}{last}", &command_id[4..35]));
        for permission in &permissions {
            runner.ask(&command_id, permission, crate::operations::DIGEST).await;
        }
        let cwd = server.config.server.workspace.as_ref().unwrap().to_str().unwrap().to_owned();
        std::fs::write(std::path::Path::new(&cwd).join(FILE), TEXT).unwrap();
        Self { session_id, client_id: id(&opened, "clientId"), prompt_id, permissions, cwd }
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
            .replace("{sessionId}", &self.session_id)
            .replace("{id}", &self.session_id)
            .replace("{taskId}", &self.prompt_id)
            .replace("{requestId}", &self.permissions[permission])
            .replace("{cwd}", &segment(std::path::Path::new(&self.cwd)))
    }

    async fn call(&self, caller: &Caller, (method, template, body): &Row) -> Answer {
        let (path, body) = (self.path(template), body(self));
        let request = caller.request(method, &path);
        caller.send(caller.with_body(request, template, &body)).await
    }
}

#[both_engines]
async fn every_operation_of_the_daemon_succeeds(engine: Engine) {
    let listed = OPERATIONS.iter().map(|(method, path, _)| (method.to_string(), path.to_string())).collect();
    assert_eq!(documented(), listed, "the table here and the document name the same operations");
    let server = server(engine).await;
    let scene = Scene::set(&server).await;
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
        let request = if *template == "/session" { request } else { request.header(CLIENT, &scene.client_id) };
        let answer = server.send(request).await;
        assert!((200..300).contains(&answer.status), "{row:?}: {} {}", answer.status, answer.text);
    }
}

#[both_engines]
async fn callers_who_are_wrong_for_an_operation_get_nowhere(engine: Engine) {
    let server = server(engine).await;
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
