//! Tools as a server lists them, made fit to be shown: without its secrets, and with the reason for which one cannot be offered.

use ostler_protocol::{
    mcp::tools::{McpTool, SCHEMAS_BYTES_MAX},
    tools::{SchemaBudget, SchemaSize, ToolDefinition, ToolOrigin},
};
use serde_json::{Map, Value};

use crate::app::App;

/// What the schemas of all tools of one server may add up to, with what their references refer to. A part of a compiled schema
/// takes up to a kilobyte, and a pattern up to half a megabyte.
const SCHEMAS_MAX: SchemaSize = SchemaSize { nodes: 32_000, bytes: 4 * SCHEMAS_BYTES_MAX, patterns: 512 };

/// The tools without the server's secrets, which it may repeat in its texts. One that the toolkit cannot offer has the reason.
/// Schemas are compiled to find this out, which takes up to seconds for those of a hostile server.
pub(super) fn checked(app: &App, server: &str, tools: &[McpTool]) -> Vec<McpTool> {
    let mut budget = SchemaBudget::new(SCHEMAS_MAX);
    let checked = tools.iter().map(|tool| {
        let mut tool = redacted(app, tool);
        if tool.invalid_reason.is_none()
            && let Some(schema) = tool.schema.clone()
        {
            tool.invalid_reason = problem(server, &tool.name, schema, &mut budget);
        }
        tool
    });
    checked.collect()
}

/// Why a tool cannot be offered. What is compiled is dropped again: few tools are called.
fn problem(server: &str, tool: &str, schema: Map<String, Value>, budget: &mut SchemaBudget) -> Option<String> {
    let defined = match ToolDefinition::new(ToolOrigin::Mcp(server.to_owned()), tool, "", schema) {
        Ok(defined) => defined,
        Err(problem) => return Some(problem.to_string()),
    };
    if !budget.take(defined.schema_size()) {
        return Some("the schemas of all tools of the server are too large together".to_owned());
    }
    defined.compile_schema().err().map(|problem| problem.to_string())
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
