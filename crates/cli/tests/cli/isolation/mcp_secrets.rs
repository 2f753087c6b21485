//! Secrets of MCP servers, given by reference and as they are: the servers, or the agents that connect to them, get them and repeat them
//! wherever they can, and they are found in no response, event, log, printed text, row or backup.

use std::path::Path;

use ostler_testkit::mcp_server::{HttpMcpServer, python, write_script};
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::Server,
    runner::run_request,
    shell_agent,
    test_home::{Engine, TestHome, both_engines},
};

/// Part of every planted secret, and of nothing else.
const MARK: &str = "pl4nted";
const VARIABLE: &str = "pl4nted-in-a-variable-71c2";
const FILE: &str = "pl4nted-in-a-file-71c2";
const HEADER: &str = "Bearer pl4nted-in-a-header-71c2";
const PLAIN: &str = "Bearer pl4nted-as-it-is-71c2";

/// Servers that repeat their secrets, one that requires its header, and one that gets a wrong header.
fn configure(home: &mut TestHome, web: &HttpMcpServer) -> String {
    let workspace = home.path("work");
    std::fs::create_dir(&workspace).unwrap();
    let workspace = workspace.canonicalize().unwrap().to_str().unwrap().to_owned();
    let (script, file) = (write_script(&home.path("")), home.path("mcp-token"));
    std::fs::write(&file, format!("{FILE}\n")).unwrap();
    let program = |behaviour: &str, secret: Value| json!({"command": python(), "args": [script, behaviour], "env": {"SECRET": secret}});
    let servers = json!({
        "leaks": program("leaks", json!({"env": "NOTES_TOKEN"})),
        "lying": program("lying", json!({"file": file})),
        "web": {"url": web.url, "headers": {"Authorization": {"env": "WEB_HEADER"}}},
        "shut": {"url": web.url, "headers": {"Authorization": PLAIN}},
    });
    for (name, value) in [
        ("OSTLER_LOG", "debug"),
        ("OSTLER_SERVER__WORKSPACE", workspace.as_str()),
        ("OSTLER_MCP__SERVERS", &servers.to_string()),
        ("OSTLER_MCP__LIST_WAIT_MS", "20000"),
        ("NOTES_TOKEN", VARIABLE),
        ("WEB_HEADER", HEADER),
        ("PATH", &std::env::var("PATH").unwrap()),
    ] {
        home.set(name, value);
    }
    workspace
}

/// A run in the workspace whose runner calls tools, also with the secrets among the arguments.
fn call_in_a_run(http: &mut Http, workspace: &str, seen: &mut Vec<(String, String)>) -> String {
    let mut body = run_request();
    body["workspaceRef"] = json!({"kind": "local", "path": workspace});
    body["command"] = json!({"type": "turn", "payload": {"prompt": "hi"}});
    let run = http.post("/api/v1/runs", &body).good();
    let (run_id, command) = (run["runId"].as_str().unwrap(), run["command"]["commandId"].as_str().unwrap());
    let path = format!("/api/v1/runs/{run_id}");
    let claimed = http.post(&format!("{path}/claim"), &json!({"runnerId": "runner-a", "leaseMs": 60_000})).good();
    let lease = json!({"runnerId": "runner-a", "leaseEpoch": claimed["leaseEpoch"]});
    http.post(&format!("/api/v1/commands/{command}/ack"), &lease).good();
    seen.push(("the tools of the run".into(), http.get(&format!("{path}/tools")).body));
    let repeated = json!({"text": [VARIABLE, FILE, HEADER]}).to_string();
    for (number, (name, arguments)) in
        [("mcp__leaks__tell", "{}"), ("mcp__lying__leak", "{}"), ("mcp__web__echo", repeated.as_str())]
            .into_iter()
            .enumerate()
    {
        let call = json!({"runnerId": "runner-a", "leaseEpoch": claimed["leaseEpoch"], "commandId": command,
            "callId": format!("call_{number}"), "name": name, "arguments": arguments, "waitMs": 20_000});
        let called = http.post(&format!("{path}/tools/calls"), &call);
        assert_eq!(called.good()["status"], "completed", "{name}: {called:?}");
        seen.push((name.into(), called.body));
    }
    for rest in ["", "/events?limit=1000", "/result", "/commands"] {
        seen.push((format!("run{rest}"), http.get(&format!("{path}{rest}")).body));
    }
    run_id.to_owned()
}

#[both_engines]
fn secrets_of_mcp_servers_are_found_nowhere(engine: Engine) {
    let mut home = TestHome::on_disk(engine).without_runner();
    let web = HttpMcpServer::start(&home.path(""), Some(HEADER));
    let workspace = configure(&mut home, &web);
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut seen = vec![("the tools".to_owned(), http.get("/api/v1/tools").body)];
    let run = call_in_a_run(&mut http, &workspace, &mut seen);
    for path in [
        "/workspace/mcp",
        "/workspace/mcp/leaks/tools",
        "/workspace/mcp/lying/tools",
        "/workspace/mcp/web/tools",
        "/workspace/mcp/shut/tools",
        "/health/readiness",
        "/metrics",
    ] {
        seen.push((path.to_owned(), http.get(path).body));
    }
    let own: [&[&str]; 3] = [
        &["tools", "list", "-o", "json"],
        &["tools", "call", "mcp__leaks__tell"],
        &["tools", "call", "mcp__shut__echo"],
    ];
    use_the_command_line(&home, &server, &run, &own, &mut seen);
    assert_found_nowhere(&home, server, &mut seen);
    let holding = |word: &str| seen.iter().filter(|(_, text)| text.contains(word)).count();
    assert!(
        holding("my secret is [redacted]") > 1 && holding("my token is [redacted]") > 1,
        "the servers repeated them"
    );
    home.assert_verified();
}

