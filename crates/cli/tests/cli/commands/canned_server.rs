//! The whole program against a server with canned responses: what it sends, what it prints, and how it exits. Tests with a
//! real server cover real responses; this covers lost connections, signals and rejections.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};

use crate::fixtures::process::eventually;

const TOKEN: &str = "planted-token-123";

/// A received request: method and path, some headers, the body.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    line: String,
    last_event_id: Option<String>,
    authorization: Option<String>,
    body: String,
}

/// Computes the response from the request and all former requests.
type CannedResponse = dyn Fn(&ReceivedRequest, &[ReceivedRequest]) -> (u16, String) + Send + Sync;

struct Canned {
    address: String,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Canned {
    /// Responds to each request with the result of `answer`: a status and a body, or a stream that breaks at its end.
    fn start(answer: impl Fn(&ReceivedRequest, &[ReceivedRequest]) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(vec![]));
        let log = seen.clone();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (log.clone(), answer.clone());
                std::thread::spawn(move || handle(stream.unwrap(), &log, &*answer));
            }
        });
        Self { address, seen }
    }

    fn seen(&self, path: &str) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().iter().filter(|s| s.line.contains(path)).cloned().collect()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = ostler(args);
        command.env("OSTLER_SERVER", &self.address).env("OSTLER_TOKEN", TOKEN).env("OSTLER_TENANT", "local");
        command
    }
}

