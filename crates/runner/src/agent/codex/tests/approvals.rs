//! Approvals: Codex asks to leave its sandbox, and somebody answers.

use ostler_protocol::permissions::{PermissionRequest, PermissionStatus};
use serde_json::Value;

use super::{
    stage::{Played, Stage},
    *,
};
use crate::link::RunnerEnd;

/// Answers a request as the server would.
fn answer(end: &RunnerEnd, asked: &Value, status: PermissionStatus, option_id: Option<&str>) {
    let mut resolved = asked.clone();
    for (name, value) in [
        ("runId", json!("run_00000000000000000000000000000001")),
        ("commandId", json!("cmd_0198c0ffee000000000000000000000a")),
        ("deadline", json!("2030-01-01T00:00:00Z")),
        ("createdAt", json!("2026-01-01T00:00:00Z")),
        ("status", json!(status)),
        ("optionId", json!(option_id)),
        ("resolvedBy", json!("a test")),
        ("resolvedAt", Value::Null),
    ] {
        resolved[name] = value;
    }
    assert!(end.answer(serde_json::from_value::<PermissionRequest>(resolved).unwrap()));
}

async fn asked(status: PermissionStatus, option_id: Option<&str>) -> Played {
    let mut stage = Stage::new();
    stage.policy = json!({"sandbox": "workspace-write", "approval": "on-request"});
    let prompt = "[[escalate:echo outside]]";
    stage
        .play_with(prompt, |end, event_type, payload| {
            if event_type == "permission_request" {
                answer(end, payload, status, option_id);
            }
        })
        .await
}

#[tokio::test]
async fn an_approval_that_is_given_lets_the_command_run() {
    let played = asked(PermissionStatus::Allowed, Some("accept")).await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let [request] = played.all("permission_request")[..] else { panic!("{:#?}", played.events) };
    assert!(request["command"].as_str().unwrap().contains("echo outside"), "{request}");
    let [started, ended] = played.all("tool_call")[..] else { panic!("{:#?}", played.events) };
    assert_eq!(request["toolCallId"], started["toolCallId"]);
    assert_eq!((&ended["status"], &ended["exitCode"]), (&json!("completed"), &json!(0)));
}

#[tokio::test]
async fn an_approval_that_is_refused_lets_the_turn_go_on_without_the_command() {
    let played = asked(PermissionStatus::Denied, Some("decline")).await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert_eq!(played.all("tool_call").last().unwrap()["status"], "declined");
    assert!(played.all("command_output").is_empty());
}

#[tokio::test]
async fn a_refusal_can_end_the_turn_and_so_does_silence() {
    let refused = asked(PermissionStatus::Denied, Some("cancel")).await;
    assert_eq!(refused.failure_kind(), Some(FailureKind::PermissionDenied), "{:#?}", refused.events);
    let silent = asked(PermissionStatus::Cancelled, None).await;
    assert_eq!(silent.failure_kind(), Some(FailureKind::Cancelled), "{:#?}", silent.events);
    for played in [refused, silent] {
        assert_eq!(played.result.unwrap().status.as_str(), "blocked");
    }
}

#[tokio::test]
async fn a_run_that_never_asks_declines_and_says_so() {
    let mut stage = Stage::new();
    stage.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    // In the process that opened the thread, and in one that resumed it.
    for turn in ["first", "resumed"] {
        let played = stage.play("[[escalate:touch outside]]").await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{turn}: {:#?}", played.events);
        assert!(played.all("permission_request").is_empty(), "nobody is asked");
        let declined = stage::selected(&played.events, "backend_status", "phase", "approval:declined");
        let [declined] = declined[..] else { panic!("{turn}: {:#?}", played.events) };
        assert_eq!(declined["reason"], "the run's policy is never to ask");
        assert!(declined["command"].as_str().unwrap().contains("touch outside"), "{declined}");
        let ended = played.all("tool_call");
        let ended = ended.last().unwrap();
        assert_eq!((&ended["status"], &ended["toolCallId"]), (&json!("declined"), &declined["toolCallId"]));
        assert!(!stage.outfit.workspace.as_ref().unwrap().join("outside").exists());
        stage.take_over();
    }
}
