//! A server of another version: the command line reports the difference, and sends no request that the server does not support.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::Output,
    sync::mpsc,
    thread,
};

use crate::fixtures::process::ostler;

/// Sends the same response to every request, and records the requested paths.
fn stand_in(status: &'static str, body: &'static str) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, paths) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let _ = sender.send(head[0].split(' ').nth(1).unwrap().to_owned());
            let length = body.len();
            let _ = write!(
                &stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\
                connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
        }
    });
    (url, paths)
}

fn ps(url: &str) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = ostler(&["--server", url, "ps"]).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

const V1: &str = r#"{"current": "v1", "supported": ["v1"]}"#;

/// The capabilities of a server with one more feature and many fewer.
fn envelope(versions: &str) -> &'static str {
    let body = r#"{"v": 1, "mode": "http-bridge", "features": ["health", "capabilities", "time_travel"], "workspaceCwd": "/",
        "modelServices": [], "protocol": VERSIONS, "protocolVersions": VERSIONS, "policy": {"permission": "consensus"},
        "eventSchemaVersion": 1, "ostlerVersion": "9.9.9"}"#;
    Box::leak(body.replace("VERSIONS", versions).into_boxed_str())
}

#[test]
fn a_command_is_not_sent_to_a_server_without_its_capability() {
    let (url, paths) = stand_in("200 OK", envelope(V1));
    let (code, words) = ps(&url);
    assert_ne!(code, Some(0));
    assert!(words.contains("the server is 9.9.9") && words.contains("ostler_sessions"), "{words}");
    assert!(words.contains("hint: use the same version on both sides"), "{words}");
    assert_eq!(paths.try_iter().collect::<Vec<_>>(), ["/capabilities"]);
}

#[test]
fn a_server_of_another_protocol_is_named() {
    let (url, _) = stand_in("200 OK", envelope(r#"{"current": "v2", "supported": ["v2"]}"#));
    let (code, words) = ps(&url);
    assert!(code != Some(0) && words.contains("protocol v1"), "{words}");
}

#[test]
fn an_envelope_of_another_format_or_version_is_named() {
    let (url, paths) = stand_in("200 OK", r#"{"v": 2, "capabilities": {}}"#);
    let (code, words) = ps(&url);
    assert!(code == Some(2) && words.contains("its envelope is v2, this client reads v1"), "{code:?}: {words}");
    assert!(words.contains("hint: check the address"), "{words}");
    assert_eq!(paths.try_iter().collect::<Vec<_>>(), ["/capabilities"]);
}

#[test]
fn another_program_is_not_taken_for_an_older_server() {
    for (status, body) in [
        ("200 OK", r#"{"hello": "world"}"#),
        ("200 OK", r#"{"v": "one", "features": {}}"#),
        ("200 OK", "<html>welcome</html>"),
        ("404 Not Found", "<html>File not found</html>"),
        ("404 Not Found", r#"{"error": "not found"}"#),
    ] {
        let (url, paths) = stand_in(status, body);
        let (code, words) = ps(&url);
        assert!(code == Some(7), "{code:?}: {words}");
        assert!(words.contains("something responds at this address, but it is not Ostler: "), "{words}");
        assert!(words.contains("kind: server-unreachable") && !words.contains("an older one"), "{words}");
        assert!(words.contains("hint: name Ostler's address with `--server`"), "{words}");
        assert_eq!(paths.try_iter().collect::<Vec<_>>(), ["/capabilities"]);
    }
}

#[test]
fn doctor_reports_other_programs_and_busy_servers() {
    let doctor = |url: &str| {
        let output = ostler(&["--server", url, "doctor"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (url, _) = stand_in("200 OK", "<html>welcome</html>");
    let text = doctor(&url);
    assert!(text.contains("something responds, but it is not Ostler") && !text.contains("ostler serve"), "{text}");
    let (url, _) = stand_in("200 OK", r#"{"serviceId": "other", "status": "ok", "version": "1", "sourceCommit": ""}"#);
    assert!(doctor(&url).contains("something responds, but it is not Ostler"));
    let later = r#"{"failureKind": "rate-limited", "message": "too many requests", "traceId": "t"}"#;
    let (url, _) = stand_in("429 Too Many Requests", later);
    let text = doctor(&url);
    assert!(text.contains("asks to retry later: too many requests") && text.contains("fix: wait a moment"), "{text}");
    let (url, _) = stand_in("403 Forbidden", r#"{"error": "Invalid Host header"}"#);
    let text = doctor(&url);
    assert!(text.contains("rejects requests to this address: Invalid Host header"), "{text}");
    assert!(text.contains("server.hosts") && !text.contains("not Ostler"), "{text}");
}

#[test]
fn a_server_from_before_the_preflight_is_named() {
    let (url, paths) =
        stand_in("404 Not Found", r#"{"failureKind": "not-found", "message": "no such path", "traceId": "t"}"#);
    let (code, words) = ps(&url);
    assert!(code != Some(0) && words.contains("an older one"), "{words}");
    assert_eq!(paths.try_iter().collect::<Vec<_>>(), ["/capabilities"]);
}
