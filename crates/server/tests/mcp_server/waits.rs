//! Calls that wait: their progress, their resumption from the log, and what ends them.

use ostler_protocol::mcp_server::messages::PROGRESS_TOKEN_BYTES_MAX;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{LATEST, PATH, REVISION, SESSION, Stream, call, done, message, named, notify, open_session, post};
use crate::harness::{Engine, PATIENCE, TestServer, both_engines, eventually, one_engine};

const WAITS: u64 = 30_000;

fn submission() -> Value {
    json!({"profile": "scripted", "prompt": "hi", "waitMs": WAITS})
}

#[both_engines]
async fn a_waiting_call_notifies_of_every_event_and_ends_with_its_result(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut stream = Stream::call(&server, None, "submit_run", submission()).await;
    let (run_id, command_id) = named(&stream.primed().await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let (first, _) = stream.progress().await;
    runner.say(&command_id, "Done.").await;
    runner.end(&command_id, "completed").await;
    let (notified, result) = stream.result().await;
    let result = done(&result);
    assert_eq!((&result["reply"], &result["ended"]), (&json!("Done."), &json!(true)), "{result}");
    let numbers: Vec<_> = [first].into_iter().chain(notified).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert!(*numbers.last().unwrap() < server.events(&run_id).await.len() as i64 + 1, "{numbers:?}");
}

/// Progress is a function of the log, so that nothing has to be kept for a client that does not read.
#[one_engine]
async fn a_client_that_does_not_read_its_stream_does_not_delay_others(engine: Engine) {
    const EVENTS: usize = 100;
    let server = TestServer::start(engine).await;
    let mut slow = Stream::call(&server, None, "submit_run", submission()).await;
    let (run_id, command_id) = named(&slow.primed().await);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    // From here on it reads nothing until the run has ended. Another client follows the same run.
    let follow = json!({"runId": run_id, "until": "end", "waitMs": WAITS});
    let mut reader = Stream::call(&server, None, "follow_run", follow).await;
    reader.primed().await;
    let text = "x".repeat(4_096);
    for _ in 0..EVENTS {
        runner.tell(&command_id, "custom", json!({"name": "n", "value": text})).await;
    }
    reader.progress().await;
    let listed = done(&call(&server, "list_runs", json!({})).await);
    assert_eq!(listed["runs"][0]["runId"], json!(run_id));
    runner.say(&command_id, "Done.").await;
    runner.end(&command_id, "completed").await;
    let (_, result) = reader.result().await;
    assert_eq!(done(&result)["state"], "completed");
    let (notified, result) = slow.result().await;
    assert_eq!(done(&result)["reply"], "Done.");
    assert!(notified.len() <= EVENTS + 10 && notified.is_sorted_by(|a, b| a < b), "{notified:?}");
}

/// A client with a small buffer that calls a tool, reads the status of the response, and then nothing. Each of its notifications has
/// a large token, so that few of them fill the buffers of its connection.
async fn stalled(server: &TestServer, arguments: &Value) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(server.address()).await.unwrap();
    let meta = json!({"progressToken": "t".repeat(PROGRESS_TOKEN_BYTES_MAX)});
    let body = message("tools/call", json!({"name": "follow_run", "arguments": arguments, "_meta": meta})).to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n{REVISION}: {LATEST}\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        server.operator_token(),
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut beginning = [0; 12];
    stream.read_exact(&mut beginning).await.unwrap();
    assert_eq!(&beginning, b"HTTP/1.1 200");
    stream
}

#[one_engine]
async fn a_client_that_fills_the_queue_of_its_stream_is_dropped_alone(engine: Engine) {
    const EVENTS_MAX: usize = 4_000;
    let server = TestServer::with(engine, |setup| {
        setup.config.limits.slow_reader_ms = 300;
        setup.config.limits.followers_max = 2;
    })
    .await;
    let (run_id, command_id) = server.start("hi").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let follow = json!({"runId": run_id, "until": "end", "waitMs": WAITS});
    let mut stalled = stalled(&server, &follow).await;
    let mut reader = Stream::call(&server, None, "follow_run", follow).await;
    reader.primed().await;
    // There is no third place until the server ends the stream that is not read.
    let mut appended = 0;
    while server.follow(&run_id, 0).await.status == 429 {
        assert!(appended < EVENTS_MAX, "the stream is still open after {appended} events");
        for _ in 0..32 {
            runner.tell(&command_id, "custom", json!({"name": "n"})).await;
        }
        appended += 32;
    }
    // What the client can still read is what its connection held, and no response follows.
    let mut left = vec![];
    let _ = timeout(PATIENCE, stalled.read_to_end(&mut left)).await.expect("the connection is closed");
    let left = String::from_utf8_lossy(&left);
    let notified = left.matches("notifications/progress").count();
    assert!(notified > 0 && notified < appended, "{notified} of {appended}");
    assert!(!left.contains("\"result\""));
    // The other client goes on, and a new call gets the result.
    reader.progress().await;
    runner.say(&command_id, "Done.").await;
    runner.end(&command_id, "completed").await;
    let (_, result) = reader.result().await;
    assert_eq!(done(&result)["state"], "completed");
    assert_eq!(done(&call(&server, "run_result", json!({"runId": run_id})).await)["reply"], "Done.");
}

