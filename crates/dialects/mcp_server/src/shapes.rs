//! What the types of requests cannot express in the OpenAPI document: bounds and examples.

use ostler_protocol::mcp_server::{event_ids::EVENT_ID_BYTES_MAX, revisions::McpRevision};
use ostler_server::net::shapes::{Shapes, text, words};
use serde_json::{Value, json};

pub(crate) const SHAPES: Shapes = Shapes { fields, bodies, parameter, finish: |_| {} };

fn fields() -> Vec<(&'static str, Value)> {
    vec![("McpMessage.jsonrpc", words(["2.0"])), ("McpMessage.method", json!({"minLength": 1, "maxLength": 200}))]
}

fn bodies() -> Vec<(&'static str, Value)> {
    let arguments = json!({"profile": "scripted", "prompt": "say hello", "waitMs": 10_000});
    let params = json!({"name": "submit_run", "arguments": arguments});
    vec![("McpMessage", json!({"example": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}}))]
}

fn parameter(path: &str, name: &str) -> Option<Value> {
    if path != "/mcp" {
        return None;
    }
    Some(match name {
        "Last-Event-ID" => text(EVENT_ID_BYTES_MAX),
        "Mcp-Session-Id" => json!({"maxLength": 36, "pattern": "^mcp_[0-9a-f]{32}$"}),
        "MCP-Protocol-Version" => words(McpRevision::ALL.map(McpRevision::as_str)),
        _ => return None,
    })
}
