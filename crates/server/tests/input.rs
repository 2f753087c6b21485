//! Bad input: a clear failure of the right kind, as JSON with a trace id, and nothing written.

mod contract;
mod scene;

use ostler_protocol::FailureKind::{self, *};
use serde_json::{Value, json};

use self::scene::{Scene, Write};
use crate::{
    harness::{Engine, TestServer, both_engines, id, one_engine, openapi, run_body},
    operations::{DIGEST, NOT_JSON, OPERATIONS},
};

/// By which the run input dialect refuses what is no input at all.
const AGENT_RULE: &str = "AGENT_RUN_INPUT_INVALID";

/// What a body that makes no sense is called at this path.
fn invalid(path: &str) -> FailureKind {
    let run_input = ["/api/v1/agent/", "/api/v1/automations", "/api/v1/calendar-events"];
    if run_input.iter().any(|prefix| path.starts_with(prefix)) { RunInputInvalid } else { SchemaInvalid }
}

/// The rule that such a body breaks. Chat front ends get a code of their protocol.
fn rule_of<'a>(path: &str, rule: &'a str) -> &'a str {
    if path.starts_with("/api/v1/agent/") { AGENT_RULE } else { rule }
}

/// Operations that reject a field that they do not know: a body that grants something is taken as it was meant, or not at
/// all. The others ignore it, for clients of a later version.
const CLOSED: [(&str, &str); 16] = [
    ("POST", "/api/v1/automations"),
    ("PATCH", "/api/v1/automations/{automationId}"),
    ("POST", "/api/v1/calendar-events"),
    ("PATCH", "/api/v1/calendar-events/{eventId}"),
    ("POST", "/api/v1/retention/sweeps"),
    ("POST", "/api/v1/retention/holds"),
    ("POST", "/api/v1/tokens"),
    ("POST", "/h2a/relations"),
    ("POST", "/h2a/relations/{relationId}/uses"),
    ("PATCH", "/h2a/relations/{relationId}"),
    ("POST", "/api/v1/users/{userName}/token"),
    ("POST", "/agents"),
    ("PATCH", "/agents/{agentId}"),
    ("POST", "/agents/{agentId}/manifest/diff"),
    ("POST", "/agents/{agentId}/tokens"),
    ("PUT", "/agents/{agentId}/webhook"),
];

#[one_engine]
async fn malformed_json_is_refused_everywhere(engine: Engine) {
    let scene = Scene::set(engine).await;
    let before = scene.state().await;
    for Write { method, path, body, .. } in scene.writes() {
        let cut = body.to_string();
        let texts: [&[u8]; 6] = [
            &cut.as_bytes()[..cut.len() - 1],
            b"{",
            b"not json",
            b"{\"a\":}",
            b"{\"runnerId\":\"\xff\xfe\"}",
            b"{} {}",
        ];
        for text in texts {
            let answer = scene.server.send_text(method, &path, text.to_vec()).await;
            assert_eq!(answer.body["failureKind"], invalid(&path).as_str(), "{method} {path}: {}", answer.text);
            answer.refused(invalid(&path));
        }
    }
    assert_eq!(scene.state().await, before);
}

#[one_engine]
async fn a_body_of_another_type_is_refused_everywhere(engine: Engine) {
    let scene = Scene::set(engine).await;
    let before = scene.state().await;
    for Write { method, path, body, .. } in scene.writes() {
        let values: Vec<Value> = body.as_object().unwrap().values().cloned().collect();
        for wrong in [json!([]), json!(values), json!("text"), json!(7), json!(true), Value::Null] {
            let answer = scene.server.call(method, &path, &wrong).await;
            let (kind, rule) = (invalid(&path), rule_of(&path, "body-shape"));
            assert_eq!(answer.status, kind.row().status, "{method} {path} {wrong}: {}", answer.text);
            answer.refused_by(kind, rule);
        }
    }
    assert_eq!(scene.state().await, before);
}

