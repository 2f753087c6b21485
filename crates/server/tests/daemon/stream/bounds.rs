//! Slow clients, idle ones, and too many of them.

use std::time::Duration;

use futures_util::future::join_all;
use ostler_daemon::config::DaemonSection;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{Scene, ids, next, session, until};
use crate::harness::{Engine, Follow, PATIENCE, TestServer, both_engines, eventually, id};

/// A client with a small buffer that reads the head of the response and then nothing.
async fn stalled(server: &TestServer, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(server.address()).await.unwrap();
    let host = server.address();
    let token = server.operator_token();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut beginning = [0; 12];
    stream.read_exact(&mut beginning).await.unwrap();
    assert_eq!(&beginning, b"HTTP/1.1 200");
    stream
}

/// What is left of a connection, as text.
async fn rest(mut stream: TcpStream) -> String {
    let mut rest = vec![];
    // The server may reset a connection that it closes.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the connection is closed");
    String::from_utf8_lossy(&rest).into_owned()
}

/// Reads until the stream ends, and returns how many frames of each of these types there were.
fn counts(text: &str, types: [&str; 2]) -> [usize; 2] {
    types.map(|frame_type| text.matches(&format!("event: {frame_type}\n")).count())
}

/// Appends custom events of this size as the runner of the session's prompt.
async fn append(server: &TestServer, scene: &Scene, count: usize, bytes: usize) {
    let page = server.get(&format!("/api/v1/sessions/{}/trace?limit=100", scene.session_id)).await.ok();
    let prompted = page["events"].as_array().unwrap().iter().find(|event| event["type"] == "user_message").unwrap();
    let (run_id, command_id) = (id(prompted, "runId"), id(prompted, "commandId"));
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    for _ in 0..count {
        runner.tell(&command_id, "custom", json!({"name": "large", "value": "y".repeat(bytes)})).await;
    }
}

/// Large events, more than the buffers of a connection and its queue hold.
const COUNT: usize = 48;

#[both_engines]
async fn an_overflowing_client_is_warned_and_evicted_alone(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    scene.prompt(&server, "hi").await;
    let slow = stalled(&server, &format!("{}?maxQueued=16", scene.path())).await;
    let mut good = scene.follow(&server).await;
    let read = async {
        let mut seen = vec![];
        while seen.len() < COUNT {
            let frame = next(&mut good).await.unwrap();
            if frame["data"]["update"]["_meta"]["ostler"]["type"] == "custom" {
                seen.push(frame["id"].as_i64().unwrap());
            }
        }
        seen
    };
    let (seen, ()) = tokio::join!(read, append(&server, &scene, COUNT, 200_000));
    assert!(seen.windows(2).all(|pair| pair[1] == pair[0] + 2), "no frame is missing: {seen:?}");
    let text = rest(slow).await;
    assert_eq!(counts(&text, ["slow_client_warning", "client_evicted"]), [1, 1]);
    assert!(text.contains(r#""reason":"queue_overflow""#) && text.contains(r#""maxQueued":16"#));
    // The place of the evicted client comes free, and the other one goes on.
    scene.prompt(&server, "more").await;
    assert_eq!(next(&mut good).await.unwrap()["type"], "pending_prompt_added");
}

#[both_engines]
async fn a_queue_size_out_of_range_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    for bad in ["15", "2049", "0", "abc", "-16", ""] {
        let refused = server.get(&format!("{}?maxQueued={bad}", scene.path())).await;
        assert_eq!(refused.with_status(400)["code"], "invalid_max_queued", "{bad}");
    }
    for good in ["16", "2048"] {
        let response = server.request("GET", &format!("{}?maxQueued={good}", scene.path())).send().await.unwrap();
        assert_eq!(response.status(), 200, "{good}");
    }
}

#[both_engines]
async fn an_unknown_session_has_no_stream(engine: Engine) {
    let server = TestServer::start(engine).await;
    let refused = server.get("/session/nothing/events").await.with_status(404);
    assert_eq!((&refused["code"], &refused["sessionId"]), (&json!("session_not_found"), &json!("nothing")));
}

#[both_engines]
async fn the_65th_stream_of_a_session_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let scene = session(&server).await;
    let mut streams: Vec<Follow> = join_all((0..64).map(|_| scene.follow(&server))).await;
    assert!(streams.iter().all(|stream| stream.status == 200));
    let refused = server.get(&scene.path()).await;
    assert_eq!(refused.headers["retry-after"], "5");
    assert_eq!(refused.with_status(429)["code"], "subscriber_limit_exceeded");
    scene.prompt(&server, "hi").await;
    let frames = join_all(streams.iter_mut().map(next)).await;
    assert!(frames.iter().all(|frame| *frame == frames[0] && frame.is_some()), "all get the same frame");
    drop(streams);
    eventually("a place comes free", async || (scene.follow(&server).await.status == 200).then_some(())).await;
}

