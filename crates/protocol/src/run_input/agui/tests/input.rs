//! Every row of the protocol's two tables, at its limit and one past it, and their order.

mod resumes;

use serde_json::{Value, json};

use crate::{
    Failure, FailureKind, Rule,
    kernel::permissions::{OptionKind, PermissionOption},
    run_input::agui::{
        input::*,
        messages::{InputMessage, ResumeEntry, ResumeStatus},
    },
};

const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";

fn plain() -> Value {
    json!({"threadId": THREAD, "runId": "run-001", "state": {}, "messages": [user("hello")], "tools": [], "context": [],
        "forwardedProps": {"runtime_mode": "chat"}})
}

fn user(content: impl Into<Value>) -> Value {
    json!({"id": "msg-001", "role": "user", "content": content.into()})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = plain();
    body[field] = value;
    body
}

fn with_parts(parts: Vec<Value>) -> Value {
    with("messages", json!([user(parts)]))
}

fn with_time(field: &str, value: Value) -> Value {
    let mut body = plain();
    body["forwardedProps"]["client_time"] = json!({"device_timezone": "America/Los_Angeles",
        "client_now_iso": "2026-03-16T09:12:33-07:00", "client_epoch_ms": 1_773_658_353_000_i64});
    body["forwardedProps"]["client_time"][field] = value;
    body
}

fn image() -> Value {
    json!({"type": "binary", "mimeType": "image/png", "url": "https://storage.example.com/a.png?signature=xxx"})
}

fn read(body: &Value) -> Result<RunInput, InputRefused> {
    RunInput::read(body.to_string().as_bytes(), Form::Queued)
}

fn streamed(body: &Value) -> Result<RunInput, InputRefused> {
    RunInput::read(body.to_string().as_bytes(), Form::Streamed)
}

#[track_caller]
fn accepted(body: &Value) -> RunInput {
    read(body).unwrap_or_else(|refused| panic!("{refused:?}"))
}

#[track_caller]
fn refused(body: &Value, rule: Rule, detail: &str) {
    let refused = read(body).expect_err("refused");
    assert_eq!((refused.rule, &*refused.detail), (rule, detail));
}

const MODE: (Rule, &str) = (Rule::AgentRuntimeModeInvalid, "invalid RunAgentInput.forwardedProps");
const PROPS: (Rule, &str) = (Rule::AgentRunInputInvalid, "invalid RunAgentInput.forwardedProps");

