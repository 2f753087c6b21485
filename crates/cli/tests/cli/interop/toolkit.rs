//! The toolkit of a real server, called by the real Codex and the real Qwen Code: a tool of the server itself, a tool of an MCP server,
//! and for Qwen Code one of an MCP server that it connects to itself.

use std::path::PathBuf;

use ostler_testkit::mcp_server::{python, write_script};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixtures::{
    backend_server::{BackendServer, CODEX, QWEN, TestBackend},
    test_home::Engine,
};

/// A server with the MCP servers `notes`, whose tools are in the toolkit, and `near`, which agents connect to.
struct Scene {
    server: BackendServer,
    workspace: PathBuf,
    _directory: TempDir,
}

impl Scene {
    fn open(backend: &'static TestBackend, launcher: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let workspace = directory.path().canonicalize().unwrap().join("work");
        std::fs::create_dir(&workspace).unwrap();
        let script = write_script(directory.path());
        let started = |expose: &str| json!({"command": python(), "args": [script, "good"], "expose": expose});
        let servers = json!({"notes": started("toolkit"), "near": started("direct")}).to_string();
        let more = [
            ("OSTLER_SERVER__WORKSPACE", workspace.to_str().unwrap()),
            ("OSTLER_MCP__SERVERS", servers.as_str()),
            ("OSTLER_MCP__LIST_WAIT_MS", "20000"),
        ];
        let server = BackendServer::open_on(Engine::Sqlite, backend, launcher, &more);
        Self { server, workspace, _directory: directory }
    }

    fn submit(&mut self, prompt: &str, approval: &str) -> (String, String) {
        let place = json!({"workspaceRef": {"kind": "local", "path": self.workspace}});
        self.server.submit_with(prompt, json!({"sandbox": "workspace-write", "approval": approval}), place)
    }

    /// Waits for the end of a turn. Returns its reply.
    fn reply(&mut self, run: &str, turn: &str) -> String {
        let result = self.server.ended(run, turn);
        assert_eq!(result["status"], "completed", "{result}");
        result["reply"].as_str().unwrap().to_owned()
    }

    /// The calls of a turn: name, status and type.
    fn calls(&mut self, run: &str, turn: &str) -> Vec<(String, String, String)> {
        let events = self.server.events(run);
        let calls = events.iter().filter(|event| event["type"] == "tool_call" && event["commandId"] == turn);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        calls
            .map(|event| &event["payload"])
            .map(|call| (text(&call["name"]), text(&call["status"]), text(&call["type"])))
            .collect()
    }

    fn count(&mut self, run: &str, turn: &str, event_type: &str) -> usize {
        let events = self.server.events(run);
        events.iter().filter(|event| event["type"] == event_type && event["commandId"] == turn).count()
    }
}

/// A call that the toolkit recorded, from its start to its end.
fn recorded(name: &str, end: &str) -> Vec<(String, String, String)> {
    ["started", end].map(|status| (name.to_owned(), status.to_owned(), "toolkit".to_owned())).to_vec()
}

fn codex_calls_tools_that_a_run_never_asks_about(launcher: &str) {
    let mut scene = Scene::open(&CODEX, launcher);
    let (run, turn) = scene.submit("[[call:ostler time_now {}]]", "never");
    let reply = scene.reply(&run, &turn);
    assert!(reply.contains("The tool said:") && reply.contains("\"timezone\":\"UTC\""), "{reply}");
    assert_eq!(scene.calls(&run, &turn), recorded("time_now", "completed"), "once, and not by Codex too");
    // It does not say that it changes nothing, so Codex would ask.
    let turn = scene.server.command(&run, "turn", "[[call:ostler mcp__notes__env {}]]");
    let reply = scene.reply(&run, &turn);
    assert!(reply.contains("variables"), "{reply}");
    assert_eq!(scene.calls(&run, &turn), recorded("mcp__notes__env", "completed"));
    assert_eq!(scene.count(&run, &turn, "permission_request"), 0);
    let declined = |event: &Value| event["payload"]["phase"].as_str().is_some_and(|phase| phase.ends_with(":declined"));
    assert!(!scene.server.events(&run).iter().any(declined), "nothing was declined");
    scene.server.close();
}

super::codex::with_both_launchers!(codex_calls_tools_that_a_run_never_asks_about);

