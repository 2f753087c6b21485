//! The scripted backend alone: what it emits, and how it handles steers, permission decisions and the order to stop.

use std::{sync::Arc, task::Poll};

use ostler_protocol::{
    RawJson, Timestamp,
    json::canonical_hash,
    kernel::{
        budgets::UsedUp,
        context::Context,
        events::AppendEvent,
        permissions::{AskPermission, Ballot, EditedArguments, ParsedPermission, PermissionRequest, PermissionStatus},
        policy::Budgets,
        runs::TerminalStatus,
    },
};
use serde_json::{Value, json};
use tokio::time::{Duration, advance};

use super::*;
use crate::{
    backend::turn::TurnAbort,
    budgets::{Meter, StopReason},
    turn_sink::{self, RunnerSide},
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
        unsent: 0,
        truncated: false,
        images: vec![],
        images_unseen: 0,
        past_calls: vec![],
    }
}

fn command(id: &str, kind: &str, prompt: &str) -> ostler_protocol::kernel::commands::Command {
    let command = json!({"commandId": id, "runId": "run_00000000000000000000000000000001", "seq": 1, "type": kind,
        "payload": {"prompt": prompt}, "payloadHash": "", "idempotencyKey": null, "state": "acked", "targetCommandId": null,
        "cancelRequestedAt": null, "ackedAt": null, "attemptId": null, "terminal": null,
        "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"});
    serde_json::from_str(&command.to_string()).unwrap()
}

/// A turn that is being played, with the runner's side controlled by the test.
struct Fixture {
    side: RunnerSide,
    play: BoxFuture<'static, TurnResult>,
}

impl Fixture {
    fn new(prompt: &str) -> Self {
        Self::with(turn(prompt), Budgets::default())
    }

    fn with(turn: Turn, budgets: Budgets) -> Self {
        let (sink, side) = turn_sink::open(&turn, 1, Meter::new(budgets, Default::default()), Default::default());
        let play = Box::pin(async move { ScriptedBackend.turn(&turn, sink).await });
        Self { side, play }
    }

