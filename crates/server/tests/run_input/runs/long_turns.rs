//! Calls of the front end's tools in turns with so many other calls that no bounded part of the thread's log has all of them.

use serde_json::{Value, json};

use super::{
    RUNS,
    front_end::{answer, pending, result, with_tools},
    message, words,
};
use crate::harness::{Engine, TestServer, both_engines};

/// Each of these calls has two events. More calls than a reply or a page of the log has.
const OWN_CALLS: usize = 200;

fn own_calls(count: usize) -> Vec<Value> {
    vec![json!({"tool": {"name": "shell"}}); count]
}

fn call_weather() -> Value {
    json!({"call": {"name": "get_weather", "arguments": {"city": "Oslo"}}})
}

fn script(steps: &[Value]) -> String {
    json!({"script": steps}).to_string()
}

#[both_engines]
async fn pending_calls_at_the_end_of_a_long_turn_are_answered(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let mut steps = own_calls(OWN_CALLS);
    steps.push(call_weather());
    server.post(RUNS, &with_tools("run-1", &script(&steps))).await.with_status(202);
    let calls = pending(&server.received("run-1").await);
    assert_eq!(calls.len(), 1);
    let other = server.post(RUNS, &answer("run-2", vec![result("tool_x", "1")])).await;
    assert!(other.text.contains("no pending tool call"), "{}", other.text);
    server.post(RUNS, &answer("run-2", vec![result(&calls[0], "12 °C")])).await.with_status(202);
    let second = server.received("run-2").await;
    assert_eq!((words(&second).as_str(), pending(&second)), ("[Result of the tool get_weather] 12 °C", vec![]));
    let again = server.post(RUNS, &answer("run-3", vec![result(&calls[0], "13 °C")])).await;
    assert_eq!(again.status, 422, "it is answered: {}", again.text);
}

/// A call that never ends looks like one that is pending until it is read.
#[both_engines]
async fn pending_calls_throughout_a_long_turn_are_answered_together(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    server.post(RUNS, &message("run-0", &script(&[json!({"say": "hello"})]))).await.with_status(202);
    server.received("run-0").await;
    let mut steps = vec![json!({"tool": {"name": "shell", "leaveOpen": true}}), call_weather()];
    steps.extend(own_calls(OWN_CALLS));
    steps.push(json!({"call": {"name": "confirm"}}));
    steps.extend(own_calls(3));
    server.post(RUNS, &with_tools("run-1", &script(&steps))).await.with_status(202);
    let calls = pending(&server.received("run-1").await);
    assert_eq!(calls.len(), 2);
    let missing = server.post(RUNS, &answer("run-2", vec![result(&calls[1], "yes")])).await;
    assert!(missing.text.contains(&format!("missing: {}", calls[0])), "{}", missing.text);
    let results = vec![result(&calls[1], "yes"), result(&calls[0], "12")];
    server.post(RUNS, &answer("run-2", results)).await.with_status(202);
    let words = words(&server.received("run-2").await);
    assert_eq!(words, "[Result of the tool get_weather] 12\n\n[Result of the tool confirm] yes");
}
