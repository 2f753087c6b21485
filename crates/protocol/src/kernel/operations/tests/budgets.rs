//! Budgets that a runner does not keep.

use super::*;
use crate::limits::BUDGET_GRACE_MS;

fn usage(turn: CommandId, tokens: i64) -> NewEvent {
    NewEvent::written(EventType::Usage, Some(turn), &json!({"totalTokens": tokens}))
}

fn tool(turn: CommandId, call: &str) -> NewEvent {
    NewEvent::written(EventType::ToolCall, Some(turn), &json!({"toolCallId": call, "status": "started"}))
}

/// A turn in hand, of a run with these budgets.
fn within(budgets: Budgets) -> (Scene, RunId, CommandId) {
    let mut scene = Scene::new();
    let mut op = scene.new_run();
    op.run.execution_policy.budgets = budgets;
    let run = op.run.run_id;
    scene.apply(run, Op::CreateRun(Box::new(op))).unwrap();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    (scene, run, turn)
}

#[test]
fn a_runner_has_a_while_to_stop_its_agent_and_then_the_server_does() {
    let (mut scene, run, turn) = within(Budgets { max_tokens: Some(100), ..Budgets::default() });
    scene.append(run, vec![usage(turn, 60), usage(turn, 60)]).unwrap();
    scene.append(run, vec![says(turn)]).unwrap();
    scene.append(run, vec![usage(turn, 1)]).unwrap();
    assert_eq!(scene.state(run, turn), CommandState::Running, "its last events are still accepted");
    scene.advance_ms(BUDGET_GRACE_MS - 1);
    scene.sweep(run);
    assert!(scene.command(run, turn).is_unfinished());
    scene.advance_ms(1);
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Blocked);
    assert_eq!(scene.failure_kind(run, turn), Some(FailureKind::BudgetExceeded));
    let message = scene.command(run, turn).terminal.as_ref().unwrap().message.clone().unwrap();
    assert!(message.contains("maxTokens of 100"), "{message}");
}

#[test]
fn an_agent_that_calls_tool_after_tool_is_ended_and_leaves_no_call_open() {
    let (mut scene, run, turn) = within(Budgets { max_tool_calls: Some(1), ..Budgets::default() });
    scene.append(run, vec![tool(turn, "a")]).unwrap();
    let deadline = scene.command(run, turn).deadline_at;
    scene.append(run, vec![tool(turn, "b")]).unwrap();
    assert_eq!(scene.command(run, turn).deadline_at, deadline, "it was ordered to stop, and has not continued");
    scene.append(run, vec![tool(turn, "c")]).unwrap();
    scene.advance_ms(BUDGET_GRACE_MS);
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Blocked);
    let calls = scene.facts(EventType::ToolCall);
    let unknown = calls.iter().filter(|call| call["status"] == "outcome-unknown").count();
    assert_eq!(unknown, 3, "their outcome stays unknown");
}

#[test]
fn an_agent_whose_runs_have_made_the_granted_calls_may_make_no_other() {
    let (mut scene, run, turn) = within(Budgets { max_tool_calls: Some(3), ..Budgets::default() });
    let call = |status: &str, calls: Option<i64>| {
        let payload = json!({"toolCallId": "a", "type": "toolkit", "status": status, "toolCalls": calls});
        NewEvent::written(EventType::ToolCall, Some(turn), &payload)
    };
    scene.append(run, vec![call("started", None)]).unwrap();
    scene.append(run, vec![call("completed", Some(2))]).unwrap();
    let deadline = scene.command(run, turn).deadline_at;
    scene.append(run, vec![usage(turn, 1), tool(turn, "b")]).unwrap();
    assert_eq!(scene.command(run, turn).deadline_at, deadline, "it is one call late");
    scene.append(run, vec![usage(turn, 1)]).unwrap();
    scene.advance_ms(BUDGET_GRACE_MS);
    scene.sweep(run);
    assert_eq!(scene.failure_kind(run, turn), Some(FailureKind::BudgetExceeded));
}