#[both_engines]
async fn a_quiet_stream_sends_heartbeats(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.limits.heartbeat_ms = 40;
        setup.config.change(|daemon: &mut DaemonSection| daemon.writer_idle_timeout_ms = Some(300));
    })
    .await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    follow.frame().await.unwrap();
    // Longer than the timeout of idle writers: a heartbeat counts as a write.
    for _ in 0..12 {
        assert_eq!(follow.frame().await.unwrap().comment, "heartbeat");
    }
}

#[both_engines]
async fn a_stream_to_which_nothing_is_written_is_closed(engine: Engine) {
    let timeout_ms = |daemon: &mut DaemonSection| daemon.writer_idle_timeout_ms = Some(100);
    let server = TestServer::with(engine, |setup| setup.config.change(timeout_ms)).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    let evicted = next(&mut follow).await.unwrap();
    assert_eq!(
        (&evicted["type"], &evicted["data"]["reason"]),
        (&json!("client_evicted"), &json!("writer_idle_timeout"))
    );
    assert_eq!(
        (&evicted["data"]["errorKind"], &evicted["data"]["timeoutMs"]),
        (&json!("writer_idle_timeout"), &json!(100))
    );
    assert!(evicted["data"]["idleForMs"].as_u64().unwrap() >= 100 && evicted["id"].is_null());
    assert!(next(&mut follow).await.is_none(), "the stream ends");
}

#[both_engines]
async fn a_client_that_stops_reading_is_closed_as_idle(engine: Engine) {
    let timeout_ms = |daemon: &mut DaemonSection| daemon.writer_idle_timeout_ms = Some(400);
    let server = TestServer::with(engine, |setup| setup.config.change(timeout_ms)).await;
    let scene = session(&server).await;
    scene.prompt(&server, "hi").await;
    let slow = stalled(&server, &format!("{}?maxQueued=2048", scene.path())).await;
    append(&server, &scene, 24, 200_000).await;
    // The client notices its eviction only when it reads again.
    tokio::time::sleep(Duration::from_millis(900)).await;
    let text = rest(slow).await;
    assert!(text.contains(r#""reason":"writer_idle_timeout""#), "{} bytes", text.len());
}

#[both_engines]
async fn a_large_replay_does_not_count_to_the_queue(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let scene = session(&server).await;
    let mut follow = scene.follow(&server).await;
    scene.prompt(&server, r#"{"script": [{"emit": {"count": 700, "bytes": 10}}]}"#).await;
    let live = until(&mut follow, "turn_complete").await;
    let request = server.request("GET", &format!("{}?maxQueued=16", scene.path())).header("last-event-id", "0");
    let mut replaying = Follow::of_daemon(request.send().await.unwrap());
    let replayed = until(&mut replaying, "replay_complete").await;
    assert!(ids(&replayed).len() > 700 && ids(&replayed).is_sorted());
    let ends = |frames: &[Value]| frames.iter().filter(|frame| frame["type"] == "turn_complete").count();
    assert_eq!((ends(&live), ends(&replayed)), (1, 1));
}