fn handle(mut stream: TcpStream, log: &Mutex<Vec<ReceivedRequest>>, answer: &CannedResponse) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut seen =
        ReceivedRequest { line: line.trim().into(), last_event_id: None, authorization: None, body: String::new() };
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).unwrap() == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.trim().split_once(": ").unwrap();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "last-event-id" => seen.last_event_id = Some(value.into()),
            "authorization" => seen.authorization = Some(value.into()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    seen.body = String::from_utf8(body).unwrap();
    log.lock().unwrap().push(seen.clone());
    let before = log.lock().unwrap().clone();
    let (status, body) = match seen.line.contains("/capabilities") {
        // If the capabilities are unavailable, the command proceeds.
        true => (503, String::new()),
        false => answer(&seen, &before),
    };
    let head = if body.starts_with("id:") || body.starts_with(':') {
        // Longer than the body, so that its end is a lost connection.
        format!("HTTP/1.1 {status} X\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n")
    } else {
        let length = body.len();
        format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        )
    };
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
    if body.starts_with(':') {
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn ostler(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostler"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["OSTLER_SERVER", "OSTLER_TOKEN", "OSTLER_DATA_DIR", "HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn end(child: Child) -> (i32, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code().expect("an exit code"), text(&stdout), text(&stderr))
}

fn finish(mut command: Command) -> (i32, String, String) {
    end(command.spawn().unwrap())
}

fn run_id() -> String {
    format!("run_{:032x}", 1)
}

fn command_id() -> String {
    format!("cmd_{:032x}", 1)
}

fn run() -> Value {
    json!({"runId": run_id(), "sessionId": "s1", "tenantId": "local", "projectId": "local/default",
        "workspaceRef": {"kind": "none"}, "providerId": "local", "backendProfile": "scripted", "traceSink": null,
        "status": "running", "state": "running", "openPermissions": 0, "terminal": null, "executionPolicy": {"sandbox": "read-only", "approval": "never",
            "timeoutMs": 1, "network": "disabled", "secretScope": {}},
        "cancelRequestedAt": null, "lastSeq": 12, "commandCount": 1, "unfinishedCommands": 1, "leaseEpoch": 1, "attemptId": null,
        "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:01:00Z"})
}

fn session() -> Value {
    json!({"sessionId": "s1", "tenantId": "local", "backendProfile": "scripted", "storageKind": "none", "executionState": "idle", "version": 1,
        "readVersion": 0, "unread": true, "activeRunId": null, "activeCommandId": null, "lastRunId": run_id(),
        "lastCommandId": null, "lastSeq": 12, "threadId": null, "chainHead": {"sessionSeq": 12, "hash": "00"},
        "liveness": null, "supervisor": null, "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:01:00Z"})
}

fn created() -> String {
    let mut body = run();
    body["command"] = command();
    body.to_string()
}

fn command() -> Value {
    json!({"commandId": command_id(), "runId": run_id(), "seq": 1, "type": "turn", "payload": {"prompt": "x"},
        "payloadHash": "h", "idempotencyKey": null, "state": "pending", "targetCommandId": null,
        "cancelRequestedAt": null, "ackedAt": null, "attemptId": null, "terminal": null,
        "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:00:00Z"})
}

fn result(status: &str, reply: Option<&str>, kind: Option<&str>) -> String {
    json!({"runId": run_id(), "commandId": command_id(), "attemptId": null, "sessionId": "s1", "status": status, "state": status,
        "runStatus": "pending", "terminalStatus": status, "completed": status == "completed",
        "terminalSource": "terminal_status", "reply": reply, "finalResponse": null, "finalAssistantSeq": null,
        "finalAssistantSource": null, "finalAssistantTextTruncated": null, "finalAssistantOutputTruncated": null,
        "failureKind": kind, "blocker": kind.map(|_| "it was not to be"), "lastSeq": 9, "eventCount": 9,
        "eventsCapped": false, "nextAfterSeq": 9, "scopedLastSeq": 8, "scopedEventCount": 6,
        "artifactSummary": {"outputEvents": 0, "outputBytes": 0, "truncated": false, "eventsPath": ""},
        "toolCallSummary": {"count": 0, "statusCounts": {}, "exitCodeCounts": {}, "items": []},
        "usage": {"totalTokens": 0, "costUsd": 0.0},
        "liveness": {"phase": "terminal", "active": false, "lastSeq": 9, "lastEventAgeMs": 3000,
            "lastCommandActivity": null, "lease": null, "openToolCalls": [], "resumeAt": null, "suggestedAction": ""},
        "supervisor": {"state": "done", "summary": "", "suggestedAction": ""}, "openPermissions": [],
        "steerDelivery": null, "chainHead": {"sessionSeq": 9, "hash": "00"}})
    .to_string()
}

fn frame(seq: i64, event_type: &str, payload: Value) -> String {
    let event = json!({"seq": seq, "runId": run_id(), "sessionSeq": seq, "type": event_type, "commandId": command_id(),
        "createdAt": "2030-01-01T00:00:00Z", "payload": payload});
    format!("id: {seq}\ndata: {event}\n\n")
}

fn ended(seq: i64, status: &str) -> String {
    frame(seq, "terminal_status", json!({"status": status}))
}

#[test]
fn a_lost_connection_is_resumed_where_it_broke() {
    let server = Canned::start(|seen, _| match (seen.line.as_str(), seen.last_event_id.as_deref()) {
        (line, _) if line.starts_with("POST /api/v1/runs ") => (200, created()),
        (_, Some("0")) => (200, frame(1, "assistant_delta", json!({"messageId": "m", "delta": "hel"}))),
        (_, Some("1")) => {
            let delta = frame(2, "assistant_delta", json!({"messageId": "m", "delta": "lo"}));
            let whole = frame(3, "assistant_message", json!({"messageId": "m", "text": "hello", "final": true}));
            (200, format!("{delta}{whole}{}", ended(4, "completed")))
        }
        _ => (200, result("completed", Some("hello"), None)),
    });
    let (code, stdout, stderr) = finish(server.command(&["run", "say hello"]));
    assert_eq!((code, stdout.as_str()), (0, "hello\n"), "{stderr}");
    assert!(
        stderr.contains("connection lost; the run goes on. Reconnecting…\nconnected again after 1 s\n"),
        "{stderr}"
    );
    assert!(stderr.ends_with(&format!("completed · {}\n", run_id())), "{stderr}");
    let sent: Value = serde_json::from_str(&server.seen("POST /api/v1/runs ")[0].body).unwrap();
    assert_eq!(sent["command"]["payload"]["prompt"], "say hello");
    assert_eq!(server.seen("POST")[0].authorization.as_deref(), Some("Bearer planted-token-123"));
    assert!(!stderr.contains(TOKEN) && !stdout.contains(TOKEN));
}

#[test]
fn the_exit_code_is_that_of_the_outcome() {
    for (status, kind, code) in
        [("failed", "backend-failed", 10), ("cancelled", "cancelled", 11), ("blocked", "budget-exceeded", 12)]
    {
        let server = Canned::start(move |seen, _| match seen.line.as_str() {
            line if line.starts_with("POST /api/v1/runs ") => (200, created()),
            line if line.contains("/events") => (200, ended(1, status)),
            _ => (200, result(status, None, Some(kind))),
        });
        let (exit, stdout, stderr) = finish(server.command(&["run", "x", "-o", "json"]));
        assert_eq!(exit, code, "{stderr}");
        assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["status"], status);
        assert!(stderr.contains(&format!("  {kind}: it was not to be\nhint: ")), "{stderr}");
        let (exit, ..) = finish(server.command(&["result", &run_id()]));
        assert_eq!(exit, code);
    }
}

