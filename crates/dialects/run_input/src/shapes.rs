//! What the types of requests cannot express in the OpenAPI document: bounds, patterns and examples.

use ostler_protocol::{
    limits::NAME_BYTES_MAX,
    run_input::{
        agui::input::{MESSAGES_MAX, RUN_ID_CHARS_MAX},
        runs::IDLE_LIMIT_S_MAX,
    },
};
use ostler_server::net::shapes::{PRINTABLE_PATTERN, Shapes, text, whole, words};
use serde_json::{Value, json};

pub(crate) const SHAPES: Shapes = Shapes { fields, bodies, parameter, finish: |_| {} };

fn fields() -> Vec<(&'static str, Value)> {
    vec![
        ("RunAgentInput.threadId", json!({"format": "uuid", "maxLength": 36})),
        ("RunAgentInput.runId", run_id()),
        ("RunAgentInput.parentRunId", text(RUN_ID_CHARS_MAX)),
        ("RunAgentInput.messages", json!({"maxItems": MESSAGES_MAX})),
        ("ForwardedProps.runtime_mode", words(["chat"])),
    ]
}

fn bodies() -> Vec<(&'static str, Value)> {
    vec![
        (
            "RunAgentInput",
            json!({"example": {
                "threadId": "2c4f7d0e-5d3b-4f0e-9f5e-0d8a4c1b2a3f", "runId": "run-1", "state": {}, "tools": [], "context": [],
                "resume": [], "messages": [{"id": "m1", "role": "user", "content": "Say hello."}],
                "forwardedProps": {"runtime_mode": "chat"},
            }}),
        ),
        (
            "ForwardedProps",
            json!({"example": {"runtime_mode": "chat", "client_time": {"device_timezone": "Europe/Berlin",
                "client_now_iso": "2026-01-01T01:00:00+01:00", "client_epoch_ms": 1_767_225_600_000_i64}}}),
        ),
    ]
}

fn parameter(path: &str, name: &str) -> Option<Value> {
    if !path.contains("/agent/") {
        return None;
    }
    Some(match name {
        "idle_limit" => whole(1, IDLE_LIMIT_S_MAX as i64),
        "before" => json!({"format": "date", "maxLength": 10}),
        "runId" => run_id(),
        "threadId" => json!({"format": "uuid", "maxLength": 36}),
        "Last-Event-ID" => json!({"maxLength": NAME_BYTES_MAX, "format": "event-id"}),
        _ => return None,
    })
}

fn run_id() -> Value {
    json!({"minLength": 1, "maxLength": RUN_ID_CHARS_MAX, "pattern": PRINTABLE_PATTERN})
}