    /// Plays until the backend waits. `Some` if the turn has ended.
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
            let batch = self.side.take_batch();
            self.side.mark_sent();
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
    let mut fixture = Fixture::new("Say this back, please ✓");
    assert_eq!(fixture.go().await, Some(Ok(TurnEnd::completed())));
    let events = fixture.emitted();
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
async fn a_reply_too_long_for_an_event_is_marked_as_truncated() {
    let mut fixture = Fixture::new(&"\u{1}\n".repeat(40 * 1024));
    assert_eq!(fixture.go().await, Some(Ok(TurnEnd::completed())));
    let events = fixture.emitted();
    let message = &events.last().unwrap().1;
    assert_eq!(message["textTruncated"], true);
    assert!(message["text"].as_str().unwrap().len() > 50_000);
}

/// The bytes of the text that was streamed.
fn streamed_bytes(events: &[(String, Value)]) -> usize {
    events.iter().filter_map(|(_, payload)| payload["delta"].as_str()).map(str::len).sum()
}

#[tokio::test]
async fn a_turn_that_is_stopped_during_a_long_reply_does_not_send_the_rest() {
    let prompt = "word ".repeat(1024 * 1024);
    let mut fixture = Fixture::new(&prompt);
    assert_eq!(fixture.go().await, None, "it waits until the beginning is sent");
    assert!((1..=300 * 1024).contains(&streamed_bytes(&fixture.emitted())));
    assert_eq!(fixture.go().await, None);
    fixture.side.stop(StopReason::Cancel);
    assert_eq!(fixture.go().await, Some(Err(TurnAbort::Stopped)));
    let queued = fixture.emitted();
    assert!((1..=300 * 1024).contains(&streamed_bytes(&queued)));
    assert!(types(&queued).iter().all(|event| *event == "assistant_delta"), "{:?}", types(&queued));
}

#[tokio::test]
async fn a_long_reply_is_sent_whole() {
    let prompt = "word ".repeat(200 * 1024);
    let mut fixture = Fixture::new(&prompt);
    let mut events = vec![];
    let end = loop {
        let end = fixture.go().await;
        events.extend(fixture.emitted());
        if let Some(end) = end {
            break end;
        }
    };
    assert_eq!(end, Ok(TurnEnd::completed()));
    assert_eq!(streamed_bytes(&events), prompt.len());
    assert_eq!(types(&events).last(), Some(&"assistant_message"));
}

#[tokio::test]
async fn a_script_can_emit_messages_call_a_tool_and_fail() {
    let steps = json!([{"say": "first"}, {"tool": {"name": "shell", "command": "ls", "exitCode": 2, "output": "no"}},
        {"usage": {"inputTokens": 3, "outputTokens": 4}}, {"error": {"kind": "provider-unavailable", "message": "hm"}},
        {"custom": {"name": "x", "value": 1}}, {"fail": {"kind": "backend-failed", "message": "sorry", "status": "blocked"}}, {"say": "never"}]);
    let mut fixture = Fixture::new(&script(steps));
    let end = fixture.go().await.unwrap().unwrap();
    assert_eq!((end.status, end.failure_kind), (TerminalStatus::Blocked, Some(FailureKind::BackendFailed)));
    let events = fixture.emitted();
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
async fn a_malformed_script_fails_before_it_emits_anything() {
    let mut fixture = Fixture::new(&script(json!([{"say": "a"}, {"sing": "b"}])));
    let end = fixture.go().await.unwrap().unwrap();
    assert_eq!(end.failure_kind, Some(FailureKind::SchemaInvalid));
    assert!(end.message.unwrap().contains("step 2"));
    assert!(fixture.emitted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_by_itself_or_when_the_turn_is_stopped() {
    let mut fixture = Fixture::new(&script(json!([{"wait": 100}, {"say": "done"}])));
    assert_eq!(fixture.go().await, None);
    advance(Duration::from_millis(101)).await;
    assert_eq!(fixture.go().await, Some(Ok(TurnEnd::completed())));
    let mut fixture = Fixture::new(&script(json!([{"wait": 100}, {"say": "done"}])));
    assert_eq!(fixture.go().await, None);
    fixture.side.stop(StopReason::Interrupt);
    assert_eq!(fixture.go().await, Some(Err(TurnAbort::Stopped)));
    assert!(fixture.emitted().is_empty());
}

fn resolved(request: &Value, status: PermissionStatus, digest: &str) -> PermissionRequest {
    let ask: AskPermission = serde_json::from_value(request.clone()).unwrap();
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
        server_digest: None,
        editable: ask.editable,
        edited: None,
        deadline: Timestamp::UNIX_EPOCH,
        status,
        option_id: Some("allow".into()),
        resolved_by: None,
        round: 0,
        resolved_seq: None,
        resolved_at: None,
        ballot: Ballot::default(),
        created_at: Timestamp::UNIX_EPOCH,
    }
}

/// Plays a script that asks for permission, resolves the request, and returns how the turn ended.
async fn end_after_decision(status: PermissionStatus, digest: impl Fn(&str) -> String) -> TurnEnd {
    let mut fixture =
        Fixture::new(&script(json!([{"ask": {"title": "May I?", "command": "rm -r x"}}, {"say": "done"}])));
    assert_eq!(fixture.go().await, None);
    let events = fixture.emitted();
    assert_eq!(types(&events), ["permission_request"]);
    assert!(matches!(AskPermission::read(&RawJson::of(&events[0].1)), ParsedPermission::Valid(_)));
    assert_eq!(events[0].1["command"], "rm -r x");
    let request = &events[0].1;
    assert!(fixture.side.resolve_permission(resolved(request, status, &digest(request["digest"].as_str().unwrap()))));
    fixture.go().await.unwrap().unwrap()
}

#[tokio::test]
async fn only_a_permission_for_exactly_this_digest_lets_the_backend_continue() {
    assert_eq!(end_after_decision(PermissionStatus::Allowed, str::to_owned).await, TurnEnd::completed());
    let denied = end_after_decision(PermissionStatus::Denied, str::to_owned).await;
    assert_eq!((denied.status, denied.failure_kind), (TerminalStatus::Blocked, Some(FailureKind::PermissionDenied)));
    let forged = end_after_decision(PermissionStatus::Allowed, |_| "0".repeat(64)).await;
    assert_eq!(forged.failure_kind, Some(FailureKind::PermissionDenied));
    let late = end_after_decision(PermissionStatus::Cancelled, str::to_owned).await;
    assert_eq!((late.status, late.failure_kind), (TerminalStatus::Blocked, Some(FailureKind::Cancelled)));
}

/// How a turn ends whose request was allowed with these edits.
async fn end_after_edits(editable: Option<Value>, edited: EditedArguments) -> TurnEnd {
    let mut ask = json!({"title": "May I?", "command": "rm a"});
    if let Some(editable) = editable {
        ask["editable"] = editable;
    }
    let mut fixture = Fixture::new(&script(json!([{"ask": ask}, {"say": "done"}])));
    assert_eq!(fixture.go().await, None);
    let request = &fixture.emitted()[0].1;
    let resolved = resolved(request, PermissionStatus::Allowed, request["digest"].as_str().unwrap());
    fixture.side.resolve_permission(PermissionRequest { edited: Some(edited), ..resolved });
    fixture.go().await.unwrap().unwrap()
}

#[tokio::test]
async fn edits_are_used_only_if_they_were_offered_and_are_what_their_digest_names() {
    let editable =
        json!({"arguments": {"path": "a"}, "schema": {"type": "object", "properties": {"path": {"type": "string"}}}});
    let edits = |arguments: Value| EditedArguments {
        digest: canonical_hash(&arguments),
        arguments,
        tool: None,
        sent_digest: None,
        added: vec![],
    };
    let good = edits(json!({"path": "b"}));
    assert_eq!(end_after_edits(Some(editable.clone()), good.clone()).await, TurnEnd::completed());
    let forged = EditedArguments { arguments: json!({"path": "/"}), ..good.clone() };
    for (editable, edited) in
        [(None, good), (Some(editable.clone()), forged), (Some(editable), edits(json!({"path": 7})))]
    {
        let end = end_after_edits(editable, edited.clone()).await;
        assert_eq!(end.failure_kind, Some(FailureKind::PermissionDenied), "{edited:?}");
    }
}

#[tokio::test]
async fn a_steer_is_accepted_during_a_wait_and_emitted_by_the_step_that_awaits_it() {
    let mut fixture = Fixture::new(&script(json!([{"wait": 3_600_000}, {"say": "never"}])));
    assert_eq!(fixture.go().await, None);
    fixture.side.steer(&command("cmd_0198c0ffee000000000000000000000b", "steer", "go left"));
    assert_eq!(fixture.go().await, None);
    let events = fixture.emitted();
    assert_eq!(types(&events), ["backend_status", "terminal_status"]);
    assert_eq!((&events[0].1["phase"], &events[1].1["status"]), (&json!("turn/steer:completed"), &json!("completed")));
    let mut fixture = Fixture::new(&script(json!([{"awaitSteer": {"waitMs": 1000}}])));
    assert_eq!(fixture.go().await, None);
    fixture.side.steer(&command("cmd_0198c0ffee000000000000000000000b", "steer", "go left"));
    assert_eq!(fixture.go().await, Some(Ok(TurnEnd::completed())));
    assert_eq!(fixture.emitted().last().unwrap().1["text"], "steered: go left");
}

#[tokio::test(start_paused = true)]
async fn a_missing_steer_blocks_the_turn() {
    let mut fixture = Fixture::new(&script(json!([{"awaitSteer": {"waitMs": 50}}])));
    assert_eq!(fixture.go().await, None);
    advance(Duration::from_millis(51)).await;
    assert_eq!(fixture.go().await.unwrap().unwrap().status, TerminalStatus::Blocked);
}

#[tokio::test]
async fn a_budget_stops_the_script() {
    let budgets = Budgets { max_tool_calls: Some(1), ..Budgets::default() };
    let steps = script(json!([{"tool": {"name": "a"}}, {"tool": {"name": "b"}}, {"say": "never"}]));
    let mut fixture = Fixture::with(turn(&steps), budgets);
    assert_eq!(fixture.go().await, Some(Err(TurnAbort::Stopped)));
    assert_eq!(
        fixture.side.stop_reason(),
        Some(StopReason::Budget(UsedUp { name: "maxToolCalls", value: "1".into() }))
    );
    assert_eq!(types(&fixture.emitted()), ["tool_call", "tool_call"]);
}

#[tokio::test]
async fn a_crash_happens_after_events_are_durable_and_only_once_if_requested() {
    let steps = script(json!([{"tool": {"name": "a", "leaveOpen": true}}, {"crash": "once"}, {"say": "after"}]));
    let mut fixture = Fixture::new(&steps);
    assert_eq!(fixture.go().await, None);
    assert_eq!(types(&fixture.emitted()), ["tool_call"]);
    assert_eq!(fixture.go().await, Some(Err(TurnAbort::Crashed)));
    let repeat = Turn { is_repeat: true, ..turn(&steps) };
    assert_eq!(Fixture::with(repeat, Budgets::default()).go().await, Some(Ok(TurnEnd::completed())));
}

#[tokio::test]
async fn a_backend_ahead_of_the_server_waits_for_it() {
    let mut fixture = Fixture::new(&script(json!([{"emit": {"count": 1200, "bytes": 10}}])));
    let mut count = 0;
    while fixture.go().await.is_none() {
        let batch = fixture.side.take_batch();
        assert!(!batch.is_empty() && batch.len() <= 500);
        count += batch.len();
        fixture.side.mark_sent();
    }
    assert_eq!(count + fixture.emitted().len(), 1200);
}

#[test]
fn the_prompt_mentions_images_that_the_backend_cannot_see() {
    let prompt = |images_unseen| Turn { images_unseen, ..turn("hi") }.prompt_with(&Context::default());
    assert_eq!(prompt(0), "hi");
    assert_eq!(prompt(1), "hi\n\n[The message came with an image that you cannot see.]");
    assert_eq!(prompt(2), "hi\n\n[The message came with 2 images that you cannot see.]");
}

#[test]
fn a_thread_gets_the_messages_that_it_lacks_before_the_prompt() {
    use ostler_protocol::kernel::conversation::{ConversationMessage, Role};
    let message = |role, text: &str| ConversationMessage { role, text: text.to_owned() };
    let conversation =
        vec![message(Role::User, "one"), message(Role::Assistant, "eins"), message(Role::User, "I ran ls")];
    let turn = Turn { conversation, unsent: 1, ..turn("next") };
    let new = turn.thread_prompt(true);
    assert!(new.contains("<user>\none\n</user>\n\n<assistant>\neins\n</assistant>"), "{new}");
    assert!(new.ends_with("The message to respond to:\n\nnext"), "{new}");
    let existing = turn.thread_prompt(false);
    assert!(existing.contains("I ran ls") && !existing.contains("eins"), "{existing}");
    let known = Turn { unsent: 0, ..turn };
    assert_eq!(known.thread_prompt(false), "next");
    let long = message(Role::User, &"x".repeat(70_000));
    let cut = Turn { conversation: vec![long, message(Role::Assistant, "short")], ..known };
    let prompt = cut.thread_prompt(true);
    assert!(prompt.contains("[Earlier messages are left out.]") && prompt.len() < 1_000, "{}", prompt.len());
}
