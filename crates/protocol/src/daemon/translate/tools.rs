//! Tool calls. A call is announced when it starts, and updated by its output and its end.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::context::{named, picked};
use crate::kernel::permissions::{CallLocation, FileDiff};

/// What editors distinguish in a call.
const KINDS: [&str; 10] =
    ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];

pub(super) fn call(payload: &Value) -> Value {
    let status = payload["status"].as_str().unwrap_or_default();
    let is_start = status == "started";
    let name = tool_name(payload);
    let kind = if is_start { "tool_call" } else { "tool_call_update" };
    let mut update = json!({"sessionUpdate": kind, "toolCallId": payload["toolCallId"].as_str().unwrap_or_default(),
        "status": call_status(status)});
    // The end of a call that its runner could not report names nothing but the call.
    if let Some(title) = payload["command"].as_str().or(name) {
        update["title"] = title.into();
        update["kind"] = call_kind(payload).into();
    }
    if let Some(input) = raw_input(payload) {
        update["rawInput"] = input;
    }
    if !is_start && let Some(output) = raw_output(payload) {
        update["rawOutput"] = output;
    }
    let locations = locations(payload);
    // A call that starts always has both lists. Updates name what has changed.
    if is_start || !locations.is_empty() {
        update["locations"] = json!(locations);
    }
    let diffs: Vec<FileDiff> = entries(payload, "diffs");
    if is_start || !diffs.is_empty() {
        update["content"] = diffs.iter().map(diff_part).collect();
    }
    let mut meta = json!({"ostler": {"status": status}});
    if let Some(name) = name {
        meta["toolName"] = named(name).into();
    }
    update["_meta"] = meta;
    update
}

/// A piece of a call's output. `None` if it belongs to no call.
pub(super) fn output(payload: &Value) -> Option<Value> {
    let tool_call_id = payload["toolCallId"].as_str()?;
    let text = payload["text"].as_str().unwrap_or_default();
    // Updates of ACP replace the content of a call. A client that knows this mark appends instead.
    let mut meta = picked(payload, &["stream", "outputTruncated"]);
    meta.insert("append".into(), true.into());
    Some(json!({"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, "status": "in_progress",
        "content": [{"type": "content", "content": {"type": "text", "text": text}}], "_meta": {"ostler": meta}}))
}

fn call_status(status: &str) -> &'static str {
    match status {
        "completed" => "completed",
        "failed" | "declined" | "outcome-unknown" => "failed",
        _ => "in_progress",
    }
}

fn tool_name(payload: &Value) -> Option<&str> {
    let names = ["name", "toolName", "type"].map(|field| payload[field].as_str().filter(|name| !name.is_empty()));
    names.into_iter().flatten().next()
}

/// A change of a file, as part of a call's content.
pub(super) fn diff_part(diff: &FileDiff) -> Value {
    let FileDiff { path, old_text, new_text, truncated } = diff;
    let mut part = json!({"type": "diff", "path": path, "oldText": old_text, "newText": new_text});
    if *truncated {
        part["_meta"] = json!({"ostler": {"truncated": true}});
    }
    part
}

/// The kind as editors know it.
pub(super) fn known_kind(name: &str) -> &'static str {
    KINDS.into_iter().find(|kind| *kind == name).unwrap_or("other")
}

/// The files that the call concerns: those that the backend lists, else those that it has changed.
fn locations(payload: &Value) -> Vec<CallLocation> {
    let listed: Vec<CallLocation> = entries(payload, "locations");
    if !listed.is_empty() {
        return listed;
    }
    entries::<String>(payload, "files").into_iter().map(|path| CallLocation { path, line: None }).collect()
}

/// The entries of a list in the payload. None if they have another shape.
fn entries<T: DeserializeOwned>(payload: &Value, name: &str) -> Vec<T> {
    Vec::deserialize(&payload[name]).unwrap_or_default()
}

/// What the call returned: as the backend reports it, or the facts that are known of its end.
fn raw_output(payload: &Value) -> Option<Value> {
    if let Some(output) = payload.get("rawOutput").filter(|output| !output.is_null()) {
        return Some(output.clone());
    }
    let facts = picked(payload, &["exitCode", "durationMs", "resultSummary"]);
    (!facts.is_empty()).then(|| facts.into())
}

pub(super) fn call_kind(payload: &Value) -> &'static str {
    let tool_type = payload["type"].as_str().unwrap_or_default();
    match (tool_type, payload["name"].as_str()) {
        ("commandExecution", _) | (_, Some("shell")) => "execute",
        ("fileChange", _) => "edit",
        ("webSearch", _) => "search",
        ("imageView", _) => "read",
        (tool_type, _) => known_kind(tool_type),
    }
}

/// What the call was given, as JSON if it is JSON. Long arguments are stored shortened, as text.
fn raw_input(payload: &Value) -> Option<Value> {
    match &payload["arguments"] {
        Value::String(text) => Some(serde_json::from_str(text).unwrap_or_else(|_| json!({"arguments": text}))),
        Value::Null => payload["command"].as_str().map(|command| json!({"command": command})),
        other => Some(other.clone()),
    }
}
