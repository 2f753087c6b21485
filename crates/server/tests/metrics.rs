//! `/metrics`: counts what happened, for the operator, in the form that Prometheus reads, without a tenant or a secret.

use serde_json::json;

use crate::{
    harness::{Engine, TestServer},
    on_both_engines,
};

on_both_engines!(
    what_happens_is_counted,
    every_refusal_is_counted_by_its_rule,
    only_the_operator_reads_it_unless_it_is_opened,
);

/// The value of a line that begins with this; 0 where there is none.
pub async fn value(server: &TestServer, line: &str) -> f64 {
    let page = server.send(server.request("GET", "/metrics")).await.text;
    let found = page.lines().find_map(|have| have.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_default()
}

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

async fn only_the_operator_reads_it_unless_it_is_opened(engine: Engine) {
    let closed = TestServer::with(engine, |setup| {
        setup.token("platform", "client", &["hwlab"]);
    })
    .await;
    assert_eq!(closed.with_token(None).get("/metrics").await.status, 401);
    assert_eq!(closed.caller("platform").get("/metrics").await.status, 403);
    let open = TestServer::with(engine, |setup| setup.config.server.open_metrics = true).await;
    assert_eq!(open.with_token(None).get("/metrics").await.status, 200);
}
