//! Following a run as it happens: long polls and event streams, without gap and without repetition. A client that stops
//! reading does not delay the others.

mod histories;

use std::time::Duration;

use ostler_protocol::FailureKind::*;
use serde_json::{Value, json};
use sqlx::Executor;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    time::{Instant, timeout},
};

use crate::harness::{Engine, PATIENCE, TestServer, both_engines, eventually, id, run};

fn note(n: i64) -> Value {
    json!([{"type": "custom", "payload": {"name": "note", "value": n}}])
}

#[both_engines]
async fn an_events_page_waits_for_the_first_event(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    let caller = (*server).clone();
    let path = format!("/api/v1/runs/{run_id}/events?afterSeq=2&waitMs=30000");
    let waiting = tokio::spawn(async move { caller.get(&path).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    runner.try_append(None, note(1)).await.with_status(200);
    let page = timeout(PATIENCE, waiting).await.unwrap().unwrap().ok();
    assert_eq!((&page["events"][0]["seq"], &page["nextAfterSeq"]), (&json!(3), &json!(3)));
    // What is already there is not waited for.
    let started = Instant::now();
    server.get(&format!("/api/v1/runs/{run_id}/events?waitMs=30000")).await.ok();
    assert!(started.elapsed() < PATIENCE / 2);
}

#[both_engines]
async fn an_empty_wait_ends_empty(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let other = server.create_run().await;
    let caller = (*server).clone();
    let path = format!("/api/v1/runs/{run_id}/events?afterSeq=1&waitMs=150");
    let (started, waiting) = (Instant::now(), tokio::spawn(async move { caller.get(&path).await }));
    // Another run's events are no news here.
    server.turn(&other, "x").await;
    let page = waiting.await.unwrap().ok();
    assert_eq!(page, json!({"events": [], "nextAfterSeq": 1, "hasMore": false}));
    assert!(started.elapsed() >= Duration::from_millis(140));
}

#[both_engines]
async fn a_command_poll_waits_for_a_command(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    let waiting = tokio::spawn(async move { runner.poll("afterSeq=0&waitMs=30000").await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    let command_id = server.turn(&run_id, "hi").await;
    let page = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(page["commands"][0]["commandId"], command_id.as_str());
}

#[both_engines]
async fn a_command_poll_returns_cancels_and_answers(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let digest = "a".repeat(64);
    // Polls with the mark of what the runner knows already.
    let poll = async |known: &Value| {
        let mark = known["newsMark"].as_str().unwrap_or_default();
        let path = format!("/api/v1/runs/{run_id}/commands?afterSeq=1&waitMs=30000&knownNews={mark}");
        let caller = (*server).clone();
        let waiting = tokio::spawn(async move { caller.get(&path).await.ok() });
        tokio::time::sleep(Duration::from_millis(40)).await;
        assert!(!waiting.is_finished(), "{known}");
        [waiting]
    };
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    runner.ask(&command_id, "prm_0123456789abcdef0123456789abcdef", &digest).await;
    let [waiting] = poll(&Value::Null).await;
    server.answer(&server.permissions(&run_id).await[0], "yes", &digest).await.with_status(200);
    let page = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(page["resolvedPermissions"][0]["status"], "allowed");
    let [waiting] = poll(&page).await;
    server.cancel_command(&command_id).await;
    let page = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(page["cancelRequested"], json!([command_id]));
    // What the runner knows already does not end the next wait; the run's cancel does.
    let [waiting] = poll(&page).await;
    server.cancel_run(&run_id).await;
    let page = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(page["runCancelRequested"], true);
}

#[both_engines]
async fn a_runners_own_words_do_not_wake_its_poll(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let caller = (*server).clone();
    let path = format!("/api/v1/runs/{run_id}/commands?afterSeq=1&waitMs=300");
    let (started, waiting) = (Instant::now(), tokio::spawn(async move { caller.get(&path).await.ok() }));
    for n in 0..5 {
        runner.tell(&command_id, "assistant_delta", json!({"messageId": "m", "delta": n.to_string()})).await;
    }
    let page = waiting.await.unwrap();
    assert_eq!(page["commands"], json!([]));
    assert!(started.elapsed() >= Duration::from_millis(290));
}

#[both_engines]
async fn a_stream_sends_past_and_coming_events(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    let mut follow = server.follow(&run_id, 0).await;
    assert_eq!(follow.status, 200);
    assert_eq!(follow.headers["content-type"], "text/event-stream");
    assert_eq!(follow.headers["cache-control"], "no-cache");
    let mut seen = follow.take(2).await;
    for n in 0..20 {
        runner.try_append(None, note(n)).await.with_status(200);
        seen.extend(follow.take(1).await);
    }
    assert_eq!(seen, server.events(&run_id).await);
    // A payload with line breaks stays one frame.
    let body = format!(
        "{{\"runnerId\":\"runner-a\",\"leaseEpoch\":{},\"events\":[{{\"type\":\"custom\",\"payload\":{{\r\n \"a\":\n1}}}}]}}",
        runner.epoch
    );
    server.send_text("POST", &format!("/api/v1/runs/{run_id}/events"), body).await.with_status(200);
    assert_eq!(follow.event().await.unwrap()["payload"], json!({"a": 1}));
    // `afterSeq` does what `Last-Event-ID` does, and the header wins.
    let request = server.request("GET", &format!("/api/v1/runs/{run_id}/events?afterSeq=3"));
    let response = request.header("accept", "text/html, text/event-stream;q=0.9").send().await.unwrap();
    assert_eq!(crate::harness::Follow::new(response).event().await.unwrap()["seq"], 4);
    let request = server.request("GET", &format!("/api/v1/runs/{run_id}/events?afterSeq=3"));
    let request = request.header("accept", "text/event-stream").header("last-event-id", "7");
    assert_eq!(crate::harness::Follow::new(request.send().await.unwrap()).event().await.unwrap()["seq"], 8);
}

#[both_engines]
async fn a_stream_resumes_without_gap_or_repetition(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let runner = server.claim(&run_id, "runner-a").await;
    let writing = tokio::spawn(async move {
        for n in 0..60 {
            let batch: Value = (0..10).map(|m| note(n * 10 + m)[0].clone()).collect();
            runner.try_append(None, batch).await.with_status(200);
        }
        runner.try_end_run("completed").await.with_status(200);
    });
    let mut seen: Vec<Value> = vec![];
    // Connections that break after a few events each, and one that stays to the end.
    for count in [1, 7, 50, 3, 120] {
        let after = seen.last().map_or(0, |event| event["seq"].as_i64().unwrap());
        seen.extend(server.follow(&run_id, after).await.take(count).await);
    }
    let after = seen.last().unwrap()["seq"].as_i64().unwrap();
    seen.extend(server.follow(&run_id, after).await.rest().await);
    writing.await.unwrap();
    assert_eq!(seen.len(), 2 + 600 + 1);
    assert_eq!(seen, server.events(&run_id).await);
}

#[both_engines]
async fn a_stream_ends_with_its_run(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    let mut follow = server.follow(&run_id, 0).await;
    follow.take(3).await;
    // A command's end is not the run's.
    runner.end(&command_id, "completed").await;
    assert_eq!(follow.event().await.unwrap()["type"], "terminal_status");
    server.cancel_run(&run_id).await;
    let rest = follow.rest().await;
    assert_eq!(rest.last().unwrap()["type"], "terminal_status");
    assert_eq!(rest.last().unwrap()["commandId"], Value::Null);
    let last = rest.last().unwrap()["seq"].as_i64().unwrap();
    // A follower that comes too late does not wait, wherever it begins.
    assert_eq!(server.follow(&run_id, 0).await.rest().await.len() as i64, last);
    assert_eq!(server.follow(&run_id, last - 1).await.rest().await.len(), 1);
    assert_eq!(server.follow(&run_id, last).await.rest().await, Vec::<Value>::new());
}

#[both_engines]
async fn a_stream_does_not_begin_where_the_log_has_never_been(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let session_id = id(&server.run(&run_id).await, "sessionId");
    let last = server.events(&run_id).await.len() as i64;
    for path in [format!("/api/v1/runs/{run_id}/events"), format!("/api/v1/sessions/{session_id}/trace")] {
        let request = server.request("GET", &path).header("accept", "text/event-stream");
        let answer = server.send(request.header("last-event-id", last + 1)).await;
        let refused = answer.refused_by(SchemaInvalid, "after-beyond-end");
        assert_eq!(refused.details["lastSeq"], last);
    }
}

#[both_engines]
async fn a_silent_stream_beats(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.heartbeat_ms = 40).await;
    let run_id = server.create_run().await;
    let mut follow = server.follow(&run_id, 1).await;
    assert_eq!(follow.frame().await.unwrap().comment, "open");
    for _ in 0..3 {
        let frame = follow.frame().await.unwrap();
        assert_eq!((frame.comment.as_str(), frame.id), ("keep-alive", None));
    }
    server.turn(&run_id, "hi").await;
    assert_eq!(follow.event().await.unwrap()["seq"], 2);
}

/// Only on Postgres can a read be made to wait.
#[test]
fn a_read_that_takes_longer_than_a_heartbeat_is_not_started_again() {
    run(async {
        let server = TestServer::with(Engine::Postgres, |setup| setup.config.limits.heartbeat_ms = 40).await;
        let run_id = server.create_run().await;
        server.turn(&run_id, "hi").await;
        let mut other = server.connection().await;
        other.execute("BEGIN").await.unwrap();
        other.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let mut follow = server.follow(&run_id, 0).await;
        assert_eq!(follow.frame().await.unwrap().comment, "open");
        let waiting =
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
             AND query LIKE '%FROM events%ORDER BY seq%'";
        eventually("the read waits", async || (!server.store(waiting).await.is_empty()).then_some(())).await;
        for _ in 0..8 {
            assert_eq!(follow.frame().await.unwrap().comment, "keep-alive");
        }
        // A statement whose caller has left waits on, so each start of the read would be counted here.
        let waiting = server.store(waiting).await;
        assert_eq!(waiting.len(), 1, "{waiting:#?}");
        other.execute("ROLLBACK").await.unwrap();
        for seq in 1..=2 {
            assert_eq!(follow.event().await.unwrap()["seq"], seq);
        }
    });
}

#[both_engines]
async fn a_reader_of_a_run_that_stops_reading_is_dropped_alone(engine: Engine) {
    dropped_alone(engine, |run_id| format!("/api/v1/runs/{run_id}/events")).await;
}

#[both_engines]
async fn a_reader_of_a_session_that_stops_reading_is_dropped_alone(engine: Engine) {
    dropped_alone(engine, |_| "/api/v1/sessions/mine/trace".into()).await;
}

/// Of two followers, the one at this path stops reading.
async fn dropped_alone(engine: Engine, path: impl Fn(&str) -> String) {
    let server = TestServer::with(engine, |setup| {
        setup.config.limits.slow_reader_ms = 1_500;
        setup.config.limits.followers_max = 2;
    })
    .await;
    let run_id = server.create_run_with(|run| run["sessionRef"] = json!({"sessionId": "mine"})).await;
    let runner = server.claim(&run_id, "runner-a").await;
    let stalled = TcpSocket::new_v4().unwrap();
    stalled.set_recv_buffer_size(4_096).unwrap();
    let mut stalled = stalled.connect(server.address()).await.unwrap();
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer {}\r\n\r\n",
        path(&run_id),
        server.operator_token()
    );
    stalled.write_all(request.as_bytes()).await.unwrap();
    let mut good = server.follow(&run_id, 0).await;
    good.take(2).await;
    // It reads the beginning of its answer, and then nothing more.
    let mut beginning = [0; 12];
    stalled.read_exact(&mut beginning).await.unwrap();
    assert_eq!(&beginning, b"HTTP/1.1 200");
    assert_eq!(server.follow(&run_id, 0).await.status, 429);
    // More than the sockets' buffers can swallow for a reader who takes nothing.
    let payload = json!({"x": "y".repeat(250_000)});
    let batch: Value = (0..15).map(|_| json!({"type": "custom", "payload": payload})).collect();
    let mut seen = 0;
    for _ in 0..2 {
        // Concurrently: a follower that does not read while the append takes its time is slow, too.
        let (appended, events) = tokio::join!(runner.try_append(None, batch.clone()), good.take(15));
        appended.with_status(200);
        seen += events.len();
    }
    assert_eq!(seen, 30);
    // Its place comes free, and what it reads now breaks off.
    eventually("the stalled reader's place is free", async || {
        (server.follow(&run_id, 32).await.status == 200).then_some(())
    })
    .await;
    let mut left = vec![];
    let read = timeout(PATIENCE, stalled.read_to_end(&mut left)).await.expect("the connection is closed");
    assert!(left.len() < 30 * 250_000, "{read:?}: {} bytes", left.len());
    // The other one goes on.
    runner.try_append(None, note(1)).await.with_status(200);
    assert_eq!(good.event().await.unwrap()["payload"]["value"], 1);
}

#[both_engines]
async fn streams_have_a_bound(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.followers_max = 1).await;
    let run_id = server.create_run().await;
    let mut first = server.follow(&run_id, 0).await;
    first.take(1).await;
    let request = server.request("GET", &format!("/api/v1/runs/{run_id}/events")).header("accept", "text/event-stream");
    let refused = server.send(request).await;
    assert_eq!(refused.headers["retry-after"], "1");
    refused.refused_by(RateLimited, "followers");
    // Pages are no streams.
    server.get(&format!("/api/v1/runs/{run_id}/events")).await.with_status(200);
    drop(first);
    eventually("the place is free", async || (server.follow(&run_id, 0).await.status == 200).then_some(())).await;
}

#[both_engines]
async fn no_caller_takes_all_streams(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.limits.followers_per_caller_max = 2;
        setup.token("greedy", "client", &["hwlab"]);
        setup.token("other", "client", &["hwlab"]);
    })
    .await;
    let run_id = server.create_run_with(|run| run["sessionRef"] = json!({"sessionId": "mine"})).await;
    let (greedy, other) = (server.caller("greedy"), server.caller("other"));
    // Streams of runs and of sessions count alike.
    let (mut first, mut second) = (greedy.follow(&run_id, 0).await, greedy.follow_session("mine", 0).await);
    first.take(1).await;
    second.take(1).await;
    for path in [format!("/api/v1/runs/{run_id}/events"), "/api/v1/sessions/mine/trace".into()] {
        let refused = greedy.send(greedy.request("GET", &path).header("accept", "text/event-stream")).await;
        assert_eq!(refused.headers["retry-after"], "1");
        let refused = refused.refused_by(RateLimited, "followers-per-caller");
        assert_eq!(refused.details["max"], 2);
    }
    // It takes no place from others, and is freed again.
    other.follow(&run_id, 0).await.take(1).await;
    drop(first);
    eventually("the place is free", async || (greedy.follow(&run_id, 0).await.status == 200).then_some(())).await;
}