#[one_engine]
async fn a_field_of_another_type_is_refused_everywhere(engine: Engine) {
    let scene = Scene::set(engine).await;
    let before = scene.state().await;
    for Write { method, path, body, .. } in scene.writes() {
        for (field, value) in body.as_object().unwrap() {
            let mut wrong = body.clone();
            wrong[field] = match value {
                Value::Number(_) => json!("text"),
                Value::Bool(_) => json!("yes"),
                _ => json!(7),
            };
            let answer = scene.server.call(method, &path, &wrong).await;
            let kind = invalid(&path);
            assert_eq!(answer.body["failureKind"], kind.as_str(), "{method} {path} {field}: {}", answer.text);
            answer.refused(kind);
        }
    }
    assert_eq!(scene.state().await, before);
}

#[one_engine]
async fn another_content_type_is_refused_everywhere(engine: Engine) {
    let scene = Scene::set(engine).await;
    let before = scene.state().await;
    for Write { method, path, body, .. } in scene.writes() {
        // What a web page can send without asking first.
        for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"] {
            let request = scene.server.request(method, &path).header("content-type", content_type);
            let answer = scene.server.send(request.body(body.to_string())).await;
            answer.refused_by(UnsupportedMediaType, "content-type");
        }
        let bare = scene.server.request(method, &path).body(body.to_string());
        scene.server.send(bare).await.refused(UnsupportedMediaType);
    }
    assert_eq!(scene.state().await, before);
    let request =
        scene.server.request("POST", "/api/v1/runs").header("content-type", "Application/JSON; charset=utf-8");
    scene.server.send(request.body(run_body().to_string())).await.with_status(201);
}

#[both_engines]
async fn unknown_ids_are_not_found_everywhere(engine: Engine) {
    let scene = Scene::set(engine).await;
    let subjects = &scene.subjects;
    let (run, session, command) = (subjects.run_id.clone(), subjects.session_id.clone(), subjects.command_id.clone());
    let permission = subjects.permission_id.clone();
    let before = scene.server.events(&run).await;
    let long = "x".repeat(2_000);
    for (method, template, body) in OPERATIONS.iter().filter(|(_, template, _)| !NOT_JSON.contains(template)) {
        let (path, body) = (subjects.path(template), body(subjects));
        for (known, prefix) in [(&run, "run_"), (&session, "ses_"), (&command, "cmd_"), (&permission, "prm_")] {
            if !path.contains(known.as_str()) {
                continue;
            }
            let nobody = format!("{prefix}{:032x}", 0);
            let upper = known.to_uppercase();
            for unknown in [nobody.as_str(), "x", prefix, &upper, "%00", "..%2f..", "%ff", &long, "job_1", "💥"] {
                let answer = scene.server.call(method, &path.replace(known.as_str(), unknown), &body).await;
                assert_eq!(answer.status, 404, "{method} {path} {unknown}: {}", answer.text);
                answer.refused(NotFound);
            }
        }
    }
    let unknown = scene.server.get(&format!("/api/v1/runs/{run}/result?commandId=x")).await;
    unknown.refused(NotFound);
    scene.server.get(&format!("/api/v1/runs/{run}/runner-jobs/job_x")).await.refused(NotFound);
    // A command of another run is unknown in this one.
    let other = scene.server.create_run().await;
    scene.server.get(&format!("/api/v1/runs/{other}/commands/{command}")).await.refused(NotFound);
    scene.server.get(&format!("/api/v1/runs/{other}/commands/{command}/result")).await.refused(NotFound);
    scene.server.get(&format!("/api/v1/runs/{other}/result?commandId={command}")).await.refused(NotFound);
    scene.server.create_job(&other, &json!({"commandId": command})).await.refused(NotFound);
    let answer = json!({"optionId": "yes", "digest": DIGEST});
    let path = format!("/api/v1/runs/{other}/permissions/{permission}/answer");
    scene.server.post(&path, &answer).await.refused(NotFound);
    assert_eq!(scene.server.events(&run).await, before);
}

