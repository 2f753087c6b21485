//! How callers show who they are, and where they may come from. Who may do what is in `matrix.rs`.

use ostler_protocol::FailureKind::*;
use ostler_server::Server;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Caller, Engine, TestServer, both_engines, dialects, id, one_engine, run_body};

#[tokio::test]
async fn a_server_that_others_can_reach_is_not_opened() {
    let data_dir = tempfile::TempDir::new().unwrap();
    let mut config = ostler_server::Config::default();
    config.server.data_dir = Some(data_dir.path().join("data"));
    config.server.open_loopback = true;
    config.server.listen = "0.0.0.0:0".into();
    let refused = Server::new(config).with_dialects(dialects()).start().await.err().expect("refused");
    assert_eq!(refused.rule_name(), Some("open-loopback"));
}

fn tokens(setup: &mut crate::harness::Setup) {
    setup.token("hwlab", "client", &["hwlab"]);
    setup.token("unidesk", "client", &["unidesk"]);
    setup.token("both", "client", &["unidesk", "hwlab"]);
    setup.token("runner", "runner", &["hwlab"]);
}

#[one_engine]
async fn only_a_bearer_token_will_do(engine: Engine) {
    let server = TestServer::start(engine).await;
    let nobody = server.with_token(None);
    for path in ["/api/v1/runs", "/nowhere"] {
        let answer = nobody.get(path).await;
        assert_eq!(answer.headers["www-authenticate"], "Bearer", "{path}");
        answer.refused(Unauthenticated);
        for header in ["Bearer", "Bearer ", "Basic b3BlcmF0b3I6eA==", &server.operator_token()] {
            nobody.send(nobody.request("GET", path).header("authorization", header)).await.refused(Unauthenticated);
        }
    }
    let request = nobody.request("GET", "/api/v1/runs");
    let spelt = request.header("authorization", format!("bEARER  {}", server.operator_token()));
    nobody.send(spelt).await.with_status(200);
}

#[both_engines]
async fn a_service_leaves_its_name_behind(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let run = server.caller("hwlab").create_run().await;
    server.caller("hwlab").cancel_run(&run).await;
    let audit = server.events_of(&run, "audit").await;
    assert!(audit.last().unwrap()["payload"]["by"].as_str().unwrap().starts_with("service:tok_"));
}

#[both_engines]
async fn only_a_pool_of_runners_registers_without_a_run(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let alone = json!({"runnerId": "alone", "backendProfile": "scripted"});
    server.caller("hwlab").post("/api/v1/runners/register", &alone).await.refused_by(Forbidden, "role");
    server.caller("runner").post("/api/v1/runners/register", &alone).await.with_status(200);
}

#[both_engines]
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

async fn with_header(caller: &Caller, path: &str, name: &str, value: &str) -> crate::harness::Answer {
    caller.send(caller.request("GET", path).header(name, value)).await
}

#[one_engine]
async fn a_foreign_host_or_origin_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    for path in ["/api/v1/runs", "/health/live", "/health/readiness", "/openapi.json"] {
        for host in ["evil.test", "evil.test:80", "127.0.0.1.evil.test", "10.0.0.1", "localhost.evil.test:4747"] {
            with_header(&server, path, "host", host).await.refused_by(OriginDenied, "host");
        }
        for origin in ["https://evil.test", "null", "http://localhost:3000", "http://127.0.0.1"] {
            with_header(&server, path, "origin", origin).await.refused_by(OriginDenied, "origin");
        }
        for host in ["localhost", "127.0.0.1:9", "[::1]:80"] {
            with_header(&server, path, "host", host).await.with_status(200);
        }
        // What a page asks for without naming its origin, the browser gives away.
        for site in ["cross-site", "same-site"] {
            with_header(&server, path, "sec-fetch-site", site).await.refused_by(OriginDenied, "origin");
            let link = server.request("GET", path).header("sec-fetch-site", site).header("sec-fetch-dest", "document");
            server.send(link).await.with_status(200);
        }
        for site in ["same-origin", "none"] {
            with_header(&server, path, "sec-fetch-site", site).await.with_status(200);
        }
    }
    // A request without a host at all.
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(b"GET /health/live HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 403") && answer.contains("host-missing"), "{answer}");
}

#[one_engine]
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
    // A browser asks first, without a token; an origin that is not allowed gets no such headers.
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

#[one_engine]
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

