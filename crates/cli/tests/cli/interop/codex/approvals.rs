//! Approvals of a real Codex, answered over the API.

use serde_json::{Value, json};

use crate::fixtures::backend_server::{BackendServer, CODEX};

/// Runs a command that needs an approval, and answers with this option, if any. Returns the events and the result.
fn run_with_approval(approval: &str, option: Option<&str>) -> (Vec<Value>, Value) {
    let mut server = BackendServer::open(&CODEX, "resident");
    let policy = json!({"sandbox": "workspace-write", "approval": approval});
    let (run, turn) = server.submit_with("[[escalate:echo outside]]", policy, json!({}));
    if let Some(option) = option {
        server.answer(&run, &turn, option);
    }
    let (result, events) = (server.ended(&run, &turn), server.events(&run));
    server.close();
    (events, result)
}

fn last_tool(events: &[Value]) -> &Value {
    &events.iter().rfind(|event| event["type"] == "tool_call").unwrap()["payload"]
}

#[test]
fn an_allowed_command_runs() {
    let (events, result) = run_with_approval("on-request", Some("accept"));
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!((&last_tool(&events)["status"], &last_tool(&events)["exitCode"]), (&json!("completed"), &json!(0)));
}

#[test]
fn a_declined_command_does_not_run_and_the_turn_continues() {
    let (events, result) = run_with_approval("on-request", Some("decline"));
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(last_tool(&events)["status"], "declined");
}

#[test]
fn a_refusal_can_end_the_turn() {
    let (_, result) = run_with_approval("on-request", Some("cancel"));
    assert_eq!(
        (&result["status"], &result["failureKind"]),
        (&json!("blocked"), &json!("permission-denied")),
        "{result}"
    );
}

#[test]
fn a_headless_run_declines_and_records_it() {
    let (events, result) = run_with_approval("never", None);
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(last_tool(&events)["status"], "declined");
    assert!(events.iter().all(|event| event["type"] != "permission_request"));
    let declined =
        events.iter().find(|event| event["payload"]["phase"] == "approval:declined").expect("the decline is recorded");
    assert_eq!(declined["payload"]["toolCallId"], last_tool(&events)["toolCallId"]);
    assert_eq!(declined["payload"]["reason"], "the run's policy is never to ask");
}
