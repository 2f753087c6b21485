//! The gate on the daemon's paths: tokens, hosts, origins, rate limits, and the health that its clients read.

use ostler_daemon::config::DaemonSection;
use ostler_protocol::FailureKind::{NotFound, OriginDenied, RateLimited};
use ostler_server::{config::Environment, net::rates::Rates};
use serde_json::{Value, json};

use super::refused;
use crate::harness::{Answer, Engine, Setup, TestServer, both_engines, id, one_engine, query};

const CLIENT: &str = "x-qwen-client-id";
const PAGE_ORIGIN: &str = "https://console.example";
/// A path of the daemon. There is no such session, so that an admitted request gets 404.
const PATH: &str = "/session/nobody/context";

async fn bound(engine: Engine, choose: impl FnOnce(&mut Setup)) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.bind_workspace();
        choose(setup);
    })
    .await
}

/// A request with one more header.
async fn send_with(server: &TestServer, (method, path): (&str, &str), header: (&str, &str)) -> Answer {
    server.send(server.request(method, path).header(header.0, header.1)).await
}

#[one_engine]
async fn the_variable_of_the_published_daemon_holds_a_token_too(engine: Engine) {
    const CHOSEN: &str = "a-token-of-my-own-choice";
    let server = bound(engine, |setup| {
        let variable = ("QWEN_SERVER_TOKEN".into(), format!(" {CHOSEN}\n").into());
        setup.config.environment = Environment::with_taken([variable]);
    })
    .await;
    server.with_token(Some(CHOSEN)).get(PATH).await.with_status(404);
    server.get(PATH).await.with_status(404);
    server.with_token(Some("a-token-of-another-choice")).get(PATH).await.with_status(401);
}

#[one_engine]
async fn every_request_without_a_valid_token_gets_the_same_body(engine: Engine) {
    let server = bound(engine, |_| ()).await;
    let anonymous = server.with_token(None);
    for authorization in ["", "Basic abc", "Bearer", "Bearer ost_svc_wrong", "bearer nonsense"] {
        let request = anonymous.request("GET", PATH);
        let request = if authorization.is_empty() { request } else { request.header("authorization", authorization) };
        let refused = anonymous.send(request).await;
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
        assert_eq!(refused.with_status(401), json!({"error": "Unauthorized"}), "{authorization:?}");
    }
}

#[one_engine]
async fn unknown_operations_and_methods_fail_in_the_shape_of_the_daemon(engine: Engine) {
    let server = bound(engine, |_| ()).await;
    for (method, path) in [
        ("GET", "/session/ses_1/nosuch"),
        ("POST", "/session/ses_1/tasks/task_1/nosuch"),
        ("GET", "/workspace/nosuch"),
        ("POST", "/workspace/mcp/good/nosuch"),
        ("DELETE", "/workspace/agents/reviewer/nosuch"),
        ("PATCH", "/file/nosuch"),
        ("GET", "/file/nosuch/a/b"),
        ("GET", "/session/ses_1/a/b/c/d/e"),
        ("GET", "/session/ses_1/tasks/task_1/cancel/b"),
        ("GET", "/workspace/mcp/good/tools/a/b/c"),
        ("POST", "/permission/request_1/a/b"),
    ] {
        let answer = server.send(server.request(method, path)).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{path}: {}", answer.text);
        refused(answer, 404, "not_found");
        let stranger = server.with_token(None);
        let unauthorized = stranger.send(stranger.request(method, path)).await;
        assert_eq!(unauthorized.with_status(401), json!({"error": "Unauthorized"}), "{path}");
    }
    let other_method = server.send(server.request("DELETE", "/session/ses_1/prompt")).await;
    refused(other_method, 405, "method_not_allowed");
    server.get("/nowhere").await.refused(NotFound);
}

