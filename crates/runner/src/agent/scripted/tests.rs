//! The scripted agent alone: what it emits, and what it makes of steers, answers and the order to stop.

use std::{sync::Arc, task::Poll};

use ostler_protocol::{
    RawJson, Timestamp,
    budgets::UsedUp,
    events::AppendEvent,
    permissions::{AskPermission, Asked, PermissionRequest, PermissionStatus},
    policy::Budgets,
    runs::TerminalStatus,
};
use serde_json::{Value, json};
use tokio::time::{Duration, advance};

use super::*;
use crate::{
    agent::Left,
    budgets::{Meter, Stop},
    link::{self, RunnerEnd},
};

fn turn(prompt: &str) -> Turn {
    let run = json!({"runId": "run_00000000000000000000000000000001", "sessionId": "s", "tenantId": "local", "projectId": "p",
        "workspaceRef": {"kind": "none"}, "providerId": "x", "backendProfile": "scripted", "executionPolicy": {
        "sandbox": "read-only", "approval": "never", "timeoutMs": 1000, "network": "disabled", "secretScope": {}},
        "traceSink": null, "status": "claimed", "terminal": null, "cancelRequestedAt": null, "lastSeq": 1, "commandCount": 1, "unfinishedCommands": 1,
        "leaseEpoch": 1, "attemptId": null, "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"});
    Turn {
        run: Arc::new(serde_json::from_str(&run.to_string()).unwrap()),
        command: command("cmd_0198c0ffee000000000000000000000a", "turn", prompt),
        prompt: prompt.to_owned(),
        thread_id: None,
        attempt_id: "att_00000000000000000000000000000001".parse().unwrap(),
        is_repeat: false,
        conversation: vec![],
        images: vec![],
        images_unseen: 0,
    }
}

fn command(id: &str, kind: &str, prompt: &str) -> ostler_protocol::commands::Command {
    let command = json!({"commandId": id, "runId": "run_00000000000000000000000000000001", "seq": 1, "type": kind,
        "payload": {"prompt": prompt}, "payloadHash": "", "idempotencyKey": null, "state": "acked", "targetCommandId": null,
        "cancelRequestedAt": null, "ackedAt": null, "attemptId": null, "terminal": null,
        "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"});
    serde_json::from_str(&command.to_string()).unwrap()
}

/// A turn being played, with the runner's end in the test's hand.
struct Stage {
    end: RunnerEnd,
    play: BoxFuture<'static, TurnResult>,
}

impl Stage {
    fn new(prompt: &str) -> Self {
        Self::with(turn(prompt), Budgets::default())
    }

    fn with(turn: Turn, budgets: Budgets) -> Self {
        let (link, end) = link::open(&turn, 1, Meter::new(budgets, Default::default()));
        let play = Box::pin(async move { Scripted.turn(&turn, link).await });
        Self { end, play }
    }