/// What makes an input break a row, and the code and message of the refusal.
type Fault = (fn(&mut Value), Rule, &'static str);

/// One fault per row, in the tables' order.
fn faults() -> Vec<Fault> {
    fn part(body: &mut Value, field: &str, value: Value) {
        let parts = body["messages"][0]["content"].as_array_mut().expect("parts");
        parts[1][field] = value;
    }
    vec![
        (
            |b| b["pad"] = "x".repeat(INPUT_BYTES_MAX).into(),
            Rule::AgentPayloadInvalid,
            "RunAgentInput payload exceeds size limit",
        ),
        (|b| b["threadId"] = "run-001".into(), Rule::AgentSessionIdInvalid, "threadId must be a valid UUID"),
        (|b| b["runId"] = "r".repeat(129).into(), Rule::AgentInvalidRunId, "runId exceeds length limit"),
        (
            |b| {
                let system = json!({"id": "s", "role": "system", "content": ""});
                b["messages"].as_array_mut().expect("an array").extend(vec![system; MESSAGES_MAX]);
            },
            Rule::AgentRunMessagesInvalid,
            "RunAgentInput.messages exceeds limit",
        ),
        (
            |b| b["messages"][0]["content"][0]["text"] = "x".repeat(10_001).into(),
            Rule::AgentRunMessagesInvalid,
            "RunAgentInput user message text exceeds limit",
        ),
        (|b| b["forwardedProps"]["runtime_mode"] = Value::Null, MODE.0, MODE.1),
        (
            |b| b["messages"].as_array_mut().expect("an array").push(user("again")),
            Rule::AgentRunMessagesInvalid,
            "RunAgentInput.messages must contain exactly one user message",
        ),
        (
            |b| {
                let system = json!({"id": "s", "role": "system", "content": ""});
                b["messages"].as_array_mut().expect("an array").insert(0, system);
            },
            Rule::AgentRunMessagesInvalid,
            "RunAgentInput.messages[0].role must be user",
        ),
        (
            |b| part(b, "mimeType", "text/html".into()),
            Rule::AgentRunMessagesInvalid,
            "binary content requires image mimeType",
        ),
        (|b| part(b, "url", Value::Null), Rule::AgentRunMessagesInvalid, "binary content requires url"),
        (|b| part(b, "data", "AAAA".into()), Rule::AgentRunMessagesInvalid, "binary content data is not allowed"),
        (
            |b| {
                let parts = b["messages"][0]["content"].as_array_mut().expect("parts");
                parts.extend(vec![image(); 3]);
            },
            Rule::AgentRunMessagesInvalid,
            "Too many attachments",
        ),
        (
            |b| b["forwardedProps"]["client_time"]["device_timezone"] = "Mars/Olympus".into(),
            Rule::AgentRunInputInvalid,
            "invalid client_time.device_timezone",
        ),
        (
            |b| b["forwardedProps"]["client_time"]["client_now_iso"] = "2026-03-16T09:12:33".into(),
            Rule::AgentRunInputInvalid,
            "invalid client_time.client_now_iso",
        ),
        (
            |b| b["forwardedProps"]["client_time"]["client_epoch_ms"] = json!(0.5),
            Rule::AgentRunInputInvalid,
            "invalid client_time.client_epoch_ms",
        ),
    ]
}

fn full() -> Value {
    let mut body = with_time("client_epoch_ms", json!(0));
    body["messages"][0]["content"] = json!([{"type": "text", "text": "look"}, image()]);
    body
}

#[test]
fn of_two_faults_the_earlier_row_is_reported() {
    assert!(read(&full()).is_ok());
    let faults = faults();
    // Faults of one row can undo a later one; each pair is tried, the later fault put in first.
    for (later_at, (later, ..)) in faults.iter().enumerate() {
        for (earlier, rule, detail) in &faults[..=later_at] {
            let mut body = full();
            later(&mut body);
            // A message put first moves the one that the later faults are in.
            let moves = body["messages"][0]["role"] != "user";
            if moves && detail.contains("text exceeds") {
                continue;
            }
            earlier(&mut body);
            refused(&body, *rule, detail);
        }
    }
}

#[test]
fn the_examples_of_the_protocol_are_accepted() {
    let mut text = plain();
    text["messages"] = json!([user("帮我查一下北京今天的天气")]);
    assert_eq!(accepted(&text).user.expect("a user message").text(), "帮我查一下北京今天的天气");

    let url = "https://storage.example.com/agent-inputs/user-123/image.png?signature=xxx";
    let with_image = with_parts(vec![
        json!({"type": "text", "text": "这张图片里的内容是什么?"}),
        json!({"type": "binary", "mimeType": "image/png", "url": url}),
    ]);
    let image = UserPart::Image { mime_type: Some("image/png".into()), url: url.into() };
    assert_eq!(accepted(&with_image).user.expect("a user message").parts[1], image);

    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "description": "城市名称"}},
        "required": ["city"]});
    let tools = json!([{"name": "get_weather", "description": "获取指定城市的天气信息", "parameters": parameters}]);
    assert_eq!(accepted(&with("tools", tools)).tools[0].parameters, parameters);

    let mut timed = plain();
    timed["forwardedProps"]["client_time"] = json!({"device_timezone": "America/Los_Angeles",
        "client_now_iso": "2026-03-16T09:12:33-07:00", "client_epoch_ms": 1_773_658_353_000_i64});
    let time = accepted(&timed).client_time.expect("a time");
    // Its two clocks do not agree, and are never compared.
    assert_eq!((time.device_timezone.as_str(), time.client_epoch_ms), ("America/Los_Angeles", 1_773_658_353_000));
}

#[test]
fn the_size_is_that_of_the_raw_body() {
    let fill = |bytes: usize| {
        let body = plain().to_string();
        body.clone() + &" ".repeat(bytes - body.len())
    };
    assert!(RunInput::read(fill(INPUT_BYTES_MAX).as_bytes(), Form::Queued).is_ok());
    let refused = RunInput::read(fill(INPUT_BYTES_MAX + 1).as_bytes(), Form::Queued).expect_err("too large");
    assert_eq!(refused.detail, "RunAgentInput payload exceeds size limit");
    let failure = Failure::from(refused);
    assert_eq!((failure.kind, failure.rule_name()), (FailureKind::PayloadTooLarge, Some("AGENT_PAYLOAD_INVALID")));
}

#[test]
fn a_long_transcript_may_come_with_a_resume_of_null() {
    let mut body = with("resume", Value::Null);
    let earlier = json!({"id": "e", "role": "user", "content": "x".repeat(INPUT_BYTES_MAX)});
    body["messages"].as_array_mut().expect("messages").insert(0, earlier);
    assert!(RunInput::read(body.to_string().as_bytes(), Form::Streamed).is_ok());
}

