//! Secrets of MCP servers, given by reference and as they are: the servers get them and repeat them wherever they can, and they are
//! found in no response, event, log, printed text, row or backup.

use ostler_testkit::mcp_server::{HttpMcpServer, python, write_script};
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    runner::run_request,
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
    let backup = home.path("backup");
    let commands: [&[&str]; 6] = [
        &["tools", "list", "-o", "json"],
        &["tools", "call", "mcp__leaks__tell"],
        &["tools", "call", "mcp__shut__echo"],
        &["config", "show", "-o", "json"],
        &["trace", &run],
        &["trace", &run, "-o", "jsonl"],
    ];
    for args in commands {
        let output = home.cli(Some(&server), args);
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!printed.is_empty(), "{args:?}");
        seen.push((format!("ostler {}", args[..2].join(" ")), printed));
    }
    let output = home.cli(None, &["backup", backup.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let written = std::fs::read(&backup).unwrap();
    seen.push(("the backup".into(), String::from_utf8_lossy(&written).into_owned()));
    server.stop();
    seen.push(("the store".into(), home.everything_stored()));
    seen.push(("the log".into(), home.log()));
    for (place, text) in &seen {
        let found = text.to_ascii_lowercase().contains(MARK);
        assert!(!found, "a secret is in {place}: {text}");
    }
    let holding = |word: &str| seen.iter().filter(|(_, text)| text.contains(word)).count();
    assert!(
        holding("my secret is [redacted]") > 1 && holding("my token is [redacted]") > 1,
        "the servers repeated them"
    );
    home.assert_verified();
}
