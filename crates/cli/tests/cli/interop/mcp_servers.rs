//! The reference servers of the Model Context Protocol, unmodified: their tools are called by a model, and by `ostler tools call`.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixtures::{
    backend_server::{BackendServer, MODEL},
    process::{Guarded, eventually, stdout_of},
    test_home::Engine,
};

const SECRET: &str = "pl4nted-for-an-mcp-server-5d1e";

/// A server with the MCP servers `everything` and `files`. The latter may read and write in `shared`.
struct Scene {
    server: BackendServer,
    workspace: PathBuf,
    shared: PathBuf,
    _directory: TempDir,
}

/// A program that `cargo xtask test` installs; `eval "$(cargo xtask agents)"` for a single test.
fn installed(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: use `cargo xtask test`, which installs what it names"))
}

impl Scene {
    fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let workspace = directory.path().canonicalize().unwrap().join("work");
        let shared = workspace.join("shared");
        std::fs::create_dir_all(&shared).unwrap();
        std::fs::write(shared.join("hello.txt"), "hello from a file").unwrap();
        std::fs::write(workspace.join("private.txt"), "not for everyone").unwrap();
        std::os::unix::fs::symlink(workspace.join("private.txt"), shared.join("link.txt")).unwrap();
        let node = installed("OSTLER_TEST_NODE");
        let servers = json!({
            "everything": {"command": node, "args": [installed("OSTLER_TEST_MCP_EVERYTHING"), "stdio"],
                "env": {"NOTES": {"env": "NOTES_TOKEN"}}},
            "files": {"command": node, "args": [installed("OSTLER_TEST_MCP_FILESYSTEM"), shared]},
        })
        .to_string();
        let more = [
            ("OSTLER_SERVER__WORKSPACE", workspace.to_str().unwrap()),
            ("OSTLER_MCP__SERVERS", servers.as_str()),
            ("OSTLER_MCP__LIST_WAIT_MS", "20000"),
            ("NOTES_TOKEN", SECRET),
        ];
        let server = BackendServer::open_on(Engine::Sqlite, &MODEL, "resident", &more);
        Self { server, workspace, shared, _directory: directory }
    }

    /// The result that `ostler tools call` prints, or its message if the call fails.
    fn call(&self, name: &str, arguments: &Value) -> Result<String, String> {
        let args = ["tools", "call", name, "--arguments", &arguments.to_string()];
        let output = self.server.home.cli(Some(&self.server.server), &args);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// The model's reply, which has the results of the calls, and the recorded ends of the calls.
    fn ask_model(&mut self, calls: &str) -> (String, Vec<String>) {
        let place = json!({"workspaceRef": {"kind": "local", "path": self.workspace}});
        let (run, turn) = self.server.submit_with(&format!("[[call:{calls}]]"), json!({}), place);
        let result = self.server.ended(&run, &turn);
        assert_eq!(result["status"], "completed", "{result}");
        let events = self.server.events(&run);
        let calls = events.iter().filter(|event| event["type"] == "tool_call").map(|event| &event["payload"]);
        let mut ends: Vec<_> = calls.map(|call| call["status"].as_str().unwrap().to_owned()).collect();
        ends.retain(|status| status != "started");
        ends.sort_unstable();
        (result["reply"].as_str().unwrap().to_owned(), ends)
    }

    fn in_shared(&self, name: &str) -> String {
        self.shared.join(name).to_str().unwrap().to_owned()
    }

    fn close(self) {
        let (stored, log) = (self.server.home.everything_stored(), self.server.home.log());
        assert!(!stored.contains(SECRET) && !log.contains(SECRET), "the secret was stored or logged");
        self.server.close();
    }
}

#[test]
fn tools_of_the_reference_servers_are_listed_with_what_they_may_do() {
    let scene = Scene::open();
    let listed = stdout_of(scene.server.home.cli(Some(&scene.server.server), &["tools", "list", "-o", "json"]));
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let find = |name: &str| listed.iter().find(|tool| tool["name"] == name);
    let echo = find("mcp__everything__echo").unwrap();
    assert_eq!((&echo["source"], &echo["changes"]), (&json!("mcp:everything"), &json!(false)));
    assert_eq!(echo["parameters"]["properties"]["message"]["type"], "string");
    for (name, changes, is_idempotent) in
        [("read_text_file", false, true), ("write_file", true, true), ("move_file", true, false)]
    {
        let tool = find(&format!("mcp__files__{name}")).unwrap_or_else(|| panic!("{name} is not listed"));
        assert_eq!((&tool["changes"], &tool["idempotent"]), (&json!(changes), &json!(is_idempotent)), "{name}");
    }
    // The server offers it to clients that let servers use their model. Ours does not say that it does.
    assert!(find("mcp__everything__trigger-sampling-request").is_none());
    scene.close();
}