#[one_engine]
async fn a_missing_body_is_refused_where_one_is_needed(engine: Engine) {
    let scene = Scene::set(engine).await;
    for Write { method, path, .. } in scene.writes() {
        let optional = [
            "/revoke",
            "/invites",
            "/cancel",
            "/runner-jobs",
            "/read",
            "/token",
            "/validate",
            "/gc",
            "/sweeps",
            "/start",
        ];
        if optional.iter().any(|optional| path.ends_with(optional)) {
            continue;
        }
        let bare = scene.server.send(scene.server.request(method, &path)).await;
        bare.refused(UnsupportedMediaType);
        let rule = rule_of(&path, "json-malformed");
        scene.server.send_text(method, &path, "").await.refused_by(invalid(&path), rule);
        scene.server.send_text(method, &path, "{}").await.refused(invalid(&path));
    }
}

#[both_engines]
async fn queries_that_make_no_sense_are_refused(engine: Engine) {
    let scene = Scene::set(engine).await;
    let (run, session) = (&scene.subjects.run_id, &scene.subjects.session_id);
    for (path, rule) in [
        (format!("/api/v1/runs/{run}/events?limit=0"), "page-limit"),
        (format!("/api/v1/runs/{run}/events?limit=1001"), "page-limit"),
        (format!("/api/v1/runs/{run}/events?limit=-1"), "query-shape"),
        (format!("/api/v1/runs/{run}/events?limit=many"), "query-shape"),
        (format!("/api/v1/runs/{run}/events?limit=99999999999"), "query-shape"),
        (format!("/api/v1/runs/{run}/events?afterSeq=-1"), "after-seq"),
        (format!("/api/v1/runs/{run}/events?afterSeq=x"), "query-shape"),
        (format!("/api/v1/runs/{run}/events?waitMs=30001"), "wait-limit"),
        (format!("/api/v1/runs/{run}/events?waitMs=-1"), "query-shape"),
        (format!("/api/v1/runs/{run}/commands?limit=1001"), "page-limit"),
        (format!("/api/v1/runs/{run}/commands?waitMs=30001"), "wait-limit"),
        (format!("/api/v1/runs/{run}/commands?afterSeq=-1"), "after-seq"),
        (format!("/api/v1/runs/{run}/runner-jobs?limit=1001"), "page-limit"),
        (format!("/api/v1/runs/{run}/runner-jobs?cursor=zz"), "cursor-unknown"),
        (format!("/api/v1/sessions/{session}/trace?limit=1001"), "page-limit"),
        (format!("/api/v1/sessions/{session}/trace?afterSeq=-1"), "after-seq"),
        (format!("/api/v1/sessions/{session}/output?limit=0"), "page-limit"),
        (format!("/api/v1/sessions/{session}/output?afterSeq=x"), "query-shape"),
        (format!("/api/v1/sessions/{session}?readerId=%0A"), "name-shape"),
        ("/api/v1/sessions?state=open".into(), "session-state"),
        ("/api/v1/sessions?readerId=".into(), "name-shape"),
        ("/api/v1/sessions?limit=1001".into(), "page-limit"),
        ("/api/v1/sessions?limit=0".into(), "page-limit"),
        ("/api/v1/sessions?cursor=63312e".into(), "cursor-unknown"),
        ("/api/v1/runs?limit=1001".into(), "page-limit"),
        ("/api/v1/runs?limit=0".into(), "page-limit"),
        ("/api/v1/runs?status=asleep".into(), "run-status"),
        ("/api/v1/runs?cursor=%C3%A9".into(), "cursor-unknown"),
        ("/api/v1/runs?cursor=".into(), "cursor-unknown"),
        ("/api/v1/runs?cursor=63312e".into(), "cursor-unknown"),
    ] {
        let answer = scene.server.get(&path).await;
        assert_eq!(answer.body["details"]["rule"], rule, "{path}: {}", answer.text);
        answer.refused(SchemaInvalid);
    }
    for path in [format!("/api/v1/runs/{run}/events"), format!("/api/v1/sessions/{session}/trace")] {
        for wrong in ["x", "-1", "1.5", ""] {
            let request = scene.server.request("GET", &path).header("accept", "text/event-stream");
            let request = request.header("last-event-id", wrong);
            scene.server.send(request).await.refused_by(SchemaInvalid, "last-event-id");
        }
    }
}

