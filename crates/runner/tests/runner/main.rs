//! The runner against the pure kernel: what it writes, in how many calls, and how it stops.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a failed unwrap in a test's own server is a failed test")]

mod acp;
mod front_end;
mod kernel;
mod model;
mod qwen;
mod side_queries;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use kernel::{Kernel, is_running, of_type, payload};
use ostler_protocol::{
    FailureKind,
    kernel::{
        commands::{CommandState, CommandType},
        events::{Event, EventType},
        operations::{CancelCommandOp, CancelRunOp, ClaimOp, Op},
        provider_profiles::AgentConfig,
    },
};
use ostler_runner::{
    BackendEnvironment, RunnerOrder, RunnerOutcome, RunnerStatus, StorageClaim, TurnSink,
    backend::{Backend, Turn, TurnAbort, TurnEnd, TurnResult},
    run, run_until, run_with, run_with_until,
};
use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{Duration, Instant, sleep},
};

fn order(kernel: &Kernel, runner_id: &str) -> RunnerOrder {
    let environment = BackendEnvironment::bare(AgentConfig::Scripted);
    RunnerOrder::resident(kernel.run_id(), runner_id.into(), "scripted".into(), environment)
}

fn start(kernel: &Arc<Kernel>) -> JoinHandle<RunnerOutcome> {
    tokio::spawn(run(order(kernel, "runner-a"), kernel.client()))
}

