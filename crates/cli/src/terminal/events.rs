//! Events as one short line each. A payload may contain anything, so every field is read leniently, without control
//! characters.

use std::collections::BTreeMap;

use ostler_protocol::{
    Timestamp,
    ids::{CommandId, RunId},
    kernel::{
        events::{EventType, EventView, PHASE_APPROVAL_DECLINED},
        permissions::resolved_by,
    },
};
use serde_json::Value;

use crate::terminal::{output::line, status::until};

/// The most that is printed of one field.
const FIELD_CHARS_MAX: usize = 200;

/// Describes events in their order. What an event leaves out is taken from earlier ones: whether a turn or a steer has ended,
/// and the name and command of a tool call that ended without them.
#[derive(Default)]
pub(crate) struct EventNarrator {
    /// `turn`, `steer` or `interrupt`.
    commands: BTreeMap<CommandId, String>,
    /// The open tool calls, as they began.
    calls: BTreeMap<(Option<RunId>, String), Value>,
}

impl EventNarrator {
    /// The short text of an event. Only its fields are bounded in width, except the command of a permission request, which is
    /// whole.
    pub(crate) fn summary(&mut self, event: &EventView) -> String {
        let payload = event.payload.to_value();
        if payload.is_null() {
            return "(removed by retention)".into();
        }
        self.note_command(event, &payload);
        let text = match event.event_type {
            EventType::TerminalStatus => words(&[self.ended(event), &describe(event, &payload)]),
            EventType::ToolCall => tool_call(&self.whole_call(event, payload.clone())),
            _ => describe(event, &payload),
        };
        if text.is_empty() { line(&payload.to_string(), FIELD_CHARS_MAX) } else { text }
    }

    fn note_command(&mut self, event: &EventView, payload: &Value) {
        let Some(command_id) = event.command_id else { return };
        let action = field(payload, "action");
        let command_type = match event.event_type {
            EventType::UserMessage => field(payload, "commandType"),
            EventType::Audit => action.strip_prefix("command.").unwrap_or_default().to_owned(),
            _ => return,
        };
        // Other actions, such as a cancel, do not begin a command.
        if matches!(command_type.as_str(), "turn" | "steer" | "interrupt") {
            self.commands.insert(command_id, command_type);
        }
    }

    /// What has ended. Empty if the beginning of the command was not read.
    fn ended(&self, event: &EventView) -> &str {
        match &event.command_id {
            Some(command_id) => self.commands.get(command_id).map_or("", String::as_str),
            None => "run",
        }
    }

    /// The end of a call may carry no details, so those of its start are used.
    fn whole_call(&mut self, event: &EventView, payload: Value) -> Value {
        let key = (event.run_id, field(&payload, "toolCallId"));
        if field(&payload, "status") == "started" {
            self.calls.insert(key, payload.clone());
            return payload;
        }
        let Some(mut call) = self.calls.remove(&key) else { return payload };
        if let (Some(call), Value::Object(end)) = (call.as_object_mut(), payload) {
            call.extend(end.into_iter().filter(|(_, value)| !value.is_null()));
        }
        call
    }
}

fn describe(event: &EventView, payload: &Value) -> String {
    let field = |key: &str| field(payload, key);
    match event.event_type {
        EventType::UserMessage => message_text(payload),
        EventType::AssistantDelta | EventType::ReasoningDelta => delta(payload),
        EventType::AssistantMessage | EventType::Reasoning => field("text"),
        EventType::ToolCall => tool_call(payload),
        EventType::CommandOutput => words(&[&labelled(&field("stream"), ":"), &field("text")]),
        EventType::Step => words(&[&field("name"), &field("status")]),
        EventType::Usage => usage(payload),
        EventType::BackendStatus => backend(payload, event.created_at),
        EventType::Lease => {
            // An expired lease was not ended by its runner.
            let of = if field("state") == "expired" { "of " } else { "by " };
            words(&[&field("state"), &labelled(of, &field("runnerId"))])
        }
        EventType::PermissionRequest => {
            // A person decides about the command, so it is not bounded.
            let command = labelled("(command: ", &labelled(&field_up_to(payload, "command", usize::MAX), ")"));
            words(&[&field("title"), &command, &field("permissionId")])
        }
        EventType::PermissionResolved => words(&[&resolution(payload), &field("permissionId")]),
        EventType::Error => words(&[&labelled(&field("failureKind"), ":"), &field("message")]),
        EventType::TerminalStatus => ending(payload),
        EventType::Audit => words(&[&field("action"), &author(payload), &field("reason")]),
        EventType::Custom => field("name"),
        EventType::Session => session(payload),
        EventType::State | EventType::Activity => String::new(),
    }
}

