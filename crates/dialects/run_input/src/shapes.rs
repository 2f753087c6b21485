//! What the types of requests cannot express in the OpenAPI document: bounds, patterns and examples.

use ostler_protocol::{
    limits::NAME_BYTES_MAX,
    run_input::{
        agui::input::{MESSAGES_MAX, RUN_ID_CHARS_MAX, USER_TEXT_CHARS_MAX},
        automations::{
            AUTOMATION_TITLE_CHARS_MAX, AutomationStatus, ENABLED_TOOLS_MAX, NEXT_TIMES_MAX, TOOL_NAME_BYTES_MAX,
            WINDOW_MESSAGES_MAX,
        },
        calendar::{EVENT_TEXT_CHARS_MAX, EVENT_TITLE_CHARS_MAX, recurrence::RULE_BYTES_MAX},
        runs::IDLE_LIMIT_S_MAX,
    },
};
use ostler_server::net::shapes::{PRINTABLE_PATTERN, Shapes, name, shown_name, text, whole, words};
use serde_json::{Value, json};

pub(crate) const SHAPES: Shapes = Shapes { fields, bodies, parameter, finish: |_| {} };

fn fields() -> Vec<(&'static str, Value)> {
    let run_input = vec![
        ("RunAgentInput.threadId", json!({"format": "uuid", "maxLength": 36})),
        ("RunAgentInput.runId", run_id()),
        ("RunAgentInput.parentRunId", text(RUN_ID_CHARS_MAX)),
        ("RunAgentInput.messages", json!({"maxItems": MESSAGES_MAX})),
        ("ForwardedProps.runtime_mode", words(["chat", "automation"])),
    ];
    [run_input, automation_fields(), calendar_fields()].concat()
}

fn automation_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("CreateAutomation.title", title(AUTOMATION_TITLE_CHARS_MAX)),
        ("CreateAutomation.bootstrap_key", name()),
        ("CreateAutomation.timezone", timezone()),
        ("UpdateAutomation.title", title(AUTOMATION_TITLE_CHARS_MAX)),
        ("UpdateAutomation.timezone", timezone()),
        ("StartAutomation.idempotencyKey", name()),
        ("AutomationConfig.input_template", json!({"minLength": 1, "maxLength": USER_TEXT_CHARS_MAX})),
        (
            "AutomationConfig.enabled_tools",
            json!({"maxItems": ENABLED_TOOLS_MAX, "uniqueItems": true,
                "items": {"minLength": 1, "maxLength": TOOL_NAME_BYTES_MAX, "pattern": "^[A-Za-z0-9_./-]+$"}}),
        ),
        ("AutomationContext.window_count", whole(1, i64::from(WINDOW_MESSAGES_MAX))),
        ("Schedule.weekdays", json!({"maxItems": 7, "uniqueItems": true, "items": whole(1, 7)})),
    ]
}

fn calendar_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("CreateCalendarEvent.title", title(EVENT_TITLE_CHARS_MAX)),
        ("CreateCalendarEvent.description", text(EVENT_TEXT_CHARS_MAX)),
        ("CreateCalendarEvent.location", text(EVENT_TEXT_CHARS_MAX)),
        ("CreateCalendarEvent.starts_at", local_time()),
        ("CreateCalendarEvent.ends_at", local_time()),
        ("CreateCalendarEvent.event_timezone", timezone()),
        ("CreateCalendarEvent.recurrence", text(RULE_BYTES_MAX)),
        ("UpdateCalendarEvent.title", title(EVENT_TITLE_CHARS_MAX)),
        ("UpdateCalendarEvent.description", text(EVENT_TEXT_CHARS_MAX)),
        ("UpdateCalendarEvent.location", text(EVENT_TEXT_CHARS_MAX)),
        ("UpdateCalendarEvent.starts_at", local_time()),
        ("UpdateCalendarEvent.ends_at", local_time()),
        ("UpdateCalendarEvent.event_timezone", timezone()),
        ("UpdateCalendarEvent.recurrence", text(RULE_BYTES_MAX)),
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
        ("UpdateAutomation", json!({"minProperties": 1})),
        ("UpdateCalendarEvent", json!({"minProperties": 1})),
    ]
}

fn parameter(path: &str, name: &str) -> Option<Value> {
    match (path, name) {
        ("/api/v1/automations", "status") => return Some(words(AutomationStatus::ALL.map(AutomationStatus::as_str))),
        ("/api/v1/automations/{automationId}/next", "count") => return Some(whole(1, i64::from(NEXT_TIMES_MAX))),
        ("/api/v1/calendar-events/occurrences", "from" | "to") => {
            return Some(json!({"maxLength": NAME_BYTES_MAX, "format": "date-time"}));
        }
        _ if !path.contains("/agent/") => return None,
        _ => {}
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

/// One line that people read.
fn title(chars_max: usize) -> Value {
    let mut title = shown_name();
    title["maxLength"] = json!(chars_max);
    title
}

fn timezone() -> Value {
    json!({"maxLength": NAME_BYTES_MAX, "format": "timezone"})
}

/// A date, or a date and a time of day without an offset.
fn local_time() -> Value {
    json!({"maxLength": 19, "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?)?$"})
}