fn calls(kernel: &Kernel) -> Vec<String> {
    kernel.calls.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_trivial_run_costs_two_calls() {
    let kernel = Kernel::new(json!({}));
    let id = kernel.submit(CommandType::Turn, json!({"prompt": "hello"}));
    let outcome = start(&kernel).await.unwrap();
    assert_eq!((outcome.status, outcome.turns), (RunnerStatus::Idle, 1));
    assert_eq!(calls(&kernel), ["POST runs/claim", "POST runs/events"]);
    assert_eq!(kernel.types(id), ["assistant_delta", "assistant_message", "terminal_status"]);
    assert_eq!(kernel.command(id).state, CommandState::Completed);
    assert!(!kernel.leased());
}

#[tokio::test(start_paused = true)]
async fn several_turns_are_worked_on_in_order_under_one_claim() {
    let kernel = Kernel::new(json!({}));
    let ids = [kernel.turn(json!([{"wait": 200}, {"say": "a"}])), kernel.turn(json!([{"say": "b"}]))];
    let runner = start(&kernel);
    kernel.until(|k| k.types(ids[0]).len() + k.run().lease_epoch as usize > 0).await;
    sleep(Duration::from_millis(100)).await;
    let late = kernel.turn(json!([{"say": "c"}]));
    assert_eq!(runner.await.unwrap().turns, 3);
    for id in [ids[0], ids[1], late] {
        assert_eq!(kernel.command(id).state, CommandState::Completed);
    }
    assert_eq!(kernel.run().lease_epoch, 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_message_streams_with_at_most_one_piece_per_window() {
    let kernel = Kernel::new(json!({}));
    let id = kernel.turn(json!([{"say": "1 ".repeat(50), "pieces": 50, "everyMs": 4}]));
    start(&kernel).await.unwrap();
    let deltas: Vec<_> = kernel.events().into_iter().filter(|e| e.event_type == EventType::AssistantDelta).collect();
    let text: String = deltas.iter().map(|e| payload(e)["delta"].as_str().unwrap().to_owned()).collect();
    assert_eq!(text, "1 ".repeat(50));
    assert!((8..=12).contains(&deltas.len()), "{} pieces", deltas.len());
    assert_eq!(deltas[0].created_at.as_millisecond(), 0);
    for pair in deltas[..deltas.len() - 1].windows(2) {
        assert!(pair[1].created_at.as_millisecond() - pair[0].created_at.as_millisecond() >= 20);
    }
    assert_eq!(kernel.command(id).state, CommandState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_steer_reaches_the_running_turn() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "ready"}, {"awaitSteer": {"waitMs": 60_000}}]));
    let runner = start(&kernel);
    kernel.until(|k| is_running(k, turn)).await;
    let steer = kernel.submit(CommandType::Steer, json!({"prompt": "left"}));
    runner.await.unwrap();
    assert_eq!(kernel.command(steer).state, CommandState::Completed);
    assert_eq!(kernel.types(steer), ["backend_status", "terminal_status"]);
    assert_eq!(of_type(&kernel, EventType::AssistantMessage).last().unwrap()["text"], "steered: left");
    assert_eq!(kernel.command(turn).state, CommandState::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_undelivered_steer_ends_blocked() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "quick"}]));
    let steer = kernel.submit(CommandType::Steer, json!({"prompt": "left"}));
    start(&kernel).await.unwrap();
    assert_eq!(kernel.command(turn).state, CommandState::Completed);
    assert_eq!(kernel.command(steer).state, CommandState::Blocked);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_stops_the_turn_and_completes_itself() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "working"}, {"wait": 3_000_000}]));
    let next = kernel.turn(json!([{"say": "next"}]));
    let runner = start(&kernel);
    kernel.until(|k| is_running(k, turn)).await;
    let interrupt = kernel.submit(CommandType::Interrupt, json!({}));
    runner.await.unwrap();
    assert_eq!(kernel.command(interrupt).state, CommandState::Completed);
    assert_eq!(kernel.command(turn).state, CommandState::Cancelled);
    assert_eq!(kernel.command(next).state, CommandState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_command_ends_and_the_run_continues() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "working"}, {"wait": 3_000_000}]));
    let next = kernel.turn(json!([{"say": "next"}]));
    let runner = start(&kernel);
    kernel.until(|k| is_running(k, turn)).await;
    kernel
        .apply(Op::CancelCommand(CancelCommandOp {
            command_id: turn,
            by: "me".into(),
            reason: None,
            origin: None,
            with_jobs: false,
        }))
        .unwrap();
    assert_eq!(runner.await.unwrap().status, RunnerStatus::Idle);
    assert_eq!(kernel.command(turn).state, CommandState::Cancelled);
    assert_eq!(kernel.command(next).state, CommandState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_ends_with_its_turn() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "working"}, {"wait": 3_000_000}]));
    let runner = start(&kernel);
    kernel.until(|k| is_running(k, turn)).await;
    kernel.apply(Op::CancelRun(CancelRunOp { by: "me".into(), reason: None })).unwrap();
    assert!(runner.await.unwrap().succeeded());
    assert_eq!(kernel.run().status.as_str(), "cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_permission_continues_the_turn_with_few_polls() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"ask": {"title": "May I?", "command": "rm x"}}, {"wait": 20_000}, {"say": "done"}]));
    let runner = start(&kernel);
    kernel.until(|k| !k.permissions().is_empty()).await;
    let request = kernel.permissions().remove(0);
    kernel.answer_permission(request.permission_id, "allow", &request.digest);
    runner.await.unwrap();
    assert_eq!(kernel.command(turn).state, CommandState::Completed);
    let polls = calls(&kernel).iter().filter(|c| *c == "GET runs/commands").count();
    assert!(polls <= 4, "{polls} polls");
}

#[tokio::test(start_paused = true)]
async fn a_denied_permission_blocks_the_turn() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"ask": {"title": "May I?", "command": "rm x"}}, {"say": "done"}]));
    let runner = start(&kernel);
    kernel.until(|k| !k.permissions().is_empty()).await;
    let request = kernel.permissions().remove(0);
    kernel.answer_permission(request.permission_id, "deny", &request.digest);
    runner.await.unwrap();
    let terminal = kernel.command(turn).terminal.unwrap();
    assert_eq!(terminal.failure_kind, Some(FailureKind::PermissionDenied));
}

#[tokio::test(start_paused = true)]
async fn a_long_turn_keeps_its_lease() {
    let kernel = Kernel::new(json!({"timeoutMs": 1_000_000}));
    let turn = kernel.turn(json!([{"wait": 300_000}, {"say": "done"}]));
    start(&kernel).await.unwrap();
    assert_eq!(kernel.command(turn).state, CommandState::Completed);
    assert_eq!(kernel.run().lease_epoch, 1);
}

