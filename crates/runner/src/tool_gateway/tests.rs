//! The gateway over a real socket.

use futures_util::{FutureExt, future::BoxFuture};
use ostler_protocol::{
    Failure, FailureKind,
    tools::wire::{CallStatus, CalledTool, OfferedTool, RunTools},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    serve::{EDITED_BYTES_MAX, REQUEST_BYTES_MAX, RESULT_BYTES_MAX},
    *,
};

const TOKEN: &str = "token-of-this-run";

/// A toolkit that remembers its calls. The name of a tool determines what happens.
#[derive(Default)]
struct PlayedTools {
    calls: Mutex<Vec<(String, String)>>,
    /// The name of a further tool.
    further: Mutex<Option<String>>,
}

impl PlayedTools {
    fn calls(&self) -> Vec<(String, String)> {
        self.calls.lock().unwrap().clone()
    }
}

fn offered(name: &str, changes: bool) -> OfferedTool {
    OfferedTool {
        name: name.into(),
        description: "what it does".into(),
        parameters: serde_json::Map::new(),
        source: "built-in".into(),
        scope: None,
        changes,
        idempotent: false,
        uses_network: false,
        deadline_ms: 1_000,
        output_bytes_max: 1_000,
    }
}

impl TurnToolkit for PlayedTools {
    fn list(&self) -> BoxFuture<'_, Result<RunTools, Failure>> {
        let mut tools = vec![offered("time_now", false), offered("write", true)];
        tools.extend(self.further.lock().unwrap().iter().map(|name| offered(name, false)));
        async move { Ok(RunTools { tools, earlier_calls: vec![] }) }.boxed()
    }

    fn call<'a>(&'a self, name: &'a str, arguments: &'a str) -> BoxFuture<'a, Result<CalledTool, Failure>> {
        self.calls.lock().unwrap().push((name.to_owned(), arguments.to_owned()));
        let called = |status, content: &str, truncated| {
            Ok(CalledTool {
                call_id: "c".into(),
                status,
                content: content.into(),
                truncated,
                edited_arguments: None,
                delegated_tokens: None,
                delegated_cost_usd: None,
                delegated_tool_calls: None,
            })
        };
        let result = match name {
            "slow" => return std::future::pending().boxed(),
            "time_now" => called(CallStatus::Completed, "noon", false),
            "long" => called(CallStatus::Completed, "first lines", true),
            "huge" => called(CallStatus::Completed, &"ä".repeat(RESULT_BYTES_MAX), false),
            "edited" | "much_edited" => {
                let text = if name == "edited" { "x".to_owned() } else { "ä".repeat(EDITED_BYTES_MAX) };
                let edited_arguments = json!({"text": text}).as_object().cloned();
                called(CallStatus::Completed, "done", false).map(|called| CalledTool { edited_arguments, ..called })
            }
            "declined" => called(CallStatus::Declined, "a person said no", false),
            "unreachable" => Err(Failure::new(FailureKind::InfraFailed, "no server responds")),
            _ => called(CallStatus::Failed, "there is no such tool", false),
        };
        std::future::ready(result).boxed()
    }
}

async fn gateway(token: &str) -> ToolGateway {
    ToolGateway::start(&token.to_owned().into()).await.unwrap()
}

async fn send_text(gateway: &ToolGateway, token: &str, length: usize, body: &str) -> String {
    let address = gateway.url.strip_prefix("http://").and_then(|url| url.strip_suffix(PATH)).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

/// The status of the reply, and its message, if it has one.
async fn send(gateway: &ToolGateway, token: &str, message: &Value) -> (u16, Value) {
    let body = message.to_string();
    let reply = send_text(gateway, token, body.len(), &body).await;
    let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
    let streamed = reply.lines().find_map(|line| line.strip_prefix("data: "));
    let text = streamed.or_else(|| reply.split_once("\r\n\r\n").map(|(_, body)| body)).unwrap_or_default();
    (status, serde_json::from_str(text).unwrap_or_default())
}

async fn request(gateway: &ToolGateway, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let (status, reply) = send(gateway, TOKEN, &message).await;
    assert_eq!((status, &reply["id"]), (200, &json!(7)), "{reply}");
    reply
}

/// Calls a tool. Returns the text, and whether it is an error.
async fn call(gateway: &ToolGateway, name: &str) -> (String, bool) {
    let reply = request(gateway, "tools/call", json!({"name": name, "arguments": {"a": 1}})).await;
    let text = reply["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{reply}"));
    (text.to_owned(), reply["result"]["isError"] == true)
}