#[test]
fn the_operator_calls_tools_of_the_reference_servers() {
    let scene = Scene::open();
    let everything = |name: &str, arguments: Value| scene.call(&format!("mcp__everything__{name}"), &arguments);
    assert!(everything("echo", json!({"message": "hello"})).unwrap().contains("Echo: hello"));
    assert!(everything("get-sum", json!({"a": 2, "b": 40})).unwrap().contains("The sum of 2 and 40 is 42."));
    let slow = everything("trigger-long-running-operation", json!({"duration": 0.4, "steps": 4})).unwrap();
    assert!(slow.contains("Long running operation completed."), "{slow}");
    let image = everything("get-tiny-image", json!({})).unwrap();
    assert!(image.contains("[image image/png]") && !image.contains("iVBOR"), "{image}");
    let environment = everything("get-env", json!({})).unwrap();
    assert!(environment.contains("NOTES") && !environment.contains(SECRET), "{environment}");
    everything("echo", json!({"message": 7})).unwrap_err();
    everything("trigger-sampling-request", json!({"prompt": "hi"})).unwrap_err();

    let files = |name: &str, arguments: Value| scene.call(&format!("mcp__files__{name}"), &arguments);
    let read = files("read_text_file", json!({"path": scene.in_shared("hello.txt")})).unwrap();
    assert!(read.contains("hello from a file"), "{read}");
    for outside in [scene.workspace.join("private.txt"), scene.shared.join("link.txt"), "/etc/hostname".into()] {
        let refused = files("read_text_file", json!({"path": outside})).unwrap_err();
        assert!(refused.contains("Access denied"), "{}: {refused}", outside.display());
    }
    files("write_file", json!({"path": scene.in_shared("new.txt"), "content": "written"})).unwrap();
    assert_eq!(std::fs::read_to_string(scene.shared.join("new.txt")).unwrap(), "written");
    scene.close();
}

#[test]
fn a_model_calls_tools_of_the_reference_servers() {
    let mut scene = Scene::open();
    let (reply, ends) = scene.ask_model(
        r#"mcp__everything__echo {"message": "hello"}||mcp__everything__get-sum {"a": 2, "b": 40}||mcp__everything__get-tiny-image {}||mcp__everything__get-env {}"#,
    );
    for expected in ["Echo: hello", "The sum of 2 and 40 is 42.", "[image image/png]", "NOTES"] {
        assert!(reply.contains(expected), "{expected}: {reply}");
    }
    assert!(!reply.contains("iVBOR") && !reply.contains(SECRET), "{reply}");
    assert_eq!(ends, ["completed"; 4]);
    let path = scene.in_shared("hello.txt");
    let (reply, ends) = scene.ask_model(&format!(
        r#"mcp__files__read_text_file {{"path": "{path}"}}||mcp__files__read_text_file {{"path": "/etc/hostname"}}"#
    ));
    assert!(reply.contains("hello from a file") && reply.contains("error: Access denied"), "{reply}");
    assert_eq!(ends, ["completed", "failed"]);
    scene.close();
}

/// Runs before the reference server, which listens on all addresses and prints the port that it was given: it listens on loopback, and
/// the first line of its output is the port it got.
const LISTEN_ON_LOOPBACK: &str = "data:text/javascript,import net from 'node:net'; const listen = net.Server.prototype.listen; \
    net.Server.prototype.listen = function (port, ...more) { \
        this.once('listening', () => process.stdout.write('port ' + this.address().port + '\\n')); \
        return listen.call(this, port, '127.0.0.1', ...more.filter((one) => typeof one === 'function')); };";

/// The reference server `everything` over HTTP, where each client has a session. It is started again if its port is taken.
fn serve_everything(port: u16) -> (Guarded, u16) {
    eventually("it listens", || {
        let mut command = Command::new(installed("OSTLER_TEST_NODE"));
        command.args(["--import", LISTEN_ON_LOOPBACK, &installed("OSTLER_TEST_MCP_EVERYTHING"), "streamableHttp"]);
        command.env("PORT", port.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Guarded(command.spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| line.strip_prefix("port ")?.parse().ok())?;
        // Its output must be read, or it stops.
        std::thread::spawn(move || lines.for_each(drop));
        Some((process, port))
    })
}

#[test]
fn a_reference_server_over_http_is_used_again_after_it_was_restarted_and_has_forgotten_its_sessions() {
    let (process, port) = serve_everything(0);
    let directory = tempfile::tempdir().unwrap();
    let workspace = directory.path().canonicalize().unwrap();
    let servers = json!({"everything": {"url": format!("http://127.0.0.1:{port}/mcp")}}).to_string();
    let more = [
        ("OSTLER_SERVER__WORKSPACE", workspace.to_str().unwrap()),
        ("OSTLER_MCP__SERVERS", servers.as_str()),
        ("OSTLER_MCP__LIST_WAIT_MS", "20000"),
    ];
    let server = BackendServer::open_on(Engine::Sqlite, &MODEL, "resident", &more);
    let scene = Scene { server, shared: workspace.clone(), workspace, _directory: directory };
    let echo = || scene.call("mcp__everything__echo", &json!({"message": "hello"}));
    for _ in 0..2 {
        let echoed = echo().unwrap();
        assert!(echoed.contains("Echo: hello"), "{echoed}");
    }
    drop(process);
    let (process, _) = serve_everything(port);
    let echoed = eventually("it is connected to again", || echo().ok());
    assert!(echoed.contains("Echo: hello"), "{echoed}");
    scene.close();
    drop(process);
}