/// How a permission request was answered or ended: `allowed by operator`, `cancelled: the turn was cancelled`.
pub(crate) fn resolution(payload: &Value) -> String {
    let field = |key: &str| field(payload, key);
    let status = field("status");
    match (field("resolvedBy").as_str(), field("reason")) {
        (resolved_by::CANCEL, _) => format!("{status}: the turn was cancelled"),
        (resolved_by::DEADLINE, _) => format!("{status}: there was no answer before the deadline"),
        (resolved_by::COMMAND_END, _) => format!("{status}: the turn ended"),
        (resolved_by::NEW_ATTEMPT, _) => format!("{status}: another runner took the turn over"),
        (resolved_by::SERVER, reason) if reason.is_empty() => format!("{status} by the server"),
        (resolved_by::SERVER, reason) => format!("{status} by the server: {reason}"),
        (by, _) => words(&[&status, &labelled("by ", by)]),
    }
}

/// `completed`, `failed (backend-failed): the agent fell over`, `cancelled on request`.
fn ending(payload: &Value) -> String {
    let (status, kind, message) = (field(payload, "status"), field(payload, "failureKind"), field(payload, "message"));
    if status == "cancelled" && message.starts_with("cancelled") {
        return message;
    }
    let kind = if kind == status { String::new() } else { labelled("(", &labelled(&kind, ")")) };
    let head = words(&[&status, &kind]);
    if message.is_empty() { head } else { format!("{head}: {message}") }
}

/// `by operator`.
fn author(payload: &Value) -> String {
    match field(payload, "by").as_str() {
        resolved_by::SERVER => "by the server".to_owned(),
        by => labelled("by ", by),
    }
}

/// `shell completed: ls -la (exit 0)`.
pub(crate) fn tool_call(payload: &Value) -> String {
    let field = |key: &str| field(payload, key);
    let name = first(&[field("name"), field("toolName"), field("method"), field("toolCallId")]);
    let what = first(&[field("command"), field("arguments"), field("summary"), field("result")]);
    let head = words(&[&name, &field("status")]);
    let body = if what.is_empty() { head } else { format!("{head}: {what}") };
    words(&[&body, &labelled("(exit ", &labelled(&field("exitCode"), ")"))])
}

/// `approval:declined: touch x (the run's policy is never to ask)`.
fn backend(payload: &Value, at: Timestamp) -> String {
    let field = |key: &str| field(payload, key);
    let resumes = field("resumeAt");
    // The wait is relative to the event, as it was when the event was written.
    let resumes = match resumes.parse() {
        Ok(resume_at) => until(resume_at, at),
        Err(_) => labelled("until ", &resumes),
    };
    let phase = words(&[&field("phase"), &resumes]);
    match field("phase").as_str() {
        PHASE_APPROVAL_DECLINED => declined(&phase, payload),
        _ => words(&[&phase, &labelled("(", &labelled(&field("message"), ")"))]),
    }
}

/// A request that was declined by policy, and the reason.
pub(crate) fn declined(head: &str, payload: &Value) -> String {
    let (command, reason) = (field(payload, "command"), field(payload, "reason"));
    let what = if command.is_empty() { head.to_owned() } else { format!("{head}: {command}") };
    words(&[&what, &labelled("(", &labelled(&reason, ")"))])
}

/// White space is printed as an escaped string: some deltas consist of nothing else.
fn delta(payload: &Value) -> String {
    let text = field(payload, "delta");
    let raw = payload.get("delta").and_then(Value::as_str).unwrap_or_default();
    if text.is_empty() && !raw.is_empty() { format!("{raw:?}") } else { text }
}

/// `renamed to Tuesday by operator`.
fn session(payload: &Value) -> String {
    let field = |key: &str| field(payload, key);
    let title = match (field("change").as_str(), field("title")) {
        ("renamed", title) if title.is_empty() => "to no title".into(),
        ("renamed", title) => format!("to {title}"),
        (_, title) => title,
    };
    let thread = labelled("thread ", &field("threadId"));
    let note = payload.get("data").map(|data| first(&[self::field(data, "message"), field("note")]));
    words(&[&field("change"), &title, &thread, &note.unwrap_or_default(), &author(payload)])
}

