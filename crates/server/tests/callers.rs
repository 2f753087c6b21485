//! Who may do what: nobody without a token, a service only in its tenants and its role, no page of a foreign origin.

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    harness::{Caller, Engine, TestServer, id, run_body},
    on_both_engines,
};

on_both_engines!(
    nothing_answers_without_a_token,
    a_foreign_tenants_token_reaches_nothing,
    lists_show_only_the_callers_tenants,
    a_client_is_no_runner,
    a_runner_is_no_client,
    a_foreign_host_or_origin_is_refused,
    configured_hosts_and_origins_are_let_in,
    open_loopback_lifts_the_token_and_nothing_else,
    require_auth_closes_even_health,
);

fn tokens(setup: &mut crate::harness::Setup) {
    setup.token("hwlab", "client", &["hwlab"]);
    setup.token("unidesk", "client", &["unidesk"]);
    setup.token("both", "client", &["unidesk", "hwlab"]);
    setup.token("runner", "runner", &["hwlab"]);
    setup.token("foreign-runner", "runner", &["unidesk"]);
}

const PERMISSION_ID: &str = "prm_0123456789abcdef0123456789abcdef";

type Call = (&'static str, String, Value);

fn reads(run: &str, command: &str, job: &str) -> Vec<Call> {
    [
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/result"),
        format!("/api/v1/runs/{run}/events"),
        format!("/api/v1/runs/{run}/commands/{command}"),
        format!("/api/v1/runs/{run}/commands/{command}/result"),
        format!("/api/v1/runs/{run}/permissions"),
        format!("/api/v1/runs/{run}/runner-jobs"),
        format!("/api/v1/runs/{run}/runner-jobs/{job}"),
    ]
    .map(|path| ("GET", path, Value::Null))
    .to_vec()
}

fn controls(run: &str, command: &str) -> Vec<Call> {
    let answer = json!({"optionId": "yes", "digest": "0"});
    vec![
        ("POST", "/api/v1/runs".into(), run_body()),
        ("POST", format!("/api/v1/runs/{run}/commands"), json!({"type": "turn", "payload": {"prompt": "x"}})),
        ("POST", format!("/api/v1/runs/{run}/runner-jobs"), json!({"commandId": command})),
        ("POST", format!("/api/v1/runs/{run}/permissions/{PERMISSION_ID}/answer"), answer),
        ("POST", format!("/api/v1/commands/{command}/cancel"), json!({})),
        ("POST", format!("/api/v1/runs/{run}/cancel"), json!({})),
    ]
}

fn runner_writes(run: &str, command: &str) -> Vec<Call> {
    let signed = json!({"runnerId": "runner-a", "leaseEpoch": 1});
    let status = json!({"runnerId": "runner-a", "leaseEpoch": 1, "status": "completed"});
    let events = json!({"runnerId": "runner-a", "leaseEpoch": 1, "events": [{"type": "custom", "payload": {}}]});
    vec![
        ("POST", format!("/api/v1/runs/{run}/claim"), json!({"runnerId": "runner-a"})),
        ("PATCH", format!("/api/v1/runs/{run}/lease"), signed.clone()),
        ("GET", format!("/api/v1/runs/{run}/commands"), Value::Null),
        ("POST", format!("/api/v1/commands/{command}/ack"), signed),
        ("POST", format!("/api/v1/runs/{run}/events"), events),
        ("PATCH", format!("/api/v1/commands/{command}/status"), status.clone()),
        ("PATCH", format!("/api/v1/runs/{run}/status"), status),
        (
            "POST",
            "/api/v1/runners/register".into(),
            json!({"runnerId": "r", "runId": run, "backendProfile": "scripted"}),
        ),
    ]
}

async fn call(caller: &Caller, (method, path, body): &Call) -> crate::harness::Answer {
    match body {
        Value::Null => caller.send(caller.request(method, path)).await,
        body => caller.call(method, path, body).await,
    }
}

/// A run with a command and a job: run, command, job.
async fn scene(server: &TestServer) -> (String, String, String) {
    let run = server.create_run().await;
    let command = server.turn(&run, "hi").await;
    let job = server.create_job(&run, &json!({"commandId": command})).await.with_status(201);
    (run, command, id(&job, "runnerJobId"))
}

async fn nothing_answers_without_a_token(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run, command, job) = scene(&server).await;
    let before = server.events(&run).await;
    let mut calls = [reads(&run, &command, &job), controls(&run, &command), runner_writes(&run, &command)].concat();
    for path in ["/api/v1/runs", "/api/v1/backends", "/openapi.json", "/nowhere"] {
        calls.push(("GET", path.into(), Value::Null));
    }
    let nobody = server.with_token(None);
    let stranger = server.with_token(Some("ost_svc_0123456789abcdef0123456789abcdef"));
    let almost = server.with_token(Some(&format!("{}0", server.operator_token())));
    for wanted in &calls {
        for caller in [&nobody, &stranger, &almost] {
            let answer = call(caller, wanted).await;
            assert_eq!(answer.headers["www-authenticate"], "Bearer", "{wanted:?}");
            answer.refused(Unauthenticated);
        }
    }
    for header in ["Bearer", "Bearer ", "Basic b3BlcmF0b3I6eA==", &server.operator_token()] {
        let request = nobody.request("GET", "/api/v1/runs").header("authorization", header);
        nobody.send(request).await.refused(Unauthenticated);
    }
    assert_eq!(server.events(&run).await, before);
}