#[test]
fn names_of_threads_and_runs_have_their_limits() {
    assert_eq!(accepted(&with("threadId", THREAD.to_uppercase().into())).thread_id, THREAD);
    for bad in
        [json!("550e8400e29b41d4a716446655440000"), json!(format!("{{{THREAD}}}")), json!(""), json!(7), Value::Null]
    {
        refused(&with("threadId", bad), Rule::AgentSessionIdInvalid, "threadId must be a valid UUID");
    }
    // Characters, not bytes.
    assert_eq!(accepted(&with("runId", "界".repeat(128).into())).run_id.chars().count(), 128);
    refused(&with("runId", "界".repeat(129).into()), Rule::AgentInvalidRunId, "runId exceeds length limit");
    for bad in [json!(""), json!(1), Value::Null] {
        refused(&with("runId", bad), Rule::AgentInvalidRunId, "runId must be a string that is not empty");
    }
}

#[test]
fn messages_have_their_limits() {
    let system = json!({"id": "s", "role": "system", "content": "be brief"});
    let of = |count: usize| {
        let mut messages = vec![user("hello")];
        messages.resize(count, system.clone());
        with("messages", messages.into())
    };
    assert_eq!(accepted(&of(200)).others.len(), 199);
    refused(&of(201), Rule::AgentRunMessagesInvalid, "RunAgentInput.messages exceeds limit");
    refused(&of(0), Rule::AgentRunMessagesInvalid, "RunAgentInput.messages must contain exactly one user message");
    for bad in [json!({}), Value::Null] {
        refused(&with("messages", bad), Rule::AgentRunMessagesInvalid, "RunAgentInput.messages must be an array");
    }
    let first = json!([system, user("hello")]);
    refused(&with("messages", first), Rule::AgentRunMessagesInvalid, "RunAgentInput.messages[0].role must be user");
}

#[test]
fn a_users_text_is_counted_in_characters_over_all_its_parts() {
    let text = |chars: usize| json!({"type": "text", "text": "界".repeat(chars)});
    let too_long = "RunAgentInput user message text exceeds limit";
    assert!(read(&with("messages", json!([user("界".repeat(10_000))]))).is_ok());
    refused(&with("messages", json!([user("界".repeat(10_001))])), Rule::AgentRunMessagesInvalid, too_long);
    assert!(read(&with_parts(vec![text(4_000), text(6_000)])).is_ok());
    refused(&with_parts(vec![text(4_000), text(6_001)]), Rule::AgentRunMessagesInvalid, too_long);
}

#[test]
fn forwarded_props_are_closed_and_ask_for_the_mode() {
    for bad in [Value::Null, json!({}), json!("chat"), json!({"runtime_mode": "x"})] {
        refused(&with("forwardedProps", bad), MODE.0, MODE.1);
    }
    for (word, mode) in [("chat", RuntimeMode::Chat), ("automation", RuntimeMode::Automation)] {
        assert_eq!(accepted(&with("forwardedProps", json!({"runtime_mode": word}))).mode, mode);
    }
    for bad in [
        json!({"runtime_mode": "chat", "locale": "de"}),
        json!({"runtimeMode": "chat"}),
        json!({"runtime_mode": 1}),
        json!({"runtime_mode": "chat", "client_time": "now"}),
        json!({"runtime_mode": "chat", "client_time": {"device_timezone": "UTC", "zone": 1}}),
    ] {
        refused(&with("forwardedProps", bad), PROPS.0, PROPS.1);
    }
    // The top level is open: stock clients send more than the protocol names.
    assert!(read(&with("protocolVersion", "1.0".into())).is_ok());
    assert_eq!(
        accepted(&with("forwardedProps", json!({"runtime_mode": "chat", "client_time": null}))).client_time,
        None
    );
}