/// Keeps what commands print, and a backup.
fn use_the_command_line(
    home: &TestHome,
    server: &Server,
    run: &str,
    own: &[&[&str]],
    seen: &mut Vec<(String, String)>,
) {
    let common: [&[&str]; 3] = [&["config", "show", "-o", "json"], &["trace", run], &["trace", run, "-o", "jsonl"]];
    for args in own.iter().chain(&common) {
        let output = home.cli(Some(server), args);
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!printed.is_empty(), "{args:?}");
        seen.push((format!("ostler {}", args[..2].join(" ")), printed));
    }
    let backup = home.path("backup");
    let output = home.cli(None, &["backup", backup.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let written = std::fs::read(&backup).unwrap();
    seen.push(("the backup".into(), String::from_utf8_lossy(&written).into_owned()));
}

/// Stops the server, and searches what was seen, the store, the log and the data directory.
fn assert_found_nowhere(home: &TestHome, server: Server, seen: &mut Vec<(String, String)>) {
    server.stop();
    seen.push(("the store".into(), home.everything_stored()));
    seen.push(("the log".into(), home.log()));
    read_files(&home.data_dir, seen);
    for (place, text) in seen {
        let found = text.to_ascii_lowercase().contains(MARK);
        assert!(!found, "a secret is in {place}: {text}");
    }
}

/// Reads every file of a directory.
fn read_files(directory: &Path, seen: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_files(&path, seen);
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            seen.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
}

/// An ACP agent that repeats in its reply, in its calls and on its standard error what it gets when its session is opened.
const REPEATING_AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
update() { say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":'"$1"'}}'; }
read -r l; say '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"mcpCapabilities":{"http":true}}}}'
read -r l; opened=$(printf %s "$l" | tr '"\\' "''")
say '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}'
read -r l
printf '%s\n' "$opened" >&2
update '{"sessionUpdate":"tool_call","toolCallId":"c1","title":"'"$opened"'","kind":"execute","status":"in_progress","rawInput":{"command":"'"$opened"'"}}'
update '{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"'"$opened"'"}}]}'
update '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"I got '"$opened"'"}}'
say '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}'
while read -r l; do :; done
"#;

/// Servers that agents connect to themselves, with their secrets in every form.
fn configure_direct(home: &mut TestHome) -> String {
    let workspace = home.path("work");
    std::fs::create_dir(&workspace).unwrap();
    let workspace = workspace.canonicalize().unwrap().to_str().unwrap().to_owned();
    let file = home.path("mcp-token");
    std::fs::write(&file, format!("{FILE}\n")).unwrap();
    let direct = |mut server: Value| {
        server["expose"] = json!("direct");
        server
    };
    let servers = json!({
        "program": direct(json!({"command": "/bin/sh", "env":
            {"FIRST": {"env": "NOTES_TOKEN"}, "SECOND": {"file": file}, "THIRD": PLAIN}})),
        "web": direct(json!({"url": "http://127.0.0.1:9/mcp", "headers":
            {"Authorization": {"env": "WEB_HEADER"}, "X-First": {"file": file}, "X-Second": PLAIN}})),
    });
    for (name, value) in [
        ("OSTLER_LOG", "debug"),
        ("OSTLER_RUNNER__LAUNCHER", "process"),
        ("OSTLER_SERVER__DRAIN_MS", "100"),
        ("OSTLER_SERVER__WORKSPACE", workspace.as_str()),
        ("OSTLER_MCP__SERVERS", &servers.to_string()),
        ("NOTES_TOKEN", VARIABLE),
        ("WEB_HEADER", HEADER),
        ("PATH", &std::env::var("PATH").unwrap()),
    ] {
        home.set(name, value);
    }
    workspace
}

#[both_engines]
fn secrets_of_servers_that_agents_connect_to_themselves_are_found_nowhere(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    let workspace = configure_direct(&mut home);
    let server = home.serve();
    let script = home.path("agent.sh");
    std::fs::write(&script, REPEATING_AGENT).unwrap();
    shell_agent::set_profile_command(&server, &["/bin/sh", script.to_str().unwrap()]);
    let place = json!({"workspaceRef": {"kind": "local", "path": workspace}});
    let (run, result) = shell_agent::turn(&home, &server, "workspace-write", &place);
    let reply = result["reply"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
    let plain = reply.replace('\'', "");
    for name in ["FIRST", "SECOND", "X-First"] {
        assert!(plain.contains(&format!("name:{name},value:[redacted]")), "the agent got {name}: {reply}");
    }
    assert!(plain.contains("name:THIRD") && plain.contains("name:X-Second"), "{reply}");
    let mut http = Http::new(&server);
    let mut seen = vec![("the result".to_owned(), result.to_string())];
    let run_path = format!("/api/v1/runs/{run}");
    for rest in ["", "/events?limit=1000", "/commands", "/runner-jobs"] {
        seen.push((format!("run{rest}"), http.get(&format!("{run_path}{rest}")).body));
    }
    for path in ["/workspace/mcp", "/api/v1/tools", "/health/readiness", "/metrics"] {
        seen.push((path.to_owned(), http.get(path).body));
    }
    let jobs = http.get(&format!("{run_path}/runner-jobs")).good();
    let job = jobs["runnerJobs"][0]["runnerJobId"].as_str().unwrap();
    use_the_command_line(&home, &server, &run, &[&["jobs", "log", &run, job]], &mut seen);
    assert_found_nowhere(&home, server, &mut seen);
    home.assert_verified();
}
