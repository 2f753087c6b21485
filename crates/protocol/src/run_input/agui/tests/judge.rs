//! The rules of AG-UI 1.0's own client, stated once more and apart from ours: over JSON, as a client sees it, by the
//! client's shapes and its verifier. It accepts a stream or returns the reason for which a client would abort it.

use std::collections::HashSet;

use serde_json::{Map, Value};

type Check = Result<(), String>;

/// Text, number, object, list, or anything at all. A `?` makes a field optional, and null is never a value for it.
const SHAPES: [(&str, &str); 23] = [
    ("RUN_STARTED", "threadId:s runId:s protocolVersion:s?"),
    ("RUN_FINISHED", "threadId:s runId:s outcome:o? usage:l?"),
    ("RUN_ERROR", "message:s code:s? usage:l?"),
    ("STEP_STARTED", "stepName:s"),
    ("STEP_FINISHED", "stepName:s"),
    ("TEXT_MESSAGE_START", "messageId:s role:s?"),
    ("TEXT_MESSAGE_CONTENT", "messageId:s delta:s"),
    ("TEXT_MESSAGE_END", "messageId:s"),
    ("TOOL_CALL_START", "toolCallId:s toolCallName:s"),
    ("TOOL_CALL_ARGS", "toolCallId:s delta:s"),
    ("TOOL_CALL_END", "toolCallId:s"),
    ("TOOL_CALL_RESULT", "messageId:s toolCallId:s content:s role:s?"),
    ("STATE_SNAPSHOT", "snapshot:a"),
    ("STATE_DELTA", "delta:l"),
    ("MESSAGES_SNAPSHOT", "messages:l"),
    ("ACTIVITY_SNAPSHOT", "messageId:s activityType:s content:o"),
    ("ACTIVITY_DELTA", "messageId:s activityType:s patch:l"),
    ("REASONING_START", "messageId:s"),
    ("REASONING_MESSAGE_START", "messageId:s role:s"),
    ("REASONING_MESSAGE_CONTENT", "messageId:s delta:s"),
    ("REASONING_MESSAGE_END", "messageId:s"),
    ("REASONING_END", "messageId:s"),
    ("CUSTOM", "name:s value:a"),
];

fn fits(kind: &str, value: &Value) -> bool {
    match kind {
        "s" => value.is_string(),
        "n" => value.is_i64() || value.is_u64(),
        "o" => value.is_object(),
        "l" => value.is_array(),
        _ => true,
    }
}

fn shape(event: &Map<String, Value>, fields: &str) -> Check {
    let fields = format!("type:s timestamp:n? metadata:o? {fields}");
    let fields: Vec<(&str, &str)> = fields.split(' ').map(|field| field.split_once(':').expect("a kind")).collect();
    for (name, kind) in &fields {
        let (kind, optional) = (kind.trim_end_matches('?'), kind.ends_with('?'));
        match event.get(*name) {
            None if optional => {}
            Some(value) if fits(kind, value) => {}
            other => return Err(format!("{name} is {other:?}")),
        }
    }
    // A client strips what it does not know, with a warning; we give it nothing to strip.
    match event.keys().find(|key| fields.iter().all(|(name, _)| name != key)) {
        Some(unknown) => Err(format!("{unknown} is unknown")),
        None => Ok(()),
    }
}

fn patch(operations: &Value) -> Check {
    for operation in operations.as_array().into_iter().flatten() {
        let pointer = |name: &str| match operation[name].as_str() {
            Some("") => true,
            Some(text) => text.starts_with('/') && !text.replace("~0", "").replace("~1", "").contains('~'),
            None => false,
        };
        let good = match operation["op"].as_str() {
            Some("add" | "replace" | "test") => pointer("path") && operation.get("value").is_some(),
            Some("remove") => pointer("path"),
            Some("move" | "copy") => pointer("path") && pointer("from"),
            _ => false,
        };
        if !good {
            return Err(format!("{operation} is no operation"));
        }
    }
    Ok(())
}

fn outcome(outcome: &Value) -> Check {
    match outcome["type"].as_str() {
        Some("success" | "cancelled") if outcome.as_object().is_some_and(|fields| fields.len() == 1) => Ok(()),
        Some("interrupt") => {
            let interrupts = outcome["interrupts"].as_array().filter(|list| !list.is_empty()).ok_or("no interrupts")?;
            for interrupt in interrupts {
                let optional = [("toolCallId", "s"), ("responseSchema", "o"), ("expiresAt", "s"), ("metadata", "o")];
                let good = ["id", "reason", "message"].iter().all(|name| interrupt[*name].is_string())
                    && optional.iter().all(|(name, kind)| interrupt.get(*name).is_none_or(|value| fits(kind, value)));
                if !good {
                    return Err(format!("{interrupt} is no interrupt"));
                }
            }
            Ok(())
        }
        _ => Err(format!("{outcome} is no outcome")),
    }
}

