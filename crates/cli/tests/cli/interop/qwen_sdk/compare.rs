//! The published daemon beside ours: the same calls of the published SDK to both, and the same shapes of their responses and
//! frames. The calls are in `calls.mjs`, the differences that are intended in `differences.mjs`.
//!
//! The published daemon is started once, with a stand-in for its model. It can reach nothing but loopback. Two servers of ours are
//! compared with it: one with the scripted backend, and one with the published daemon's own agent.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use ostler_stand_ins::{Endpoint, chat};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::installed;
use crate::fixtures::{
    backend_server::{BackendServer, QWEN},
    process::PATIENCE,
    test_home::{Engine, TestHome},
};

const TOKEN: &str = "token-of-the-published-daemon";

/// A `qwen serve` that is ready. It and the agent that it starts are killed when this is dropped.
pub(super) struct PublishedDaemon {
    process: Child,
    pub(super) url: String,
    _model: Endpoint,
}

impl PublishedDaemon {
    /// Starts it in `directory`, bound to the workspace in it.
    pub(super) fn start(directory: &Path, workspace: &Path) -> Self {
        let model = chat();
        let auth = json!({"selectedType": "openai", "apiKey": "key", "baseUrl": model.base_url()});
        let settings = json!({"security": {"auth": auth}, "model": {"name": "stand-in"}, "tools": {"approvalMode": "default"},
            "privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false},
            "memory": {"enableManagedAutoMemory": false}});
        std::fs::create_dir_all(directory.join(".qwen")).unwrap();
        std::fs::write(directory.join(".qwen/settings.json"), settings.to_string()).unwrap();
        let mut command = Command::new(installed("OSTLER_TEST_NODE"));
        command.arg(installed("OSTLER_TEST_QWEN")).args(["serve", "--port", "0", "--no-web", "--enable-session-shell"]);
        command.arg("--workspace").arg(workspace).current_dir(workspace).env_clear();
        command.env("HOME", directory).env("PATH", std::env::var_os("PATH").unwrap()).env("QWEN_SERVER_TOKEN", TOKEN);
        // Nothing listens there: whatever is not on loopback cannot be reached.
        command.env("HTTPS_PROXY", "http://127.0.0.1:9").env("NO_PROXY", "127.0.0.1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(directory.join("qwen.log")).unwrap());
        let mut process = command.process_group(0).spawn().unwrap();
        let stdout = process.stdout.take().unwrap();
        let mut daemon = Self { process, url: String::new(), _model: model };
        let (found, url) = mpsc::channel();
        thread::spawn(move || {
            // It must be able to write more lines, so that they are read to the end.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("listening on ") {
                    let _ = found.send(rest.split(' ').next().unwrap_or_default().to_owned());
                }
            }
        });
        let failed = |_| panic!("it is not ready: {}", std::fs::read_to_string(directory.join("qwen.log")).unwrap());
        daemon.url = url.recv_timeout(PATIENCE).unwrap_or_else(failed);
        daemon
    }
}

impl Drop for PublishedDaemon {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

fn script(steps: Value) -> String {
    json!({"script": steps}).to_string()
}

/// A directory of the home, which is made.
fn directory(home: &TestHome, name: &str) -> PathBuf {
    std::fs::create_dir(home.path(name)).unwrap();
    home.path(name).canonicalize().unwrap()
}

mod qwen {
    #[test]
    fn our_responses_and_frames_have_the_shapes_of_the_published_daemons() {
        super::compare();
    }
}

fn compare() {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let workspace = directory(&home, "workspace");
    home.flags = vec!["--workspace".into(), workspace.display().to_string()];
    let (their_home, their_workspace) = (directory(&home, "qwen"), directory(&home, "their-workspace"));
    let theirs = PublishedDaemon::start(&their_home, &their_workspace);
    let server = home.serve();
    let agent_workspace = directory(&home, "agent-workspace");
    let variables = [
        ("OSTLER_SERVER__WORKSPACE", agent_workspace.to_str().unwrap()),
        ("OSTLER_DAEMON__PROFILE", QWEN.profile),
        ("OSTLER_DAEMON__SESSION_SHELL", "true"),
        ("OSTLER_AGENTS__PROVIDER_UNREACHABLE_MS", "60000"),
    ];
    let agent = BackendServer::open_on(Engine::Sqlite, &QWEN, "resident", &variables);
    let tool = json!({"name": "run_shell_command", "command": "touch made", "output": "made"});
    let our_prompts = json!({"hello": "hello",
        "ask": script(json!([{"ask": {"title": "touch made", "command": "touch made"}}, {"tool": tool}, {"say": "Done."}])),
        "hold": script(json!([{"say": "Working"}, {"wait": 60_000}])), "slow": script(json!([{"wait": 300}, {"say": "late"}]))});
    let their_prompts =
        json!({"hello": "hello", "ask": "[[run:touch made]]", "hold": "[[hold]]", "slow": "[[slow:6]]"});
    let request = json!({"sdk": installed("OSTLER_TEST_QWEN_SDK"),
        "ours": [{"backend": "scripted", "url": server.url(), "token": server.token, "workspace": workspace, "prompts": our_prompts},
            {"backend": "qwen", "url": agent.server.url(), "token": agent.server.token, "workspace": agent_workspace,
            "prompts": their_prompts}],
        "theirs": {"url": theirs.url, "token": TOKEN, "workspace": their_workspace, "prompts": their_prompts}});
    let mut node = Command::new(installed("OSTLER_TEST_NODE"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/interop/qwen_sdk/compare.mjs");
    // In a file: arguments of a process are visible to others.
    let file = home.path("request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    node.env_clear().arg(script).arg(file);
    let compared = node.stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8_lossy(&compared.stderr);
    assert!(compared.status.success(), "{words}\n{}\n{}", home.log(), agent.home.log());
    let result: Value = serde_json::from_slice(&compared.stdout).unwrap();
    assert!(result["compared"].as_u64().unwrap() > 250, "{result}");
    assert_eq!(result["skipped"], json!([]));
    server.stop();
    agent.close();
}