#[one_engine]
async fn unknown_paths_and_methods_answer_in_json(engine: Engine) {
    let server = TestServer::start(engine).await;
    for path in ["/api", "/api/v1/", "/api/v1/nothing", "/api/v1/runs/", "/health/", "/API/V1/runs"] {
        server.get(path).await.refused(NotFound);
    }
    for (method, path) in [
        ("DELETE", "/api/v1/runs"),
        ("PUT", "/api/v1/runs"),
        ("POST", "/health"),
        ("GET", "/api/v1/runners/register"),
        ("DELETE", "/openapi.json"),
    ] {
        server.send(server.request(method, path)).await.refused(MethodNotAllowed);
    }
}

#[both_engines]
async fn unknown_fields_are_ignored(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut body = run_body();
    body["someday"] = json!({"a": [1]});
    body["executionPolicy"]["someday"] = json!(true);
    let run_id = id(&server.post("/api/v1/runs", &body).await.with_status(201), "runId");
    let turn = json!({"type": "turn", "payload": {"prompt": "x", "mine": 1}, "someday": 2});
    assert_eq!(server.submit(&run_id, &turn).await.with_status(201)["payload"]["mine"], 1);
}

#[one_engine]
async fn an_unknown_field_is_refused_where_something_is_granted(engine: Engine) {
    let scene = Scene::set(engine).await;
    let before = scene.state().await;
    let (closed, open): (Vec<_>, Vec<_>) =
        scene.writes().into_iter().partition(|write| CLOSED.contains(&(write.method, write.template)));
    assert_eq!(closed.len(), CLOSED.len());
    for Write { method, path, mut body, .. } in closed {
        body["someday"] = json!({"a": [1]});
        let answer = scene.server.call(method, &path, &body).await;
        assert!(answer.text.contains("`someday`"), "{method} {path}: {}", answer.text);
        answer.refused_by(invalid(&path), "body-shape");
    }
    assert_eq!(scene.state().await, before);
    for Write { method, path, mut body, .. } in open {
        body["someday"] = json!({"a": [1]});
        let answer = scene.server.call(method, &path, &body).await;
        // Each is done, or refused for what the ones before it did.
        assert!(!answer.text.contains("someday"), "{method} {path}: {}", answer.text);
        assert!(!matches!(answer.status, 400 | 422), "{method} {path}: {}", answer.text);
    }
}

#[one_engine]
async fn unknown_parameters_are_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let document = openapi().clone();
    let run_id = server.create_run().await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    let agent_id = id(&server.post("/agents", &json!({"name": "reader"})).await.with_status(201), "id");
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let parameters = item["get"]["parameters"].as_array().cloned().unwrap_or_default();
        // Probes may add parameters of their own to `/health`.
        // Published clients may add parameters to the list of sessions.
        let is_open = ["/health", "/workspace/{cwd}/sessions"].contains(&path.as_str());
        if !is_open && parameters.iter().any(|parameter| parameter["in"] == "query") {
            let path = path.replace("{runId}", &run_id).replace("{sessionId}", &session_id);
            let path = path.replace("{relationId}", &format!("rel_{:032x}", 0)).replace("{agentId}", &agent_id);
            let path = path.replace("{automationId}", &format!("aut_{:032x}", 0));
            let path = path.replace("{runnerJobId}", &format!("job_{:032x}", 0));
            let refused = server.get(&format!("{path}?someday=1")).await;
            if item["get"]["tags"][0] == "daemon" {
                // Its failures have another form.
                assert!(refused.status == 400 && refused.text.contains("`someday`"), "{}", refused.text);
            } else {
                let refused = refused.refused_by(invalid(&path), "query-shape");
                assert!(refused.message.contains("`someday`"), "{}", refused.message);
            }
            tried += 1;
        }
    }
    assert!(tried > 8, "{tried}");
}

