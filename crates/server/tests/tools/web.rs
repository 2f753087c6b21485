//! Tools that connect to other machines.

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpListener};

use super::Work;
use crate::harness::{Engine, HookReceiver, TestServer, one_engine};

fn content(called: &Value) -> &str {
    called["content"].as_str().unwrap()
}

#[one_engine]
async fn web_fetch_reaches_only_public_addresses(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.tools.enabled = vec!["web_fetch".into()]).await;
    let work = Work::begin(&server, |_| ()).await;
    let own = format!("http://{}/health", server.address());
    for url in [
        own.as_str(),
        "https://127.0.0.1/",
        "https://localhost/",
        "https://169.254.169.254/latest",
        "file:///etc/passwd",
    ] {
        let called = work.call(&server, "web_fetch", &json!({"url": url}).to_string()).await;
        assert_eq!(called["status"], "failed", "{url}: {called}");
        assert!(content(&called).starts_with("this URL is not fetched"), "{called}");
    }
}

#[one_engine]
async fn an_allowed_host_is_fetched_and_others_are_not_requested(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.tools.enabled = vec!["web_fetch".into(), "http_request".into()];
        setup.config.tools.web_fetch.allow = vec!["127.0.0.1".into()];
        setup.config.tools.http_request.hosts = vec!["127.0.0.1".into()];
    })
    .await;
    let work = Work::begin(&server, |_| ()).await;
    let url = format!("http://{}/health/live", server.address());
    let called = work.call(&server, "web_fetch", &json!({"url": url}).to_string()).await;
    assert_eq!(called["status"], "completed", "{called}");
    assert!(content(&called).starts_with(&format!("{url}\n\n{{")), "{called}");
    let receiver = HookReceiver::start([]).await;
    let request = json!({"method": "POST", "url": receiver.url(), "headers": {"X-A": "b"}, "body": "hello"});
    let called = work.call(&server, "http_request", &request.to_string()).await;
    assert_eq!(called["status"], "completed", "{called}");
    let response: Value = serde_json::from_str(content(&called)).unwrap();
    assert!(response["status"].is_u64(), "{response}");
    for (field, value) in [("url", json!("https://elsewhere.example/")), ("headers", json!({"Host": "x"}))] {
        let mut request = request.clone();
        request[field] = value;
        let called = work.call(&server, "http_request", &request.to_string()).await;
        assert_eq!(called["status"], "failed", "{called}");
    }
}

#[one_engine]
async fn a_request_that_was_not_sent_has_failed_and_the_effect_of_others_is_unknown(engine: Engine) {
    let server =
        TestServer::with(engine, |setup| setup.config.tools.http_request.hosts = vec!["127.0.0.1".into()]).await;
    let work = Work::begin(&server, |_| ()).await;
    let request = |address: std::net::SocketAddr| {
        json!({"method": "POST", "url": format!("http://{address}/"), "body": "x"}).to_string()
    };
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let called = work.call(&server, "http_request", &request(closed)).await;
    assert_eq!(called["status"], "failed", "{called}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let breaks_off = async {
        let (mut connection, _) = listener.accept().await.unwrap();
        // The body is shorter than its length.
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab").await.unwrap();
        connection.shutdown().await.ok();
    };
    let arguments = request(address);
    let (called, ()) = tokio::join!(work.call(&server, "http_request", &arguments), breaks_off);
    assert_eq!(called["status"], "outcome-unknown", "{called}");
}
