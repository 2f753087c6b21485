//! The edge of HTTP: requests that two readers could read in two ways are rejected, and so is a body that is announced to be
//! too large, before it is read. It is the same on every engine.

use ostler_protocol::{
    FailureKind::{PayloadTooLarge, RateLimited, SchemaInvalid},
    limits::{BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::harness::{Engine, PATIENCE, TestServer, eventually, run, run_body};

/// Runs a test of the edge on SQLite.
fn on_the_edge(test: impl AsyncFnOnce(TestServer)) {
    run(async move { test(TestServer::start(Engine::Sqlite).await).await });
}

/// Sends the text as it is; everything the server answers until it closes the connection.
async fn exchange(server: &TestServer, text: &str) -> String {
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = vec![];
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("the server closes the connection").unwrap();
    String::from_utf8(answer).unwrap()
}

#[track_caller]
fn assert_refused(answer: &str, status: u16, rule: &str) {
    let fits = answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(&format!("\"rule\":\"{rule}\""));
    assert!(fits, "{answer}");
}

#[test]
fn a_header_that_is_given_twice_is_rejected() {
    on_the_edge(async |server| {
        let token = server.operator_token();
        let other = "Bearer ost_svc_0123456789abcdef0123456789abcdef";
        for (first, second) in [
            ("Host: localhost".to_owned(), "Host: localhost".to_owned()),
            ("Host: localhost".to_owned(), "Host: evil.test".to_owned()),
            (format!("Host: localhost\r\nAuthorization: Bearer {token}"), format!("Authorization: {other}")),
            ("Host: localhost\r\nContent-Type: text/plain".into(), "Content-Type: application/json".into()),
            ("Host: localhost\r\nIdempotency-Key: a".into(), "Idempotency-Key: b".into()),
        ] {
            for path in ["/health", "/api/v1/runs", "/pki/chain", "/nowhere"] {
                let text = format!("GET {path} HTTP/1.1\r\n{first}\r\n{second}\r\nConnection: close\r\n\r\n");
                assert_refused(&exchange(&server, &text).await, 400, "header-repeated");
            }
        }
    });
}

#[test]
fn a_target_that_names_another_host_is_rejected() {
    on_the_edge(async |server| {
        let ask = async |target: &str, host: &str| {
            exchange(&server, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await
        };
        for target in ["http://evil.test/health", "http://localhost:1/health", "http://a@localhost/health"] {
            assert_refused(&ask(target, "localhost").await, 400, "authority");
        }
        assert!(ask("http://localhost/health/live", "LOCALHOST").await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_line_that_ends_with_a_bare_line_feed_is_rejected() {
    on_the_edge(async |server| {
        for text in [
            "GET /health HTTP/1.1\nHost: localhost\r\n\r\n",
            "GET /health HTTP/1.1\r\nHost: localhost\n\r\n",
            "GET /health HTTP/1.1\r\nHost: localhost\r\nX: y\n\n",
        ] {
            assert_refused(&exchange(&server, text).await, 400, "bare-line-feed");
        }
        // The second request of a connection too, and behind a body.
        let good = "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n\n\n\n";
        let answer = exchange(&server, &format!("{good}GET /health HTTP/1.1\nHost: localhost\n\n")).await;
        assert!(answer.contains("bare-line-feed"), "{answer}");
        assert!(!answer.contains("HTTP/1.1 200"), "{answer}");
    });
}

#[test]
fn a_body_in_another_charset_is_rejected() {
    on_the_edge(async |server| {
        let send = async |content_type: &str| {
            let request = server.request("POST", "/api/v1/runs").header("content-type", content_type);
            server.send(request.body(run_body().to_string())).await
        };
        for charset in ["utf-16", "UTF-16LE", "iso-8859-1", "\"utf-16\"", ""] {
            let refused = send(&format!("application/json; charset={charset}")).await;
            refused.refused_by(SchemaInvalid, "charset");
        }
        for good in ["application/json; charset=utf-8", "application/json;charset=\"UTF-8\"", "application/json; v=1"] {
            send(good).await.with_status(201);
        }
    });
}

#[test]
fn an_announced_body_over_the_limit_is_refused_before_it_comes() {
    on_the_edge(async |server| {
        let token = server.operator_token();
        let announce = async |path: &str, bytes: usize| {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
                 Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {bytes}\r\n\r\n"
            );
            let mut socket = TcpStream::connect(server.address()).await.unwrap();
            socket.write_all(head.as_bytes()).await.unwrap();
            let mut answer = vec![0; 12];
            timeout(PATIENCE, socket.read_exact(&mut answer)).await.expect("an answer").unwrap();
            String::from_utf8(answer).unwrap()
        };
        let run_id = server.create_run().await;
        for (path, bytes_max) in [
            (format!("/api/v1/runs/{run_id}/events"), BODY_BYTES_MAX),
            (format!("/api/v1/runs/{run_id}/claim"), SMALL_BODY_BYTES_MAX),
            (format!("/api/v1/runs/{run_id}/cancel"), SMALL_BODY_BYTES_MAX),
        ] {
            assert_eq!(announce(&path, bytes_max + 1).await, "HTTP/1.1 413", "{path}");
            assert_eq!(announce(&path, bytes_max).await, "HTTP/1.1 100", "{path}");
        }
        // A client that sends it all the same reads the answer.
        let large = format!("{{\"runnerId\": \"{}\"}}", "x".repeat(BODY_BYTES_MAX));
        let refused = server.send_text("POST", &format!("/api/v1/runs/{run_id}/claim"), large).await;
        refused.refused_by(PayloadTooLarge, "body-size");
    });
}

#[test]
fn silent_connections_of_one_address_make_room_for_each_other() {
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| setup.config.limits.silent_per_address_max = 3).await;
        let open = async || TcpStream::connect(server.address()).await.unwrap();
        let mut oldest = open().await;
        let mut speaking = open().await;
        let ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        speaking.write_all(ask).await.unwrap();
        let mut answer = [0; 12];
        speaking.read_exact(&mut answer).await.unwrap();
        let _others = [open().await, open().await, open().await];
        let mut end = [0; 1];
        let closed = timeout(PATIENCE, oldest.read(&mut end)).await.expect("the oldest is closed");
        assert!(matches!(closed, Ok(0) | Err(_)));
        // One that has made a request is not silent.
        speaking.write_all(ask).await.unwrap();
        eventually("the second answer", async || {
            let read = speaking.read(&mut [0; 4_096]).await.unwrap();
            assert_ne!(read, 0, "the connection was closed");
            Some(())
        })
        .await;
        let dropped = server.get("/metrics").await.text;
        assert!(dropped.contains("crowded-out"), "{dropped}");
    });
}

#[test]
fn connections_that_idle_after_a_request_make_room_for_new_ones() {
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| setup.config.limits.connections_max = 4).await;
        let request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut idle = vec![];
        for _ in 0..12 {
            let mut socket = TcpStream::connect(server.address()).await.unwrap();
            socket.write_all(request).await.unwrap();
            let read = timeout(PATIENCE, socket.read(&mut [0; 4_096])).await.expect("there is room").unwrap();
            assert_ne!(read, 0, "the connection was closed");
            idle.push(socket);
        }
        // The newest connection is served again; those that had waited longer were closed for it.
        let newest = idle.last_mut().unwrap();
        newest.write_all(request).await.unwrap();
        assert_ne!(timeout(PATIENCE, newest.read(&mut [0; 4_096])).await.unwrap().unwrap(), 0);
        assert_eq!(timeout(PATIENCE, idle[0].read(&mut [0; 4_096])).await.unwrap().unwrap_or(0), 0);
    });
}