#[both_engines]
async fn an_interrupted_call_is_resumed_from_the_log_on_any_server(engine: Engine) {
    let here = TestServer::start(engine).await;
    let there = if engine == Engine::Postgres { Some(here.start_another(|_| ()).await) } else { None };
    let mut stream = Stream::call(&here, None, "submit_run", submission()).await;
    let (run_id, command_id) = named(&stream.primed().await);
    let runner = here.claim(&run_id, "runner-a").await;
    let (_, last) = stream.progress().await;
    drop(stream);
    // While the client is away.
    runner.ack(&command_id).await;
    let told = runner.tell(&command_id, "custom", json!({"name": "n"})).await;
    let mut resumed = Stream::resume(there.as_ref().unwrap_or(&here), &last).await;
    resumed.primed().await;
    let seen = loop {
        let (seq, _) = resumed.progress().await;
        if seq >= told["lastSeq"].as_i64().unwrap() {
            break seq;
        }
    };
    runner.say(&command_id, "Done.").await;
    runner.end(&command_id, "completed").await;
    let (notified, result) = resumed.result().await;
    assert!(notified.iter().all(|seq| *seq > seen), "{notified:?}");
    assert_eq!(done(&result)["reply"], "Done.");
    // Once more, when everything is over: the response comes at once.
    let (notified, result) = Stream::resume(there.as_ref().unwrap_or(&here), &last).await.result().await;
    assert_eq!((notified.len(), done(&result)["reply"].clone()), (0, json!("Done.")));
}

#[both_engines]
async fn a_cancelled_call_stops_to_wait_and_its_run_continues(engine: Engine) {
    let here = TestServer::start(engine).await;
    let there = if engine == Engine::Postgres { Some(here.start_another(|_| ()).await) } else { None };
    let elsewhere = there.as_ref().unwrap_or(&here);
    let (session, other) = (open_session(&here).await, open_session(&here).await);
    let mut stream = Stream::call(&here, Some(&session), "submit_run", submission()).await;
    let last = stream.primed().await;
    let (run_id, _) = named(&last);
    // The same id of another session, and of a client without one, is another call.
    let cancel = json!({"requestId": 1, "reason": "enough"});
    assert_eq!(notify(elsewhere, Some(&other), "notifications/cancelled", cancel.clone()).await.status, 202);
    assert_eq!(notify(elsewhere, None, "notifications/cancelled", cancel.clone()).await.status, 202);
    assert_eq!(notify(elsewhere, Some(&session), "notifications/cancelled", json!({"requestId": 2})).await.status, 202);
    assert_eq!(notify(elsewhere, Some(&session), "notifications/cancelled", json!({})).await.status, 202);
    // It still waits: the run's next event is reported.
    here.claim(&run_id, "runner-a").await;
    stream.progress().await;
    assert_eq!(notify(elsewhere, Some(&session), "notifications/cancelled", cancel).await.status, 202);
    let end = loop {
        let event = stream.next().await.unwrap();
        if event.data.is_null() {
            break event;
        }
    };
    assert_eq!(end.id.as_deref(), Some("ended"));
    assert!(stream.next().await.is_none(), "without a response");
    assert_eq!(here.run(&run_id).await["cancelRequestedAt"], Value::Null);
}

#[one_engine]
async fn the_calls_of_an_ended_session_stop_to_wait(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session = open_session(&server).await;
    let mut stream = Stream::call(&server, Some(&session), "submit_run", submission()).await;
    let (run_id, _) = named(&stream.primed().await);
    server.send(server.request("DELETE", super::PATH).header(SESSION, &session)).await.with_status(204);
    assert_eq!(stream.next().await.unwrap().id.as_deref(), Some("ended"));
    assert_eq!(server.run(&run_id).await["cancelRequestedAt"], Value::Null);
}