#[one_engine]
async fn require_auth_closes_even_health(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.server.require_auth = true;
        setup.token("hwlab", "client", &["hwlab"]);
    })
    .await;
    for path in ["/health/live", "/health/readiness", "/openapi.json", "/api/v1/runs", "/nowhere"] {
        server.with_token(None).get(path).await.refused(Unauthenticated);
        server.with_token(Some("ost_svc_wrong")).get(path).await.refused(Unauthenticated);
    }
    // A path that is shared with clients of the daemon fails in their form.
    server.with_token(None).get("/health").await.with_status(401);
    for path in ["/health", "/health/live", "/health/readiness", "/openapi.json"] {
        server.get(path).await.with_status(200);
        server.caller("hwlab").get(path).await.with_status(200);
    }
}

#[both_engines]
async fn a_caller_learns_who_it_is(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let operator = server.get("/api/v1/caller").await.with_status(200);
    assert_eq!((&operator["kind"], &operator["name"]), (&json!("operator"), &json!("operator")));
    assert!(operator["access"].as_array().unwrap().contains(&json!("operate")), "{operator}");
    let client = server.caller("both").get("/api/v1/caller").await.with_status(200);
    assert_eq!((&client["kind"], &client["role"]), (&json!("service"), &json!("client")));
    assert_eq!(client["tenants"], json!(["unidesk", "hwlab"]));
    assert_eq!(client["access"], json!(["browse", "read", "submit", "inspect"]));
    let runner = server.caller("runner").get("/api/v1/caller").await.with_status(200);
    assert_eq!(runner["access"], json!(["browse", "read", "run"]));
    server.with_token(None).get("/api/v1/caller").await.refused(Unauthenticated);
    server.with_token(Some("garbage")).get("/api/v1/caller").await.refused(Unauthenticated);
}

#[both_engines]
async fn a_caller_learns_every_action_and_why_it_may_not_do_one(engine: Engine) {
    let server = TestServer::with(engine, tokens).await;
    let operator = server.get("/api/v1/caller").await.with_status(200);
    let names = |caller: &Value| -> Vec<Value> {
        caller["actions"].as_array().unwrap().iter().map(|action| action["action"].clone()).collect()
    };
    assert_eq!(
        Value::from(names(&operator)),
        json!(["browse", "read", "submit", "inspect", "provide", "run", "own", "scrape", "operate"])
    );
    assert_eq!((&operator["access"], &operator["ownerId"]), (&Value::from(names(&operator)), &json!("local")));
    let client = server.caller("both").get("/api/v1/caller").await.with_status(200);
    assert_eq!((names(&client), &client["ownerId"]), (names(&operator), &json!(null)));
    for action in client["actions"].as_array().unwrap() {
        let is_allowed = client["access"].as_array().unwrap().contains(&action["action"]);
        assert_eq!((&action["allowed"], action["reason"].is_null()), (&json!(is_allowed), is_allowed), "{action}");
        assert!(action["description"].as_str().is_some_and(|text| text.contains(' ')), "{action}");
    }
    // The reason is the message of the rejection.
    let refused = server.caller("both").get("/api/v1/tokens").await;
    assert_eq!(client["actions"][8]["reason"], refused.body["message"]);
}

#[both_engines]
async fn a_caller_learns_the_tenant_of_new_work(engine: Engine) {
    let default_of =
        async |caller: &Caller| caller.get("/api/v1/caller").await.with_status(200)["defaultTenant"].clone();
    let server = TestServer::with(engine, |setup| {
        tokens(setup);
        setup.token("with-local", "client", &["hwlab", "local"]);
    })
    .await;
    assert_eq!(default_of(&server).await, "local");
    assert_eq!(default_of(server.caller("with-local")).await, "local");
    for only in ["hwlab", "unidesk"] {
        assert_eq!(default_of(server.caller(only)).await, only);
        let run = server.caller(only).create_run_with(|body| body["tenantId"] = only.into()).await;
        assert_eq!(server.run(&run).await["tenantId"], only);
    }
    // Either could be meant.
    assert_eq!(default_of(server.caller("both")).await, json!(null));
    let server = TestServer::with(engine, |setup| setup.config.policy.tenants = vec!["acme".into()]).await;
    assert_eq!(default_of(&server).await, "acme", "a server without the tenant local");
    let tenants = vec!["acme".into(), "other".into()];
    let server = TestServer::with(engine, |setup| setup.config.policy.tenants = tenants).await;
    assert_eq!(default_of(&server).await, json!(null));
}
