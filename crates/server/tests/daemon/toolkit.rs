//! The toolkit, as an ACP agent of a daemon session reaches it.

use ostler_protocol::mcp::config::McpExposure;
use ostler_testkit::mcp_server::python;
use serde_json::{Value, json};

use super::{configure, scene::attached};
use crate::{
    harness::{Engine, TestServer, both_engines},
    mcp::configure_servers,
};

/// An ACP agent that lists the server's tools when its session is opened, and calls one of them for each prompt.
const AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
read -r l; say '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"mcpCapabilities":{"http":true}}}}'
read -r l; say "$l" > PLACE/opened
PYTHON PLACE/send.py PLACE tools/list '{}' > PLACE/listed
say '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}'
n=2
while read -r l; do
  n=$((n + 1))
  PYTHON PLACE/send.py PLACE tools/call '{"name":"time_now","arguments":{"timezone":"Asia/Tokyo"}}' > PLACE/called
  say '{"jsonrpc":"2.0","id":'$n',"result":{"stopReason":"end_turn"}}'
done
"#;

/// Sends a request to the server `ostler` of those that the agent was given, and prints the reply.
const SEND: &str = r#"
import json, sys, urllib.request as web
place, method, params = sys.argv[1:]
servers = json.load(open(place + "/opened"))["params"]["mcpServers"]
server = next(server for server in servers if server["name"] == "ostler")
headers = {header["name"]: header["value"] for header in server["headers"]}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": json.loads(params)}).encode()
reply = web.urlopen(web.Request(server["url"], body, headers)).read().decode()
print(next((line[6:] for line in reply.splitlines() if line.startswith("data: ")), reply))
"#;

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect()
}

#[both_engines]
async fn an_acp_agent_calls_the_toolkit_and_gets_only_direct_servers_itself(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        workspace = Some(setup.bind_workspace());
        configure(setup, |section| section.profile = "played".into());
        configure_servers(setup, &[("direct", "good"), ("good", "good")]);
        setup.config.mcp.servers.get_mut("direct").unwrap().expose = McpExposure::Direct;
    })
    .await;
    let place = workspace.unwrap().with_file_name("agent");
    std::fs::create_dir(&place).unwrap();
    let script = AGENT.replace("PLACE", place.to_str().unwrap()).replace("PYTHON", &python());
    std::fs::write(place.join("agent.sh"), script).unwrap();
    std::fs::write(place.join("send.py"), SEND).unwrap();
    let config = format!("[ostler]\nagent = \"acp\"\ncommand = [\"/bin/sh\", \"{}/agent.sh\"]\n", place.display());
    let files = json!({"files": {"auth.json": "{\"OPENAI_API_KEY\": \"x-not-used\"}", "config.toml": config}});
    let path = "/api/v1/provider-profiles/played/credential";
    let put = server.with_body(server.request("PUT", path), path, &files);
    assert!((200..300).contains(&server.send(put).await.status));

    let session = attached(&server).await;
    session.prompt_to_end("what time is it").await;
    let read = |name: &str| -> Value {
        let text = std::fs::read_to_string(place.join(name)).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    };
    assert_eq!(names(&read("opened")["params"]["mcpServers"]), ["direct", "ostler"]);
    let offered = ["calendar_read", "calendar_write", "mcp__good__echo", "mcp__good__env", "time_now"];
    assert_eq!(names(&read("listed")["result"]["tools"]), offered);
    let called = read("called");
    let result = called["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{called}"));
    assert!(result.contains("Asia/Tokyo"), "{result}");
    let events = server.logged(&session.id).await;
    let calls: Vec<_> =
        events.iter().filter(|event| event["type"] == "tool_call").map(|event| &event["payload"]).collect();
    let statuses: Vec<_> = calls.iter().map(|call| (&call["status"], &call["type"])).collect();
    let toolkit = json!("toolkit");
    assert_eq!(statuses, [(&json!("started"), &toolkit), (&json!("completed"), &toolkit)], "{calls:?}");
    assert_eq!((&calls[1]["name"], &calls[1]["result"]), (&json!("time_now"), &json!(result)));
    let token = read("opened")["params"]["mcpServers"][1]["headers"][0]["value"].as_str().unwrap().to_owned();
    let token = token.strip_prefix("Bearer ").unwrap();
    assert!(token.starts_with("ost_tool_") && !Value::from(events).to_string().contains(token));
}