#[one_engine]
async fn a_misfit_is_named_by_its_place(engine: Engine) {
    let scene = Scene::set(engine).await;
    let run = &scene.subjects.run_id;
    let told = async |path: &str, body: Value| scene.server.post(path, &body).await.refused(SchemaInvalid);
    let mut body = run_body();
    body["executionPolicy"] = json!({"secretScope": {"toolCredentials": [{"tool": 7}]}});
    let refused = told("/api/v1/runs", body).await;
    assert_eq!(refused.message, "executionPolicy.secretScope.toolCredentials[0].tool: an integer, expected a string");
    let mut body = run_body();
    body["executionPolicy"] = json!("wide");
    assert_eq!(told("/api/v1/runs", body).await.message, "executionPolicy: a string, expected an object");
    let body = json!({"runnerId": "runner-a", "leaseEpoch": "1", "events": []});
    let refused = told(&format!("/api/v1/runs/{run}/events"), body).await;
    assert_eq!(
        (refused.message.as_str(), &refused.details["field"]),
        ("leaseEpoch: a string, expected an integer", &json!("leaseEpoch"))
    );
    let budgets = json!({"type": "turn", "payload": {"prompt": "x", "budgets": {"maxTurns": "3"}}});
    let refused = told(&format!("/api/v1/runs/{run}/commands"), budgets).await;
    assert_eq!(refused.message, "payload.budgets.maxTurns: a string, expected an integer");
    let events = json!({"runnerId": "runner-a", "leaseEpoch": 1, "events": [
        {"type": "custom", "payload": {}}, {"type": "assistant_message", "payload": {"text": 7}}]});
    let refused = told(&format!("/api/v1/runs/{run}/events"), events).await;
    assert_eq!(refused.message, "assistant_message.text must be a string");
    assert_eq!((&refused.details["event"], &refused.details["field"]), (&json!(1), &json!("text")));
}

#[both_engines]
async fn a_name_may_not_be_a_credential(engine: Engine) {
    let scene = Scene::set(engine).await;
    let before = scene.state().await;
    let secret = "ghp_0123456789abcdefABCDEF";
    for field in ["projectId", "providerId", "idempotencyKey"] {
        let mut body = run_body();
        body[field] = secret.into();
        let answer = scene.server.post("/api/v1/runs", &body).await;
        assert!(!answer.text.contains(secret), "{}", answer.text);
        answer.refused_by(SchemaInvalid, "name-credential");
    }
    let mut body = run_body();
    body["sessionRef"] = json!({"sessionId": secret});
    scene.server.post("/api/v1/runs", &body).await.refused_by(SchemaInvalid, "name-credential");
    let run = &scene.subjects.run_id;
    for (path, body) in [
        (format!("/api/v1/runs/{run}/claim"), json!({"runnerId": secret})),
        ("/api/v1/runners/register".into(), json!({"runnerId": secret, "backendProfile": "scripted"})),
        ("/api/v1/sessions".into(), json!({"tenantId": "hwlab", "sessionId": secret, "backendProfile": "scripted"})),
        (format!("/api/v1/runs/{run}/runner-jobs"), json!({"idempotencyKey": secret})),
    ] {
        scene.server.post(&path, &body).await.refused_by(SchemaInvalid, "name-credential");
    }
    assert_eq!(scene.state().await, before);
}

#[one_engine]
async fn a_placement_is_one_of_those_we_know(engine: Engine) {
    let server = TestServer::start(engine).await;
    let register = |placement: Value| json!({"runnerId": "r", "backendProfile": "scripted", "placement": placement});
    for good in [json!(null), json!("resident"), json!("kubernetes-job"), json!({"kind": "host-process", "pid": 1})] {
        let runner = server.post("/api/v1/runners/register", &register(good.clone())).await.with_status(200);
        assert_eq!(runner["placement"], good);
    }
    for bad in [json!("moon"), json!(7), json!({}), json!({"kind": "moon"}), json!([])] {
        let answer = server.post("/api/v1/runners/register", &register(bad)).await;
        answer.refused_by(SchemaInvalid, "placement-unknown");
    }
}

