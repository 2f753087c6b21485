//! The front end's tools of a run: what they may be. They are stored with the run and offered to its agent, so they are bounded
//! as a model's endpoint bounds them.

use serde_json::{Map, Value, json};

use super::refused::InputRefused;
use crate::{
    Rule,
    json::text_of,
    kernel::front_end::FrontEndTool,
    text::clip,
    tools::{SchemaBudget, SchemaSize},
};

pub const TOOLS_MAX: usize = 64;
pub const TOOL_NAME_CHARS_MAX: usize = 64;
pub const TOOL_DESCRIPTION_CHARS_MAX: usize = 4_096;
pub const TOOL_SCHEMA_BYTES_MAX: usize = 16 * 1024;
/// How deep a tool's parameters may be nested, as JSON.
const SCHEMA_DEPTH_MAX: usize = 32;
/// What the parameters of all tools of a run may add up to, with what their references refer to. Each is compiled to find out
/// whether it can be checked.
const SCHEMAS_MAX: SchemaSize = SchemaSize { nodes: 16_000, bytes: 1024 * 1024, patterns: 128 };

/// A tool as a front end sends it.
struct InputTool {
    name: String,
    description: String,
    parameters: Value,
    metadata: Map<String, Value>,
}

/// Reads the members of a tool. One that this server has no meaning for is rejected by name: it would be missing when the run is
/// replayed.
fn read_members(value: Value, index: usize) -> Result<InputTool, InputRefused> {
    let Value::Object(mut members) = value else {
        let detail = format!("RunAgentInput.tools[{index}] must be an object");
        return Err(InputRefused::new(Rule::AgentRunInputInvalid, detail));
    };
    let mut text = |name: &str| match members.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(fault(index, name, "must be a string")),
    };
    let (name, description) = (text("name")?, text("description")?);
    let parameters = members.remove("parameters").unwrap_or_default();
    let metadata = match members.remove("metadata") {
        None => Map::new(),
        Some(Value::Object(metadata)) => metadata,
        Some(_) => return Err(fault(index, "metadata", "must be an object")),
    };
    match members.keys().next() {
        Some(unknown) => Err(fault(index, &clip(unknown, TOOL_NAME_CHARS_MAX), "is not a member of a tool")),
        None => Ok(InputTool { name, description, parameters, metadata }),
    }
}

/// Checks the tools of a run.
pub(super) fn read_tools(tools: Vec<Value>) -> Result<Vec<FrontEndTool>, InputRefused> {
    if tools.len() > TOOLS_MAX {
        let detail = format!("RunAgentInput.tools has more than {TOOLS_MAX} tools");
        return Err(InputRefused::new(Rule::AgentRunInputInvalid, detail));
    }
    let mut read: Vec<FrontEndTool> = vec![];
    let mut budget = SchemaBudget::new(SCHEMAS_MAX);
    for (index, tool) in tools.into_iter().enumerate() {
        let tool = read_tool(read_members(tool, index)?, index, &mut budget)?;
        if read.iter().any(|other| other.name == tool.name) {
            return Err(fault(index, "name", &format!("\"{}\" is given twice", tool.name)));
        }
        read.push(tool);
    }
    Ok(read)
}

fn read_tool(tool: InputTool, index: usize, budget: &mut SchemaBudget) -> Result<FrontEndTool, InputRefused> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !(1..=TOOL_NAME_CHARS_MAX).contains(&tool.name.len()) || !tool.name.bytes().all(is_name) {
        let bound = format!("must be 1 to {TOOL_NAME_CHARS_MAX} letters, digits, hyphens and underscores");
        return Err(fault(index, "name", &bound));
    }
    if tool.description.chars().count() > TOOL_DESCRIPTION_CHARS_MAX {
        return Err(fault(index, "description", &format!("exceeds {TOOL_DESCRIPTION_CHARS_MAX} characters")));
    }
    let parameters = match tool.parameters {
        Value::Null => json!({"type": "object", "properties": {}}),
        given => given,
    };
    let is_of_object = parameters.is_object() && parameters.get("type").is_none_or(|of| of == "object");
    if !is_of_object {
        return Err(fault(index, "parameters", "must be the JSON Schema of an object"));
    }
    if text_of(&parameters).len() > TOOL_SCHEMA_BYTES_MAX || depth(&parameters) > SCHEMA_DEPTH_MAX {
        let bound =
            format!("exceeds {TOOL_SCHEMA_BYTES_MAX} bytes, or is nested deeper than {SCHEMA_DEPTH_MAX} levels");
        return Err(fault(index, "parameters", &bound));
    }
    let tool = FrontEndTool { name: tool.name, description: tool.description, parameters, metadata: tool.metadata };
    if !tool.has_valid_schema(budget) {
        let fault_text =
            "is not a JSON Schema that this server can check, or too large together with those of the other tools";
        return Err(fault(index, "parameters", fault_text));
    }
    Ok(tool)
}

/// Rejects a front end's tool that has the name of a server's tool: a call would not say which of the two it means.
pub fn check_conflicts<'a>(
    tools: &[FrontEndTool],
    server_tools: impl IntoIterator<Item = &'a str>,
) -> Result<(), InputRefused> {
    for name in server_tools {
        if let Some(index) = tools.iter().position(|tool| tool.name == name) {
            return Err(fault(index, "name", &format!("\"{name}\" is the name of a tool of this server")));
        }
    }
    Ok(())
}

fn fault(index: usize, field: &str, what: &str) -> InputRefused {
    InputRefused::new(Rule::AgentRunInputInvalid, format!("RunAgentInput.tools[{index}].{field} {what}"))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
