//! `/metrics`: counts what happened, for the operator, in the form that Prometheus reads, without a tenant or a secret.

use serde_json::json;

use crate::harness::{Engine, Identity, TestServer, Wire, both_engines, eventually, introduction, one_engine};

/// The value of a line that begins with this; 0 where there is none.
pub(crate) async fn value(server: &TestServer, line: &str) -> f64 {
    let page = server.send(server.request("GET", "/metrics")).await.text;
    let found = page.lines().find_map(|have| have.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_default()
}

#[both_engines]
async fn what_happens_is_counted(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let (run_id, command_id) = server.start("hello").await;
    server.ended(&run_id, &command_id).await;
    server.cancel_run(&run_id).await;
    for (line, least) in [
        ("ostler_build_info{version=\"0.1.0\"}", 1.0),
        ("ostler_runs_started_total", 1.0),
        ("ostler_commands_ended_total{outcome=\"completed\"}", 1.0),
        ("ostler_runs_ended_total{outcome=\"cancelled\"}", 1.0),
        ("ostler_http_requests_total{method=\"POST\",path=\"/api/v1/runs\",status=\"201\"}", 1.0),
        ("ostler_http_request_seconds_count{method=\"POST\",path=\"/api/v1/runs\"}", 1.0),
        ("ostler_flush_seconds_count", 3.0),
        ("ostler_flush_requests_sum", 3.0),
        ("ostler_events_total", 4.0),
    ] {
        assert!(value(&server, line).await >= least, "{line}");
    }
    assert_eq!(value(&server, "ostler_draining").await, 0.0);
    assert_eq!(value(&server, "ostler_lane_waiting_requests").await, 0.0);
    let waiting = server.create_run().await;
    server.turn(&waiting, "x").await;
    server.claim(&waiting, "a runner of the test").await;
    assert_eq!(value(&server, "ostler_leases").await, 1.0);
    let page = server.send(server.request("GET", "/metrics")).await.text;
    for word in [&run_id, &command_id, &server.operator_token(), "hwlab", "ost_"] {
        assert!(!page.contains(word), "{word} in\n{page}");
    }
}

#[one_engine]
async fn every_refusal_is_counted_by_its_rule(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.followers_max = 0).await;
    let run_id = server.create_run().await;
    let stream = server.request("GET", &format!("/api/v1/runs/{run_id}/events")).header("accept", "text/event-stream");
    assert_eq!(server.send(stream).await.status, 429);
    server.post("/api/v1/runs", &json!([])).await;
    let stranger = server.with_token(Some("ost_nobody"));
    assert_eq!(stranger.get("/api/v1/runs").await.status, 401);
    for labels in [
        "kind=\"rate-limited\",rule=\"followers\"",
        "kind=\"schema-invalid\",rule=\"body-shape\"",
        "kind=\"unauthenticated\",rule=\"\"",
    ] {
        assert_eq!(value(&server, &format!("ostler_refusals_total{{{labels}}}")).await, 1.0, "{labels}");
    }
}

#[both_engines]
async fn what_happens_in_the_mesh_is_counted(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let (mut desk, mut other) = (alice.connect(&server, "desk").await, bobby.connect(&server, "desk").await);
    let fresh = Wire::open(&server).await;
    let send = |to: &Identity, id: &str| json!({"to": to.aid, "payload": {}, "message_id": id});
    for (to, id) in [(&bobby, "m-1"), (&bobby, "m-1"), (&alice, "m-2")] {
        desk.call("message.send", send(to, id)).await;
    }
    assert_eq!(other.socket.hear().await["method"], "event/message.received");
    drop(other);
    eventually("it has left", async || (value(&server, "ostler_mesh_connections").await == 1.0).then_some(())).await;
    desk.call("message.send", send(&bobby, "m-3")).await;
    let mut wire = Wire::open(&server).await;
    let mut params = introduction(&wire, &alice.login(&server).await, "desk", "", "fanout");
    params["auth"]["token"] = json!("stolen");
    assert_eq!(wire.refused("auth.connect", params).await.0, 4001);
    for (line, count) in [
        ("ostler_mesh_sends_total{status=\"delivered\"}", 2.0),
        ("ostler_mesh_sends_total{status=\"duplicate\"}", 1.0),
        ("ostler_mesh_sends_total{status=\"sent\"}", 1.0),
        ("ostler_mesh_pushes_total", 2.0),
        ("ostler_refusals_total{kind=\"unauthenticated\",rule=\"mesh-token\"}", 1.0),
    ] {
        assert_eq!(value(&server, line).await, count, "{line}");
    }
    assert!(value(&server, "ostler_mesh_sockets").await >= 3.0);
    drop(fresh);
}

#[one_engine]
async fn only_the_operator_and_tokens_of_its_own_role_read_it_unless_it_is_opened(engine: Engine) {
    let closed = TestServer::with(engine, |setup| {
        setup.token("platform", "client", &["hwlab"]);
        setup.token("prometheus", "metrics", &[]);
    })
    .await;
    assert_eq!(closed.with_token(None).get("/metrics").await.status, 401);
    assert_eq!(closed.caller("platform").get("/metrics").await.status, 403);
    // A token of its own reads it, and nothing else.
    let scraper = closed.caller("prometheus");
    assert_eq!(scraper.get("/metrics").await.status, 200);
    for path in ["/api/v1/runs", "/api/v1/sessions", "/api/v1/backends", "/api/v1/provider-profiles", "/api/v1/tokens"]
    {
        assert_eq!(scraper.get(path).await.status, 403, "{path}");
    }
    assert_eq!(scraper.get("/api/v1/caller").await.ok()["access"], serde_json::json!(["scrape"]));
    let open = TestServer::with(engine, |setup| setup.config.server.open_metrics = true).await;
    assert_eq!(open.with_token(None).get("/metrics").await.status, 200);
}