/// Text that a JSON parser accepts as long as the value is not read.
fn unreadable() -> Vec<String> {
    vec![r#""\ud800""#.into(), "1e999".into(), format!("{}{}", "[".repeat(300), "]".repeat(300))]
}

#[both_engines]
async fn values_that_parse_but_cannot_be_read_are_refused(engine: Engine) {
    let scene = Scene::set(engine).await;
    let before = scene.state().await;
    let run = &scene.subjects.run_id;
    for value in unreadable() {
        let command = format!(r#"{{"type":"turn","payload":{{"prompt":"x","odd":{value}}}}}"#);
        let answer = scene.server.send_text("POST", &format!("/api/v1/runs/{run}/commands"), command).await;
        answer.refused(SchemaInvalid);
        for field in ["workspaceRef", "traceSink", "businessIntents", "executionPolicy"] {
            let mut body = run_body();
            body[field] = json!({"kind": "none", "odd": "HERE"});
            let body = body.to_string().replace(r#""HERE""#, &value);
            scene.server.send_text("POST", "/api/v1/runs", body).await.refused(SchemaInvalid);
        }
    }
    assert_eq!(scene.state().await, before);
}

#[both_engines]
async fn zero_bytes_do_no_harm(engine: Engine) {
    let scene = Scene::set(engine).await;
    let (server, runner, command) = (&scene.server, &scene.subjects.runner, &scene.subjects.command_id);
    // In queries: nothing is found.
    for query in ["tenantId=%00", "projectId=a%00", "backendProfile=%00", "sessionId=%00"] {
        let page = server.get(&format!("/api/v1/runs?{query}")).await.with_status(200);
        assert_eq!(page["runs"], json!([]), "{query}");
    }
    for query in ["tenantId=%00", "backendProfile=a%00"] {
        let page = server.get(&format!("/api/v1/sessions?state=all&{query}")).await.with_status(200);
        assert_eq!(page["sessions"], json!([]), "{query}");
    }
    server.get(&format!("/api/v1/sessions/{}/trace?runId=%00", scene.subjects.session_id)).await.refused(NotFound);
    server.get(&format!("/api/v1/sessions/{}?tenantId=%00", scene.subjects.session_id)).await.refused(NotFound);
    // In words: kept as they are, or refused, but never half-way.
    let zero = "a\u{0}b";
    let digest = DIGEST.replace('0', "1");
    let mut ask = json!({"permissionId": format!("prm_{:032x}", 1), "title": zero, "digest": digest,
        "toolCallId": zero, "options": [{"optionId": zero, "name": zero, "kind": "allow_once"}]});
    runner.tell(command, "permission_request", ask.clone()).await;
    ask["permissionId"] = format!("prm_{:032x}", 2).into();
    let tool = json!({"toolCallId": zero, "name": zero, "status": zero, "command": zero});
    runner.tell(command, "tool_call", tool).await;
    runner.tell(command, "session", json!({"threadId": zero})).await;
    runner.tell(command, "error", json!({"message": zero})).await;
    runner.say(command, zero).await;
    assert_eq!(server.result(&runner.run_id, command).await["finalResponse"]["text"], zero);
    server.post(&format!("/api/v1/commands/{command}/cancel"), &json!({"reason": zero})).await.with_status(200);
    let mut body = json!({"runnerId": "runner-a", "leaseEpoch": runner.epoch, "status": "failed", "message": zero});
    server.patch(&format!("/api/v1/commands/{command}/status"), &body).await.with_status(200);
    body["failureKind"] = zero.into();
    server.patch(&format!("/api/v1/runs/{}/status", runner.run_id), &body).await.refused(SchemaInvalid);
    let turn = json!({"type": "turn", "payload": {"prompt": zero, "x": zero}});
    server.submit(&runner.run_id, &turn).await.with_status(201);
    for field in ["tenantId", "projectId", "providerId", "backendProfile", "idempotencyKey"] {
        let mut body = run_body();
        body[field] = zero.into();
        server.post("/api/v1/runs", &body).await.refused(SchemaInvalid);
    }
    server.create_run_with(|body| body["workspaceRef"] = json!({"kind": "none", "repo": zero})).await;
    let register =
        json!({"runnerId": "r", "backendProfile": "scripted", "placement": {"kind": "host-process", "pod": zero}});
    server.post("/api/v1/runners/register", &register).await.with_status(200);
}
