//! Approvals: Codex asks to leave its sandbox, and the request is decided.

use ostler_protocol::kernel::permissions::{PermissionRequest, PermissionStatus};
use serde_json::Value;

use super::{
    fixture::{CodexFixture, PlayedTurn},
    *,
};
use crate::turn_sink::RunnerSide;

/// Resolves a request as the server does.
fn resolve(side: &RunnerSide, request: &Value, status: PermissionStatus, option_id: Option<&str>) {
    let mut resolved = request.clone();
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
    assert!(side.resolve_permission(serde_json::from_value::<PermissionRequest>(resolved).unwrap()));
}

async fn play_decided(status: PermissionStatus, option_id: Option<&str>) -> PlayedTurn {
    let mut fixture = CodexFixture::new();
    fixture.policy = json!({"sandbox": "workspace-write", "approval": "on-request"});
    let prompt = "[[escalate:echo outside]]";
    fixture
        .play_with(prompt, |side, event_type, payload| {
            if event_type == "permission_request" {
                resolve(side, payload, status, option_id);
            }
        })
        .await
}

#[tokio::test]
async fn an_accepted_approval_lets_the_command_run() {
    let played = play_decided(PermissionStatus::Allowed, Some("accept")).await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    let [request] = played.all("permission_request")[..] else { panic!("{:#?}", played.events) };
    assert!(request["command"].as_str().unwrap().contains("echo outside"), "{request}");
    let [started, ended] = played.all("tool_call")[..] else { panic!("{:#?}", played.events) };
    assert_eq!(request["toolCallId"], started["toolCallId"]);
    assert_eq!((&ended["status"], &ended["exitCode"]), (&json!("completed"), &json!(0)));
}

#[tokio::test]
async fn a_declined_approval_continues_the_turn_without_the_command() {
    let played = play_decided(PermissionStatus::Denied, Some("decline")).await;
    assert_eq!(played.result, Ok(TurnEnd::completed()), "{:#?}", played.events);
    assert_eq!(played.all("tool_call").last().unwrap()["status"], "declined");
    assert!(played.all("command_output").is_empty());
}

#[tokio::test]
async fn a_denial_can_end_the_turn_and_an_expired_request_does() {
    let denied = play_decided(PermissionStatus::Denied, Some("cancel")).await;
    assert_eq!(denied.failure_kind(), Some(FailureKind::PermissionDenied), "{:#?}", denied.events);
    let expired = play_decided(PermissionStatus::Cancelled, None).await;
    assert_eq!(expired.failure_kind(), Some(FailureKind::Cancelled), "{:#?}", expired.events);
    for played in [denied, expired] {
        assert_eq!(played.result.unwrap().status.as_str(), "blocked");
    }
}

#[tokio::test]
async fn a_run_that_never_asks_declines_and_reports_it() {
    let mut fixture = CodexFixture::new();
    fixture.policy = json!({"sandbox": "workspace-write", "approval": "never"});
    // In the process that opened the thread, and in one that resumed it.
    for turn in ["first", "resumed"] {
        let played = fixture.play("[[escalate:touch outside]]").await;
        assert_eq!(played.result, Ok(TurnEnd::completed()), "{turn}: {:#?}", played.events);
        assert!(played.all("permission_request").is_empty(), "no permission is requested");
        let declined = fixture::selected(&played.events, "backend_status", "phase", "approval:declined");
        let [declined] = declined[..] else { panic!("{turn}: {:#?}", played.events) };
        assert_eq!(declined["reason"], "the run's policy is never to ask");
        assert_eq!(declined["rule"], "permission-never");
        assert!(declined["command"].as_str().unwrap().contains("touch outside"), "{declined}");
        let ended = played.all("tool_call");
        let ended = ended.last().unwrap();
        assert_eq!((&ended["status"], &ended["toolCallId"]), (&json!("declined"), &declined["toolCallId"]));
        assert!(!fixture.environment.workspace.as_ref().unwrap().join("outside").exists());
        fixture.take_over();
    }
}
