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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("work");
        std::fs::create_dir(&path).unwrap();
        let args = json!([write_script(directory.path()), "waits", path.join("calls")]);
        let servers = json!({"slow": {"command": python(), "args": args}}).to_string();
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

/// A runner that requests a call, loses its server, and requests the same call again. Returns the status.
fn repeat_after_a_kill(workspace: &Workspace, tool: &str) -> String {
    let mut home = TestHome::on_disk(Engine::Sqlite).without_runner();
    for (name, value) in workspace.settings() {
        home.set(name, value);
    }
    home.set("PATH", &std::env::var("PATH").unwrap());
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut body = run_request();
    body["workspaceRef"] = workspace.reference();
    body["command"] = json!({"type": "turn", "payload": {"prompt": "hi"}});
    let run = http.post("/api/v1/runs", &body).good();
    let command = run["command"]["commandId"].as_str().unwrap();
    let run_path = format!("/api/v1/runs/{}", run["runId"].as_str().unwrap());
    let take = |http: &mut Http| {
        let claimed =
            http.post(&format!("{run_path}/claim"), &json!({"runnerId": "runner-a", "leaseMs": 60_000})).good();
        let lease = json!({"runnerId": "runner-a", "leaseEpoch": claimed["leaseEpoch"]});
        http.post(&format!("/api/v1/commands/{command}/ack"), &lease).good();
        lease
    };
    let request = |lease: Value, wait_ms: u64, is_repeated: bool| {
        json!({"runnerId": lease["runnerId"], "leaseEpoch": lease["leaseEpoch"], "commandId": command, "callId": "call_a",
            "name": format!("mcp__slow__{tool}"), "arguments": "{}", "waitMs": wait_ms, "repeated": is_repeated})
    };
    let lease = take(&mut http);
    let calls = format!("{run_path}/tools/calls");
    assert_eq!(http.post(&calls, &request(lease, 0, false)).good()["status"], "running");
    workspace.wait_for_the_call();
    server.kill();
    workspace.release();
    let server = home.serve();
    let mut http = Http::new(&server);
    let lease = take(&mut http);
    let called = http.post(&calls, &request(lease, 20_000, true)).good();
    server.stop();
    home.assert_verified();
    called["status"].as_str().unwrap().to_owned()
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