#[test]
fn a_padded_length_does_not_stop_the_watch_over_heads() {
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| setup.config.limits.head_ms = 1_000).await;
        let token = server.operator_token();
        let post = |length: &str| {
            format!(
                "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
                 Content-Type: application/json\r\nContent-Length:{length}\r\n\r\n{{}}"
            )
        };
        let mut padded = TcpStream::connect(server.address()).await.unwrap();
        padded.write_all(post(&format!("{}2", " ".repeat(300))).as_bytes()).await.unwrap();
        let mut answer = vec![0; 65_536];
        let read = timeout(PATIENCE, padded.read(&mut answer)).await.unwrap().unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 400 "), "the body is read, and is no run");
        padded.write_all(b"GET /health HTTP/1.1\r\nHo").await.unwrap();
        let closed = timeout(PATIENCE, padded.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "a head that does not end closes the connection");
        // A length that the server's own count of bytes does not follow is refused.
        assert_refused(&exchange(&server, &post(&format!(" {}2", "0".repeat(300)))).await, 400, "content-length");
    });
}

#[test]
fn idle_connections_live_longer_than_heads_that_trickle_in() {
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| setup.config.limits.head_ms = 500).await;
        let mut idle = TcpStream::connect(server.address()).await.unwrap();
        let ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for _ in 0..2 {
            idle.write_all(ask).await.unwrap();
            assert_ne!(idle.read(&mut [0; 4_096]).await.unwrap(), 0);
            tokio::time::sleep(std::time::Duration::from_millis(600)).await;
        }
        idle.write_all(b"GET /health HTTP/1.1\r\nHo").await.unwrap();
        let mut rest = vec![];
        let closed = timeout(PATIENCE, idle.read_to_end(&mut rest)).await.expect("the server closes it");
        assert!(closed.is_err() || rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    });
}

