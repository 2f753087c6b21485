//! The client against responses of every kind, without a server.

#![expect(clippy::expect_used, reason = "a test program: a failed expectation is a failed test")]

use std::{
    io::{Read, Write},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use ostler_client::{Client, ReplyBody, is_transient, is_unreachable, mesh::GatewayClient};
use ostler_protocol::{FailureKind, cursors::EventsQuery, kernel::runs::CreateRun};
use secrecy::SecretString;

type Requests = Arc<Mutex<Vec<Request<Bytes>>>>;

/// A client of a server that always sends the same response, and the requests that the server receives.
fn responding(status: u16, content_type: &'static str, body: &str) -> (Client, Requests) {
    let seen = Requests::default();
    let (log, body) = (seen.clone(), Bytes::from(body.to_owned()));
    let call = move |request: Request<Bytes>| {
        log.lock().expect("no test panics here").push(request);
        let body: ReplyBody = Full::new(body.clone()).map_err(|never| match never {}).boxed_unsync();
        let response = Response::builder()
            .status(status)
            .header("content-type", content_type)
            .body(body)
            .expect("a well-formed response");
        async move { response }.boxed()
    };
    (Client::in_process(Arc::new(call), Some(SecretString::from("ost_test"))), seen)
}

const RUN: &str = r#"{"runId":"run_00000000000000000000000000000007","sessionId":"s","tenantId":"local","projectId":"p",
    "workspaceRef":{"kind":"none"},"providerId":"x","backendProfile":"scripted","executionPolicy":{"sandbox":"read-only",
    "approval":"never","timeoutMs":1000,"network":"disabled","secretScope":{},"maxTurns":3},"traceSink":null,"status":"pending",
    "terminal":null,"cancelRequestedAt":null,"lastSeq":1,"commandCount":0,"unfinishedCommands":0,"leaseEpoch":0,"attemptId":null,
    "createdAt":"2026-01-01T00:00:00Z","updatedAt":"2026-01-01T00:00:00Z","command":null,"runnerJob":null}"#;

#[tokio::test]
async fn a_created_run_is_parsed_with_its_raw_fields() {
    let (client, seen) = responding(201, "application/json", RUN);
    let created = client.create_run(&CreateRun::default()).await.unwrap();
    assert_eq!(created.run.workspace_ref.as_str(), r#"{"kind":"none"}"#);
    assert!(created.command.is_none() && created.run.trace_sink.is_null());
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].uri().path(), "/api/v1/runs");
    assert_eq!(seen[0].headers()["authorization"], "Bearer ost_test");
    assert_eq!(seen[0].headers()["content-type"], "application/json");
}

#[tokio::test]
async fn a_failure_of_the_server_keeps_its_kind_details_and_trace_id() {
    let body =
        r#"{"failureKind":"runner-lease-conflict","message":"held","traceId":"trc_1","details":{"retryAfterMs":5}}"#;
    let (client, _) = responding(409, "application/json", body);
    let failure = client.get_run("run_x").await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::RunnerLeaseConflict);
    let details = failure.details.as_ref().unwrap();
    assert_eq!((details["traceId"].as_str(), details["retryAfterMs"].as_i64()), (Some("trc_1"), Some(5)));
    assert!(!is_transient(&failure));
}

#[tokio::test]
async fn a_response_that_is_not_json_is_a_clear_failure() {
    let (client, _) = responding(502, "text/html", "<h1>Bad gateway</h1>");
    let failure = client.get_run("run_x").await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::InfraFailed);
    assert!(failure.message.contains("502") && failure.message.contains("Bad gateway"), "{failure}");
    let (client, _) = responding(200, "text/html", "<h1>Hello</h1>");
    let failure = client.get_run("run_x").await.unwrap_err();
    assert!(failure.message.contains("Hello"), "{failure}");
    let (client, _) =
        responding(401, "application/json", r#"{"failureKind":"of-the-future","message":"no","traceId":"trc_2"}"#);
    let failure = client.get_run("run_x").await.unwrap_err();
    assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Unauthenticated, "no"));
}

#[tokio::test]
async fn an_id_is_encoded_in_its_path() {
    let (client, seen) = responding(200, "application/json", r#"{"events":[],"nextAfterSeq":0,"hasMore":false}"#);
    client.run_events("../x?y", &EventsQuery::default()).await.unwrap();
    assert_eq!(seen.lock().unwrap()[0].uri(), "/api/v1/runs/..%2Fx%3Fy/events?afterSeq=0");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let failure = Client::http(&format!("http://{address}"), None).unwrap().health().await.unwrap_err();
    assert_eq!((failure.kind, failure.rule_name()), (FailureKind::ServerUnreachable, Some("server-unreachable")));
    assert!(is_transient(&failure));
    assert!(Client::http("localhost:80", None).is_err() && Client::http("ftp://x", None).is_err());
}

fn event(seq: i64) -> String {
    let data = format!(
        r#"{{"seq":{seq},"runId":null,"sessionSeq":{seq},"type":"step","commandId":null,"createdAt":"2026-01-01T00:00:00Z","payload":{{"n":{seq}}}}}"#
    );
    format!("id: {seq}\nevent: step\ndata: {data}\n\n")
}

#[tokio::test]
async fn a_run_is_followed_from_a_sequence_number_to_its_end() {
    let (client, seen) = responding(200, "text/event-stream", &format!(": beat\n\n{}{}", event(4), event(5)));
    let events: Vec<_> = client.follow_run("run_x", 3).await.unwrap().collect().await;
    let seqs: Vec<_> = events.into_iter().map(|event| event.unwrap().seq.unwrap()).collect();
    assert_eq!(seqs, [4, 5]);
    let seen = seen.lock().unwrap();
    assert_eq!(
        (&seen[0].headers()["last-event-id"], &seen[0].headers()["accept"]),
        (&"3".parse().unwrap(), &"text/event-stream".parse().unwrap())
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_a_lost_connection() {
    let call = |_| {
        let first = Ok(http_body::Frame::data(Bytes::from(event(1))));
        let frames = futures_util::stream::iter([first]).chain(futures_util::stream::pending());
        let body: ReplyBody = StreamBody::new(frames).boxed_unsync();
        let response =
            Response::builder().header("content-type", "text/event-stream").body(body).expect("a well-formed response");
        async move { response }.boxed()
    };
    let mut events = Client::in_process(Arc::new(call), None).follow_run("run_x", 0).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().seq, Some(1));
    assert!(is_transient(&events.next().await.unwrap().unwrap_err()));
    assert!(events.next().await.is_none());
}

/// A gateway that reads one request and then calls `then`.
fn gateway(then: impl FnOnce(std::net::TcpStream) + Send + 'static) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("a bound socket"));
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let _ = stream.read(&mut [0; 4096]).expect("a request");
        then(stream);
    });
    base
}

#[tokio::test]
async fn an_endless_page_of_a_gateway_is_read_up_to_its_limit() {
    let base = gateway(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 65_536]).is_ok() {}
    });
    let failure = GatewayClient::fetch_root(&base).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::PayloadTooLarge);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_does_not_respond_is_given_up() {
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let base = gateway(move |_stream| {
        let _ = end.recv();
    });
    let failure = GatewayClient::fetch_root(&base).await.unwrap_err();
    assert!(is_unreachable(&failure), "{failure}");
    drop(ended);
}
