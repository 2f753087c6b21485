//! Budgets: reaching one interrupts the agent and ends the command as blocked, naming the budget and its value.

use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines};

async fn blocked(server: &TestServer, policy: Value, budgets: Value, steps: Value, name: &str, value: &str) {
    let prompt = json!({"script": steps}).to_string();
    let (run_id, command_id) = server
        .start_with(&prompt, |body| {
            body["executionPolicy"] = policy;
            body["command"]["payload"]["budgets"] = budgets;
        })
        .await;
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!(result["terminalStatus"], "blocked", "{name}: {result}");
    assert_eq!(result["failureKind"], "budget-exceeded");
    let blocker = result["blocker"].as_str().unwrap();
    assert!(blocker.contains(name) && blocker.contains(value), "{blocker}");
    let said = server.events_of(&run_id, "assistant_message").await;
    assert!(said.iter().all(|event| event["payload"]["text"] != "too much"), "{name}");
}

fn tool() -> Value {
    json!({"tool": {"name": "t"}})
}

fn usage() -> Value {
    json!({"usage": {"inputTokens": 60, "outputTokens": 0, "costUsd": 0.6}})
}

#[both_engines]
async fn each_budget_of_the_policy_blocks_the_command(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let late = json!({"say": "too much"});
    for (policy, steps, name, value) in [
        (json!({"maxToolCalls": 2}), json!([tool(), tool(), tool(), late]), "maxToolCalls", "2"),
        (json!({"maxTokens": 100}), json!([usage(), usage(), {"wait": 1}, late]), "maxTokens", "100"),
        (json!({"maxCostUsd": 1.0}), json!([usage(), usage(), {"wait": 1}, late]), "maxCostUsd", "1"),
        (json!({"maxTurns": 1}), json!([usage(), usage(), {"wait": 1}, late]), "maxTurns", "1"),
        (json!({"timeoutMs": 60}), json!([{"wait": 600_000}, late]), "timeoutMs", "60"),
    ] {
        blocked(&server, policy, Value::Null, steps, name, value).await;
    }
}

#[both_engines]
async fn a_command_lowers_a_budget_and_never_raises_it(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let steps = json!([tool(), tool(), tool(), {"say": "too much"}]);
    let lowered = json!({"maxToolCalls": 1});
    blocked(&server, json!({"maxToolCalls": 2}), lowered, steps.clone(), "maxToolCalls", "1").await;
    let raised = json!({"maxToolCalls": 100});
    blocked(&server, json!({"maxToolCalls": 2}), raised, steps, "maxToolCalls", "2").await;
    let short = json!({"timeoutMs": 40});
    blocked(&server, json!({}), short, json!([{"wait": 600_000}]), "timeoutMs", "40").await;
}

#[both_engines]
async fn a_ceiling_of_the_server_holds_without_a_request_for_it(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 64;
        setup.config.policy.ceiling.max_tool_calls = Some(1);
    })
    .await;
    let steps = json!([tool(), tool(), {"say": "too much"}]);
    blocked(&server, json!({}), Value::Null, steps, "maxToolCalls", "1").await;
}

#[both_engines]
async fn what_stays_within_its_budget_completes(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let steps = json!({"script": [tool(), tool(), usage(), {"say": "just enough"}]}).to_string();
    let policy = json!({"maxToolCalls": 2, "maxTokens": 61, "maxTurns": 1, "maxCostUsd": 0.7, "timeoutMs": 60_000});
    let (run_id, command_id) = server.start_with(&steps, |body| body["executionPolicy"] = policy).await;
    assert_eq!(server.ended(&run_id, &command_id).await["reply"], "just enough");
    // Each command has its own budget.
    let next = server.turn(&run_id, &steps).await;
    assert_eq!(server.ended(&run_id, &next).await["reply"], "just enough");
}

/// Runners others write are held to the policy too.
#[both_engines]
async fn a_runner_that_does_not_stop_is_stopped(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "work").await;
    let runner = server.claim(&run_id, "runner-a").await;
    runner.ack(&command_id).await;
    let timeout_ms = server.run(&run_id).await["executionPolicy"]["timeoutMs"].as_i64().unwrap();
    server.clock.advance_ms(timeout_ms + ostler_protocol::limits::BUDGET_GRACE_MS);
    let result = server.ended(&run_id, &command_id).await;
    assert_eq!((&result["terminalStatus"], &result["failureKind"]), (&json!("blocked"), &json!("budget-exceeded")));
    assert!(result["blocker"].as_str().unwrap().contains("timeoutMs"), "{result}");
}