async fn a_foreign_tenants_token_reaches_nothing(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let (run, command, job) = scene(&server).await;
    let before = server.events(&run).await;
    let foreign = server.caller("unidesk");
    for wanted in [reads(&run, &command, &job), controls(&run, &command)].concat() {
        call(foreign, &wanted).await.refused_by(Forbidden, "tenant");
    }
    for wanted in runner_writes(&run, &command) {
        call(foreign, &wanted).await.refused(Forbidden);
        call(server.caller("foreign-runner"), &wanted).await.refused_by(Forbidden, "tenant");
    }
    let request = foreign.request("GET", &format!("/api/v1/runs/{run}/events")).header("accept", "text/event-stream");
    foreign.send(request).await.refused_by(Forbidden, "tenant");
    assert_eq!(server.events(&run).await, before);
    // Its own tenant's token reaches all of it, and leaves its name behind.
    for wanted in [reads(&run, &command, &job), controls(&run, &command)].concat() {
        let answer = call(server.caller("hwlab"), &wanted).await;
        assert!(answer.status < 300 || wanted.1.ends_with("/answer"), "{wanted:?}: {}", answer.text);
    }
    let audit = server.events_of(&run, "audit").await;
    assert!(audit.last().unwrap()["payload"]["by"].as_str().unwrap().starts_with("service:tok_"));
}

async fn lists_show_only_the_callers_tenants(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let ours = server.create_run().await;
    let theirs = server.create_run_with(|body| body["tenantId"] = "unidesk".into()).await;
    let local = server.create_run_with(|body| body["tenantId"] = "local".into()).await;
    let list = async |caller: &Caller, query: &str| -> Vec<String> {
        let page = caller.get(&format!("/api/v1/runs{query}")).await.ok();
        let mut runs: Vec<_> = page["runs"].as_array().unwrap().iter().map(|run| id(run, "runId")).collect();
        runs.sort();
        runs
    };
    let sorted = |mut runs: Vec<String>| {
        runs.sort();
        runs
    };
    assert_eq!(list(server.caller("hwlab"), "").await, [ours.as_str()]);
    assert_eq!(list(server.caller("unidesk"), "").await, [theirs.as_str()]);
    assert_eq!(list(server.caller("both"), "").await, sorted(vec![ours.clone(), theirs.clone()]));
    assert_eq!(list(server.caller("both"), "?tenantId=unidesk").await, [theirs.as_str()]);
    assert_eq!(list(&server, "").await, sorted(vec![ours, theirs, local]));
    server.caller("hwlab").get("/api/v1/runs?tenantId=unidesk").await.refused_by(Forbidden, "tenant");
    // A cursor is good for the caller's own view only.
    let page = server.get("/api/v1/runs?limit=1").await.ok();
    let cursor = id(&page, "nextCursor");
    let stolen = server.caller("hwlab").get(&format!("/api/v1/runs?limit=1&cursor={cursor}")).await;
    stolen.refused_by(SchemaInvalid, "cursor-unknown");
}

async fn a_client_is_no_runner(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let (run, command, _) = scene(&server).await;
    let before = server.events(&run).await;
    for wanted in runner_writes(&run, &command) {
        call(server.caller("hwlab"), &wanted).await.refused_by(Forbidden, "role");
    }
    let alone = json!({"runnerId": "r", "backendProfile": "scripted"});
    server.caller("hwlab").post("/api/v1/runners/register", &alone).await.refused_by(Forbidden, "role");
    assert_eq!(server.events(&run).await, before);
}

