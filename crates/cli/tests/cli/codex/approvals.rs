//! Approvals of a real Codex, answered over the API.

use serde_json::{Value, json};

use crate::inn::{CODEX, Inn};

/// A command that needs an approval, and how somebody answers, if anybody is there. Answers the events and the result.
fn asked(approval: &str, option: Option<&str>) -> (Vec<Value>, Value) {
    let mut inn = Inn::open(&CODEX, "resident");
    let policy = json!({"sandbox": "workspace-write", "approval": approval});
    let (run, turn) = inn.submit_with("[[escalate:echo outside]]", policy, json!({}));
    if let Some(option) = option {
        inn.answer(&run, &turn, option);
    }
    let (result, events) = (inn.ended(&run, &turn), inn.events(&run));
    inn.close();
    (events, result)
}

fn last_tool(events: &[Value]) -> &Value {
    &events.iter().rfind(|event| event["type"] == "tool_call").unwrap()["payload"]
}

#[test]
fn what_is_allowed_runs() {
    let (events, result) = asked("on-request", Some("accept"));
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!((&last_tool(&events)["status"], &last_tool(&events)["exitCode"]), (&json!("completed"), &json!(0)));
}

#[test]
fn what_is_declined_does_not_run_and_the_turn_goes_on() {
    let (events, result) = asked("on-request", Some("decline"));
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(last_tool(&events)["status"], "declined");
}

#[test]
fn a_refusal_can_end_the_turn() {
    let (_, result) = asked("on-request", Some("cancel"));
    assert_eq!(
        (&result["status"], &result["failureKind"]),
        (&json!("blocked"), &json!("permission-denied")),
        "{result}"
    );
}

#[test]
fn a_headless_run_declines_and_says_so_in_the_log() {
    let (events, result) = asked("never", None);
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(last_tool(&events)["status"], "declined");
    assert!(events.iter().all(|event| event["type"] != "permission_request"));
    let declined = events.iter().find(|event| event["payload"]["phase"] == "approval:declined").expect("it is said");
    assert_eq!(declined["payload"]["toolCallId"], last_tool(&events)["toolCallId"]);
    assert_eq!(declined["payload"]["reason"], "the run's policy is never to ask");
}