#[test]
fn one_caller_has_a_bounded_share_of_the_work() {
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| {
            setup.config.limits.work_per_caller_bytes_max = 1024 * 1024;
            setup.token("greedy", "client", &["hwlab"]);
            setup.token("modest", "client", &["hwlab"]);
        })
        .await;
        let greedy = server.caller("greedy");
        // A body of the whole share that is announced and does not come.
        let head = format!(
            "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: 1048576\r\n\r\n{{",
            greedy.token().unwrap()
        );
        let mut holding = TcpStream::connect(server.address()).await.unwrap();
        holding.write_all(head.as_bytes()).await.unwrap();
        let mut large = run_body();
        large["pad"] = "x".repeat(100 * 1024).into();
        eventually("the share is taken", async || {
            let refused = greedy.post("/api/v1/runs", &large).await;
            (refused.status == 429).then(|| refused.refused_by(RateLimited, "work-per-caller"))
        })
        .await;
        greedy.post("/api/v1/runs", &run_body()).await.with_status(201);
        server.caller("modest").post("/api/v1/runs", &large).await.with_status(201);
        drop(holding);
        eventually("the share is free", async || {
            (greedy.post("/api/v1/runs", &large).await.status == 201).then_some(())
        })
        .await;
        assert!(server.get("/api/v1/runs").await.ok()["runs"].as_array().unwrap().len() >= 3);
    });
}

/// Bodies of requests without a token, from several addresses, none of which ends.
#[test]
fn bodies_that_do_not_end_leave_room_for_other_callers() {
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| {
            setup.config.limits.work_bytes_max = 1024 * 1024;
            setup.config.limits.work_per_caller_bytes_max = 1024 * 1024;
        })
        .await;
        let head = "POST /pki/ocsp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/ocsp-request\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
        let part = format!("{:x}\r\n{}", SMALL_BODY_BYTES_MAX, "x".repeat(SMALL_BODY_BYTES_MAX - 1));
        let mut large = run_body();
        large["pad"] = "x".repeat(100 * 1024).into();
        let mut unfinished = vec![];
        // First bodies of which nothing has arrived, then more bytes than all callers may have in flight.
        for body in ["", &part] {
            for n in 0..40_u8 {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(([127, 0, 1, 1 + n % 8], 0).into()).unwrap();
                let mut socket = socket.connect(server.address()).await.unwrap();
                socket.write_all(head.as_bytes()).await.unwrap();
                socket.write_all(body.as_bytes()).await.unwrap();
                unfinished.push(socket);
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            server.post("/api/v1/runs", &large).await.with_status(201);
        }
    });
}

#[test]
fn a_payload_of_many_keys_changes_nothing() {
    on_the_edge(async |server| {
        let run_id = server.create_run().await;
        let before = server.events(&run_id).await;
        let many: serde_json::Map<_, _> = (0..200_000).map(|n| (format!("key{n:06}"), json!(0))).collect();
        let body = json!({"type": "turn", "payload": {"prompt": "x", "many": many}}).to_string();
        let path = format!("/api/v1/runs/{run_id}/commands");
        server.send_text("POST", &path, body).await.refused(PayloadTooLarge);
        assert_eq!(server.events(&run_id).await, before);
    });
}