#[one_engine]
async fn the_gate_rejects_in_the_daemons_form_on_shared_paths(engine: Engine) {
    let server = bound(engine, |setup| setup.config.server.require_auth = true).await;
    let anonymous = server.with_token(None);
    for path in ["/health", "/capabilities"] {
        let basic = anonymous.request("GET", path).header("authorization", "Basic b3N0bGVyOng=");
        let basic = anonymous.send(basic).await;
        let wrong = server.with_token(Some("ost_svc_wrong")).get(path).await;
        for refused in [anonymous.get(path).await, wrong, basic] {
            assert_eq!(refused.headers["content-type"], "application/json", "{path}");
            assert_eq!(refused.with_status(401), json!({"error": "Unauthorized"}), "{path}");
        }
        let foreign = send_with(&server, ("GET", path), ("origin", "https://evil.example")).await;
        assert_eq!(foreign.headers["content-type"], "application/json", "{path}");
        assert_eq!(foreign.with_status(403), json!({"error": "Request denied by CORS policy"}), "{path}");
        let other_name = send_with(&server, ("GET", path), ("host", "evil.example")).await;
        assert_eq!(other_name.with_status(403), json!({"error": "Invalid Host header"}), "{path}");
    }
}

#[one_engine]
async fn the_host_is_a_name_of_the_server_with_its_port(engine: Engine) {
    let server = bound(engine, |setup| setup.config.server.hosts = vec!["ostler.example".into()]).await;
    let port = server.address().port();
    let ask = async |path: &str, host: &str| send_with(&server, ("GET", path), ("host", host)).await;
    for name in ["localhost", "LocalHost", "127.0.0.1", "[::1]", "host.docker.internal", "ostler.example"] {
        assert_eq!(ask(PATH, &format!("{name}:{port}")).await.status, 404, "{name}");
        assert_eq!(ask("/capabilities", &format!("{name}:{port}")).await.status, 200, "{name}");
    }
    for host in
        ["localhost", "localhost:1", "127.0.0.1:1", "127.0.0.2:80", "evil.example", &format!("evil.example:{port}")]
    {
        let refused = ask(PATH, host).await.with_status(403);
        assert_eq!(refused, json!({"error": "Invalid Host header"}), "{host}");
    }
    for path in ["/capabilities", "/health", "/health/live"] {
        for host in ["localhost", "localhost:1", "127.0.0.1:1", "127.0.0.2:80", "[::1]:1"] {
            assert_eq!(ask(path, host).await.status, 200, "{path} takes any port: {host}");
        }
    }
    for path in ["/capabilities", "/health"] {
        for host in ["evil.example", &format!("evil.example:{port}"), "host.docker.internal:1"] {
            let refused = ask(path, host).await.with_status(403);
            assert_eq!(refused, json!({"error": "Invalid Host header"}), "{path}, {host}");
        }
    }
    let elsewhere = ask("/api/v1/runs", &format!("host.docker.internal:{port}")).await;
    elsewhere.refused_by(OriginDenied, "host");
}

#[one_engine]
async fn pages_of_other_origins_are_rejected_and_the_servers_own_are_not(engine: Engine) {
    let server = bound(engine, |_| ()).await;
    let port = server.address().port();
    for own in ["127.0.0.1", "localhost", "[::1]", "host.docker.internal"] {
        let origin = format!("http://{own}:{port}");
        let admitted = send_with(&server, ("GET", PATH), ("origin", &origin)).await;
        assert_eq!(admitted.status, 404, "{origin}");
        assert!(!admitted.headers.contains_key("access-control-allow-origin"));
    }
    for origin in ["null", "https://evil.example", "http://localhost:1", &format!("https://localhost:{port}")] {
        let refused = send_with(&server, ("GET", PATH), ("origin", origin)).await;
        assert!(refused.headers.keys().all(|name| !name.as_str().starts_with("access-control-")), "{origin}");
        assert_eq!(refused.with_status(403), json!({"error": "Request denied by CORS policy"}), "{origin}");
    }
    let request = server.request("GET", PATH).header("origin", format!("http://localhost:{port}"));
    let cross_site = server.send(request.header("sec-fetch-site", "cross-site")).await;
    assert_eq!(cross_site.status, 403, "a browser would not send both");
}

fn list(answer: &Answer, header: &str) -> Vec<String> {
    let text = answer.headers[header].to_str().unwrap();
    text.split(", ").map(str::to_lowercase).collect()
}

