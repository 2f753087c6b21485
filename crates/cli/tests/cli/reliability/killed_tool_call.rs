//! `kill -9` of a server that executes a call of a tool: the outcome is reported as unknown, and only a tool that reads is called again.

use std::path::{Path, PathBuf};

use ostler_testkit::mcp_server::{python, write_script};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixtures::{
    backend_server::{BackendServer, MODEL},
    http::Http,
    process::eventually,
    runner::{count, run_request},
    test_home::{Engine, TestHome, both_engines},
};

/// A workspace, and an MCP server `slow` that records there which tools were called.
struct Workspace {
    path: PathBuf,
    servers: String,
    _directory: TempDir,
}

impl Workspace {
    fn new() -> Self {
        Self::with_deadline_ms(60_000)
    }

    fn with_deadline_ms(timeout_ms: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("work");
        std::fs::create_dir(&path).unwrap();
        let args = json!([write_script(directory.path()), "waits", path.join("calls")]);
        let servers = json!({"slow": {"command": python(), "args": args, "timeout_ms": timeout_ms}}).to_string();
        Self { path, servers, _directory: directory }
    }

    fn settings(&self) -> [(&str, &str); 3] {
        [
            ("OSTLER_SERVER__WORKSPACE", text(&self.path)),
            ("OSTLER_MCP__SERVERS", &self.servers),
            ("OSTLER_MCP__LIST_WAIT_MS", "20000"),
        ]
    }

    fn reference(&self) -> Value {
        json!({"kind": "local", "path": self.path})
    }

    /// The tools that were called so far.
    fn called(&self) -> Vec<String> {
        let lines = std::fs::read_to_string(self.path.join("calls")).unwrap_or_default();
        lines.lines().map(str::to_owned).collect()
    }

    fn wait_for_the_call(&self) {
        eventually("the tool is called", || (self.called().len() == 1).then_some(()));
    }

    /// Lets all calls return from now on.
    fn release(&self) {
        std::fs::write(self.path.join("calls.go"), "").unwrap();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[both_engines]
fn a_call_whose_server_died_is_unknown_to_the_model_and_not_repeated(engine: Engine) {
    let workspace = Workspace::new();
    let mut server = BackendServer::open_on(engine, &MODEL, "resident", &workspace.settings());
    let place = json!({"workspaceRef": workspace.reference()});
    let (run, turn) = server.submit_with("[[call:mcp__slow__append {}]]", json!({}), place);
    workspace.wait_for_the_call();
    let mut server = server.kill_server();
    workspace.release();
    let result = server.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let reply = result["reply"].as_str().unwrap();
    assert!(reply.contains("the outcome of this call is not known"), "{reply}");
    let events = server.events(&run);
    let of = |status: &str| count(&events, "tool_call", "/status", status);
    assert_eq!((of("started"), of("outcome-unknown"), of("completed")), (1, 1, 0));
    assert_eq!(workspace.called(), ["append"], "the tool may have changed something");
    server.close();
}

/// A runner of one turn, which calls a tool of the MCP server `slow`.
struct Calls<'a> {
    tool: &'a str,
    run_path: String,
    command: String,
}

impl<'a> Calls<'a> {
    fn open(http: &mut Http, workspace: &Workspace, tool: &'a str) -> Self {
        let mut body = run_request();
        body["workspaceRef"] = workspace.reference();
        body["command"] = json!({"type": "turn", "payload": {"prompt": "hi"}});
        let run = http.post("/api/v1/runs", &body).good();
        let id = |value: &Value| value.as_str().unwrap().to_owned();
        Self {
            tool,
            run_path: format!("/api/v1/runs/{}", id(&run["runId"])),
            command: id(&run["command"]["commandId"]),
        }
    }

    /// Takes the lease, and requests the call. Returns its status.
    fn request(&self, http: &mut Http, wait_ms: u64, is_repeated: bool) -> String {
        let claim = json!({"runnerId": "runner-a", "leaseMs": 60_000});
        let claimed = http.post(&format!("{}/claim", self.run_path), &claim).good();
        let lease = json!({"runnerId": "runner-a", "leaseEpoch": claimed["leaseEpoch"]});
        http.post(&format!("/api/v1/commands/{}/ack", self.command), &lease).good();
        let body = json!({"runnerId": "runner-a", "leaseEpoch": lease["leaseEpoch"], "commandId": self.command,
            "callId": "call_a", "name": format!("mcp__slow__{}", self.tool), "arguments": "{}", "waitMs": wait_ms,
            "repeated": is_repeated});
        let called = http.post(&format!("{}/tools/calls", self.run_path), &body).good();
        called["status"].as_str().unwrap().to_owned()
    }
}

fn home_of(engine: Engine, workspace: &Workspace) -> TestHome {
    let mut home = TestHome::on_disk(engine).without_runner();
    for (name, value) in workspace.settings() {
        home.set(name, value);
    }
    home.set("PATH", &std::env::var("PATH").unwrap());
    home
}

/// A runner that requests a call, loses its server, and requests the same call again. Returns the status.
fn repeat_after_a_kill(workspace: &Workspace, tool: &str) -> String {
    let home = home_of(Engine::Sqlite, workspace);
    let server = home.serve();
    let mut http = Http::new(&server);
    let calls = Calls::open(&mut http, workspace, tool);
    assert_eq!(calls.request(&mut http, 0, false), "running");
    workspace.wait_for_the_call();
    server.kill();
    workspace.release();
    let server = home.serve();
    let status = calls.request(&mut Http::new(&server), 20_000, true);
    server.stop();
    home.assert_verified();
    status
}

/// The other server cannot know whether the one that executes the call is only slow: it waits for the call's deadline, and ten seconds more.
#[test]
fn a_call_whose_server_died_is_unknown_to_the_other_server_and_not_repeated() {
    let workspace = Workspace::with_deadline_ms(3_000);
    let home = home_of(Engine::Postgres, &workspace);
    let (one, other) = (home.serve(), home.serve());
    let mut http = Http::new(&one);
    let calls = Calls::open(&mut http, &workspace, "append");
    assert_eq!(calls.request(&mut http, 0, false), "running");
    workspace.wait_for_the_call();
    one.kill();
    workspace.release();
    let mut http = Http::new(&other);
    let status = eventually("the outcome is given up", || {
        Some(calls.request(&mut http, 20_000, true)).filter(|status| status != "running")
    });
    assert_eq!(status, "outcome-unknown");
    assert_eq!(workspace.called(), ["append"], "the tool may have changed something");
    other.stop();
    home.assert_verified();
}

#[test]
fn a_request_that_is_repeated_after_the_restart_does_not_repeat_a_change() {
    let workspace = Workspace::new();
    assert_eq!(repeat_after_a_kill(&workspace, "append"), "outcome-unknown");
    assert_eq!(workspace.called(), ["append"]);
}

#[test]
fn a_request_that_is_repeated_after_the_restart_repeats_a_read() {
    let workspace = Workspace::new();
    assert_eq!(repeat_after_a_kill(&workspace, "look"), "completed");
    assert_eq!(workspace.called(), ["look", "look"]);
}
