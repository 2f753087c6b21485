//! Tools as a server lists them, made fit to be shown: without its secrets, and with the reason for which one cannot be offered.

use ostler_protocol::{
    mcp::tools::McpTool,
    tools::{ToolDefinition, ToolOrigin},
};
use serde_json::{Map, Value};

use crate::app::App;

/// The tool without the server's secrets, which it may repeat in its texts. One that the toolkit cannot offer has the reason.
pub(super) fn checked(app: &App, server: &str, tool: &McpTool) -> McpTool {
    let mut tool = redacted(app, tool);
    if tool.invalid_reason.is_none()
        && let Some(schema) = tool.schema.clone()
    {
        let defined = ToolDefinition::new(ToolOrigin::Mcp(server.to_owned()), &tool.name, "", schema);
        tool.invalid_reason = defined.err().map(|problem| problem.to_string());
    }
    tool
}

fn redacted(app: &App, tool: &McpTool) -> McpTool {
    let object = |members: &Map<String, Value>| -> Option<Map<String, Value>> {
        let text = ostler_protocol::json::text_of(members);
        serde_json::from_str(&app.redactor.redact_json(&text)).ok()
    };
    McpTool {
        name: app.redactor.redact(&tool.name).into_owned(),
        server_tool_name: app.redactor.redact(&tool.server_tool_name).into_owned(),
        description: tool.description.as_ref().map(|text| app.redactor.redact(text).into_owned()),
        schema: tool.schema.as_ref().and_then(object),
        annotations: tool.annotations.as_ref().and_then(object),
        invalid_reason: tool.invalid_reason.clone(),
    }
}