fn usage(payload: &Value) -> String {
    let tokens = |key: &str| payload.get(key).and_then(Value::as_i64);
    let sum = || tokens("inputTokens").unwrap_or(0) + tokens("outputTokens").unwrap_or(0);
    words(&[&field(payload, "model"), &format!("{} tokens", tokens("totalTokens").unwrap_or_else(sum))])
}

fn message_text(payload: &Value) -> String {
    let parts = ["content", "parts"].iter().find_map(|key| payload.get(*key)?.as_array());
    let joined = parts.map(|parts| parts.iter().map(|part| field(part, "text")).collect::<Vec<_>>().join(" "));
    first(&[joined.unwrap_or_default(), field(payload, "text"), field(payload, "content"), field(payload, "prompt")])
}

/// A field as text: strings as they are, anything else as JSON, nothing for null.
pub(crate) fn field(payload: &Value, key: &str) -> String {
    field_up_to(payload, key, FIELD_CHARS_MAX)
}

/// As [`field`], with another bound.
fn field_up_to(payload: &Value, key: &str, chars_max: usize) -> String {
    match payload.get(key) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => line(text, chars_max),
        Some(other) => line(&other.to_string(), chars_max),
    }
}

fn first(texts: &[String]) -> String {
    texts.iter().find(|text| !text.is_empty()).cloned().unwrap_or_default()
}

fn words(texts: &[&str]) -> String {
    texts.iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join(" ")
}

