//! Ostler as an MCP server, spoken to on the wire. The official SDK drives it in the tests of the command line.

mod authorisation;
pub(crate) mod operations;
mod protocol;
mod tools;
mod waits;

use ostler_protocol::mcp_server::tools::ServedTool;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::{Answer, Caller, PATIENCE, TestServer, id};

pub(crate) const PATH: &str = "/mcp";
const SESSION: &str = "mcp-session-id";
const REVISION: &str = "mcp-protocol-version";
const LATEST: &str = "2025-11-25";

/// A post of an SDK: both forms of a response are accepted.
fn post(caller: &Caller, message: &Value) -> RequestBuilder {
    let request = caller.request("POST", PATH).header("accept", "application/json, text/event-stream");
    request.header("content-type", "application/json").header(REVISION, LATEST).body(message.to_string())
}

fn message(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// The response to a request that does not wait.
async fn ask(caller: &Caller, method: &str, params: Value) -> Value {
    let reply = caller.send(post(caller, &message(method, params))).await.with_status(200);
    assert_eq!((&reply["jsonrpc"], &reply["id"]), (&json!("2.0"), &json!(1)), "{reply}");
    reply
}

/// The result of a tool, from a client that reads no streams.
async fn call(caller: &Caller, tool: &str, arguments: Value) -> Value {
    let message = message("tools/call", json!({"name": tool, "arguments": arguments}));
    let request = caller.request("POST", PATH).header("accept", "application/json").header(REVISION, LATEST);
    let request = request.header("content-type", "application/json").body(message.to_string());
    let result = caller.send(request).await.with_status(200)["result"].clone();
    check_output(tool, &result);
    result
}

/// A result fits the schema that its tool declares, also that of a refused call.
#[track_caller]
fn check_output(tool: &str, result: &Value) {
    if let Some(tool) = ServedTool::find(tool).filter(|_| result.is_object()) {
        let schema = tool.describe()["outputSchema"].clone();
        let is_valid = jsonschema::is_valid(&schema, &result["structuredContent"]);
        assert!(is_valid, "{}: {result}", tool.name());
    }
}

/// What a tool returned, which it also returned as text.
#[track_caller]
fn done(result: &Value) -> Value {
    assert_eq!(result["isError"], false, "{result}");
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), result["structuredContent"]);
    result["structuredContent"].clone()
}

/// Why a tool refused, by its kind and rule.
#[track_caller]
fn refused(result: &Value) -> (String, String) {
    assert_eq!(result["isError"], true, "{result}");
    let data = &result["structuredContent"];
    let (kind, text) = (id(data, "kind"), id(&result["content"][0], "text"));
    assert!(text.starts_with(&format!("{kind}: ")) && !id(data, "message").is_empty(), "{result}");
    assert!(id(data, "traceId").starts_with("trc_"), "{result}");
    (kind, data["rule"].as_str().unwrap_or_default().to_owned())
}

/// A session as `initialize` opens it.
async fn open_session(caller: &Caller) -> String {
    let answer = caller.send(post(caller, &initialize(LATEST))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.headers[SESSION].to_str().unwrap().to_owned()
}

fn initialize(revision: &str) -> Value {
    let client = json!({"name": "test", "version": "1"});
    message("initialize", json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": client}))
}

async fn notify(caller: &Caller, session: Option<&str>, method: &str, params: Value) -> Answer {
    let request = post(caller, &json!({"jsonrpc": "2.0", "method": method, "params": params}));
    caller.send(session.into_iter().fold(request, |request, session| request.header(SESSION, session))).await
}

/// A script that asks for a permission before it replies.
fn asking_script() -> String {
    let ask = json!({"ask": {"title": "Delete it?", "command": "rm it"}});
    json!({"script": [ask, {"say": "Done."}]}).to_string()
}

/// A reader of a stream.
struct Stream {
    response: Response,
    buffer: String,
}

/// One event. `data` is null where it is empty.
#[derive(Debug)]
struct StreamEvent {
    id: Option<String>,
    data: Value,
}

impl Stream {
    async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, buffer: String::new() }
    }

    /// Calls a tool, and notifies of its progress.
    async fn call(caller: &Caller, session: Option<&str>, tool: &str, arguments: Value) -> Self {
        let meta = json!({"progressToken": "p"});
        let message = message("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta}));
        let request = post(caller, &message);
        Self::open(session.into_iter().fold(request, |request, session| request.header(SESSION, session))).await
    }

    /// Continues behind an event.
    async fn resume(caller: &Caller, last: &str) -> Self {
        let request = caller.request("GET", PATH).header("accept", "text/event-stream").header(REVISION, LATEST);
        Self::open(request.header("last-event-id", last)).await
    }

    /// The next event, without comments. `None`: the stream has ended.
    async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            while let Some(end) = self.buffer.find("\n\n") {
                let rest = self.buffer.split_off(end + 2);
                let frame = std::mem::replace(&mut self.buffer, rest);
                let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
                if let Some(data) = field("data:") {
                    let data = if data.is_empty() { Value::Null } else { serde_json::from_str(data).unwrap() };
                    return Some(StreamEvent { id: field("id:").map(str::to_owned), data });
                }
            }
            let chunk = timeout(PATIENCE, self.response.chunk()).await.expect("the stream sends something").unwrap()?;
            self.buffer.push_str(str::from_utf8(&chunk).unwrap());
        }
    }

    /// The id of the event with which a stream of the latest revision begins.
    async fn primed(&mut self) -> String {
        let first = self.next().await.unwrap();
        assert_eq!(first.data, Value::Null, "{first:?}");
        first.id.unwrap()
    }

    /// The number of the next notification, with its id.
    async fn progress(&mut self) -> (i64, String) {
        let event = self.next().await.unwrap();
        assert_eq!(event.data["method"], "notifications/progress", "{event:?}");
        assert_eq!(event.data["params"]["progressToken"], "p");
        (event.data["params"]["progress"].as_i64().unwrap(), event.id.unwrap())
    }

    /// The result with which the stream ends, and the notifications before it.
    async fn result(mut self) -> (Vec<i64>, Value) {
        let mut notified = vec![];
        loop {
            let event = self.next().await.expect("the stream ends with a response");
            if event.data["method"] == "notifications/progress" {
                notified.push(event.data["params"]["progress"].as_i64().unwrap());
            } else if !event.data.is_null() {
                assert_eq!(event.data["id"], 1);
                assert!(self.next().await.is_none(), "nothing follows the response");
                return (notified, event.data["result"].clone());
            }
        }
    }
}

/// The run and the command that an event's id names.
fn named(event_id: &str) -> (String, String) {
    let parts: Vec<_> = event_id.split('.').collect();
    (parts[1].to_owned(), parts[2].to_owned())
}

/// Proves the tag of the MCP server.
pub(crate) async fn proves(server: &TestServer) {
    let tools = ask(server, "tools/list", json!({})).await["result"]["tools"].clone();
    assert!(tools.as_array().unwrap().iter().any(|tool| tool["name"] == "submit_run"), "{tools}");
    let submitted = done(&call(server, "submit_run", json!({"profile": "scripted", "prompt": "hi"})).await);
    let followed = done(&call(server, "follow_run", json!({"runId": submitted["runId"]})).await);
    assert!(!followed["events"].as_array().unwrap().is_empty(), "{followed}");
}