fn usage(entries: &Value) -> Check {
    for (name, value) in entries.as_array().into_iter().flatten().filter_map(Value::as_object).flatten() {
        let good = match name.as_str() {
            "provider" | "model" => value.is_string(),
            _ => value.as_u64().is_some_and(|count| count <= 9_007_199_254_740_991),
        };
        if !good {
            return Err(format!("usage: {name} is {value}"));
        }
    }
    Ok(())
}

/// The tool calls that the messages hold.
fn calls(messages: &Value) -> Result<Vec<String>, String> {
    let mut calls = vec![];
    for message in messages.as_array().into_iter().flatten() {
        let (id, role, content) = (&message["id"], message["role"].as_str(), message.get("content"));
        let fits = id.is_string()
            && match role {
                Some("user") => content.is_some_and(|content| content.is_string() || content.is_array()),
                Some("assistant") => content.is_none_or(Value::is_string),
                Some("tool") => content.is_some_and(Value::is_string) && message["toolCallId"].is_string(),
                _ => false,
            };
        let made: Vec<_> = message["toolCalls"].as_array().into_iter().flatten().collect();
        let call_fits = |call: &&Value| {
            call["type"] == "function"
                && call["function"]["name"].is_string()
                && call["function"]["arguments"]
                    .as_str()
                    .is_some_and(|text| serde_json::from_str::<Value>(text).is_ok())
        };
        if !fits || !made.iter().all(call_fits) {
            return Err(format!("{message} is no message"));
        }
        calls.extend(made.iter().filter_map(|call| call["id"].as_str().map(str::to_owned)));
    }
    Ok(calls)
}

/// What has a beginning and an end: by its start, what continues it, its end, and the field that names it.
const PAIRS: [(&str, &str, &str, &str); 5] = [
    ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "messageId"),
    ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "toolCallId"),
    ("REASONING_START", "", "REASONING_END", "messageId"),
    ("REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END", "messageId"),
    ("STEP_STARTED", "", "STEP_FINISHED", "stepName"),
];

#[derive(Default)]
pub(super) struct Judge {
    begun: bool,
    ended: bool,
    open: HashSet<(&'static str, String)>,
    /// Tool calls that the stream itself has announced, or shown in a snapshot. Clients accept results of other calls; ours
    /// must not have any.
    calls: HashSet<String>,
}

impl Judge {
    pub(super) fn receive(&mut self, event: &Value) -> Check {
        let of_type = event["type"].as_str().unwrap_or_default();
        let describe = |reason: String| format!("{event}: {reason}");
        let (_, fields) =
            SHAPES.iter().find(|(name, _)| *name == of_type).ok_or_else(|| describe("unknown type".into()))?;
        shape(event.as_object().expect("an object"), fields).map_err(describe)?;
        patch(&event["delta"]).and_then(|()| patch(&event["patch"])).map_err(describe)?;
        usage(&event["usage"]).map_err(describe)?;
        self.sequence(event, of_type).map_err(describe)
    }

    fn sequence(&mut self, event: &Value, of_type: &str) -> Check {
        if self.ended {
            return Err("after the end".into());
        }
        if !self.begun && !matches!(of_type, "RUN_STARTED" | "RUN_ERROR") {
            return Err("before the start".into());
        }
        match of_type {
            "RUN_STARTED" if self.begun => return Err("a second start".into()),
            "RUN_FINISHED" => {
                outcome(&event["outcome"])?;
                if !self.open.is_empty() {
                    return Err(format!("still open: {:?}", self.open));
                }
            }
            _ => {}
        }
        match of_type {
            "TOOL_CALL_START" => drop(self.calls.insert(event["toolCallId"].as_str().unwrap_or_default().to_owned())),
            "MESSAGES_SNAPSHOT" => self.calls.extend(calls(&event["messages"])?),
            "TOOL_CALL_RESULT" if !self.calls.contains(event["toolCallId"].as_str().unwrap_or_default()) => {
                return Err("a result of an unknown call".into());
            }
            _ => {}
        }
        self.begun = true;
        self.ended = matches!(of_type, "RUN_FINISHED" | "RUN_ERROR");
        for (start, content, end, name) in PAIRS {
            let thing = || (start, event[name].as_str().unwrap_or_default().to_owned());
            let fits = match of_type {
                of_type if of_type == start => self.open.insert(thing()),
                of_type if of_type == content => self.open.contains(&thing()),
                of_type if of_type == end => self.open.remove(&thing()),
                _ => true,
            };
            if !fits {
                return Err(format!("{:?} is, or is not, open", thing()));
            }
        }
        Ok(())
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}
