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
call() { python3 -c 'import json, sys, urllib.request as web
server = json.load(open("opened"))["params"]["mcpServers"][0]
headers = {header["name"]: header["value"] for header in server["headers"]}
for params in sys.argv[1:]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": json.loads(params)}
    reply = web.urlopen(web.Request(server["url"], json.dumps(body).encode(), headers)).read().decode()
    print(next(line[6:] for line in reply.splitlines() if line.startswith("data: ")))' "$@" >> called; }
opens() { read -r l; reply 1 '{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true}}}'
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

/// A turn whose front end has a tool of this name.
fn submit_with_tool(fixture: &Fixture, name: &str) -> CommandId {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tools = json!([{"name": name, "description": "Weather of a city", "parameters": parameters}]);
    let context = json!({"tools": tools, "state": {"count": 1}});
    fixture.kernel.submit(CommandType::Turn, json!({"prompt": "do it", "context": context}))
}

#[tokio::test]
async fn calls_of_the_front_ends_tools_count_for_the_budget() {
    let script = r#"opens
        call '{"name":"update_shared_state","arguments":{"patch":[]}}' '{"name":"get_weather","arguments":{"city":"Rome"}}'
        read -r l; reply 3 '{"stopReason":"cancelled"}'; listen"#;
    let fixture = Fixture::with(&format!("{LIST}{script}"), json!({"maxToolCalls": 1}));
    let fixture = Fixture { tool_token: Some(TOKEN), ..fixture };
    let command_id = submit_with_tool(&fixture, "get_weather");
    fixture.start().await.unwrap();
    let ended = end(&fixture.kernel.command(command_id));
    assert_eq!(ended, (TerminalStatus::Blocked, Some(FailureKind::BudgetExceeded)));
    let names: Vec<_> = of_type(&fixture.kernel, EventType::ToolCall).iter().map(|call| call["name"].clone()).collect();
    assert_eq!(names, ["update_shared_state", "update_shared_state"], "the second call is not made");
}

/// The results of the calls that the agent made: their texts, and whether they are errors.
fn results(fixture: &Fixture) -> Vec<(String, bool)> {
    let replies = fixture.file("called");
    let replies = replies.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let read = |reply: Value| {
        let result = &reply["result"];
        (result["content"][0]["text"].as_str().unwrap().to_owned(), result["isError"] == true)
    };
    replies.map(read).collect()
}

#[tokio::test]
async fn calls_of_the_front_ends_tools_end_the_turn_and_stay_pending() {
    let fixture = given_tools(
        r#"opens
        call '{"name":"get_weather","arguments":{"city":"Oslo"}}' '{"name":"get_weather","arguments":{"city":"Rome"}}'
        read -r l; say "$l" > cancelled
        reply 3 '{"stopReason":"cancelled"}'; listen"#,
    );
    let command_id = submit_with_tool(&fixture, "get_weather");
    fixture.start().await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)), (TerminalStatus::Completed, None));
    let listed = fixture.file("listed");
    assert!(listed.contains("get_weather") && listed.contains("update_shared_state"), "{listed}");
    let results = results(&fixture);
    assert!(
        results.iter().all(|(text, is_error)| text.contains("handed to the user's page") && !is_error),
        "{results:?}"
    );
    assert!(fixture.file("cancelled").contains("session/cancel"), "{}", fixture.file("cancelled"));
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    let shown: Vec<_> = calls.iter().map(|call| (&call["method"], &call["status"], &call["arguments"])).collect();
    let (method, status) = (json!("front-end"), json!("started"));
    let arguments = [json!(r#"{"city":"Oslo"}"#), json!(r#"{"city":"Rome"}"#)];
    assert_eq!(shown, [(&method, &status, &arguments[0]), (&method, &status, &arguments[1])]);
    assert_ne!(calls[0]["toolCallId"], calls[1]["toolCallId"]);
}

#[tokio::test]
async fn a_turn_with_pending_calls_is_not_stopped_while_a_tool_of_the_agent_runs() {
    let fixture = given_tools(
        r#"opens; exec 3<&0
        tell '{"sessionUpdate":"tool_call","toolCallId":"c","title":"Shell","kind":"execute","status":"in_progress","rawInput":{"command":"make"}}'
        call '{"name":"get_weather","arguments":{"city":"Oslo"}}'
        { read -r l; : >cancelled; } <&3 & waiting=$!
        sleep 0.8; [ ! -e cancelled ] || : >early
        tell '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}'
        wait $waiting; reply 3 '{"stopReason":"cancelled"}'; listen"#,
    );
    let command_id = submit_with_tool(&fixture, "get_weather");
    fixture.start().await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)), (TerminalStatus::Completed, None));
    let exists = |name: &str| fixture.workspace.path().join(name).exists();
    assert!(exists("cancelled") && !exists("early"), "the turn was stopped before its tool had ended");
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    let statuses: Vec<_> =
        calls.iter().filter(|call| call["method"] != "front-end").map(|call| &call["status"]).collect();
    assert_eq!(statuses, ["started", "completed"]);
}