#[tokio::test(start_paused = true)]
async fn an_exceeded_budget_blocks_the_turn_and_is_named() {
    for (steps, budgets, name) in [
        (json!([{"wait": 500_000}]), json!({"timeoutMs": 50}), "timeoutMs of 50"),
        (
            json!([{"usage": {"inputTokens": 6, "outputTokens": 5}}, {"say": "x"}]),
            json!({"maxTokens": 10}),
            "maxTokens of 10",
        ),
        (json!([{"tool": {"name": "a"}}, {"tool": {"name": "b"}}]), json!({"maxToolCalls": 1}), "maxToolCalls of 1"),
        (json!([{"usage": {}}, {"usage": {}}, {"say": "x"}]), json!({"maxTurns": 1}), "maxTurns of 1"),
        (json!([{"usage": {"costUsd": 0.5}}]), json!({"maxCostUsd": 0.25}), "maxCostUsd of 0.25"),
    ] {
        let kernel = Kernel::new(json!({}));
        let prompt = json!({"script": steps}).to_string();
        let turn = kernel.submit(CommandType::Turn, json!({"prompt": prompt, "budgets": budgets}));
        start(&kernel).await.unwrap();
        let terminal = kernel.command(turn).terminal.unwrap();
        assert_eq!((terminal.status.as_str(), terminal.failure_kind), ("blocked", Some(FailureKind::BudgetExceeded)));
        assert!(terminal.message.as_deref().unwrap().contains(name), "{:?}", terminal.message);
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_whose_runner_died_is_repeated_and_its_open_tool_is_marked() {
    let kernel = Kernel::new(json!({}));
    let steps = json!([{"say": "before", "final": true}, {"tool": {"name": "a", "leaveOpen": true}}, {"crash": "once"}, {"say": "after"}]);
    let turn = kernel.turn(steps);
    assert_eq!(start(&kernel).await.unwrap().status, RunnerStatus::Crashed);
    assert_eq!(kernel.command(turn).state, CommandState::Running);
    let second = run(order(&kernel, "runner-b"), kernel.client()).await;
    assert_eq!((second.status, kernel.run().lease_epoch), (RunnerStatus::Idle, 2));
    assert_eq!(kernel.command(turn).state, CommandState::Completed);
    let statuses: Vec<_> = of_type(&kernel, EventType::ToolCall).iter().map(|p| p["status"].clone()).collect();
    assert_eq!(statuses[..2], [json!("started"), json!("outcome-unknown")]);
    assert_eq!(of_type(&kernel, EventType::AssistantMessage).last().unwrap()["text"], "after");
}

#[tokio::test(start_paused = true)]
async fn a_fenced_out_runner_writes_nothing_more() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "working"}, {"wait": 100}, {"say": "late"}, {"wait": 100}]));
    let runner = start(&kernel);
    kernel.until(|k| is_running(k, turn)).await;
    let attempt_id = "att_000000000000000000000000000000ff".parse().unwrap();
    kernel
        .apply(Op::Claim(ClaimOp { runner_id: "runner-a".into(), lease_ms: 60_000, attempt_id, take_up: false }))
        .unwrap();
    let outcome = runner.await.unwrap();
    assert_eq!((outcome.status, outcome.succeeded()), (RunnerStatus::FencedOut, false));
    assert_eq!(of_type(&kernel, EventType::AssistantMessage).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_appends_nothing_twice() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel
        .turn(json!([{"emit": {"count": 10}}, {"wait": 50}, {"emit": {"count": 10}}, {"wait": 50}, {"say": "done"}]));
    let broken = ["POST runs/claim", "POST commands/ack", "POST runs/events", "POST runs/events", "POST runs/events"];
    kernel.breaks.lock().unwrap().extend(broken.map(String::from));
    assert_eq!(start(&kernel).await.unwrap().status, RunnerStatus::Idle);
    assert!(kernel.breaks.lock().unwrap().is_empty());
    assert_eq!(of_type(&kernel, EventType::Custom).len(), 20);
    assert_eq!(kernel.command(turn).state, CommandState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_a_held_run_within_its_limit() {
    let kernel = Kernel::new(json!({}));
    kernel.turn(json!([{"say": "x"}]));
    let attempt_id = "att_000000000000000000000000000000ff".parse().unwrap();
    kernel
        .apply(Op::Claim(ClaimOp { runner_id: "other".into(), lease_ms: 5_000, attempt_id, take_up: false }))
        .unwrap();
    let impatient = RunnerOrder { claim_wait_ms: 2_000, ..order(&kernel, "runner-a") };
    let outcome = run(impatient, kernel.client()).await;
    assert_eq!(
        (outcome.status, outcome.failure.unwrap().kind),
        (RunnerStatus::NotClaimed, FailureKind::RunnerLeaseConflict)
    );
    assert_eq!(run(order(&kernel, "runner-a"), kernel.client()).await.status, RunnerStatus::Idle);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_turn_counts_earlier_usage() {
    let kernel = Kernel::new(json!({}));
    let call = json!({"usage": {"totalTokens": 1}});
    let steps = json!([call, call, {"crash": "once"}, {"say": "done"}]);
    let payload = json!({"prompt": json!({"script": steps}).to_string(), "budgets": {"maxTurns": 2}});
    let turn = kernel.submit(CommandType::Turn, payload);
    assert_eq!(start(&kernel).await.unwrap().status, RunnerStatus::Crashed);
    run(order(&kernel, "runner-b"), kernel.client()).await;
    let end = kernel.command(turn).terminal.unwrap();
    assert_eq!(end.failure_kind, Some(FailureKind::BudgetExceeded), "{end:?}");
    assert_eq!(of_type(&kernel, EventType::Usage).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_runner_hands_back_its_run_to_the_next_one() {
    let kernel = Kernel::new(json!({}));
    let steps = json!([{"tool": {"name": "a", "leaveOpen": true}}, {"wait": 20_000}, {"say": "after"}]);
    let turn = kernel.turn(steps);
    let (stop, told) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move {
        let _ = told.await;
    };
    let grace = Duration::from_secs(1);
    let runner = tokio::spawn(run_until(order(&kernel, "runner-a"), kernel.client(), stopped, grace));
    kernel.until(|k| of_type(k, EventType::ToolCall).len() == 1).await;
    stop.send(()).unwrap();
    let outcome = runner.await.unwrap();
    assert_eq!((outcome.status, outcome.succeeded()), (RunnerStatus::Stopped, false));
    assert!(!kernel.leased(), "no runner has to wait for the lease to expire");
    assert_eq!(kernel.command(turn).state, CommandState::Running);
    assert_eq!(run(order(&kernel, "runner-b"), kernel.client()).await.status, RunnerStatus::Idle);
    assert_eq!(kernel.command(turn).state, CommandState::Completed);
    let statuses: Vec<_> = of_type(&kernel, EventType::ToolCall).iter().map(|p| p["status"].clone()).collect();
    assert_eq!(statuses[..2], [json!("started"), json!("outcome-unknown")]);
}

#[tokio::test(start_paused = true)]
async fn the_volume_of_a_sessions_storage_is_recorded() {
    let kernel = Kernel::new(json!({}));
    let turns = [kernel.turn(json!([{"say": "x"}])), kernel.turn(json!([{"say": "y"}]))];
    let claim = StorageClaim { name: "claim".into(), namespace: "agents".into(), mount_path: "/storage".into() };
    let mounted = RunnerOrder { storage_claim: Some(claim), ..order(&kernel, "runner-a") };
    assert_eq!(run(mounted, kernel.client()).await.status, RunnerStatus::Idle);
    let expected = json!({"phase": "codex-rollout-storage-mounted", "pvcName": "claim", "pvcNamespace": "agents",
        "mountPath": "/storage", "codexRolloutSubdir": "sessions", "valuesPrinted": false});
    let is_expected = |event: &&Event| event.event_type == EventType::BackendStatus && payload(event) == expected;
    let reported: Vec<_> = kernel.events().iter().filter(is_expected).map(|event| event.command_id).collect();
    assert_eq!(reported, [Some(turns[0])], "once, with the first turn");
}

/// A backend that completes every turn at once and keeps its lease.
struct KeepingBackend {
    is_open: bool,
    close_ms: u64,
}

impl Backend for KeepingBackend {
    fn turn<'a>(&'a mut self, _: &'a Turn, _: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(async { Ok(TurnEnd::completed()) })
    }

    fn keeps_lease(&self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        self.is_open
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(sleep(Duration::from_millis(self.close_ms)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_runner_holds_its_lease_until_its_backend_is_closed() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "x"}]));
    let (stop, stop_requested) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move {
        let _ = stop_requested.await;
    };
    let short = RunnerOrder { lease_ms: 3_000, ..order(&kernel, "runner-a") };
    let backend = Box::new(KeepingBackend { is_open: true, close_ms: 10_000 });
    let grace = Duration::from_secs(60);
    let runner = tokio::spawn(run_with_until(short, kernel.client(), backend, stopped, grace));
    kernel.until(|k| k.command(turn).terminal.is_some()).await;
    stop.send(()).unwrap();
    for second in 1..10 {
        sleep(Duration::from_secs(1)).await;
        assert!(kernel.leased(), "after {second} s");
    }
    assert_eq!(runner.await.unwrap().status, RunnerStatus::Stopped);
    assert!(!kernel.leased());
}

/// A backend that works until it is stopped, and then takes longer to end its turn than a cancelled one may.
struct SlowToStop;

impl Backend for SlowToStop {
    fn turn<'a>(&'a mut self, _: &'a Turn, sink: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(async move {
            sink.emit(EventType::Step, &json!({"name": "work", "status": "started"})).await;
            sink.stopped().await;
            sleep(Duration::from_secs(15)).await;
            sink.emit(EventType::Step, &json!({"name": "work", "status": "finished"})).await;
            Err(TurnAbort::Stopped)
        })
    }

    fn keeps_lease(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_runner_holds_its_lease_until_its_backend_has_left_the_turn() {
    let kernel = Kernel::new(json!({}));
    let turn = kernel.turn(json!([{"say": "x"}]));
    let (stop, stop_requested) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move {
        let _ = stop_requested.await;
    };
    let short = RunnerOrder { lease_ms: 3_000, ..order(&kernel, "runner-a") };
    let grace = Duration::from_secs(60);
    let runner = tokio::spawn(run_with_until(short, kernel.client(), Box::new(SlowToStop), stopped, grace));
    kernel.until(|k| of_type(k, EventType::Step).len() == 1).await;
    stop.send(()).unwrap();
    for second in 1..14 {
        sleep(Duration::from_secs(1)).await;
        assert!(kernel.leased(), "after {second} s");
    }
    assert_eq!(runner.await.unwrap().status, RunnerStatus::Stopped);
    assert!(!kernel.leased());
    assert_eq!(of_type(&kernel, EventType::Step).len(), 2, "what the backend emitted last is sent");
    assert!(is_running(&kernel, turn), "another runner continues the turn");
}

#[tokio::test(start_paused = true)]
async fn a_runner_whose_backend_does_not_stop_in_time_leaves_its_lease_to_expire() {
    let kernel = Kernel::new(json!({}));
    kernel.turn(json!([{"say": "x"}]));
    let (stop, stop_requested) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move {
        let _ = stop_requested.await;
    };
    let grace = Duration::from_secs(5);
    let order = order(&kernel, "runner-a");
    let runner = tokio::spawn(run_with_until(order, kernel.client(), Box::new(SlowToStop), stopped, grace));
    kernel.until(|k| of_type(k, EventType::Step).len() == 1).await;
    stop.send(()).unwrap();
    assert_eq!(runner.await.unwrap().status, RunnerStatus::Stopped);
    assert!(kernel.leased(), "the backend may still be at work");
}

#[tokio::test(start_paused = true)]
async fn a_runner_waits_for_the_first_turn_and_leaves_after_one_that_left_no_process() {
    let kernel = Kernel::new(json!({}));
    let backend = Box::new(KeepingBackend { is_open: false, close_ms: 0 });
    let runner = tokio::spawn(run_with(order(&kernel, "runner-a"), kernel.client(), backend));
    sleep(Duration::from_secs(5)).await;
    assert!(kernel.leased());
    let (turn, submitted) = (kernel.turn(json!([{"say": "x"}])), Instant::now());
    assert_eq!(runner.await.unwrap().turns, 1);
    assert!(kernel.command(turn).terminal.is_some() && !kernel.leased());
    assert!(submitted.elapsed() < Duration::from_secs(60), "{:?}", submitted.elapsed());
}