#[both_engines]
async fn a_stream_ends_with_its_callers_token(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.limits.readmit_ms = 20;
        setup.token("leaving", "client", &["hwlab"]);
    })
    .await;
    let run_id = server.create_run_with(|run| run["sessionRef"] = json!({"sessionId": "mine"})).await;
    let leaving = server.caller("leaving");
    let (mut of_run, mut of_session) = (leaving.follow(&run_id, 0).await, leaving.follow_session("mine", 0).await);
    let mut staying = server.follow(&run_id, 0).await;
    for stream in [&mut of_run, &mut of_session, &mut staying] {
        stream.take(1).await;
    }
    server.store("UPDATE tokens SET revoked_at = 1 RETURNING name").await;
    // What was remembered of the token is forgotten.
    server.clock.advance_ms(5_001);
    assert_eq!(of_run.rest().await, Vec::<Value>::new());
    assert_eq!(of_session.rest().await, Vec::<Value>::new());
    leaving.get(&format!("/api/v1/runs/{run_id}/events")).await.refused(Unauthenticated);
    server.turn(&run_id, "hi").await;
    assert_eq!(staying.event().await.unwrap()["seq"], 2);
}

#[both_engines]
async fn a_stopping_server_ends_its_waits_and_streams(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let mut follow = server.follow(&run_id, 0).await;
    follow.take(1).await;
    let caller = (*server).clone();
    let path = format!("/api/v1/runs/{run_id}/events?afterSeq=1&waitMs=30000");
    let waiting = tokio::spawn(async move { caller.get(&path).await.ok() });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    server.restart().await;
    assert_eq!(follow.rest().await, Vec::<Value>::new());
    assert_eq!(waiting.await.unwrap()["events"], json!([]));
    assert!(started.elapsed() < Duration::from_secs(20), "it waited for the waiter: {:?}", started.elapsed());
    assert_eq!(id(&server.run(&run_id).await, "runId"), run_id);
}
