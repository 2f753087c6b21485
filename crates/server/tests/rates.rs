//! Rate limits: off by default; each caller's own, by what it comes for; a refusal names the time to retry.

use ostler_protocol::FailureKind::*;
use ostler_server::net::rates::Rates;
use serde_json::json;

use crate::harness::{Answer, Caller, Engine, TestServer, one_engine};

/// Three at once, and one a second, of everything.
const THREE: Rates = Rates {
    on: true,
    read_per_second: 1,
    read_burst: 3,
    stream_per_second: 1,
    stream_burst: 3,
    submit_per_second: 1,
    submit_burst: 3,
    run_per_second: 1,
    run_burst: 3,
    stranger_per_second: 1,
    stranger_burst: 3,
};

async fn limited(engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.token("a", "client", &["hwlab"]);
        setup.token("b", "client", &["hwlab"]);
        setup.token("runner", "runner", &["hwlab"]);
        setup.config.rate_limit = THREE;
    })
    .await
}

async fn list(caller: &Caller) -> Answer {
    caller.get("/api/v1/runs").await
}

#[one_engine]
async fn nothing_is_limited_by_default(engine: Engine) {
    let server = TestServer::start(engine).await;
    for _ in 0..300 {
        let answer = server.get("/api/v1/runs?limit=1").await;
        assert!(!answer.headers.contains_key("ratelimit-limit"));
        answer.with_status(200);
    }
}

#[one_engine]
async fn a_caller_over_its_rate_limit_receives_when_to_retry(engine: Engine) {
    let server = limited(engine).await;
    let a = server.caller("a");
    for remaining in ["2", "1", "0"] {
        let answer = list(a).await;
        assert_eq!(
            (&answer.headers["ratelimit-limit"], &answer.headers["ratelimit-remaining"]),
            (&"3".parse().unwrap(), &remaining.parse().unwrap())
        );
        answer.with_status(200);
    }
    for _ in 0..5 {
        let answer = list(a).await;
        assert_eq!(answer.headers["retry-after"], "1");
        assert_eq!(answer.headers["ratelimit-remaining"], "0");
        let refused = answer.refused_by(RateLimited, "rate-limit");
        assert_eq!((&refused.details["tier"], &refused.details["retryAfterMs"]), (&json!("read"), &json!(1_000)));
    }
    // What was refused did not count, and time alone fills the bucket.
    server.clock.advance_ms(999);
    list(a).await.refused(RateLimited);
    server.clock.advance_ms(1);
    list(a).await.with_status(200);
    list(a).await.refused(RateLimited);
    server.clock.advance_ms(60_000);
    for _ in 0..3 {
        list(a).await.with_status(200);
    }
    list(a).await.refused(RateLimited);
}

#[one_engine]
async fn tiers_and_callers_do_not_share(engine: Engine) {
    let server = limited(engine).await;
    let (a, b, runner) = (server.caller("a"), server.caller("b"), server.caller("runner"));
    let run_id = a.create_run().await;
    for _ in 0..3 {
        list(a).await.with_status(200);
    }
    list(a).await.refused(RateLimited);
    list(b).await.with_status(200);
    let command_id = a.turn(&run_id, "hi").await;
    a.cancel_command(&command_id).await;
    // The third tier: a write that is refused writes nothing.
    let before = server.events(&run_id).await;
    a.post(&format!("/api/v1/runs/{run_id}/cancel"), &json!({})).await.refused(RateLimited);
    server.clock.advance_ms(3_000);
    assert_eq!(server.events(&run_id).await, before);
    for _ in 0..3 {
        let request = b.request("GET", &format!("/api/v1/runs/{run_id}/events")).header("accept", "text/event-stream");
        assert_eq!(request.send().await.unwrap().status().as_u16(), 200);
    }
    let request = b.request("GET", &format!("/api/v1/runs/{run_id}/events")).header("accept", "text/event-stream");
    assert_eq!(b.send(request).await.refused(RateLimited).details["tier"], "stream");
    for _ in 0..3 {
        runner.try_claim(&run_id, "runner-a", 60_000).await.with_status(200);
    }
    let refused = runner.try_claim(&run_id, "runner-a", 60_000).await.refused(RateLimited);
    assert_eq!(refused.details["tier"], "run");
    list(runner).await.with_status(200);
}

#[one_engine]
async fn strangers_are_counted_by_where_they_come_from(engine: Engine) {
    let server = limited(engine).await;
    for guess in 0..3 {
        list(&server.with_token(Some(&format!("ost_svc_{guess}")))).await.refused(Unauthenticated);
    }
    let refused = list(&server.with_token(Some("ost_svc_3"))).await.refused(RateLimited);
    assert_eq!(refused.details["tier"], "stranger");
    list(&server.with_token(None)).await.refused(RateLimited);
    // A good caller from the same place is not held up, and health has a bucket of its own.
    list(server.caller("a")).await.with_status(200);
    for _ in 0..3 {
        server.with_token(None).get("/health").await.with_status(200);
    }
    server.with_token(None).get("/health").await.refused(RateLimited);
}

#[one_engine]
async fn the_runner_inside_is_never_limited(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.config.rate_limit = Rates { run_burst: 1, read_burst: 1_000_000, ..THREE };
    })
    .await;
    let (run_id, command_id) = server.start("hello").await;
    assert_eq!(server.ended(&run_id, &command_id).await["terminalStatus"], "completed");
}