#[one_engine]
async fn pages_of_allowed_origins_may_call_and_read(engine: Engine) {
    let server = bound(engine, |setup| setup.config.server.allow_origins = vec![PAGE_ORIGIN.into()]).await;
    let anonymous = server.with_token(None);
    let preflight = anonymous.request("OPTIONS", "/session").header("access-control-request-method", "POST");
    let preflight = anonymous.send(preflight.header("origin", PAGE_ORIGIN)).await;
    assert_eq!((preflight.status, preflight.text.as_str()), (204, ""));
    let response = send_with(&server, ("GET", PATH), ("origin", PAGE_ORIGIN)).await;
    assert_eq!(response.status, 404);
    for response in [&preflight, &response] {
        assert_eq!(response.headers["access-control-allow-origin"], PAGE_ORIGIN);
        assert_eq!(response.headers["vary"], "Origin");
        assert_eq!(response.headers["access-control-max-age"], "86400");
        let methods = list(response, "access-control-allow-methods");
        assert!(["get", "post", "patch", "delete", "options"].iter().all(|name| methods.contains(&(*name).into())));
        let sent = list(response, "access-control-allow-headers");
        assert!(
            ["authorization", "content-type", CLIENT, "last-event-id"]
                .iter()
                .all(|name| sent.contains(&(*name).into()))
        );
        let read = list(response, "access-control-expose-headers");
        assert!(["retry-after", "x-ratelimit-remaining"].iter().all(|name| read.contains(&(*name).into())));
    }
    let foreign = anonymous.request("OPTIONS", "/session").header("origin", "https://evil.example");
    let foreign = anonymous.send(foreign).await;
    assert!(foreign.headers.keys().all(|name| !name.as_str().starts_with("access-control-")));
    assert_eq!(foreign.status, 403);
}

#[one_engine]
async fn every_origin_may_call_where_every_request_needs_a_token(engine: Engine) {
    let server = bound(engine, |setup| {
        setup.config.server.require_auth = true;
        setup.config.server.allow_origins = vec!["*".into()];
    })
    .await;
    let response = send_with(&server, ("GET", PATH), ("origin", "https://any.example")).await;
    assert_eq!(response.status, 404);
    assert_eq!(response.headers["access-control-allow-origin"], "https://any.example");
    assert_eq!(send_with(&server, ("GET", PATH), ("origin", "null")).await.status, 403);
}

/// Rate limits as they are, except that callers may do as much as they like.
fn limit_clients(setup: &mut Setup) {
    let plenty = Rates { submit_burst: 10_000, read_burst: 10_000, ..Rates::default() };
    setup.config.rate_limit = Rates { on: true, ..plenty };
}

/// A prompt that is not valid. It counts all the same.
async fn prompt_as(server: &TestServer, client: &str) -> Answer {
    let request = server.request("POST", "/session/nobody/prompt").header(CLIENT, client);
    server.send(request.header("content-type", "application/json").body("{}")).await
}

#[one_engine]
async fn a_client_over_its_limit_learns_the_tier_and_when_to_retry(engine: Engine) {
    let server = bound(engine, limit_clients).await;
    for remaining in (0..10).rev() {
        let counted = prompt_as(&server, "editor-1").await;
        assert!([400, 404].contains(&counted.status), "{}", counted.text);
        assert_eq!(counted.headers["x-ratelimit-remaining"], remaining.to_string().as_str());
    }
    let refused = prompt_as(&server, "editor-1").await;
    assert_eq!(refused.headers["retry-after"], "6");
    assert_eq!(refused.headers["x-ratelimit-limit"], "10");
    let reset = refused.headers["x-ratelimit-reset"].to_str().unwrap().parse::<i64>().unwrap();
    assert_eq!(reset, 1_767_225_606, "in seconds since 1970");
    let expected = json!({"error": "Rate limit exceeded", "code": "rate_limit_exceeded", "tier": "prompt",
        "retryAfterMs": 6_000});
    assert_eq!(refused.with_status(429), expected);
    assert_ne!(prompt_as(&server, "editor-2").await.status, 429, "another client");
    server.clock.advance_ms(6_000);
    assert_ne!(prompt_as(&server, "editor-1").await.status, 429);
    assert_eq!(prompt_as(&server, "editor-1").await.status, 429);
}

