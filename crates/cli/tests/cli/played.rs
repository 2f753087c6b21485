//! An ACP agent that is played by a shell, run by a real server.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::{
    home::Home,
    http::Http,
    process::{Server, eventually},
    runner::run_request,
};

/// Speaks just enough ACP for one turn: does its work, and answers the prompt with `$reply`.
const AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
read -r l; say '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{}}}'
read -r l; say '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}'
read -r l
reply=done
WORK
say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$reply"'"}}}}'
say '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}'
while read -r l; do :; done
"#;

/// The profile of an agent that does this work in its only turn.
pub fn set_profile(home: &Home, server: &Server, work: &str) {
    let script = home.path("agent.sh");
    std::fs::write(&script, AGENT.replace("WORK", work)).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o644)).unwrap();
    let config = format!("[ostler]\nagent = \"acp\"\ncommand = [\"/bin/sh\", \"{}\"]\n", script.display());
    let files = json!({"files": {"auth.json": "{\"OPENAI_API_KEY\": \"x-not-used\"}", "config.toml": config}});
    let path = "/api/v1/provider-profiles/played/credential";
    Http::new(server).send("PUT", path, &[], &files.to_string()).unwrap().good();
}

/// Runs one turn of it to its end. Returns the run's id and the result.
pub fn turn(home: &Home, server: &Server, sandbox: &str, more: &Value) -> (String, Value) {
    let secret = json!({"name": "agentrun-v01-provider-played", "keys": ["auth.json", "config.toml"]});
    let scope = json!({"providerCredentials": [{"profile": "played", "secretRef": secret}]});
    let mut body = run_request();
    body["backendProfile"] = "played".into();
    body["executionPolicy"] = json!({"sandbox": sandbox, "approval": "never", "secretScope": scope});
    body["command"] = json!({"type": "turn", "payload": {"prompt": "go on"}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut http = Http::new(server);
    let run = http.post("/api/v1/runs", &body).good()["runId"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/runs/{run}/result");
    let result = eventually("the turn ends", || {
        Some(http.get(&path).good()).filter(|result: &Value| !result["terminalStatus"].is_null())
    });
    assert!(!result["terminalStatus"].is_null(), "{}", home.log());
    (run, result)
}