#[test]
fn time_runs_on_through_attempts_and_the_server_ends_what_outlives_it() {
    let (mut scene, run, turn) = within(Budgets::default());
    scene.append(run, vec![says(turn)]).unwrap();
    let deadline = scene.command(run, turn).deadline_at.unwrap();
    scene.advance_ms(LEASE_MS);
    scene.claim(run, "another");
    let ack = AckOp { command_id: turn, runner_id: "another".into(), lease_epoch: 2, attempt_id: None };
    scene.apply(run, Op::Ack(ack)).unwrap();
    assert_eq!(scene.command(run, turn).deadline_at, Some(deadline));
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Acked);
    scene.advance_ms(1_000 + BUDGET_GRACE_MS);
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Blocked);
    assert_eq!(scene.failure_kind(run, turn), Some(FailureKind::BudgetExceeded));
}

/// A turn that was submitted with a deadline of half a second.
fn with_deadline() -> (Scene, RunId, CommandId) {
    let mut scene = Scene::new();
    let op = scene.new_run();
    let run = op.run.run_id;
    scene.apply(run, Op::CreateRun(Box::new(op))).unwrap();
    let Op::CreateCommand(mut first) = scene.new_command(run, CommandType::Turn, None) else { unreachable!() };
    first.command.payload = RawJson::of(&json!({"prompt": "x", "budgets": {"deadlineMs": 500}}));
    first.command.deadline_at = Some(scene.now.checked_add(jiff::SignedDuration::from_millis(500)).unwrap());
    let turn = first.command.command_id;
    scene.apply(run, Op::CreateCommand(first)).unwrap();
    (scene, run, turn)
}

#[test]
fn a_command_that_waits_past_its_own_deadline_is_cancelled() {
    let (mut scene, run, turn) = with_deadline();
    scene.advance_ms(499);
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Pending);
    scene.advance_ms(1);
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Cancelled);
    let message = scene.command(run, turn).terminal.as_ref().unwrap().message.clone().unwrap();
    assert!(message.ends_with("prompt_deadline_exceeded"), "{message}");
}

#[test]
fn a_runner_has_a_while_to_stop_a_command_that_is_past_its_own_deadline() {
    let (mut scene, run, turn) = with_deadline();
    scene.claim(run, "runner");
    scene.append(run, vec![says(turn)]).unwrap();
    scene.advance_ms(500);
    scene.sweep(run);
    let command = scene.command(run, turn);
    assert_eq!(command.cancel_reason.as_deref(), Some("prompt_deadline_exceeded"));
    assert_eq!(scene.state(run, turn), CommandState::Running);
    scene.advance_ms(LEASE_MS);
    scene.sweep(run);
    assert_eq!(scene.state(run, turn), CommandState::Cancelled, "its runner is gone");
}

#[test]
fn the_end_of_a_call_that_is_recorded_twice_counts_once_against_the_budget() {
    let (mut scene, run, turn) = within(Budgets { max_tokens: Some(100), ..Budgets::default() });
    let call = |status: &str, tokens: Option<i64>| {
        let payload = json!({"toolCallId": "a", "type": "toolkit", "status": status, "totalTokens": tokens});
        NewEvent::written(EventType::ToolCall, Some(turn), &payload)
    };
    scene.append(run, vec![call("started", None)]).unwrap();
    // The store has recorded the first one, but its answer was lost.
    scene.append(run, vec![call("completed", Some(60))]).unwrap();
    scene.append(run, vec![call("completed", Some(60))]).unwrap();
    assert_eq!((scene.command(run, turn).fold.delegated.tokens, scene.facts(EventType::ToolCall).len()), (60, 2));
    scene.advance_ms(BUDGET_GRACE_MS);
    scene.sweep(run);
    assert!(scene.command(run, turn).is_unfinished());
}