/// Both parts, or nothing if one is empty.
fn labelled(before: &str, after: &str) -> String {
    if before.is_empty() || after.is_empty() { String::new() } else { format!("{before}{after}") }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use ostler_protocol::RawJson;

    use super::*;

    pub(crate) fn id<T: std::str::FromStr>(prefix: &str, number: u32) -> T
    where
        T::Err: std::fmt::Debug,
    {
        format!("{prefix}{number:032x}").parse().unwrap()
    }

    pub(crate) fn event(seq: i64, event_type: EventType, payload: Value) -> EventView {
        EventView {
            seq: Some(seq),
            run_id: Some(id("run_", 1)),
            session_seq: seq,
            event_type,
            command_id: Some(id("cmd_", 1)),
            created_at: "2030-01-02T03:04:05.678Z".parse().unwrap(),
            payload: RawJson::of(&payload),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{fixtures::event, *};

    #[test]
    fn every_type_is_printed_as_one_line() {
        use EventType::*;
        for (event_type, payload, text) in [
            (UserMessage, json!({"messageId": "m", "content": [{"type": "text", "text": "do\nit"}]}), "do it"),
            (UserMessage, json!({"text": "do it"}), "do it"),
            (AssistantDelta, json!({"delta": "he"}), "he"),
            (AssistantMessage, json!({"text": "hello"}), "hello"),
            (
                ToolCall,
                json!({"name": "shell", "status": "completed", "command": "ls", "exitCode": 0}),
                "shell completed: ls (exit 0)",
            ),
            (
                ToolCall,
                json!({"toolCallId": "t1", "status": "started", "arguments": {"a": 1}}),
                r#"t1 started: {"a":1}"#,
            ),
            (CommandOutput, json!({"stream": "stdout", "text": "x\ny"}), "stdout: x y"),
            (Usage, json!({"inputTokens": 3, "outputTokens": 4}), "7 tokens"),
            (BackendStatus, json!({"phase": "thread/started"}), "thread/started"),
            (
                BackendStatus,
                json!({"phase": "approval:declined", "command": "touch x", "reason": "never asks"}),
                "approval:declined: touch x (never asks)",
            ),
            (
                BackendStatus,
                json!({"phase": "waiting-provider", "resumeAt": "2030-01-02T03:04:25.678456789Z", "message": "busy"}),
                "waiting-provider until 03:04:25 UTC (in 20s) (busy)",
            ),
            (BackendStatus, json!({"phase": "waiting-provider", "resumeAt": "soon"}), "waiting-provider until soon"),
            (Lease, json!({"state": "claimed", "runnerId": "r1"}), "claimed by r1"),
            (
                PermissionRequest,
                json!({"permissionId": "prm_1", "title": "Go on?", "command": "make"}),
                "Go on? (command: make) prm_1",
            ),
            (PermissionResolved, json!({"permissionId": null, "status": "denied", "resolvedBy": "a"}), "denied by a"),
            (
                PermissionResolved,
                json!({"permissionId": "prm_1", "status": "cancelled", "resolvedBy": "cancelled on request"}),
                "cancelled: the turn was cancelled prm_1",
            ),
            (
                PermissionResolved,
                json!({"status": "cancelled", "resolvedBy": "deadline"}),
                "cancelled: there was no answer before the deadline",
            ),
            (
                PermissionResolved,
                json!({"status": "cancelled", "resolvedBy": "another attempt"}),
                "cancelled: another runner took the turn over",
            ),
            (
                PermissionResolved,
                json!({"status": "denied", "resolvedBy": "manager", "reason": "it is over-long"}),
                "denied by the server: it is over-long",
            ),
            (Error, json!({"failureKind": "internal", "message": "oh"}), "internal: oh"),
            (TerminalStatus, json!({"status": "completed", "failureKind": null}), "completed"),
            (
                TerminalStatus,
                json!({"status": "failed", "failureKind": "internal", "message": "m"}),
                "failed (internal): m",
            ),
            (
                TerminalStatus,
                json!({"status": "cancelled", "failureKind": "cancelled", "message": "cancelled on request: too dear"}),
                "cancelled on request: too dear",
            ),
            (Session, json!({"change": "evicted", "by": "manager"}), "evicted by the server"),
            (AssistantDelta, json!({"delta": " \n"}), r#"" \n""#),
            (Lease, json!({"state": "expired", "runnerId": "r1"}), "expired of r1"),
            (Session, json!({"change": "renamed", "title": "x", "by": "operator"}), "renamed to x by operator"),
            (Session, json!({"change": "renamed", "title": null, "by": "ada"}), "renamed to no title by ada"),
            (Session, json!({"change": "closed", "by": "ada"}), "closed by ada"),
            (Session, json!({"threadId": "t1"}), "thread t1"),
            (Session, json!({"other": "x"}), r#"{"other":"x"}"#),
            (Custom, json!({}), "{}"),
            (AssistantMessage, Value::Null, "(removed by retention)"),
        ] {
            assert_eq!(EventNarrator::default().summary(&event(1, event_type, payload)), text);
        }
    }

    #[test]
    fn the_command_of_a_permission_request_is_whole() {
        let command = "x".repeat(2 * FIELD_CHARS_MAX);
        let request = json!({"permissionId": "prm_1", "title": "Go on?", "command": command});
        let summary = EventNarrator::default().summary(&event(1, EventType::PermissionRequest, request));
        assert_eq!(summary, format!("Go on? (command: {command}) prm_1"));
    }

    #[test]
    fn an_end_names_what_has_ended() {
        let mut narrator = EventNarrator::default();
        let mut steer = event(2, EventType::UserMessage, json!({"commandType": "steer", "text": "left"}));
        steer.command_id = Some(fixtures::id("cmd_", 2));
        narrator.summary(&event(1, EventType::UserMessage, json!({"commandType": "turn", "text": "go"})));
        narrator.summary(&steer);
        let mut end = event(3, EventType::TerminalStatus, json!({"status": "completed"}));
        assert_eq!(narrator.summary(&end), "turn completed");
        end.command_id = steer.command_id;
        assert_eq!(narrator.summary(&end), "steer completed");
        end.command_id = None;
        assert_eq!(narrator.summary(&end), "run completed");
        narrator.summary(&event(4, EventType::Audit, json!({"action": "command.cancel", "by": "operator"})));
        let cancelled = json!({"status": "cancelled", "failureKind": "cancelled", "message": "cancelled on request"});
        assert_eq!(narrator.summary(&event(5, EventType::TerminalStatus, cancelled)), "turn cancelled on request");
    }

    #[test]
    fn a_tool_call_without_a_known_end_is_named_by_its_start() {
        let mut narrator = EventNarrator::default();
        let began = json!({"toolCallId": "t", "name": "shell", "status": "started", "command": "make build"});
        narrator.summary(&event(1, EventType::ToolCall, began));
        let end = json!({"toolCallId": "t", "status": "outcome-unknown", "name": null});
        assert_eq!(narrator.summary(&event(2, EventType::ToolCall, end)), "shell outcome-unknown: make build");
    }
}
