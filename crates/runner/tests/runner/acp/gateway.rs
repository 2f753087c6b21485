//! An agent that is given the server's tools.

use super::*;

const TOKEN: &str = "ost_tool_0123456789abcdef0123456789abcdef";

/// Lists the tools of the first server that the agent was given, as an agent does when its session is opened.
const LIST: &str = r#"
list() { python3 -c 'import json, urllib.request as web
server = json.load(open("opened"))["params"]["mcpServers"][0]
headers = {header["name"]: header["value"] for header in server["headers"]}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
print(web.urlopen(web.Request(server["url"], body, headers)).read().decode())' > listed; }
opens() { read -r l; reply 1 '{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"mcpCapabilities":{"http":true}}}'
    read -r l; say "$l" > opened; list; reply 2 '{"sessionId":"s1"}'; read -r l; }
"#;

fn given_tools(script: &str) -> Fixture {
    Fixture { tool_token: Some(TOKEN), ..Fixture::new(&format!("{LIST}{script}")) }
}

#[tokio::test]
async fn a_call_of_a_server_tool_is_allowed_and_not_recorded_by_the_runner() {
    let fixture = given_tools(
        r#"opens
        tell '{"sessionUpdate":"tool_call","toolCallId":"c","status":"pending","title":"Now","kind":"other","rawInput":{},"_meta":{"toolName":"mcp__ostler__time_now","provenance":"mcp","serverId":"ostler"}}'
        ask 90 session/request_permission '{"sessionId":"s1","toolCall":{"toolCallId":"c"},"options":[{"optionId":"always","name":"a","kind":"allow_always"},{"optionId":"once","name":"b","kind":"allow_once"}]}'
        read -r l; say "$l" > answer
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","_meta":{"provenance":"mcp","serverId":"ostler"}}'
        text 'Done.'; reply 3 '{"stopReason":"end_turn"}'; listen"#,
    );
    let command = fixture.turn().await;
    assert_eq!(end(&command), (TerminalStatus::Completed, None));
    assert!(fixture.file("listed").contains(r#""tools":[]"#), "{}", fixture.file("listed"));
    let answer: Value = serde_json::from_str(&fixture.file("answer")).unwrap();
    assert_eq!(answer["result"]["outcome"]["optionId"], "once", "although the run never asks: the toolkit decides");
    assert_eq!(of_type(&fixture.kernel, EventType::ToolCall), [] as [Value; 0], "the server records it");
    assert!(phases(&fixture.kernel, "approval:declined").is_empty());
    let opened = fixture.file("opened");
    assert!(opened.contains("http://127.0.0.1:") && opened.contains(TOKEN), "{opened}");
}

#[tokio::test]
async fn a_tool_that_only_has_a_similar_name_is_declined_and_recorded() {
    let fixture = given_tools(
        r#"opens
        tell '{"sessionUpdate":"tool_call","toolCallId":"c","status":"pending","title":"mcp__ostler__time_now","kind":"execute","rawInput":{"command":"ls"},"_meta":{"toolName":"run_shell_command"}}'
        ask 90 session/request_permission '{"sessionId":"s1","toolCall":{"toolCallId":"c","_meta":{"provenance":"mcp","serverId":"ostler"}},"options":[{"optionId":"once","name":"b","kind":"allow_once"},{"optionId":"no","name":"c","kind":"reject_once"}]}'
        read -r l; say "$l" > answer
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"failed"}'
        text 'Done.'; reply 3 '{"stopReason":"end_turn"}'; listen"#,
    );
    fixture.turn().await;
    let answer: Value = serde_json::from_str(&fixture.file("answer")).unwrap();
    assert_eq!(answer["result"]["outcome"]["optionId"], "no");
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    assert_eq!(calls.iter().map(|call| &call["status"]).collect::<Vec<_>>(), ["started", "declined"]);
}

#[tokio::test]
async fn an_agent_without_http_is_not_given_the_gateway() {
    let script = r#"hello; read -r l; say "$l" > opened; reply 2 '{"sessionId":"s1"}'
        read -r l; text 'Done.'; reply 3 '{"stopReason":"end_turn"}'; listen"#;
    let fixture = given_tools(script);
    assert_eq!(end(&fixture.turn().await), (TerminalStatus::Completed, None));
    let opened: Value = serde_json::from_str(&fixture.file("opened")).unwrap();
    assert_eq!(opened["params"]["mcpServers"], json!([]));
}