#[both_engines]
async fn a_client_that_disconnects_frees_its_stream_and_cancels_nothing(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.followers_per_caller_max = 1).await;
    let mut stream = Stream::call(&server, None, "submit_run", submission()).await;
    let (run_id, command_id) = named(&stream.primed().await);
    // The second one gets its run, without the wait.
    let second = done(&call(&server, "submit_run", submission()).await);
    assert_eq!(second["state"], "waiting");
    let refused = call(&server, "follow_run", json!({"runId": run_id, "until": "end", "waitMs": WAITS})).await;
    assert_eq!(super::refused(&refused), ("rate-limited".into(), "followers-per-caller".into()));
    drop(stream);
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    runner.say(&command_id, "Done.").await;
    runner.end(&command_id, "completed").await;
    assert_eq!(done(&call(&server, "run_result", json!({"runId": run_id})).await)["reply"], "Done.");
    let follow = json!({"runId": second["runId"], "afterSeq": 0, "until": "end", "waitMs": 1});
    eventually("the permit is free again", async || {
        let followed = call(&server, "follow_run", follow.clone()).await;
        (followed["isError"] == false).then_some(())
    })
    .await;
}

#[both_engines]
async fn a_call_waits_for_the_first_event_or_for_its_time(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (run_id, command_id) = server.start("hi").await;
    let follow = |after: &Value, wait_ms: u64| json!({"runId": run_id, "afterSeq": after, "waitMs": wait_ms});
    // What is there comes at once.
    let first = done(&call(&server, "follow_run", follow(&json!(0), WAITS)).await);
    let after = &first["nextAfterSeq"];
    let none = done(&call(&server, "follow_run", follow(after, 10)).await);
    assert_eq!((&none["events"], &none["nextAfterSeq"], &none["state"]), (&json!([]), after, &json!("waiting")));
    let stream = Stream::call(&server, None, "follow_run", follow(after, WAITS)).await;
    server.claim(&run_id, "runner-a").await;
    let (notified, result) = stream.result().await;
    assert_eq!(notified, [] as [i64; 0], "the result is the news");
    let result = done(&result);
    assert_eq!(result["events"][0]["type"], "lease", "{result}");
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    // Until the end, and a permission request is as good as one.
    let follow = json!({"runId": run_id, "until": "end", "waitMs": WAITS});
    let stream = Stream::call(&server, None, "follow_run", follow).await;
    runner.ask(&command_id, &format!("prm_{:032x}", 1), crate::operations::DIGEST).await;
    let (_, result) = stream.result().await;
    assert_eq!(done(&result)["openPermissions"], 1);
}

#[one_engine]
async fn a_client_of_an_earlier_revision_gets_no_empty_event(engine: Engine) {
    let server = TestServer::start(engine).await;
    let call = message(
        "tools/call",
        json!({"name": "submit_run", "arguments": submission(),
        "_meta": {"progressToken": "p"}}),
    );
    let request = server.request("POST", super::PATH).header("accept", "application/json, text/event-stream");
    let request = request.header("content-type", "application/json").header(super::REVISION, "2025-06-18");
    let mut stream = Stream::open(request.body(call.to_string())).await;
    let runs = server.get("/api/v1/runs").await.ok();
    let run_id = crate::harness::id(&runs["runs"][0], "runId");
    server.claim(&run_id, "runner-a").await;
    let (_, last) = stream.progress().await;
    assert_eq!(named(&last).0, run_id);
}

#[one_engine]
async fn a_server_that_stops_leaves_its_calls_to_the_next_one(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let mut stream = Stream::call(&server, None, "submit_run", submission()).await;
    let last = stream.primed().await;
    let (run_id, command_id) = named(&last);
    server.restart().await;
    assert!(stream.next().await.is_none(), "without a response");
    let runner = server.claim(&run_id, "runner-b").await;
    runner.ack(&command_id).await;
    runner.say(&command_id, "Done.").await;
    runner.end(&command_id, "completed").await;
    let (_, result) = Stream::resume(&server, &last).await.result().await;
    assert_eq!(done(&result)["reply"], "Done.");
}

#[one_engine]
async fn a_client_that_accepts_only_streams_gets_one(engine: Engine) {
    let server = TestServer::start(engine).await;
    let request = post(&server, &message("ping", json!({})));
    let mut only_streams = request.build().unwrap();
    only_streams.headers_mut().insert("accept", "text/event-stream".parse().unwrap());
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let response = client.execute(only_streams).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(response.text().await.unwrap().contains("\"result\":{}"));
}
