//! Peers that take their time: a request that does not come, and a connection that does not end, cost no other peer anything.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::harness::{Engine, PATIENCE, TestServer, eventually, one_engine};

/// Everything the server sends until it closes the connection.
async fn until_closed(socket: &mut TcpStream) -> String {
    let mut said = vec![];
    timeout(PATIENCE, socket.read_to_end(&mut said)).await.expect("the server hangs up").unwrap();
    String::from_utf8(said).unwrap()
}

#[one_engine]
async fn a_head_that_does_not_come_is_given_up(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.head_ms = 1_000).await;
    let started = Instant::now();
    let mut slow = TcpStream::connect(server.address()).await.unwrap();
    slow.write_all(b"GET /health HTTP/1.1\r\nHost: local").await.unwrap();
    until_closed(&mut slow).await;
    assert!(started.elapsed() >= Duration::from_millis(900));
    server.get("/health").await.with_status(200);
}

#[one_engine]
async fn empty_lines_do_not_stand_in_for_a_head(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.head_ms = 500).await;
    for before in ["", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let started = Instant::now();
        let (mut reader, mut writer) = TcpStream::connect(server.address()).await.unwrap().into_split();
        writer.write_all(before.as_bytes()).await.unwrap();
        let dripping = tokio::spawn(async move {
            while writer.write_all(b"\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        // The server closes it; an error shows that as well as an end.
        let _ = timeout(PATIENCE, reader.read_to_end(&mut vec![])).await.expect("the server hangs up");
        dripping.abort();
        assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    }
    let mut bare = TcpStream::connect(server.address()).await.unwrap();
    bare.write_all(b"\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let said = until_closed(&mut bare).await;
    assert!(said.starts_with("HTTP/1.1 400"), "{said}");
}

#[one_engine]
async fn a_body_that_does_not_come_is_refused(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.limits.body_ms = 100).await;
    let mut slow = TcpStream::connect(server.address()).await.unwrap();
    let head = format!(
        "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\nAuthorization: Bearer {}\r\n\r\n{{\"tenantId\":",
        server.operator_token()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let said = until_closed(&mut slow).await;
    assert!(said.starts_with("HTTP/1.1 400") && said.contains("body-late"), "{said}");
    // One that breaks off in the middle is as little a run.
    let mut broken = TcpStream::connect(server.address()).await.unwrap();
    broken.write_all(head.as_bytes()).await.unwrap();
    broken.shutdown().await.unwrap();
    until_closed(&mut broken).await;
    assert_eq!(server.get("/api/v1/runs").await.ok()["runs"], serde_json::json!([]));
}

#[one_engine]
async fn idle_connections_make_room(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.limits.connections_max = 3;
        setup.config.limits.head_ms = 150;
    })
    .await;
    let mut idle = vec![];
    for _ in 0..6 {
        idle.push(TcpStream::connect(server.address()).await.unwrap());
    }
    // Behind them all, and still answered. A busy machine may itself miss the deadline of a head, and tries again.
    eventually("a request is answered", async || {
        let answer = server.request("GET", "/health").send().await.ok();
        answer.filter(|answer| answer.status() == 200)
    })
    .await;
}