#[test]
fn codexs_calls_wait_for_a_person_where_the_policy_wants_that() {
    let mut scene = Scene::open(&CODEX, "resident");
    let prompt = "[[call:ostler mcp__notes__env {}]]";
    let (run, turn) = scene.submit(prompt, "on-request");
    scene.server.answer(&run, &turn, "allow_once");
    let reply = scene.reply(&run, &turn);
    assert!(reply.contains("variables"), "{reply}");
    assert_eq!(scene.calls(&run, &turn), recorded("mcp__notes__env", "completed"));
    assert_eq!(scene.count(&run, &turn, "permission_request"), 1, "a person is asked once");
    let turn = scene.server.command(&run, "turn", prompt);
    scene.server.answer(&run, &turn, "reject_once");
    let reply = scene.reply(&run, &turn);
    assert!(reply.contains("the call was declined"), "{reply}");
    assert_eq!(scene.calls(&run, &turn), recorded("mcp__notes__env", "declined"));
    scene.server.close();
}

#[test]
fn qwen_calls_tools_of_the_server_and_connects_to_direct_servers_itself() {
    let mut scene = Scene::open(&QWEN, "resident");
    let (run, turn) = scene.submit("hello", "untrusted");
    scene.reply(&run, &turn);
    // It asks before it calls a tool of any MCP server. The toolkit does not, for this one.
    let turn = scene.server.command(&run, "turn", "[[call:mcp__ostler__time_now {}]]");
    let reply = scene.reply(&run, &turn);
    assert!(reply.contains("\"timezone\":\"UTC\""), "{reply}");
    assert_eq!(scene.calls(&run, &turn), recorded("time_now", "completed"));
    assert_eq!(scene.count(&run, &turn, "permission_request"), 0);

    let turn = scene.server.command(&run, "turn", r#"[[call:mcp__ostler__mcp__notes__echo {"a": 1}]]"#);
    scene.server.answer(&run, &turn, "allow_once");
    let reply = scene.reply(&run, &turn);
    assert!(reply.contains(r#"{"a": 1}"#), "{reply}");
    assert_eq!(scene.calls(&run, &turn), recorded("mcp__notes__echo", "completed"));
    assert_eq!(scene.count(&run, &turn, "permission_request"), 1, "a person is asked once");

    let turn = scene.server.command(&run, "turn", r#"[[call:mcp__near__echo {"b": 2}]]"#);
    scene.server.answer(&run, &turn, "allow_once");
    let reply = scene.reply(&run, &turn);
    assert!(reply.contains(r#"{"b": 2}"#), "{reply}");
    let calls = scene.calls(&run, &turn);
    assert!(calls.len() == 2 && calls.iter().all(|(_, _, kind)| kind != "toolkit"), "{calls:?}");
    let turn = scene.server.command(&run, "turn", "[[call:mcp__notes__echo {}]]");
    let reply = scene.reply(&run, &turn);
    assert!(!reply.contains("The tool said: {}"), "it is offered by the gateway only: {reply}");
    scene.server.close();
}

/// A call of a front end's tool completes the turn with the call pending, and the session goes on with the result.
fn call_of_a_front_ends_tool_stays_pending(backend: &'static TestBackend, prompt: &str) {
    let mut scene = Scene::open(backend, "resident");
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tool = json!({"name": "get_weather", "description": "Weather of a city", "parameters": parameters});
    // As the run input dialect submits it.
    let command = json!({"type": "turn", "payload": {"prompt": prompt, "context": {"tools": [tool]}}});
    let more = json!({"workspaceRef": {"kind": "local", "path": scene.workspace}, "command": command});
    let policy = json!({"sandbox": "workspace-write", "approval": "never"});
    let (run, turn) = scene.server.submit_with(prompt, policy, more);
    let result = scene.server.ended(&run, &turn);
    assert_eq!(result["status"], "completed", "{result}");
    let is_call = |event: &&Value| event["type"] == "tool_call" && event["commandId"] == turn.as_str();
    let events = scene.server.events(&run);
    let calls: Vec<_> = events.iter().filter(is_call).map(|event| &event["payload"]).collect();
    assert_eq!(calls.len(), 1, "the program's own report of it is dropped: {calls:?}");
    assert_eq!(
        (&calls[0]["method"], &calls[0]["status"], &calls[0]["arguments"]),
        (&json!("front-end"), &json!("started"), &json!(r#"{"city":"Oslo"}"#))
    );
    // Without the tool the program is started again, on the same thread.
    let turn = scene.server.command(&run, "turn", "[Result of the tool get_weather] 12 degrees");
    scene.reply(&run, &turn);
    scene.server.close();
}

#[test]
fn codexs_call_of_a_front_ends_tool_stays_pending() {
    call_of_a_front_ends_tool_stays_pending(&CODEX, r#"[[call:ostler get_weather {"city": "Oslo"}]]"#);
}

#[test]
fn qwens_call_of_a_front_ends_tool_stays_pending() {
    call_of_a_front_ends_tool_stays_pending(&QWEN, r#"[[call:mcp__ostler__get_weather {"city": "Oslo"}]]"#);
}