#[test]
fn attachments_are_images_by_url_and_three_at_most() {
    let spelled_anew = |source: Value| json!({"type": "image", "source": source});
    let by_url = |mime_type: Value| spelled_anew(json!({"type": "url", "value": "https://x/a", "mimeType": mime_type}));
    let mut snake = json!({"type": "binary", "mime_type": "image/webp", "url": "https://x/b"});
    for good in [image(), by_url("IMAGE/JPEG".into()), by_url(Value::Null), snake.clone()] {
        assert!(read(&with_parts(vec![good.clone()])).is_ok(), "{good}");
    }
    let mime_type = "binary content requires image mimeType";
    snake["mime_type"] = "image/".into();
    for bad in [
        snake,
        json!({"type": "binary", "url": "https://x/a"}),
        by_url("text/plain".into()),
        json!({"type": "audio", "source": {"type": "url", "value": "https://x/a", "mimeType": "image/png"}}),
        json!({"type": "video", "source": {"type": "url", "value": "https://x/a"}}),
        json!({"type": "document", "source": {"type": "url", "value": "https://x/a"}}),
    ] {
        refused(&with_parts(vec![bad]), Rule::AgentRunMessagesInvalid, mime_type);
    }
    for bad in [
        json!({"type": "binary", "mimeType": "image/png"}),
        json!({"type": "binary", "mimeType": "image/png", "url": ""}),
        spelled_anew(json!({"type": "data", "value": "AAAA", "mimeType": "image/png"})),
        spelled_anew(json!({"type": "file", "value": "file-1"})),
    ] {
        refused(&with_parts(vec![bad]), Rule::AgentRunMessagesInvalid, "binary content requires url");
    }
    let mut data = image();
    data["data"] = "AAAA".into();
    refused(&with_parts(vec![data]), Rule::AgentRunMessagesInvalid, "binary content data is not allowed");
    assert!(read(&with_parts(vec![image(); 3])).is_ok());
    refused(&with_parts(vec![image(); 4]), Rule::AgentRunMessagesInvalid, "Too many attachments");
}

#[test]
fn a_row_is_checked_for_all_parts_before_the_next_row() {
    let without_url = json!({"type": "binary", "mimeType": "image/png"});
    let not_an_image = json!({"type": "binary", "mimeType": "text/plain", "url": "https://x/a"});
    let body = with_parts(vec![without_url, not_an_image]);
    refused(&body, Rule::AgentRunMessagesInvalid, "binary content requires image mimeType");
}

#[test]
fn a_clients_time_is_a_zone_an_instant_and_a_count() {
    let refuses = |field: &str, bad: Value| {
        refused(&with_time(field, bad), Rule::AgentRunInputInvalid, &format!("invalid client_time.{field}"));
    };
    assert_eq!(
        accepted(&with_time("device_timezone", "europe/berlin".into())).client_time.expect("a time").device_timezone,
        "Europe/Berlin"
    );
    for bad in [json!("Mars/Olympus"), json!("+02:00"), json!(""), json!(2), Value::Null] {
        refuses("device_timezone", bad);
    }
    for good in ["2026-03-16T16:12:33Z", "2026-03-16t16:12:33.123456z", "2026-12-31T23:59:59+14:00"] {
        assert!(read(&with_time("client_now_iso", good.into())).is_ok(), "{good}");
    }
    for bad in [
        "2026-03-16T09:12:33",
        "2026-03-16",
        "2026-03-16T09:12-07:00",
        "2026-02-30T09:12:33Z",
        "2026-03-16T25:12:33Z",
        "2026-03-16T09:12:33-0700",
        "2026-03-16T09:12:33-07:00[America/Los_Angeles]",
        "2026-03-16T09:12:33.Z",
        "now",
        "",
    ] {
        refuses("client_now_iso", bad.into());
    }
    refuses("client_now_iso", json!(1_773_658_353));
    for good in [json!(0), json!(-1), json!(1_773_658_353_000.0)] {
        assert!(read(&with_time("client_epoch_ms", good.clone())).is_ok(), "{good}");
    }
    for bad in [json!(0.5), json!("1773658353000"), json!(i64::MAX), json!(1e300), Value::Null] {
        refuses("client_epoch_ms", bad);
    }
}

