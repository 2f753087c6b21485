//! Approvals of a real Codex, answered over the API.

use serde_json::{Value, json};

use crate::inn::{CODEX, Inn};

/// A command that needs an approval, and how somebody answers. Answers the events and the result.
fn asked(option: &str) -> (Vec<Value>, Value) {
    let mut inn = Inn::open(&CODEX, "resident");
    let policy = json!({"sandbox": "workspace-write", "approval": "on-request"});
    let (run, turn) = inn.submit_with("[[escalate:echo outside]]", policy, json!({}));
    inn.answer(&run, &turn, option);
    let (result, events) = (inn.ended(&run, &turn), inn.events(&run));
    inn.close();
    (events, result)
}

fn last_tool(events: &[Value]) -> &Value {
    &events.iter().rfind(|event| event["type"] == "tool_call").unwrap()["payload"]
}

#[test]
fn what_is_allowed_runs() {
    let (events, result) = asked("accept");
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!((&last_tool(&events)["status"], &last_tool(&events)["exitCode"]), (&json!("completed"), &json!(0)));
}

#[test]
fn what_is_declined_does_not_run_and_the_turn_goes_on() {
    let (events, result) = asked("decline");
    assert_eq!(result["status"], "completed", "{result}");
    assert_eq!(last_tool(&events)["status"], "declined");
}

#[test]
fn a_refusal_can_end_the_turn() {
    let (_, result) = asked("cancel");
    assert_eq!(
        (&result["status"], &result["failureKind"]),
        (&json!("blocked"), &json!("permission-denied")),
        "{result}"
    );
}
