//! A front end's tools, called by an agent that is a program: it reaches them through the gateway of its runner.

use ostler_run_input::config::RunInputSection;
use ostler_testkit::mcp_server::python;
use serde_json::{Value, json};

use super::{
    RUNS,
    front_end::{answer, pending, result, with_tools},
    kinds, words,
};
use crate::harness::{Engine, TestServer, both_engines};

/// An ACP agent that calls the front end's tool, and replies once it has the result.
const AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
read -r l; say '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true}}}}'
read -r l; say "$l" > PLACE/opened
PYTHON PLACE/send.py PLACE tools/list '{}' >> PLACE/listed
say '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}'
read -r l; say "$l" >> PLACE/prompts
case "$l" in
*"Result of the tool"*)
  say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"It is cold."}}}}'
  say '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}' ;;
*)
  PYTHON PLACE/send.py PLACE tools/call '{"name":"get_weather","arguments":{"city":"Oslo"}}' > PLACE/called
  read -r l
  say '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"cancelled"}}' ;;
esac
while read -r l; do :; done
"#;

/// Sends a request to the first MCP server that the agent was given, and prints the reply.
const SEND: &str = r#"
import json, sys, urllib.request as web
place, method, params = sys.argv[1:]
server = json.load(open(place + "/opened"))["params"]["mcpServers"][0]
headers = {header["name"]: header["value"] for header in server["headers"]}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": json.loads(params)}).encode()
reply = web.urlopen(web.Request(server["url"], body, headers)).read().decode()
print(next((line[6:] for line in reply.splitlines() if line.startswith("data: ")), reply))
"#;

#[both_engines]
async fn a_program_calls_a_tool_of_the_front_end_and_gets_the_result_in_the_next_run(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.change(|section: &mut RunInputSection| section.backend_profile = "played".into());
    })
    .await;
    let place = server.config.server.data_dir.as_ref().unwrap().with_file_name("agent");
    std::fs::create_dir(&place).unwrap();
    let script = AGENT.replace("PLACE", place.to_str().unwrap()).replace("PYTHON", &python());
    std::fs::write(place.join("agent.sh"), script).unwrap();
    std::fs::write(place.join("send.py"), SEND).unwrap();
    let config = format!("[ostler]\nagent = \"acp\"\ncommand = [\"/bin/sh\", \"{}/agent.sh\"]\n", place.display());
    let files = json!({"files": {"auth.json": "{\"OPENAI_API_KEY\": \"x-not-used\"}", "config.toml": config}});
    let path = "/api/v1/provider-profiles/played/credential";
    let put = server.with_body(server.request("PUT", path), path, &files);
    assert!((200..300).contains(&server.send(put).await.status));

    server.post(RUNS, &with_tools("run-1", "How is the weather?")).await.with_status(202);
    let first = server.received("run-1").await;
    let calls = pending(&first);
    assert_eq!(calls.len(), 1, "{first:?}");
    let all = kinds(&first);
    assert!(all.ends_with(&["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]), "{all:?}");
    let read = |name: &str| std::fs::read_to_string(place.join(name)).unwrap_or_default();
    let listed: Value = serde_json::from_str(read("listed").lines().next().unwrap()).unwrap();
    let names: Vec<_> = listed["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert!(names.contains(&json!("get_weather")) && names.contains(&json!("time_now")), "{names:?}");
    assert!(read("called").contains("handed to the user's page"), "{}", read("called"));

    server.post(RUNS, &answer("run-2", vec![result(&calls[0], "-3 C")])).await.with_status(202);
    let second = server.received("run-2").await;
    assert_eq!((words(&second).as_str(), pending(&second)), ("It is cold.", vec![]));
    assert!(read("prompts").contains("[Result of the tool get_weather] -3 C"), "{}", read("prompts"));
}