#[tokio::test]
async fn a_client_initializes_lists_and_calls() {
    let (gateway, tools) = (gateway(TOKEN).await, Arc::new(PlayedTools::default()));
    let _attached = gateway.attach(tools.clone());
    let listing = gateway.listing();
    let initialized = request(&gateway, "initialize", json!({"protocolVersion": "2025-06-18"})).await;
    assert_eq!(initialized["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(initialized["result"]["capabilities"], json!({"tools": {"listChanged": true}}));
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(send(&gateway, TOKEN, &told).await.0, 202);
    assert_eq!(request(&gateway, "ping", json!({})).await["result"], json!({}));
    let listed = request(&gateway, "tools/list", json!({})).await["result"]["tools"].clone();
    assert_eq!((&listed[0]["name"], &listed[1]["name"]), (&json!("time_now"), &json!("write")));
    assert_eq!(listed[0]["inputSchema"], json!({"type": "object"}));
    assert_eq!(listed[1]["annotations"]["readOnlyHint"], false);
    listing.wait().await;
    assert_eq!(call(&gateway, "time_now").await, ("noon".to_owned(), false));
    assert_eq!(tools.calls(), [("time_now".to_owned(), r#"{"a":1}"#.to_owned())]);
    let reply = request(&gateway, "resources/list", json!({})).await;
    assert_eq!(reply["error"]["code"], -32601);
}

#[tokio::test]
async fn only_the_token_of_the_run_is_admitted() {
    let (gateway, other, tools) =
        (gateway(TOKEN).await, gateway("token-of-another").await, Arc::new(PlayedTools::default()));
    let _attached = gateway.attach(tools.clone());
    let _other = other.attach(Arc::new(PlayedTools::default()));
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "time_now"}});
    for wrong in ["", "wrong", "token-of-another", "token-of-this-ru", "token-of-this-runs"] {
        assert_eq!(send(&gateway, wrong, &message).await.0, 401, "{wrong:?}");
    }
    assert_eq!(send(&other, TOKEN, &message).await.0, 401, "nor is this one admitted to another run");
    assert!(tools.calls().is_empty());
    assert_eq!(send(&gateway, TOKEN, &message).await.0, 200);
}

#[tokio::test]
async fn nothing_can_be_called_before_and_after_a_turn() {
    let (gateway, tools) = (gateway(TOKEN).await, Arc::new(PlayedTools::default()));
    assert!(call(&gateway, "time_now").await.1);
    assert_eq!(request(&gateway, "tools/list", json!({})).await["error"]["code"], -32603);
    let attached = gateway.attach(tools.clone());
    let waiting = call(&gateway, "slow");
    let end = async {
        while tools.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(attached);
    };
    let (ended, ()) = tokio::join!(waiting, end);
    assert_eq!(ended, ("the turn has ended".to_owned(), true), "a call ends with its turn");
    assert!(call(&gateway, "time_now").await.1);
    assert_eq!(tools.calls().len(), 1);
}

#[tokio::test]
async fn results_are_bounded_and_failures_are_for_the_model() {
    let gateway = gateway(TOKEN).await;
    let _attached = gateway.attach(Arc::new(PlayedTools::default()));
    assert_eq!(call(&gateway, "long").await, ("first lines\n[The result is longer.]".to_owned(), false));
    let (huge, is_error) = call(&gateway, "huge").await;
    assert!(!is_error && huge.len() < RESULT_BYTES_MAX + 100 && huge.ends_with("[The result is longer.]"));
    for (name, expected) in [
        ("declined", "the call was declined: a person said no"),
        ("no_such_tool", "there is no such tool"),
        ("unreachable", "the tool could not be called: no server responds"),
    ] {
        assert_eq!(call(&gateway, name).await, (expected.to_owned(), true), "{name}");
    }
    let nameless = request(&gateway, "tools/call", json!({})).await;
    assert_eq!(nameless["error"]["code"], -32602);
}

#[tokio::test]
async fn a_result_shows_the_arguments_that_a_person_has_edited() {
    let gateway = gateway(TOKEN).await;
    let _attached = gateway.attach(Arc::new(PlayedTools::default()));
    let note = "[A person edited the arguments of this call. It was executed with: {\"text\":\"x\"}]";
    assert_eq!(call(&gateway, "edited").await, (format!("done\n{note}"), false));
    let (text, _) = call(&gateway, "much_edited").await;
    assert!(text.len() < EDITED_BYTES_MAX + 200 && text.ends_with("…]"), "{} bytes", text.len());
}

#[tokio::test]
async fn requests_that_are_too_long_or_no_messages_are_rejected() {
    let (gateway, tools) = (gateway(TOKEN).await, Arc::new(PlayedTools::default()));
    let _attached = gateway.attach(tools.clone());
    let reply = send_text(&gateway, TOKEN, REQUEST_BYTES_MAX + 1, "").await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    for text in ["", "7", "{", "[]", r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#] {
        let reply = send_text(&gateway, TOKEN, text.len(), text).await;
        assert!(reply.starts_with("HTTP/1.1 400"), "{text}: {reply}");
    }
    assert!(tools.calls().is_empty());
}

#[tokio::test]
async fn the_port_is_closed_with_the_gateway_and_the_token_is_in_no_debug_output() {
    let gateway = gateway(TOKEN).await;
    let address = gateway.url.strip_prefix("http://").and_then(|url| url.strip_suffix(PATH)).unwrap().to_owned();
    let offer = gateway.offer();
    assert!(!format!("{offer:?}").contains(TOKEN));
    assert_eq!(gateway.codex_config()["http_headers"]["Authorization"], format!("Bearer {TOKEN}"));
    drop(gateway);
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(&address).await.is_ok() {
        assert!(tokio::time::Instant::now() < until, "the port is still open");
        tokio::task::yield_now().await;
    }
}

/// A client that listens for notifications.
struct Listening {
    stream: TcpStream,
    text: String,
}

impl Listening {
    /// Opens the stream. Fails with the status of a reply that is none.
    async fn open(gateway: &ToolGateway, token: &str) -> Result<Self, u16> {
        let address = gateway.url.strip_prefix("http://").and_then(|url| url.strip_suffix(PATH)).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET {PATH} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut listening = Self { stream, text: String::new() };
        while !listening.text.contains("\r\n\r\n") {
            assert!(listening.read().await, "{}", listening.text);
        }
        match listening.text.split(' ').nth(1).unwrap().parse().unwrap() {
            200 => Ok(listening),
            status => Err(status),
        }
    }

    /// Reads what comes next. False at the end of the stream.
    async fn read(&mut self) -> bool {
        let mut bytes = [0; 1_024];
        let read = timeout(Duration::from_secs(10), self.stream.read(&mut bytes)).await.expect("something is sent");
        let count = read.unwrap();
        self.text.push_str(str::from_utf8(&bytes[..count]).unwrap());
        count > 0
    }

    fn notified(&self) -> usize {
        self.text.matches(r#""method":"notifications/tools/list_changed""#).count()
    }

    /// Waits until there were this many notifications.
    async fn wait_for(&mut self, count: usize) {
        while self.notified() < count {
            assert!(self.read().await, "{}", self.text);
        }
        assert_eq!(self.notified(), count);
    }
}

async fn listed(gateway: &ToolGateway) -> usize {
    request(gateway, "tools/list", json!({})).await["result"]["tools"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_client_that_listens_is_notified_once_when_the_tools_change() {
    let poll = Duration::from_millis(5);
    let gateway = ToolGateway::start_polling(&TOKEN.to_owned().into(), poll).await.unwrap();
    let tools = Arc::new(PlayedTools::default());
    let attached = gateway.attach(tools.clone());
    let mut listening = Listening::open(&gateway, TOKEN).await.unwrap();
    assert_eq!(listed(&gateway).await, 2);
    // An MCP server gets a tool while the turn is worked on.
    *tools.further.lock().unwrap() = Some("added".to_owned());
    listening.wait_for(1).await;
    assert_eq!(listed(&gateway).await, 3);
    // The next turn has the same tools, and the one after it has others.
    drop(attached);
    let attached = gateway.attach(tools.clone());
    *tools.further.lock().unwrap() = Some("another".to_owned());
    listening.wait_for(2).await;
    drop(attached);
    let _attached = gateway.attach(Arc::new(PlayedTools::default()));
    listening.wait_for(3).await;
    assert_eq!(listed(&gateway).await, 2);
    drop(gateway);
    while listening.read().await {}
    assert_eq!(listening.notified(), 3, "one for each change");
}

/// The interval of the poll is never reached here.
#[tokio::test]
async fn a_turn_with_other_tools_notifies_at_once() {
    let (gateway, tools) = (gateway(TOKEN).await, Arc::new(PlayedTools::default()));
    let attached = gateway.attach(Arc::new(PlayedTools::default()));
    assert_eq!(listed(&gateway).await, 2);
    drop(attached);
    let mut listening = Listening::open(&gateway, TOKEN).await.unwrap();
    *tools.further.lock().unwrap() = Some("of_the_front_end".to_owned());
    let began = tokio::time::Instant::now();
    let _attached = gateway.attach(tools);
    listening.wait_for(1).await;
    assert!(began.elapsed() < Duration::from_millis(CHANGES_POLL_MS));
}

#[tokio::test]
async fn listening_needs_the_token_and_has_a_bound() {
    let gateway = gateway(TOKEN).await;
    assert_eq!(Listening::open(&gateway, "wrong").await.err(), Some(401));
    let mut open = vec![];
    for _ in 0..STREAMS_MAX {
        open.push(Listening::open(&gateway, TOKEN).await.unwrap());
    }
    assert_eq!(Listening::open(&gateway, TOKEN).await.err(), Some(429));
    let initialized =
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}});
    let body = initialized.to_string();
    let reply = send_text(&gateway, TOKEN, body.len(), &body).await;
    assert!(reply.contains("\r\nmcp-session-id: "), "streams leave requests alone: {reply}");
    assert!(!reply.contains(TOKEN));
}
