//! Tools that connect to other machines.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

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

#[one_engine]
async fn a_listed_localhost_is_this_machine_and_other_names_are_not(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.tools.http_request.hosts = vec!["localhost".into(), "10.1.0.0/16".into()];
    })
    .await;
    let work = Work::begin(&server, |_| ()).await;
    let receiver = HookReceiver::start([]).await;
    let url = receiver.url().replace("127.0.0.1", "localhost");
    let called = work.call(&server, "http_request", &json!({"method": "POST", "url": url}).to_string()).await;
    assert_eq!(called["status"], "completed", "{called}");
    let other = url.replace("localhost", "other.localhost");
    let called = work.call(&server, "http_request", &json!({"method": "POST", "url": other}).to_string()).await;
    assert!(content(&called).starts_with("this URL is not requested"), "{called}");
    let address = receiver.url();
    let called = work.call(&server, "http_request", &json!({"method": "POST", "url": address}).to_string()).await;
    assert!(content(&called).starts_with("this URL is not requested"), "the address is not listed: {called}");
}

/// A server that sends this response to one request.
pub(super) async fn respond_once(listener: &TcpListener, response: &str) {
    let (mut connection, _) = listener.accept().await.unwrap();
    let _ = connection.read(&mut [0; 4096]).await.unwrap();
    connection.write_all(response.as_bytes()).await.unwrap();
    connection.shutdown().await.ok();
}

#[one_engine]
async fn the_result_of_a_request_is_whole_json_within_the_tools_limit(engine: Engine) {
    let server =
        TestServer::with(engine, |setup| setup.config.tools.http_request.hosts = vec!["127.0.0.1".into()]).await;
    let work = Work::begin(&server, |_| ()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let request = json!({"method": "GET", "url": url}).to_string();
    let long = "\"ü\"\n".repeat(10_000);
    let response =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{long}", long.len());
    let (called, ()) = tokio::join!(work.call(&server, "http_request", &request), respond_once(&listener, &response));
    assert_eq!((&called["status"], &called["truncated"]), (&json!("completed"), &json!(false)), "{called}");
    assert!((32 * 1024 - 8..=32 * 1024).contains(&content(&called).len()), "{}", content(&called).len());
    let result: Value = serde_json::from_str(content(&called)).unwrap();
    assert_eq!((&result["status"], &result["truncated"]), (&json!(200), &json!(true)));
    assert_eq!(result["contentType"], "text/plain");
    assert!(long.starts_with(result["body"].as_str().unwrap()));
    let response = "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n";
    let (called, ()) = tokio::join!(work.call(&server, "http_request", &request), respond_once(&listener, response));
    let result: Value = serde_json::from_str(content(&called)).unwrap();
    assert_eq!((&result["status"], &result["location"]), (&json!(302), &json!("/elsewhere")), "{called}");
}

/// A server on this machine that sends the same response to every request, and counts the requests.
struct PageServer {
    url: String,
    requests: Arc<AtomicUsize>,
}

impl PageServer {
    async fn start(response: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                // A request fits one read, and the client may close the connection before it has read everything.
                let _ = connection.read(&mut [0; 4096]).await;
                connection.write_all(response.as_bytes()).await.ok();
                connection.shutdown().await.ok();
            }
        });
        Self { url, requests }
    }

    async fn redirecting_to(target: &str) -> Self {
        Self::start(format!("HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n")).await
    }

    async fn page(media_type: &str, body: &str) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n", body.len());
        Self::start(head + body).await
    }

    /// Lets `web_fetch` fetch the URL.
    async fn fetch(&self, server: &TestServer, work: &Work) -> Value {
        work.call(server, "web_fetch", &json!({"url": self.url}).to_string()).await
    }
}

/// A run with `web_fetch`, which may connect to servers of the test.
async fn fetching(engine: Engine) -> (TestServer, Work) {
    let server = TestServer::with(engine, |setup| {
        setup.config.tools.enabled = vec!["web_fetch".into()];
        setup.config.tools.web_fetch.allow = vec!["127.0.0.1".into()];
    })
    .await;
    let work = Work::begin(&server, |_| ()).await;
    (server, work)
}

#[one_engine]
async fn web_fetch_follows_a_bounded_number_of_redirects(engine: Engine) {
    let (server, work) = fetching(engine).await;
    let page = PageServer::page("text/plain", "here it is").await;
    let once = PageServer::redirecting_to(&page.url).await;
    let called = once.fetch(&server, &work).await;
    assert_eq!(called["content"], format!("{}\n\nhere it is", page.url), "with the URL that was fetched: {called}");
    let endless = PageServer::redirecting_to("/again").await;
    let called = endless.fetch(&server, &work).await;
    assert_eq!((&called["status"], content(&called)), (&json!("failed"), "the page redirects too often"));
    assert_eq!(endless.requests.load(Ordering::SeqCst), 6, "the URL itself and five redirects");
}

#[one_engine]
async fn web_fetch_follows_no_redirect_to_an_address_that_it_may_not_fetch(engine: Engine) {
    let (server, work) = fetching(engine).await;
    for target in [
        "https://10.0.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "http://example.com/",
        "file:///etc/passwd",
    ] {
        let redirecting = PageServer::redirecting_to(target).await;
        let called = redirecting.fetch(&server, &work).await;
        assert_eq!(called["status"], "failed", "{target}: {called}");
        assert!(content(&called).starts_with("this URL is not fetched"), "{target}: {called}");
        assert_eq!(redirecting.requests.load(Ordering::SeqCst), 1);
    }
}

#[one_engine]
async fn web_fetch_reads_a_bounded_part_of_a_page_and_returns_a_bounded_part_of_its_text(engine: Engine) {
    const READ_BYTES_MAX: usize = 1024 * 1024;
    let (server, work) = fetching(engine).await;
    let long = PageServer::page("text/plain", &"x".repeat(READ_BYTES_MAX + 1)).await;
    let called = long.fetch(&server, &work).await;
    assert_eq!((&called["status"], &called["truncated"]), (&json!("completed"), &json!(true)));
    assert_eq!(content(&called).len(), 32 * 1024);
    // The text after the comment is behind the part that is read.
    let html = format!("<p>begin</p><!--{}--><p>end</p>", "x".repeat(READ_BYTES_MAX));
    let long = PageServer::page("text/html; charset=utf-8", &html).await;
    let called = long.fetch(&server, &work).await;
    assert_eq!(content(&called), format!("{}\n\nbegin\n[The page is longer.]", long.url));
    assert_eq!(called["truncated"], false);
}

#[one_engine]
async fn web_fetch_rejects_pages_that_are_not_text_and_failed_responses(engine: Engine) {
    let (server, work) = fetching(engine).await;
    for media_type in ["image/png", "application/octet-stream", "application/pdf"] {
        let called = PageServer::page(media_type, "bytes").await.fetch(&server, &work).await;
        let expected = format!("the page is not text: {media_type}");
        assert_eq!((&called["status"], content(&called)), (&json!("failed"), expected.as_str()));
    }
    for media_type in ["text/plain", "application/json", "application/atom+xml"] {
        let called = PageServer::page(media_type, "words").await.fetch(&server, &work).await;
        assert!(called["status"] == "completed" && content(&called).ends_with("words"), "{media_type}: {called}");
    }
    let missing = PageServer::start("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into()).await;
    let called = missing.fetch(&server, &work).await;
    assert_eq!((&called["status"], content(&called)), (&json!("failed"), "the server responded with 404 Not Found"));
}