    /// Plays until the agent waits. `None`: it waits.
    async fn go(&mut self) -> Option<TurnResult> {
        std::future::poll_fn(|context| match self.play.as_mut().poll(context) {
            Poll::Ready(left) => Poll::Ready(Some(left)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    fn emitted(&self) -> Vec<(String, Value)> {
        let mut all = vec![];
        loop {
            let batch = self.end.take();
            self.end.sent();
            if batch.is_empty() {
                return all;
            }
            all.extend(
                batch.into_iter().map(|AppendEvent { event_type, payload, .. }| (event_type, payload.to_value())),
            );
        }
    }
}

fn types(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(event_type, _)| event_type.as_str()).collect()
}

fn script(steps: Value) -> String {
    json!({"script": steps}).to_string()
}

#[tokio::test]
async fn a_plain_prompt_is_echoed_as_the_reply_without_waiting() {
    let mut stage = Stage::new("Say this back, please ✓");
    assert_eq!(stage.go().await, Some(Ok(TurnEnd::completed())));
    let events = stage.emitted();
    assert_eq!(types(&events), ["assistant_delta", "assistant_message"]);
    assert_eq!(events[0].1["delta"], "Say this back, please ✓");
    let message = &events[1].1;
    assert_eq!(
        (&message["text"], &message["final"], &message["replyAuthority"]),
        (&json!("Say this back, please ✓"), &json!(true), &json!(true))
    );
    assert_eq!(message["messageId"], events[0].1["messageId"]);
}

#[tokio::test]
async fn a_reply_too_long_for_an_event_is_cut_and_says_so() {
    let text = "\n".repeat(250 * 1024);
    let mut stage = Stage::new(&text.replace('\n', "\u{1}\n"));
    assert_eq!(stage.go().await, Some(Ok(TurnEnd::completed())));
    let events = stage.emitted();
    let message = &events.last().unwrap().1;
    assert_eq!(message["textTruncated"], true);
    assert!(message["text"].as_str().unwrap().len() > 50_000);
}

#[tokio::test]
async fn a_script_speaks_calls_a_tool_and_fails() {
    let steps = json!([{"say": "first"}, {"tool": {"name": "shell", "command": "ls", "exitCode": 2, "output": "no"}},
        {"usage": {"inputTokens": 3, "outputTokens": 4}}, {"error": {"kind": "provider-unavailable", "message": "hm"}},
        {"custom": {"name": "x", "value": 1}}, {"fail": {"kind": "backend-failed", "message": "sorry", "status": "blocked"}}, {"say": "never"}]);
    let mut stage = Stage::new(&script(steps));
    let end = stage.go().await.unwrap().unwrap();
    assert_eq!((end.status, end.failure_kind), (TerminalStatus::Blocked, Some(FailureKind::BackendFailed)));
    let events = stage.emitted();
    let expected = [
        "assistant_delta",
        "assistant_message",
        "tool_call",
        "command_output",
        "tool_call",
        "usage",
        "error",
        "custom",
    ];
    assert_eq!(types(&events), expected);
    assert_eq!(
        (&events[1].1["final"], &events[4].1["status"], &events[4].1["exitCode"]),
        (&json!(false), &json!("failed"), &json!(2))
    );
}

#[tokio::test]
async fn a_malformed_script_fails_before_anything_is_said() {
    let mut stage = Stage::new(&script(json!([{"say": "a"}, {"sing": "b"}])));
    let end = stage.go().await.unwrap().unwrap();
    assert_eq!(end.failure_kind, Some(FailureKind::SchemaInvalid));
    assert!(end.message.unwrap().contains("step 2"));
    assert!(stage.emitted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_by_itself_or_by_the_order_to_stop() {
    let mut stage = Stage::new(&script(json!([{"wait": 100}, {"say": "done"}])));
    assert_eq!(stage.go().await, None);
    advance(Duration::from_millis(101)).await;
    assert_eq!(stage.go().await, Some(Ok(TurnEnd::completed())));
    let mut stage = Stage::new(&script(json!([{"wait": 100}, {"say": "done"}])));
    assert_eq!(stage.go().await, None);
    stage.end.stop(Stop::Interrupt);
    assert_eq!(stage.go().await, Some(Err(Left::Stopped)));
    assert!(stage.emitted().is_empty());
}

fn resolved(asked: &Value, status: PermissionStatus, digest: &str) -> PermissionRequest {
    let ask: AskPermission = serde_json::from_value(asked.clone()).unwrap();
    let turn = turn("x");
    PermissionRequest {
        permission_id: ask.permission_id,
        run_id: turn.run.run_id,
        session: turn.run.session,
        command_id: turn.command.command_id,
        title: ask.title,
        command: ask.command,
        tool_call_id: None,
        options: ask.options,
        digest: digest.to_owned(),
        deadline: Timestamp::UNIX_EPOCH,
        status,
        option_id: Some("allow".into()),
        resolved_by: None,
        round: 0,
        resolved_seq: None,
        resolved_at: None,
        created_at: Timestamp::UNIX_EPOCH,
    }
}

/// Asks, answers, and returns how the turn ended.
async fn answered(status: PermissionStatus, digest: impl Fn(&str) -> String) -> TurnEnd {
    let mut stage = Stage::new(&script(json!([{"ask": {"title": "May I?", "command": "rm -r x"}}, {"say": "done"}])));
    assert_eq!(stage.go().await, None);
    let events = stage.emitted();
    assert_eq!(types(&events), ["permission_request"]);
    assert!(matches!(AskPermission::read(&RawJson::of(&events[0].1)), Asked::Well(_)));
    assert_eq!(events[0].1["command"], "rm -r x");
    let asked = &events[0].1;
    assert!(stage.end.answer(resolved(asked, status, &digest(asked["digest"].as_str().unwrap()))));
    stage.go().await.unwrap().unwrap()
}

#[tokio::test]
async fn only_a_permission_for_this_very_digest_lets_the_agent_go_on() {
    assert_eq!(answered(PermissionStatus::Allowed, str::to_owned).await, TurnEnd::completed());
    let denied = answered(PermissionStatus::Denied, str::to_owned).await;
    assert_eq!((denied.status, denied.failure_kind), (TerminalStatus::Blocked, Some(FailureKind::PermissionDenied)));
    let forged = answered(PermissionStatus::Allowed, |_| "0".repeat(64)).await;
    assert_eq!(forged.failure_kind, Some(FailureKind::PermissionDenied));
    let late = answered(PermissionStatus::Cancelled, str::to_owned).await;
    assert_eq!((late.status, late.failure_kind), (TerminalStatus::Blocked, Some(FailureKind::Cancelled)));
}

#[tokio::test]
async fn a_steer_is_heard_while_waiting_and_said_when_asked_for() {
    let mut stage = Stage::new(&script(json!([{"wait": 3_600_000}, {"say": "never"}])));
    assert_eq!(stage.go().await, None);
    stage.end.steer(&command("cmd_0198c0ffee000000000000000000000b", "steer", "go left"));
    assert_eq!(stage.go().await, None);
    let events = stage.emitted();
    assert_eq!(types(&events), ["backend_status", "terminal_status"]);
    assert_eq!((&events[0].1["phase"], &events[1].1["status"]), (&json!("turn/steer:completed"), &json!("completed")));
    let mut stage = Stage::new(&script(json!([{"awaitSteer": {"waitMs": 1000}}])));
    assert_eq!(stage.go().await, None);
    stage.end.steer(&command("cmd_0198c0ffee000000000000000000000b", "steer", "go left"));
    assert_eq!(stage.go().await, Some(Ok(TurnEnd::completed())));
    assert_eq!(stage.emitted().last().unwrap().1["text"], "steered: go left");
}

#[tokio::test(start_paused = true)]
async fn a_steer_that_never_comes_blocks_the_turn() {
    let mut stage = Stage::new(&script(json!([{"awaitSteer": {"waitMs": 50}}])));
    assert_eq!(stage.go().await, None);
    advance(Duration::from_millis(51)).await;
    assert_eq!(stage.go().await.unwrap().unwrap().status, TerminalStatus::Blocked);
}

#[tokio::test]
async fn a_budget_stops_the_script() {
    let budgets = Budgets { max_tool_calls: Some(1), ..Budgets::default() };
    let steps = script(json!([{"tool": {"name": "a"}}, {"tool": {"name": "b"}}, {"say": "never"}]));
    let mut stage = Stage::with(turn(&steps), budgets);
    assert_eq!(stage.go().await, Some(Err(Left::Stopped)));
    assert_eq!(stage.end.stop_reason(), Some(Stop::Budget(UsedUp { name: "maxToolCalls", value: "1".into() })));
    assert_eq!(types(&stage.emitted()), ["tool_call", "tool_call"]);
}

#[tokio::test]
async fn a_crash_comes_after_what_was_said_is_durable_and_once_if_told_so() {
    let steps = script(json!([{"tool": {"name": "a", "leaveOpen": true}}, {"crash": "once"}, {"say": "after"}]));
    let mut stage = Stage::new(&steps);
    assert_eq!(stage.go().await, None);
    assert_eq!(types(&stage.emitted()), ["tool_call"]);
    assert_eq!(stage.go().await, Some(Err(Left::Crashed)));
    let repeat = Turn { is_repeat: true, ..turn(&steps) };
    assert_eq!(Stage::with(repeat, Budgets::default()).go().await, Some(Ok(TurnEnd::completed())));
}

#[tokio::test]
async fn an_agent_ahead_of_the_server_waits_for_it() {
    let mut stage = Stage::new(&script(json!([{"emit": {"count": 1200, "bytes": 10}}])));
    let mut count = 0;
    while stage.go().await.is_none() {
        let batch = stage.end.take();
        assert!(!batch.is_empty() && batch.len() <= 500);
        count += batch.len();
        stage.end.sent();
    }
    assert_eq!(count + stage.emitted().len(), 1200);
}

#[test]
fn an_agent_is_told_of_what_it_cannot_see() {
    assert_eq!(turn("hi").asked(), "hi");
    let told = |images_unseen| Turn { images_unseen, ..turn("hi") }.asked();
    assert_eq!(told(1), "hi\n\n[The message came with an image that you cannot see.]");
    assert_eq!(told(2), "hi\n\n[The message came with 2 images that you cannot see.]");
}
