//! What only a coding agent has, with the real Qwen Code behind a real server: every tag of it answers with real content, under the
//! guard and in a sandbox. It starts slowly, so one test covers all.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::fixtures::{
    backend_server::{BackendServer, QWEN},
    test_home::Engine,
};

const TAGS: [&str; 9] = [
    "session_supported_commands",
    "session_lsp",
    "session_hooks",
    "session_approval_mode_control",
    "workspace_skills",
    "workspace_hooks",
    "workspace_extensions",
    "workspace_agents",
    "workspace_agent_generate",
];
/// Longer than the agent takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// Repeats a request while the agent starts, which may take longer than a request waits.
fn patiently(server: &mut BackendServer, method: &str, path: &str, body: &Value) -> Value {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match server.http.send(method, path, &[], &text) {
            Ok(answer) if answer.status == 503 && Instant::now() < deadline => {}
            Ok(answer) => return answer.good(),
            Err(_) if Instant::now() < deadline => {}
            Err(error) => panic!("{method} {path}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn operation(server: &mut BackendServer, method: &str, path: &str, body: &Value) -> Value {
    let accepted = patiently(server, method, path, body);
    let path = format!("/workspace/extensions/operations/{}", accepted["operationId"].as_str().unwrap());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let operation = server.http.get(&path).good();
        if !["queued", "running"].contains(&operation["status"].as_str().unwrap()) {
            return operation;
        }
        assert!(Instant::now() < deadline, "{operation}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn names<'a>(list: &'a Value, of: &str) -> Vec<&'a str> {
    list[of].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect()
}

#[test]
fn every_tag_that_only_a_coding_agent_has_answers_with_its_content() {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path().canonicalize().unwrap();
    let extension = path.join("demo");
    std::fs::create_dir_all(extension.join("commands")).unwrap();
    std::fs::write(extension.join("qwen-extension.json"), r#"{"name": "demo", "version": "1.2.3"}"#).unwrap();
    std::fs::write(extension.join("commands/hello.toml"), "prompt = \"say hello\"\n").unwrap();
    let settings = json!({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}});
    std::fs::create_dir(path.join(".qwen")).unwrap();
    std::fs::write(path.join(".qwen/settings.json"), settings.to_string()).unwrap();
    let more = [
        ("OSTLER_SERVER__WORKSPACE", path.to_str().unwrap()),
        ("OSTLER_DAEMON__PROFILE", "qwen"),
        // Every toggle.
        ("OSTLER_SERVER__REQUIRE_AUTH", "true"),
        ("OSTLER_SERVER__ALLOW_ORIGINS", "http://page.example"),
        ("OSTLER_DAEMON__PROMPT_DEADLINE_MS", "600000"),
        ("OSTLER_DAEMON__WRITER_IDLE_TIMEOUT_MS", "60000"),
        ("OSTLER_DAEMON__SESSION_SHELL", "true"),
        ("OSTLER_RATE_LIMIT__ON", "true"),
        ("OSTLER_DAEMON__RATE_READS_MAX", "1000000"),
        ("OSTLER_DAEMON__RATE_MUTATIONS_MAX", "1000000"),
    ];
    let mut server = BackendServer::open_on(Engine::Sqlite, &QWEN, "resident", &more);

    let features = server.http.get("/capabilities").good()["features"].clone();
    let of_protocol = |tag: &&Value| !tag.as_str().unwrap().starts_with("ostler_");
    assert_eq!(features.as_array().unwrap().iter().filter(of_protocol).count(), 67, "all tags: {features}");
    assert!(TAGS.iter().all(|tag| features.as_array().unwrap().contains(&json!(tag))), "{features}");
    let idle = server.http.get("/workspace/skills").good();
    assert_eq!((&idle["initialized"], &idle["skills"]), (&json!(false), &json!([])), "it was not started for this");

    let session = server.http.post("/session", &json!({})).good()["sessionId"].as_str().unwrap().to_owned();
    let of_session = |what: &str| format!("/session/{session}/{what}");
    let commands = patiently(&mut server, "GET", &of_session("supported-commands"), &Value::Null);
    assert!(names(&commands, "availableCommands").contains(&"init"), "{commands}");
    assert_eq!(commands["sessionId"], session.as_str());
    let lsp = server.http.get(&of_session("lsp")).good();
    assert_eq!((&lsp["enabled"], &lsp["workspaceCwd"]), (&json!(false), &json!(path)));
    let hooks = server.http.get(&of_session("hooks")).good();
    assert_eq!(hooks["disabled"], false, "{hooks}");

    let skills = server.http.get("/workspace/skills").good();
    assert!(skills["initialized"] == true && names(&skills, "skills").contains(&"review"), "{skills}");
    let hooks = server.http.get("/workspace/hooks").good();
    assert!(hooks["events"]["PreToolUse"]["description"].is_string(), "{hooks}");

    let install = json!({"source": extension, "consent": true});
    let done = operation(&mut server, "POST", "/workspace/extensions/install", &install);
    assert_eq!((&done["status"], &done["result"]["version"]), (&json!("succeeded"), &json!("1.2.3")), "{done}");
    let failed = operation(&mut server, "POST", "/workspace/extensions/zz/enable", &json!({"scope": "workspace"}));
    assert_eq!(failed["error"], "Extension with name zz does not exist.", "{failed}");
    let extensions = server.http.get("/workspace/extensions").good();
    assert_eq!(names(&extensions, "extensions"), ["demo"], "{extensions}");
    let commands = patiently(&mut server, "GET", &of_session("supported-commands"), &Value::Null);
    assert!(names(&commands, "availableCommands").contains(&"hello"), "the extension's command: {commands}");

    let agent = json!({"name": "tester", "scope": "workspace", "description": "Tests", "systemPrompt": "You test."});
    server.http.post("/workspace/agents", &agent).good();
    let agents = server.http.get("/workspace/agents").good();
    assert!(names(&agents, "agents").contains(&"tester"), "{agents}");
    let generate = json!({"description": "an agent that tests"});
    let generated = patiently(&mut server, "POST", "/workspace/agents/generate", &generate);
    assert_eq!(generated["systemPrompt"], "stand-in", "what the model wrote: {generated}");

    let done = operation(&mut server, "DELETE", "/workspace/extensions/demo", &Value::Null);
    assert_eq!(done["status"], "succeeded", "{done}");
    answers_beside_the_work_without_tools(&mut server, &session, &path);
    follows_the_mode(&mut server, &session);
    server.close();
}

/// A question to the agent's model offers no tools, and nothing that it calls is run.
fn answers_beside_the_work_without_tools(server: &mut BackendServer, session: &str, workspace: &Path) {
    let question = json!({"question": "[[run:echo leaked > leaked]]"});
    let reply = server.http.post(&format!("/session/{session}/btw"), &question).good();
    assert_eq!(reply["answer"], Value::Null, "the model called a tool and wrote nothing");
    let mut asked = server.provider.seen();
    asked.retain(|request| request.body.to_string().contains("leaked"));
    assert_eq!(asked.len(), 1, "the result of no tool was sent");
    assert!(asked[0].body.get("tools").is_none(), "{}", asked[0].body);
    assert!(!workspace.join("leaked").exists());
}

/// With the mode that never asks, a command runs without a permission request, and in the mode that plans it does not run.
fn follows_the_mode(server: &mut BackendServer, session: &str) {
    let set = server.http.post(&format!("/session/{session}/approval-mode"), &json!({"mode": "yolo"})).good();
    assert_eq!((&set["mode"], &set["previous"]), (&json!("yolo"), &json!("default")));
    let context = server.http.get(&format!("/session/{session}/context")).good();
    let options = context["state"]["configOptions"].as_array().unwrap();
    assert_eq!(
        (&options[0]["currentValue"], &options[1]["currentValue"]),
        (&json!("yolo"), &json!("qwen")),
        "{context}"
    );
    let prompt = json!({"prompt": [{"type": "text", "text": "[[run:echo done > made]]"}]});
    server.http.post(&format!("/session/{session}/prompt"), &prompt).good();
    let trace = format!("/api/v1/sessions/{session}/trace?limit=1000");
    let deadline = Instant::now() + PATIENCE;
    let events = loop {
        let events = server.http.get(&trace).good()["events"].as_array().unwrap().clone();
        if events.iter().any(|event| event["type"] == "terminal_status") {
            break events;
        }
        assert!(Instant::now() < deadline, "{events:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(events.iter().all(|event| event["type"] != "permission_request"), "it never asks: {events:?}");
    let ran = |event: &Value| event["type"] == "tool_call" && event["payload"]["status"] == "completed";
    assert!(events.iter().any(ran), "{events:?}");
    let commands = events.iter().find(|event| event["payload"]["notification"] == "commands-update");
    let commands = commands.unwrap_or_else(|| panic!("it lists its commands: {events:?}"));
    assert!(names(&commands["payload"]["data"], "availableCommands").contains(&"init"), "{commands}");
}