/// Waits until the server has received such a request.
fn wait_for(server: &Canned, path: &str) {
    eventually(path, || (!server.seen(path).is_empty()).then_some(()));
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn ctrl_c_cancels_and_waits_for_the_end() {
    let server = Canned::start(|seen, before| match seen.line.as_str() {
        line if line.starts_with("POST /api/v1/runs ") => (200, created()),
        line if line.contains("/cancel") => (200, command().to_string()),
        line if line.contains("/events") => {
            let cancelled = before.iter().any(|s| s.line.contains("/cancel"));
            (200, if cancelled { ended(1, "cancelled") } else { ": wait\n\n".into() })
        }
        _ => (200, result("cancelled", None, Some("cancelled"))),
    });
    let child = server.command(&["run", "x"]).spawn().unwrap();
    wait_for(&server, "/events");
    interrupt(&child);
    let (code, _, stderr) = end(child);
    assert_eq!(code, 11, "{stderr}");
    assert!(server.seen("/cancel")[0].line.contains(&command_id()));
    assert!(stderr.contains("cancelling; Ctrl-C again exits"), "{stderr}");
}

#[test]
fn a_second_ctrl_c_exits_and_the_run_continues() {
    let server = Canned::start(|seen, _| match seen.line.as_str() {
        line if line.starts_with("POST /api/v1/runs ") => (200, created()),
        line if line.contains("/cancel") => (200, command().to_string()),
        _ => (200, ": wait\n\n".into()),
    });
    let child = server.command(&["run", "x"]).spawn().unwrap();
    wait_for(&server, "/events");
    interrupt(&child);
    wait_for(&server, "/cancel");
    interrupt(&child);
    let (code, _, stderr) = end(child);
    assert_eq!(code, 130, "{stderr}");
    // The server is in the environment of the shell that the command is copied into.
    assert!(stderr.contains("left; the run continues: ostler trace -f run_"), "{stderr}");
}

#[test]
fn a_rejection_shows_its_kind_trace_id_and_hint() {
    let refusal = json!({"failureKind": "not-found", "message": "no such session", "traceId": "trc_1", "details": {}});
    let server = Canned::start(move |seen, _| match seen.line.as_str() {
        line if line.contains("/runs?") => (200, json!({"runs": [], "nextCursor": null}).to_string()),
        line if line.contains("/sessions?") => (200, json!({"sessions": [], "nextCursor": null}).to_string()),
        _ => (404, refusal.to_string()),
    });
    for args in
        [&["trace", "nonsense"][..], &["trace", "-f", "nonsense"], &["cancel", "nonsense"], &["result", "nonsense"]]
    {
        let (code, stdout, stderr) = finish(server.command(args));
        assert_eq!((code, stdout.as_str()), (4, ""), "{stderr}");
        let head = "error: no run or session \"nonsense\"\n  kind: not-found\n  trace: trc_1\nhint: ";
        assert!(stderr.starts_with(head), "{stderr}");
    }
}

#[test]
fn without_a_server_the_hint_is_the_command_that_starts_one() {
    // A port that was free just before.
    let address = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let (code, stdout, stderr) = finish(ostler(&["--server", &address, "ps"]));
    assert_eq!((code, stdout.as_str()), (7, ""), "{stderr}");
    assert!(stderr.contains("hint: is the server running? `ostler serve` starts one here"), "{stderr}");
}

#[test]
fn reads_support_json() {
    let server = Canned::start(|seen, _| {
        let event = json!({"seq": 1, "runId": run_id(), "sessionSeq": 1, "type": "custom", "commandId": null,
            "createdAt": "2030-01-01T00:00:00Z", "payload": {"name": "n"}});
        match seen.line.as_str() {
            line if line.contains("/events") => {
                (200, json!({"events": [event], "nextAfterSeq": 1, "hasMore": false}).to_string())
            }
            line if line.contains("/result") => (200, result("completed", Some("hello"), None)),
            line if line.contains("/sessions") => {
                (200, json!({"sessions": [session()], "nextCursor": null}).to_string())
            }
            _ => (200, json!({"runs": [run()], "nextCursor": null}).to_string()),
        }
    });
    let r = &run_id();
    for (args, pointer) in [
        (&["ps", "-o", "json"][..], "/0/sessionId"),
        (&["ps", "-o", "jsonl"], "/sessionId"),
        (&["runs", "list", "-o", "json"], "/0/runId"),
        (&["trace", r, "-o", "json"], "/0/type"),
        (&["trace", r, "-o", "jsonl"], "/type"),
        (&["result", r, "-o", "json"], "/reply"),
        (&["result", "0000", "-o", "jsonl"], "/reply"),
    ] {
        let (code, stdout, stderr) = finish(server.command(args));
        assert_eq!(code, 0, "{stderr}");
        let value: Value = serde_json::from_str(&stdout).unwrap();
        assert!(value.pointer(pointer).is_some_and(Value::is_string), "{args:?}: {stdout}");
    }
    let (_, stdout, _) = finish(server.command(&["ps"]));
    assert!(stdout.starts_with("SESSION ") && stdout.contains("\ns1 ") && !stdout.contains('\x1b'), "{stdout}");
}

#[test]
fn the_token_file_is_found_and_sent_only_to_this_machine() {
    let server = Canned::start(|_, _| (200, json!({"sessions": [], "nextCursor": null}).to_string()));
    let dir = std::env::temp_dir().join(format!("ostler-cli-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("token"), format!("{TOKEN}\n")).unwrap();
    let data_dir = dir.to_str().unwrap();
    let (code, stdout, stderr) = finish(ostler(&["ps", "--all", "--server", &server.address, "--data-dir", data_dir]));
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert_eq!(stderr, "no sessions yet; start one: ostler run \"say hello\"\n");
    assert_eq!(server.seen("GET")[0].authorization.as_deref(), Some("Bearer planted-token-123"));
}

/// A server that loses its store after this many reads of the run.
fn losing_its_store(reads: usize) -> Canned {
    Canned::start(move |_, before| match before.iter().filter(|seen| seen.line.contains(&run_id())).count() {
        count if count <= reads => (200, run().to_string()),
        _ => {
            let details = json!({"rule": "store-unreachable"});
            let body =
                json!({"failureKind": "infra-failed", "message": "no store", "traceId": "trc_1", "details": details});
            (503, body.to_string())
        }
    })
}

#[test]
fn a_wait_whose_server_has_lost_its_store_does_not_exit_like_a_failed_run() {
    let server = losing_its_store(1);
    let (code, stdout, stderr) =
        finish(server.command(&["wait", &run_id(), "--for", "completed,failed", "--timeout", "1s"]));
    assert_eq!((code, stdout.as_str()), (7, ""), "{stderr}");
    assert!(stderr.contains("error: the state of the run is unknown: no store\n"), "{stderr}");
    let again = format!("wait {} --for completed,failed --timeout 1s` waits again\n", run_id());
    assert!(stderr.contains(&again), "{stderr}");
    let (code, _, stderr) = finish(losing_its_store(0).command(&["wait", &run_id()]));
    assert_eq!(code, 7, "{stderr}");
}

#[test]
fn a_wait_ends_at_its_deadline_although_the_server_does_not_respond() {
    let server = Canned::start(|_, before| {
        if before.iter().filter(|seen| seen.line.contains(&run_id())).count() > 1 {
            std::thread::sleep(Duration::from_secs(20));
        }
        (200, run().to_string())
    });
    // A wait for the late response would report that the run is still running, with 9.
    let (code, _, stderr) = finish(server.command(&["wait", &run_id(), "--timeout", "1s"]));
    assert_eq!(code, 7, "{stderr}");
}
