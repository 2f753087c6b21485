//! Following a run: from the middle, through silence, lag and restarts; to its end, and not a moment longer.

use ostler_protocol::FailureKind::*;
use ostler_run_input::config::RunInputSection;
use reqwest::Response;
use serde_json::json;

use sqlx::Executor;

use super::{RUNS, ReceivedEvent, THREAD, message, received, words};
use crate::harness::{Caller, Engine, PATIENCE, TestServer, both_engines, eventually, id, run};

const SCRIPT: &str = r#"{"script": [{"say": "Looking around.", "pieces": 3}, {"tool": {"name": "shell", "command": "ls",
    "output": "a"}}, {"usage": {"inputTokens": 3, "outputTokens": 4}}, {"say": "Done."}]}"#;

fn events(run_id: &str) -> String {
    format!("{RUNS}/{THREAD}/events?runId={run_id}")
}

/// What a stream has said when the text is in it. The stream stays open.
async fn until(response: &mut Response, text: &str) -> String {
    let mut said = String::new();
    while !said.contains(text) {
        let chunk = tokio::time::timeout(PATIENCE, response.chunk()).await.expect("the stream sends something");
        let chunk = chunk.unwrap().unwrap_or_else(|| panic!("the stream ended without {text}: {said}"));
        said.push_str(str::from_utf8(&chunk).unwrap());
    }
    said
}