async fn a_runner_is_no_client(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let (run, command, job) = scene(&server).await;
    let runner = server.caller("runner");
    for wanted in controls(&run, &command) {
        call(runner, &wanted).await.refused_by(Forbidden, "role");
    }
    for wanted in [reads(&run, &command, &job), runner_writes(&run, &command)].concat() {
        let answer = call(runner, &wanted).await;
        assert!(answer.status < 300, "{wanted:?}: {}", answer.text);
    }
    assert_eq!(server.command(&run, &command).await["state"], "completed");
    let alone = json!({"runnerId": "alone", "backendProfile": "scripted"});
    runner.post("/api/v1/runners/register", &alone).await.with_status(200);
}

async fn with_header(caller: &Caller, path: &str, name: &str, value: &str) -> crate::harness::Answer {
    caller.send(caller.request("GET", path).header(name, value)).await
}

async fn a_foreign_host_or_origin_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    for path in ["/api/v1/runs", "/health", "/health/readiness", "/openapi.json"] {
        for host in ["evil.test", "evil.test:80", "127.0.0.1.evil.test", "10.0.0.1", "localhost.evil.test:4747"] {
            with_header(&server, path, "host", host).await.refused_by(OriginDenied, "host");
        }
        for origin in ["https://evil.test", "null", "http://localhost:3000", "http://127.0.0.1"] {
            with_header(&server, path, "origin", origin).await.refused_by(OriginDenied, "origin");
        }
        for host in ["localhost", "127.0.0.1:9", "[::1]:80"] {
            with_header(&server, path, "host", host).await.with_status(200);
        }
    }
    // A request without a host at all.
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 403") && answer.contains("host-missing"), "{answer}");
}

async fn configured_hosts_and_origins_are_let_in(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.server.hosts = vec!["ostler.example".into()];
        setup.config.server.allow_origins = vec!["https://console.example".into()];
    })
    .await;
    with_header(&server, "/api/v1/runs", "host", "ostler.example:4747").await.with_status(200);
    with_header(&server, "/api/v1/runs", "host", "other.example").await.refused(OriginDenied);
    let shared = with_header(&server, "/api/v1/runs", "origin", "https://console.example").await;
    assert_eq!(shared.headers["access-control-allow-origin"], "https://console.example");
    shared.with_status(200);
    // A browser asks first, without a token; an origin that is not allowed is told nothing.
    let preflight = async |origin: &str| {
        let nobody = server.with_token(None);
        let request = nobody.request("OPTIONS", "/api/v1/runs").header("access-control-request-method", "POST");
        nobody.send(request.header("origin", origin)).await
    };
    let allowed = preflight("https://console.example").await;
    assert_eq!(
        (allowed.status, &allowed.headers["access-control-allow-origin"]),
        (204, &"https://console.example".parse().unwrap())
    );
    let denied = preflight("https://evil.test").await;
    assert!(!denied.headers.contains_key("access-control-allow-origin"));
    denied.refused(OriginDenied);
    with_header(&server, "/api/v1/runs", "origin", "https://console.example.evil.test").await.refused(OriginDenied);
}

async fn open_loopback_lifts_the_token_and_nothing_else(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.server.open_loopback = true).await;
    let nobody = server.with_token(None);
    nobody.create_run().await;
    with_header(&nobody, "/api/v1/runs", "host", "evil.test").await.refused(OriginDenied);
    with_header(&nobody, "/api/v1/runs", "origin", "https://evil.test").await.refused(OriginDenied);
    let request = nobody.request("POST", "/api/v1/runs").header("content-type", "text/plain");
    nobody.send(request.body(run_body().to_string())).await.refused(UnsupportedMediaType);
    server.with_token(Some("wrong")).get("/api/v1/runs").await.refused(Unauthenticated);
}

async fn require_auth_closes_even_health(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.server.require_auth = true;
        setup.token("hwlab", "client", &["hwlab"]);
    })
    .await;
    for path in ["/health", "/health/live", "/health/readiness", "/openapi.json", "/api/v1/runs", "/nowhere"] {
        server.with_token(None).get(path).await.refused(Unauthenticated);
        server.with_token(Some("ost_svc_wrong")).get(path).await.refused(Unauthenticated);
    }
    for path in ["/health", "/health/live", "/health/readiness", "/openapi.json"] {
        server.get(path).await.with_status(200);
        server.caller("hwlab").get(path).await.with_status(200);
    }
}