#[one_engine]
async fn each_kind_of_request_has_a_limit_except_those_that_keep_a_client_connected(engine: Engine) {
    let server = bound(engine, limit_clients).await;
    let limit = async |method: &str, path: &str| {
        let answer = send_with(&server, (method, path), (CLIENT, "editor-1")).await;
        answer.headers.get("x-ratelimit-limit").map(|limit| limit.to_str().unwrap().to_owned())
    };
    for (method, path, expected) in [
        ("GET", "/capabilities", Some("120")),
        ("GET", PATH, Some("120")),
        ("POST", "/session/nobody/prompt", Some("10")),
        ("POST", "/session/nobody/cancel", Some("30")),
        ("DELETE", "/session/nobody", Some("30")),
        ("GET", "/health", None),
        ("GET", "/session/nobody/events", None),
        ("POST", "/session/nobody/heartbeat", None),
        ("GET", "/api/v1/runs", None),
    ] {
        assert_eq!(limit(method, path).await.as_deref(), expected, "{method} {path}");
    }
}

#[one_engine]
async fn a_caller_escapes_no_limit_by_naming_other_clients(engine: Engine) {
    let server = bound(engine, |setup| {
        limit_clients(setup);
        setup.config.rate_limit.submit_burst = 15;
    })
    .await;
    for client in 0..15 {
        assert_ne!(prompt_as(&server, &format!("editor-{client}")).await.status, 429);
    }
    let refused = prompt_as(&server, "editor-15").await;
    assert!(!refused.headers.contains_key("x-ratelimit-limit"), "the client's own limit was not counted");
    let body = refused.with_status(429);
    assert_eq!((&body["code"], &body["tier"]), (&json!("rate_limit_exceeded"), &json!("submit")));
}

#[one_engine]
async fn nothing_is_limited_unless_rate_limits_are_on(engine: Engine) {
    let server =
        bound(engine, |setup| setup.config.change(|daemon: &mut DaemonSection| daemon.rate_reads_max = 1)).await;
    for _ in 0..3 {
        let answer = send_with(&server, ("GET", "/capabilities"), (CLIENT, "editor-1")).await;
        assert!(answer.status == 200 && !answer.headers.contains_key("x-ratelimit-limit"));
    }
}

#[one_engine]
async fn a_shared_path_is_limited_in_the_words_of_both_kinds_of_clients(engine: Engine) {
    let server = bound(engine, |setup| {
        limit_clients(setup);
        setup.config.change(|daemon: &mut DaemonSection| daemon.rate_reads_max = 1);
    })
    .await;
    assert_eq!(server.get("/capabilities").await.status, 200);
    let refused = server.get("/capabilities").await;
    assert_eq!((&refused.body["code"], &refused.body["tier"]), (&json!("rate_limit_exceeded"), &json!("read")));
    refused.refused_by(RateLimited, "rate-limit-exceeded");
}

#[both_engines]
async fn deep_health_counts_open_sessions_and_waiting_permissions(engine: Engine) {
    let server = bound(engine, |_| ()).await;
    let opened = server.post("/session", &json!({"sessionScope": "thread"})).await.with_status(200);
    assert!(!id(&opened, "sessionId").is_empty());
    let anonymous = server.with_token(None);
    let deep = anonymous.get("/health?deep=1").await.with_status(200);
    assert_eq!((&deep["status"], &deep["sessions"], &deep["pendingPermissions"]), (&json!("ok"), &json!(1), &json!(0)));
    let plain = anonymous.get("/health").await.with_status(200);
    assert_eq!((&plain["status"], plain.get("sessions")), (&json!("ok"), None));
}

#[both_engines]
async fn deep_health_is_degraded_while_the_counts_cannot_be_read(engine: Engine) {
    let server = bound(engine, |_| ()).await;
    query(&server.config, "DROP TABLE daemon_sessions").await;
    let deep = server.get("/health?deep=1").await.with_status(503);
    assert_eq!((&deep["status"], deep.get("sessions")), (&json!("degraded"), None));
    assert_eq!(server.get("/health").await.with_status(200)["status"], "ok");
}

#[one_engine]
async fn the_workspace_is_shown_to_callers_that_are_admitted_without_a_token(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        workspace = Some(setup.bind_workspace());
        setup.config.server.open_loopback = true;
    })
    .await;
    let envelope: Value = server.with_token(None).get("/capabilities").await.with_status(200);
    assert_eq!(envelope["workspaceCwd"], workspace.unwrap().to_str().unwrap());
}