async fn opened(caller: &Caller, run_id: &str) -> Response {
    let response = caller.request("GET", &events(run_id)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

async fn after(caller: &Caller, run_id: &str, last: &str) -> Vec<ReceivedEvent> {
    received(&caller.send(caller.request("GET", &events(run_id)).header("last-event-id", last)).await.text)
}

#[both_engines]
async fn a_client_that_comes_back_gets_exactly_what_it_has_not_seen(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let whole = received(&server.stream(&message("run-1", SCRIPT)).await.text);
    assert_eq!(server.received("run-1").await, whole, "in both forms the same events under the same ids");
    let ids: Vec<_> = whole.iter().map(|event| event.id.as_str()).collect();
    assert!(
        ids.windows(2).any(|pair| pair[0].split('-').next() == pair[1].split('-').next()),
        "several of one: {ids:?}"
    );
    for (index, last) in ids.iter().enumerate() {
        assert_eq!(after(&server, "run-1", last).await, whole[index + 1..], "after {last}");
        let again = server.streaming(&message("run-1", SCRIPT)).header("last-event-id", *last);
        assert_eq!(received(&server.send(again).await.text), whole[index + 1..], "posted again after {last}");
    }
    // An id that was never given out hides nothing but what is behind it, and never the end.
    let end = whole.last().unwrap();
    let beyond = format!("{}-77", end.id.split('-').next().unwrap());
    for unknown in ["999-0", &beyond] {
        assert_eq!(after(&server, "run-1", unknown).await, std::slice::from_ref(end), "after {unknown}");
    }
}

#[both_engines]
async fn a_client_that_disconnects_does_not_stop_the_run(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut response = server.streaming(&message("run-1", "hello")).send().await.unwrap();
    until(&mut response, "RUN_STARTED").await;
    drop(response);
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    let command = id(&runner.poll("").await["commands"][0], "commandId");
    runner.ack(&command).await;
    assert_eq!(runner.poll("").await["cancelRequested"], json!([]));
    runner.say(&command, "said to nobody").await;
    runner.end(&command, "completed").await;
    assert_eq!(words(&server.received("run-1").await), "said to nobody");
}

#[both_engines]
async fn a_silent_stream_stays_alive_and_ends_when_its_idle_limit_is_reached(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.heartbeat_ms = 20).await;
    server.say("run-1", "hello").await.with_status(202);
    let text = server.get(&format!("{}&idle_limit=1", events("run-1"))).await.text;
    assert!(text.matches(": keep-alive\n\n").count() > 1, "{text}");
    assert_eq!(super::kinds(&received(&text)), ["RUN_STARTED"], "the run itself goes on");
    server.cancel_agent_run("run-1").await.with_status(202);
    assert_eq!(after(&server, "run-1", &received(&text)[0].id).await.len(), 1);
}

/// Only on Postgres can a read be made to wait.
#[test]
fn a_read_that_takes_longer_than_a_heartbeat_is_not_started_again() {
    run(async {
        let server = TestServer::with(Engine::Postgres, |setup| setup.config.limits.heartbeat_ms = 40).await;
        server.say("run-1", "hello").await.with_status(202);
        let mut other = server.connection().await;
        other.execute("BEGIN").await.unwrap();
        other.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let mut stream = opened(&server, "run-1").await;
        let waiting =
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
             AND query LIKE '%FROM events%ORDER BY session_seq%'";
        eventually("the read waits", async || (!server.store(waiting).await.is_empty()).then_some(())).await;
        let mut text = String::new();
        while text.matches(": keep-alive\n\n").count() < 8 {
            text += &until(&mut stream, "\n\n").await;
        }
        assert_eq!(received(&text), [], "{text}");
        // A statement whose caller has left waits on, so each start of the read would be counted here.
        let waiting = server.store(waiting).await;
        assert_eq!(waiting.len(), 1, "{waiting:#?}");
        other.execute("ROLLBACK").await.unwrap();
        until(&mut stream, "RUN_STARTED").await;
    });
}

#[both_engines]
async fn a_stream_is_broken_off_by_a_restart_and_goes_on_after_it(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let accepted = server.say("run-1", "hello").await.with_status(202);
    let mut response = opened(&server, "run-1").await;
    let before = received(&until(&mut response, "RUN_STARTED").await);
    let (torn, ()) = tokio::join!(
        async {
            loop {
                match tokio::time::timeout(PATIENCE, response.chunk()).await.expect("it ends") {
                    Ok(Some(_)) => {}
                    Ok(None) => return false,
                    Err(_) => return true,
                }
            }
        },
        server.restart()
    );
    assert!(torn, "a stream that just ended would look like success");
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    let command = id(&accepted, "taskId");
    runner.ack(&command).await;
    runner.say(&command, "after the restart").await;
    runner.end(&command, "completed").await;
    let rest = after(&server, "run-1", &before.last().unwrap().id).await;
    assert_eq!([before, rest].concat(), server.received("run-1").await);
}

#[both_engines]
async fn a_stream_that_lags_misses_nothing(engine: Engine) {
    let server = TestServer::start(engine).await;
    let command = id(&server.say("run-1", "hello").await.with_status(202), "taskId");
    let mut slow = opened(&server, "run-1").await;
    let started = until(&mut slow, "RUN_STARTED").await;
    let runner = server.claim(&server.run_of_thread().await, "runner-a").await;
    runner.ack(&command).await;
    // Far more than the hub buffers for a follower that does not read.
    for batch in 0..60 {
        let events: Vec<_> = (0..50)
            .map(|n| {
                let payload = json!({"messageId": "m", "delta": format!("{batch}.{n} {}\n", "x".repeat(500))});
                json!({"type": "assistant_delta", "commandId": command, "payload": payload})
            })
            .collect();
        runner.try_append(None, json!(events)).await.with_status(200);
    }
    runner.end(&command, "completed").await;
    let rest = until(&mut slow, "RUN_FINISHED").await;
    assert_eq!(received(&(started + &rest)), server.received("run-1").await);
}

#[both_engines]
async fn one_user_can_open_only_so_many_streams(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|section: &mut RunInputSection| section.streams_per_user_max = 2)
    })
    .await;
    let ada = super::user(&server, "ada", &["local"]).await;
    ada.say("run-1", "hello").await.with_status(202);
    let (mut one, two) = (opened(&ada, "run-1").await, opened(&ada, "run-1").await);
    until(&mut one, "RUN_STARTED").await;
    let refused = ada.get(&events("run-1")).await;
    refused.refused_as(RateLimited, "AGENT_SSE_CONNECTION_LIMIT_EXCEEDED");
    // A run that could not be followed is not begun either.
    let thread = crate::operations::uuid(&server.create_run().await);
    let mut body = message("run-1", "hello");
    body["threadId"] = json!(thread);
    ada.stream(&body).await.refused_as(RateLimited, "AGENT_SSE_CONNECTION_LIMIT_EXCEEDED");
    server.get(&format!("/api/v1/sessions/{thread}")).await.refused(NotFound);
    // Others have places of their own, and a place that was left is free.
    let bob = super::user(&server, "bob", &["local"]).await;
    bob.get(&events("run-1")).await.refused_as(Forbidden, "AGENT_FORBIDDEN");
    drop(two);
    eventually("a place", async || {
        let again = ada.request("GET", &events("run-1")).send().await.unwrap();
        (again.status() == 200).then_some(())
    })
    .await;
}

#[both_engines]
async fn a_stream_is_broken_off_with_its_callers_token(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.readmit_ms = 20).await;
    let ada = super::user(&server, "ada", &["local"]).await;
    let mut posted = ada.streaming(&message("run-1", "hello")).send().await.unwrap();
    until(&mut posted, "RUN_STARTED").await;
    let mut followed = opened(&ada, "run-1").await;
    until(&mut followed, "RUN_STARTED").await;
    server.send(server.request("DELETE", "/api/v1/users/ada")).await.with_status(200);
    for stream in [&mut posted, &mut followed] {
        // A stock client takes a clean end for a success.
        let end = tokio::time::timeout(PATIENCE, async {
            loop {
                match stream.chunk().await {
                    Ok(Some(_)) => {}
                    end => return end,
                }
            }
        });
        assert!(end.await.expect("the stream stops").is_err(), "it is broken off, not ended");
    }
}