#[test]
fn snake_case_means_the_same_and_camel_case_wins() {
    let camel = json!({"threadId": THREAD, "runId": "r", "parentRunId": "p", "forwardedProps": {"runtime_mode": "chat"},
        "messages": [user("hello"),
            {"id": "a", "role": "assistant", "content": null, "toolCalls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "encryptedValue": null}]},
            {"id": "t", "role": "tool", "content": "42", "toolCallId": "c"},
            {"id": "v", "role": "activity", "activityType": "plan", "content": {"snake_key": 1}},
            {"id": "d", "role": "developer", "content": "d", "name": null},
            {"id": "r", "role": "reasoning", "content": "hm"}]});
    let text = camel.to_string();
    let mut snake = text.clone();
    for (from, to) in [
        ("threadId", "thread_id"),
        ("runId", "run_id"),
        ("parentRunId", "parent_run_id"),
        ("forwardedProps", "forwarded_props"),
        ("toolCalls", "tool_calls"),
        ("toolCallId", "tool_call_id"),
        ("activityType", "activity_type"),
        ("encryptedValue", "encrypted_value"),
    ] {
        snake = snake.replace(&format!("\"{from}\""), &format!("\"{to}\""));
    }
    assert_ne!(text, snake);
    let (camel, other) = (accepted(&camel), RunInput::read(snake.as_bytes(), Form::Queued).expect("accepted"));
    assert_eq!(camel, other, "with the same hash");
    let InputMessage::Activity { content, .. } = &camel.others[2].message else { panic!("an activity") };
    assert_eq!(content["snake_key"], 1, "what a message holds is not respelled");

    let mut both = with("runId", "camel".into());
    both["run_id"] = "snake".into();
    assert_eq!(accepted(&both).run_id, "camel");
}

#[test]
fn what_has_no_shape_is_named_by_its_place() {
    for (bad, rule, detail) in [
        (
            with("messages", json!([user("a"), {"id": "x", "role": "pope", "content": ""}])),
            Rule::AgentRunMessagesInvalid,
            "[1]",
        ),
        (
            with("messages", json!([user("a"), {"id": "x", "role": "activity", "content": "s"}])),
            Rule::AgentRunMessagesInvalid,
            "[1]",
        ),
        (with("messages", json!([{"role": "user", "content": "no id"}])), Rule::AgentRunMessagesInvalid, "[0]"),
        (with("messages", json!([user(7)])), Rule::AgentRunMessagesInvalid, "[0]"),
        (with_parts(vec![json!({"type": "hologram"})]), Rule::AgentRunMessagesInvalid, "[0]"),
        (with("tools", json!([{"name": 1}])), Rule::AgentRunInputInvalid, "tools"),
        (with("context", json!({})), Rule::AgentRunInputInvalid, "context"),
        (with("resume", json!([{"status": "resolved"}])), Rule::AgentRunInputInvalid, "resume[0]"),
        (
            with("resume", json!([{"interruptId": "p", "status": "maybe"}])),
            Rule::AgentRunInputInvalid,
            "resume[0].status",
        ),
        (with("resume", json!({})), Rule::AgentRunInputInvalid, "resume must be an array"),
        (with("parentRunId", json!(1)), Rule::AgentRunInputInvalid, "parentRunId"),
        (json!([]), Rule::AgentRunInputInvalid, "object"),
    ] {
        let refused = read(&bad).expect_err("refused");
        assert!(refused.rule == rule && refused.detail.contains(detail), "{bad}: {refused:?}");
    }
    let not_json = RunInput::read(b"{", Form::Queued).expect_err("refused");
    assert_eq!(not_json.rule, Rule::AgentRunInputInvalid);
    assert!(accepted(&with("tools", Value::Null)).tools.is_empty());
}

#[test]
fn a_field_without_which_a_message_cannot_be_read_is_named() {
    let call = json!({"id": "c", "function": {"name": "f"}});
    for (fields, detail) in [
        (json!({"role": "tool", "content": "c"}), "[1].toolCallId must be a string"),
        (json!({"role": "tool", "content": "c", "tool_call_id": "c", "error": 5}), "[1].error must be a string"),
        (json!({"role": "assistant", "toolCalls": [call]}), "[1].toolCalls[0].function.arguments must be a string"),
        (json!({"role": "activity", "content": {}}), "[1].activityType must be a string"),
        (json!({"role": "system", "content": ["x"]}), "[1].content must be a string"),
    ] {
        let mut message = fields;
        message["id"] = json!("x");
        let detail = format!("RunAgentInput.messages{detail}");
        refused(&with("messages", json!([user("a"), message])), Rule::AgentRunMessagesInvalid, &detail);
    }
}

#[test]
fn a_message_without_text_or_image_is_refused() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = json!({"type": "image", "source": {"type": "url", "value": "https://x/y.png"}});
    let empty = "RunAgentInput user message has neither text nor an image";
    for content in
        [json!(""), json!(" \n\t\u{3000}"), json!("\u{200b}\u{feff}\u{0}"), json!([]), json!([text(""), text(" ")])]
    {
        refused(
            &with("messages", json!([{"id": "m", "role": "user", "content": content}])),
            Rule::AgentRunMessagesInvalid,
            empty,
        );
    }
    accepted(&with_parts(vec![text(" "), image.clone()]));
    accepted(&with_parts(vec![image]));
    accepted(&with("messages", json!([{"id": "m", "role": "user", "content": "\u{1f44d}\u{fe0f}"}])));
}

#[test]
fn the_same_body_has_the_same_hash_however_it_is_written() {
    let body = plain();
    let spaced = serde_json::to_vec_pretty(&body).expect("JSON");
    let spaced = RunInput::read(&spaced, Form::Queued).expect("accepted");
    assert_eq!(accepted(&body).hash, spaced.hash);
    assert_ne!(accepted(&with("runId", "run-002".into())).hash, spaced.hash);
}