#[tokio::test]
async fn a_turn_leaves_a_limited_number_of_calls_pending() {
    let fixture = given_tools(
        r#"opens; set --
        while [ $# -lt 34 ]; do set -- "$@" '{"name":"get_weather","arguments":{"city":"Oslo"}}'; done
        call "$@"; read -r l; reply 3 '{"stopReason":"cancelled"}'; listen"#,
    );
    let command_id = submit_with_tool(&fixture, "get_weather");
    fixture.start().await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)), (TerminalStatus::Completed, None));
    let errors: Vec<_> = results(&fixture).into_iter().filter(|(_, is_error)| *is_error).collect();
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|(text, _)| text.contains("at most 32 calls")), "{errors:?}");
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    assert_eq!(calls.iter().filter(|call| call["method"] == "front-end").count(), 32);
}

#[tokio::test]
async fn calls_that_do_not_fit_a_front_ends_tool_do_not_end_the_turn() {
    let fixture = given_tools(
        r#"opens
        call '{"name":"get_weather","arguments":{"city":7}}'
        call '{"name":"update_shared_state","arguments":{"patch":[{"op":"replace","path":"/count","value":2}]}}'
        call '{"name":"update_shared_state","arguments":{"patch":[{"op":"test","path":"/count","value":1}]}}'
        text 'Done.'; reply 3 '{"stopReason":"end_turn"}'; listen"#,
    );
    let command_id = submit_with_tool(&fixture, "get_weather");
    fixture.start().await.unwrap();
    assert_eq!(end(&fixture.kernel.command(command_id)), (TerminalStatus::Completed, None));
    let results = results(&fixture);
    let errors: Vec<_> = results.iter().map(|(_, is_error)| *is_error).collect();
    assert_eq!(errors, [true, false, true], "{results:?}");
    let calls = of_type(&fixture.kernel, EventType::ToolCall);
    let statuses: Vec<_> = calls.iter().map(|call| call["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["started", "failed", "started", "completed", "started", "failed"]);
    assert_eq!(of_type(&fixture.kernel, EventType::State).len(), 1);
    assert_eq!(messages(&fixture.kernel), [("Done.".to_owned(), true)]);
}

#[tokio::test]
async fn a_turn_with_other_tools_of_the_front_end_opens_the_session_again() {
    let mut fixture = given_tools(r#"opens; text 'Done.'; reply 3 '{"stopReason":"end_turn"}'; listen"#);
    // An agent that is not started again does not reply to a second prompt.
    fixture.retry_policy.unreachable_ms = 5_000;
    let (first, second) = (submit_with_tool(&fixture, "get_weather"), submit_with_tool(&fixture, "get_tides"));
    fixture.start().await.unwrap();
    for command_id in [first, second] {
        assert_eq!(end(&fixture.kernel.command(command_id)), (TerminalStatus::Completed, None));
    }
    assert_eq!(phases(&fixture.kernel, "session/load:completed").len(), 1, "the session is the same");
    let listed = fixture.file("listed");
    assert!(listed.contains("get_tides") && !listed.contains("get_weather"), "{listed}");
}
